"""The container: what is written is read, by safetensors too; everything else is refused."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from fedvlm.core.errors import DataError
from fedvlm.data.locate import is_pack
from fedvlm.data.packs.file import read_container, write_container
from fedvlm.data.packs.pack import open_pack
from fedvlm.data.packs.place import about_pack
from tests.data.packs.packs import make_pack, resealed

NAME = "x.pack.safetensors"


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_pack(tmp_path_factory.mktemp("pack") / NAME, views=["crop:0", "crop:1"])


def test_safetensors_reads_it_and_two_of_them_are_one_file(pack: Path, tmp_path: Path) -> None:
    tensors = load_file(pack)
    assert tensors["features"].shape == (18, 4) and tensors["view.1"][3, 0] == 203
    assert tensors["labels"].tolist()[:4] == [0, 0, 0, 1]
    assert is_pack(pack)
    again = make_pack(tmp_path / NAME, views=["crop:0", "crop:1"])
    assert again.read_bytes() == pack.read_bytes()
    bare = tmp_path / "without_its_suffix"
    bare.write_bytes(pack.read_bytes())
    assert is_pack(bare) and open_pack(bare).digest == open_pack(pack).digest
    assert not is_pack(tmp_path)


def test_features_lie_at_whole_numbers(pack: Path) -> None:
    assert all(read_container(pack).slots[n].start % 8 == 0 for n in ("features", "labels"))


@pytest.mark.parametrize("at", [0.02, 0.3, 0.6, 0.999])
def test_a_flipped_bit_is_noticed(pack: Path, tmp_path: Path, at: float) -> None:
    raw = bytearray(pack.read_bytes())
    raw[int(at * len(raw))] ^= 1
    path = tmp_path / NAME
    path.write_bytes(raw)
    with pytest.raises(DataError, match=r"damaged|not a feature pack|cannot be used"):
        open_pack(path)


def test_a_digest_of_another_file_is_noticed(pack: Path, tmp_path: Path) -> None:
    raw = pack.read_bytes()
    at = read_container(pack).place
    path = tmp_path / NAME
    path.write_bytes(raw[:at] + b"f" * 64 + raw[at + 64 :])
    with pytest.raises(DataError, match="damaged: its content has sha256 .* says ffffffffffff"):
        open_pack(path)


@pytest.mark.parametrize(("change", "says"), [
    (lambda raw: raw[:-9], "it was cut"),
    (lambda raw: raw + b"1234567", "something was added"),
    (lambda raw: raw[:40], "not a feature pack"),
    (lambda raw: b"", "not a feature pack"),
    (lambda raw: b"\xff" * 100, "not a feature pack"),
    (lambda raw: struct.pack("<Q", 1 << 60) + raw[8:], "not a feature pack"),
    (lambda raw: raw[:8] + b"[" * struct.unpack("<Q", raw[:8])[0], "is no JSON"),
])
def test_cut_and_strange_files(
    pack: Path, tmp_path: Path, change: Callable[[bytes], bytes], says: str
) -> None:
    path = tmp_path / NAME
    path.write_bytes(change(pack.read_bytes()))
    with pytest.raises(DataError, match=says):
        open_pack(path)


Header = dict[str, Any]


def about(header: Header, **changes: Any) -> None:
    said = json.loads(header["__metadata__"]["fedvlm.pack"])
    header["__metadata__"]["fedvlm.pack"] = json.dumps(said | changes)


def without(header: Header, key: str) -> None:
    said = json.loads(header["__metadata__"]["fedvlm.pack"])
    del said[key]
    header["__metadata__"]["fedvlm.pack"] = json.dumps(said)


HOSTILE: dict[str, tuple[Callable[[Header], object], str]] = {
    "overlap": (lambda h: h["features"].update(data_offsets=h["labels"]["data_offsets"]), "lie"),
    "huge": (lambda h: h["features"].update(shape=[1 << 47, 1 << 47]), "lie"),
    "negative": (lambda h: h["features"].update(shape=[-1, 4]), "not described"),
    "deep": (lambda h: h["features"].update(shape=[1] * 5), "not described"),
    "half": (lambda h: h["features"].update(dtype="F16"), "not described"),
    "no row": (lambda h: h.update(features=None), "not described"),
    "no metadata": (lambda h: h["__metadata__"].pop("fedvlm.pack"), "does not describe a pack"),
    "format": (lambda h: about(h, format="fedvlm-pack/9"), "this fedvlm reads fedvlm-pack/1"),
    "key more": (lambda h: about(h, evil=1), "does not say"),
    "key less": (lambda h: without(h, "backbone"), "does not say"),
    "kind": (lambda h: about(h, width="4"), "width is not int"),
    "bool": (lambda h: about(h, batch=True), "batch is not int"),
    "inner": (lambda h: about(h, classnames=["a", 1, "b"]), "classnames is not"),
    "escape": (lambda h: about(h, classnames=["a\x1b[2J", "b", "c"]), "control character"),
    "terminal": (lambda h: about(h, weights="\x1b[2J"), "unprintable"),
    "turned": (lambda h: about(h, name="\u202etac"), "direction"),
    "setting": (lambda h: about(h, settings={"DATASET.DIR": {"a": 1}}), "settings"),
    "share": (lambda h: about(h, settings={"DATASET.TEST_SHARE": "half"}), "is no share"),
    "shares": (lambda h: about(h, settings={"DATASET.TEST_SHARE": [0.3]}), "is no share"),
    "no number": (lambda h: about(h, settings={"DATASET.TEST_SHARE": np.nan}), "is no share"),
    "endless": (lambda h: about(h, settings={"DATASET.TEST_SHARE": 10**400}), "is no share"),
    "foreign key": (lambda h: about(h, settings={"OUTPUT_DIR": "/"}), "settings that are not "
                                                                      "those"),
    "sizes": (lambda h: about(h, sizes=[9, 3, 7]), "not those of"),
    "dtype": (lambda h: about(h, dtype="float16"), "float16"),
    "negative size": (lambda h: about(h, unreadable=[-1, 0, 1]), "sizes that cannot be"),
    "one transform": (lambda h: about(h, views=["crop:0", "crop:0"]), "two views"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_headers(pack: Path, tmp_path: Path, kind: str) -> None:
    change, says = HOSTILE[kind]
    raw = pack.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + length])
    change(header)
    path = resealed(tmp_path / NAME, header, raw[8 + length :])
    with pytest.raises(DataError, match=says) as caught:
        open_pack(path)
    assert str(caught.value).isprintable() and len(str(caught.value)) < 700
    with pytest.raises(DataError):
        about_pack(path)


def test_a_name_twice_is_no_header(pack: Path, tmp_path: Path) -> None:
    raw = pack.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    text = raw[8 : 8 + length].replace(b'"view.1"', b'"view.0"')
    path = tmp_path / NAME
    path.write_bytes(raw[:8] + text + raw[8 + length :])
    with pytest.raises(DataError, match="no JSON"):
        read_container(path)


def test_nothing_is_left_of_a_pack_that_was_not_finished(tmp_path: Path) -> None:
    tensors = [("a", np.dtype("<f4"), (2, 2))]
    short = write_container(tmp_path / NAME, {}, tensors)
    with pytest.raises(RuntimeError, match="8 bytes"), short as out:
        out.add(np.zeros(2, "<f4"))
    with pytest.raises(KeyboardInterrupt), write_container(tmp_path / NAME, {}, tensors):
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []
    left = [tmp_path / f".{NAME}.{pid}.part" for pid in (2**22 + 1, os.getpid())]
    for path in left:  # of a process that was killed, and of one that is at work
        path.write_bytes(b"x")
        os.utime(path, (0, 0))
    with pytest.raises(KeyboardInterrupt), write_container(tmp_path / "other", {}, tensors):
        raise KeyboardInterrupt
    assert all(path.exists() for path in left)
    with pytest.raises(KeyboardInterrupt), write_container(tmp_path / NAME, {}, tensors):
        assert not left[0].exists() and left[1].exists()
        raise KeyboardInterrupt
    nowhere = write_container(tmp_path / "no" / NAME, {}, tensors)
    with pytest.raises(DataError, match="cannot use"), nowhere:
        pass
    with pytest.raises(DataError, match="cannot read the feature pack"):
        open_pack(tmp_path / NAME)
