"""CIFAR's pickles are read without running anything that is in them."""

from __future__ import annotations

import os
import pickle
import pickletools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedvlm.core.errors import DataError
from fedvlm.data.datasets import load_dataset
from fedvlm.data.formats.cifar import read_cifar
from fedvlm.data.images import ImageLoader
from fedvlm.data.untrusted.pickles import load_restricted
from tests.data.miniatures.own import Spec, config, copy

NAMES = [f"class{i}" for i in range(10)]


def dump(path: Path, content: Any, protocol: int = 2) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(content, protocol=protocol))


def write_cifar10(folder: Path, protocol: int = 2) -> np.ndarray:
    """torchvision's layout with 4 images a batch; returns the first batch's data."""
    rng = np.random.default_rng(0)
    data = {}
    for number, name in enumerate([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]):
        data[name] = rng.integers(0, 256, (4, 3072), dtype=np.uint8)
        labels = [(number * 4 + j) % 10 for j in range(4)]
        dump(folder / name, {"data": data[name], "labels": labels}, protocol)
    dump(folder / "batches.meta", {"label_names": NAMES}, protocol)
    return data["data_batch_1"]


@pytest.mark.parametrize("protocol", [2, 4])
def test_cifar10_pickles(tmp_path: Path, protocol: int) -> None:
    folder = tmp_path / "cifar-10" / "cifar-10-batches-py"
    raw = write_cifar10(folder, protocol)
    data = load_dataset(config(tmp_path, tmp_path / "c", DATASET__NAME="cifar10"))
    assert len(data.train_x) == 20 and len(data.test) == 4 and data.classnames == NAMES
    first = data.train_x[0]
    assert first.key == "cifar-10-batches-py/data_batch_1#0"
    assert first.array is not None and first.array.shape == (32, 32, 3)
    assert np.array_equal(first.array.transpose(2, 0, 1).reshape(-1), raw[0])
    assert any("pickles" in note for note in data.notes)


def test_cifar100_pickles(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name in ("train", "test"):
        rows = {"data": rng.integers(0, 256, (3, 3072), dtype=np.uint8), "fine_labels": [0, 1, 2]}
        dump(tmp_path / "cifar-100-python" / name, rows)
    dump(tmp_path / "cifar-100-python" / "meta", {"fine_label_names": ["x", "y", "z"]})
    tree = read_cifar(tmp_path, copy(tmp_path))
    assert [d.classname for d in tree.parts["test"]] == ["x", "y", "z"]


def test_python2_style_pickle(tmp_path: Path) -> None:
    """The published files come from Python 2: module numpy.core, byte strings as str."""
    array = np.arange(6, dtype=np.uint8).reshape(2, 3)
    raw = pickle.dumps({"data": array}, protocol=0)
    assert b"_reconstruct" in raw
    (tmp_path / "f").write_bytes(raw.replace(b"numpy._core", b"numpy.core"))
    assert np.array_equal(load_restricted(tmp_path / "f")["data"], array)


class Bomb:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def test_code_in_a_pickle_is_not_run(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-10-batches-py"
    write_cifar10(folder)
    dump(folder / "data_batch_3", {"data": Bomb(tmp_path / "ran"), "labels": []})
    with pytest.raises(DataError, match=r"data_batch_3 is not a plain pickle.*asks for"):
        read_cifar(tmp_path, copy(tmp_path))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"not a pickle", b"cbuiltins\neval\n(S'1'\ntR.", b"cnumpy\nndarray\n(I9\ntR.",
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\ndtype\n(I0\ntS'b'\ntR.",
        b"c_codecs\nencode\n(S'x'\nS'zip'\ntR.", b"\x80\x04\x8c\x05numpy\x8c\x04load\x93.",
    ],
)  # fmt: skip
def test_crafted_streams_are_refused(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "f").write_bytes(raw)
    with pytest.raises(DataError, match="is not a plain pickle"):
        load_restricted(tmp_path / "f")


@pytest.mark.parametrize("seed", range(40))
def test_damaged_streams_end_in_an_error_or_in_plain_data(tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    raw = bytearray(pickletools.optimize(pickle.dumps({"data": np.zeros(9, np.uint8)}, 2)))
    for _ in range(3):
        raw[rng.integers(len(raw))] = rng.integers(256)
    (tmp_path / "f").write_bytes(bytes(raw))
    try:
        content = load_restricted(tmp_path / "f")
    except DataError:
        return
    plain = (dict, list, tuple, str, bytes, int, float, np.ndarray, np.generic, np.dtype)
    assert content is None or isinstance(content, plain)


@pytest.mark.parametrize(
    ("batch", "says"),
    [
        ({"labels": [0] * 4}, "no 'data' in it"),
        ({"data": np.zeros((4, 3072), np.float32), "labels": [0] * 4}, "must be a uint8 array"),
        ({"data": np.zeros((4, 10), np.uint8), "labels": [0] * 4}, "must be a uint8 array"),
        ({"data": np.zeros((4, 3072), np.uint8), "labels": [0]}, "a list of 4 labels"),
        ({"data": np.zeros((4, 3072), np.uint8), "labels": [99] * 4}, "from 0 to 9"),
        ([1, 2], "no 'data' in it"),
    ],
)
def test_wrong_content_is_named(tmp_path: Path, batch: Any, says: str) -> None:
    write_cifar10(tmp_path)
    dump(tmp_path / "data_batch_2", batch)
    with pytest.raises(DataError, match=says):
        read_cifar(tmp_path, copy(tmp_path))


def test_unknown_layout(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has no known layout of CIFAR"):
        read_cifar(tmp_path, copy(tmp_path))


def test_loader_reads_arrays(tmp_path: Path) -> None:
    write_cifar10(tmp_path)
    tree = read_cifar(tmp_path, copy(tmp_path))
    loader = ImageLoader(tree.parts["train"], Spec(size=32))
    assert loader.load(0).shape == (3, 32, 32)
    assert len({loader.content_key(i) for i in range(20)}) == 20
