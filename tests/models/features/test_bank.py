"""Activations of all images, in memory and in a file without a name."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedvlm.check.world import World
from fedvlm.models.features import bank
from fedvlm.models.features.bank import bank_bytes, empty_bank, fill_bank, has_room


def test_the_bank_in_memory_and_in_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    w = World(["PEFT.TEXT", "none", "PEFT.VISUAL", "lora", "PEFT.RANK", "3", "PEFT.WIDTH", "4"])
    tower, seen = w.model().vision, []
    want = tower.enter(w.pixels, 1)
    for limit in (1 << 30, 0):
        monkeypatch.setattr(bank, "IN_MEMORY", limit)
        out = empty_bank(tower, len(w.pixels), tmp_path)
        fill_bank(tower, 1, out, lambda i: w.pixels[i], lambda _, n, of: seen.append((n, of)))
        assert torch.allclose(out, want, 0, 1e-12)
        assert not list(tmp_path.iterdir())  # the file has no name
    assert out.numel() * 8 == bank_bytes(tower, len(w.pixels))
    assert seen[-1] == (len(w.pixels), len(w.pixels))
    assert has_room(tower, 1, tmp_path) and not has_room(tower, 1 << 50, tmp_path)
