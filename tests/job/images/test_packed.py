"""What of a run's images is in packs, and what a run asks of them; the rest: tests/cli/data."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fedvlm.core.errors import ConfigError
from fedvlm.core.transform import TransformSpec
from fedvlm.data.datum import Datum
from fedvlm.data.images import ImageLoader
from fedvlm.data.packs.lists import read_pack_lists
from fedvlm.data.packs.pack import open_pack
from fedvlm.job.images.packed import (
    check_packs,
    foreign_origins,
    packed_features,
    packed_positions,
    packs_of,
)
from tests.data.packs.packs import WIDTH, make_pack

SPEC = TransformSpec(32, (0.5,), (0.5,))
TEST = ImageLoader([], SPEC).transform_key(None)
VIEWS = [ImageLoader([], SPEC, 2, 1).transform_key(v) for v in range(2)]


def backbone(**more: Any) -> Any:
    said = {"name": "tiny", "weights": "embedded", "digest": "d" * 64, "embed_dim": WIDTH,
            "feature_dtype": torch.float32, "numerics": "torch.float32 fast cpu",
            "device": torch.device("cpu")}  # fmt: skip
    return SimpleNamespace(**said | more)


def samples(tmp_path: Path, **more: Any) -> list[Datum]:
    path = make_pack(tmp_path / "x.pack.safetensors", transform=TEST, **more)
    return read_pack_lists(open_pack(path)).all()


def test_features_of_two_packs_among_images(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    first, other = samples(tmp_path), samples(tmp_path / "b", views=VIEWS)
    mixed = [other[3], Datum("/an/image.png", 0), first[2], other[0]]
    assert packed_positions(mixed, [1, 3, 2]) == [1, 2]
    assert [p.path for p in packs_of(mixed)] == [Path(other[0].impath), Path(first[0].impath)]
    loader = ImageLoader(mixed, SPEC, 2, 1)
    assert packed_features(loader, [3, 2, 0], None, backbone())[:, 0].tolist() == [0, 2, 3]
    assert packed_features(loader, [0, 3], 1, backbone())[:, 0].tolist() == [203, 200]


def test_only_training_images_need_views(tmp_path: Path) -> None:
    """A target of transfer in a pack without views serves a run with views."""
    def check(some: list[Datum], views: int) -> None:
        model: Any = SimpleNamespace(backbone=backbone())
        trainer: Any = SimpleNamespace(name="Any", streams=lambda _: ("features",))
        check_packs(trainer, model, ImageLoader(some, SPEC, views, 1))

    every = samples(tmp_path)
    check(every, 1)
    check(every[9:], 2)
    with pytest.raises(ConfigError, match="has the test view only"):
        check(every, 2)


def test_origins_that_differ_are_named(tmp_path: Path) -> None:
    every = samples(tmp_path)
    assert foreign_origins(every, backbone()) == []
    assert foreign_origins(every, backbone(numerics="torch.float32 plain cpu")) == [
        "torch.float32 fast cpu, batch 16"
    ]
