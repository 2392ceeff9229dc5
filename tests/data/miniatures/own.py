"""Small trees, split files and configs for the tests of the data layer."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from yacs.config import CfgNode

from fedvlm.data.federated import FederatedData
from fedvlm.data.layouts import CopyInfo

SHARED = Path(__file__).resolve().parents[4] / "shared" / "data"


def shared(folder: str) -> Path:
    """The path of a folder of ../shared/data; skips the test where it is absent."""
    path = SHARED / folder
    if not path.exists():
        pytest.skip(f"{path} is not on this machine")
    return path


@dataclass(frozen=True)
class Spec:
    """A transform spec of plain values, as a backbone gives."""

    size: int = 16
    mean: tuple[float, ...] = (0.48, 0.46, 0.41)
    std: tuple[float, ...] = (0.27, 0.26, 0.28)
    interpolation: str = "bicubic"
    resize_mode: str = "shortest"


def copy(images: Path, *files: Path, **more: Any) -> CopyInfo:
    """What a reader is told of a copy whose images lie in a folder."""
    return CopyInfo("MySet", images, files, **more)


def config(root: Path | str, cache: Path, **keys: Any) -> CfgNode:
    """A config with exactly the keys the data layer reads; `DATASET__NAME="x"` sets one."""
    cfg = CfgNode()
    cfg.DATA_SEED = 1
    cfg.CACHE_DIR = str(cache)
    cfg.DATASET = CfgNode(
        {
            "ROOT": str(root), "NAME": "MySet", "NUM_SHOTS": -1, "SUBSAMPLE_CLASSES": "all",
            "DIR": "", "IMAGE_DIR": "", "SPLIT_FILE": "", "FORMAT": "", "TEMPLATE": "",
            "TEST_NEW": True, "ON_CORRUPT": "skip", "VAL_SHOTS": -1, "SERVER_HOLDOUT": 0,
            "FEWSHOT_FILE": "",
        }
    )  # fmt: skip
    cfg.FED = CfgNode(
        {
            "CLIENTS": 2, "PARTITION": "disjoint", "BETA": 0.5, "MIN_SIZE": 1,
            "REPEAT_RATE": 0.0, "INDEX_FILE": "", "LEGACY": False, "BETA_FINE": 10.0,
            "CLASSES_PER_CLIENT": 2, "HELD_OUT_DOMAIN": "",
        }
    )  # fmt: skip
    cfg.TEST = CfgNode({"TARGETS": ()})
    for key, value in keys.items():
        *path, last = key.split("__")
        node = cfg
        for name in path:
            node = node[name]
        node[last] = value
    return cfg


def write_image(path: Path, seed: int, size: tuple[int, int] = (8, 8)) -> Path:
    """A small random RGB image."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return path


def write_tree(folder: Path, groups: list[str], classes: list[str], each: int) -> Path:
    """`<group>/<class>/<n>.png`; group "" writes `<class>/<n>.png`."""
    for g, group in enumerate(groups):
        for c, name in enumerate(classes):
            for n in range(each):
                write_image(folder / group / name / f"{n}.png", 10_000 * g + 100 * c + n)
    return folder


def write_split(folder: Path, classes: list[str], sizes: dict[str, int]) -> dict[str, list[Any]]:
    """Images below `folder/images` and `folder/split.json`; returns the split."""
    split: dict[str, list[Any]] = {part: [] for part in ("train", "val", "test")}
    for label, name in enumerate(classes):
        n = 0
        for part, each in sizes.items():
            for _ in range(each):
                write_image(folder / "images" / name / f"{n}.png", 1000 * label + n)
                split[part].append([f"{name}/{n}.png", label, name])
                n += 1
    (folder / "split.json").write_text(json.dumps(split), encoding="utf-8")
    return split


def own_split(root: Path, cache: Path, **keys: Any) -> CfgNode:
    """The config of a set written by `write_split(root / "mine", ...)`."""
    given = {
        "DATASET__DIR": "mine", "DATASET__IMAGE_DIR": "images",
        "DATASET__SPLIT_FILE": "split.json", "DATASET__FORMAT": "coop",
    }  # fmt: skip
    return config(root, cache, **(given | keys))


def check_federation(data: FederatedData) -> None:
    """What holds for every federation."""
    assert np.array_equal(data.labels, [s.label for s in data.samples])
    for client in data.clients:
        for part in ("train", "val", "test"):
            indices = getattr(client, part)
            assert indices.dtype == np.int64 and (np.diff(indices) > 0).all()
            names = [data.classnames[data.labels[i]] for i in indices]
            assert names == [data.samples[i].classname for i in indices]
        assert set(client.test) <= set(data.global_test)
        assert not set(client.train) & (set(data.global_test) | set(data.new_test))
    new_names = [data.new_classnames[data.labels[i]] for i in data.new_test]
    assert new_names == [data.samples[i].classname for i in data.new_test]
