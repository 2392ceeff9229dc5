"""Streams of samples: which there are, and several at once."""

from __future__ import annotations

import pytest
import torch

from fedvlm.check.world import RESNET, CheckWorld
from fedvlm.core.errors import ConfigError
from fedvlm.models.features.sources import (
    FeatureSource,
    JoinedSource,
    PixelSource,
    check_streams,
    join_sources,
)


@pytest.mark.parametrize(
    "streams",
    [(), ("tokens",), ("features", "features"), ("tokens.x",), ("pictures",), ("tokens.-1",)],
)
def test_streams_that_nobody_serves_are_refused(streams: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="streams must be one or more of features, patches, "
                                          "tokens"):
        check_streams(streams, CheckWorld().model())


def test_streams_inside_the_tower_need_one() -> None:
    for streams in (("tokens.0", "patches", "features", "pixels"), ("features",)):
        check_streams(streams, CheckWorld().model())
    resnet = CheckWorld(vision=RESNET).model()
    check_streams(("features", "patches", "pixels"), resnet)
    with pytest.raises(ConfigError, match="need a ViT image tower"):
        check_streams(("features", "tokens.0"), resnet)


def test_a_joined_source_gives_every_stream_of_the_same_samples() -> None:
    labels, used = torch.arange(4), torch.tensor([3, 1])
    features = FeatureSource.of(torch.tensor([[[3.0], [1.0]]]), used, labels)
    pixels = PixelSource(lambda i, view: torch.full((3, 2, 2), float(i)), labels)
    both = join_sources([features, pixels])
    assert isinstance(both, JoinedSource) and both.streams == ("features", "pixels")
    assert both.labels is labels and join_sources([pixels]) is pixels
    out = both.fetch(torch.tensor([1, 3, 1]), 0)
    assert out["features"].flatten().tolist() == [1.0, 3.0, 1.0]
    assert out["pixels"][:, 0, 0, 0].tolist() == [1.0, 3.0, 1.0]
