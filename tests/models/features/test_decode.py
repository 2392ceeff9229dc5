"""Decoding and encoding overlap, and the report says where the time went. No test asks a clock."""

from __future__ import annotations

import os
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import torch
from torch import Tensor

from fedvlm.models.features.decode import AHEAD, Throughput, decode_ahead, decoding_threads
from fedvlm.models.features.encode import cached_features
from tests.models.toys import toy

SIZE, BATCHES = 2, 6
WAIT = 30.0  # seconds: what never comes fails the test instead of hanging it


class Stages:
    """Events of every image's decoding and every batch's encoding."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.decoding = [Event() for _ in range(SIZE * BATCHES)]
        self.encoding = [Event() for _ in range(BATCHES)]
        self.backbone, self.batch, self.spent = toy(), 0, Throughput()
        self.tower = self.backbone.encode_image
        self.late: list[str] = []
        monkeypatch.setattr(self.backbone, "encode_image", self.encode)

    def wait(self, event: Event, what: str) -> None:
        if not event.wait(WAIT):
            self.late.append(what)

    def load(self, i: int) -> Tensor:
        self.decoding[i].set()
        return torch.full((3, 32, 32), float(i))

    def encode(self, pixels: Tensor) -> Tensor:
        self.encoding[self.batch].set()
        self.batch += 1
        return self.tower(pixels)

    def fill(self, folder: Path, workers: int) -> Tensor:
        keys = [str(i) for i in range(SIZE * BATCHES)]
        return cached_features(
            self.backbone, keys, lambda i: self.load(i), view=-1, transform_digest="t",
            cache_dir=folder, batch=SIZE, workers=workers, spent=self.spent,
        )


@pytest.mark.parametrize("workers", [1, 3])
def test_later_images_are_decoded_while_a_batch_is_encoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    """A slow encoder: the decoding of the next ``AHEAD`` batches begins before it ends."""
    stages = Stages(monkeypatch)
    encode = stages.encode

    def slow(pixels: Tensor) -> Tensor:
        for later in range(stages.batch + 1, min(stages.batch + AHEAD, BATCHES - 1) + 1):
            for i in range(later * SIZE, (later + 1) * SIZE):
                stages.wait(stages.decoding[i], f"image {i} during batch {stages.batch}")
        return encode(pixels)

    monkeypatch.setattr(stages.backbone, "encode_image", slow)
    stages.fill(tmp_path, workers)
    assert stages.late == []


def test_a_batch_is_encoded_while_later_images_are_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow decoder: an image of batch n + 1 is not done before the encoding of n began."""
    stages = Stages(monkeypatch)
    load = stages.load

    def slow(i: int) -> Tensor:
        if i >= SIZE:
            stages.wait(stages.encoding[i // SIZE - 1], f"batch {i // SIZE - 1} for image {i}")
        return load(i)

    monkeypatch.setattr(stages, "load", slow)
    stages.fill(tmp_path, 1)
    assert stages.late == []


def test_decoding_does_not_run_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No more than ``AHEAD`` batches of pixels wait in memory."""
    stages = Stages(monkeypatch)
    encode, most = stages.encode, []

    def watching(pixels: Tensor) -> Tensor:
        most.append(sum(e.is_set() for e in stages.decoding) - SIZE * (stages.batch + 1))
        return encode(pixels)

    monkeypatch.setattr(stages.backbone, "encode_image", watching)
    stages.fill(tmp_path, 8)
    assert len(most) == BATCHES and max(most) <= AHEAD * SIZE


def test_what_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stages = Stages(monkeypatch)
    first = stages.fill(tmp_path, 3)
    spent = stages.spent
    assert (spent.encoded, spent.hits, spent.workers) == (SIZE * BATCHES, 0, 3)
    parts = spent.looking_up + spent.waiting + spent.encoding + spent.storing
    assert 0 < parts <= spent.wall and spent.loading > 0
    stages.spent = again = Throughput()
    assert torch.equal(stages.fill(tmp_path, 3), first)
    assert (again.encoded, again.hits, again.encoding) == (0, SIZE * BATCHES, 0.0)


def test_the_sentence() -> None:
    spent = Throughput(
        encoded=1200, hits=34, workers=2, wall=60.0, looking_up=1.0, waiting=9.0, encoding=48.0,
        storing=2.0, loading=55.0, reading=5.0,
    )
    assert spent.sentence() == (
        "image features: 1,200 encoded, 34 from the cache in 60.0 s = 20 images/s, limited by "
        "encoding (encoding 48.0 s, waiting for images 9.0 s, storing 2.0 s, looking up 1.0 s; "
        "meanwhile 2 thread(s) spent 5.0 s reading and 50.0 s decoding)"
    )
    spent.waiting, spent.encoding = 48.0, 9.0
    assert "limited by decoding" in spent.sentence()
    assert Throughput(hits=7, wall=0.04).sentence("activations") == (
        "activations: all 7 from the cache"
    )


def test_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    assert decoding_threads(3) == 3
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(5)), raising=False)
    assert decoding_threads() == 5
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(500)), raising=False)
    assert decoding_threads() == 16


def test_positions_come_in_order() -> None:
    spent: Any = Throughput()
    out = [(list(at), pixels[:, 0, 0, 0].tolist()) for at, pixels in decode_ahead(
        [5, 3, 9, 1, 7], lambda i: torch.full((3, 2, 2), float(i)), 2, spent, 4
    )]
    assert out == [([5, 3], [5, 3]), ([9, 1], [9, 1]), ([7], [7])]
    assert list(decode_ahead([], lambda i: torch.zeros(3, 2, 2), 2, spent)) == []
