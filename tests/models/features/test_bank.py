"""Activations of all images, in memory and in a file without a name."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedvlm.check.world import World
from fedvlm.models.features import bank
from fedvlm.models.features.bank import bank_bytes, empty_bank, fill_bank, has_room


@pytest.mark.parametrize("stream", ["tokens.1", "patches"])
def test_the_bank_in_memory_and_in_a_file(
    stream: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    w = World(["PEFT.TEXT", "none", "PEFT.VISUAL", "lora", "PEFT.RANK", "3", "PEFT.WIDTH", "4"])
    tower, seen = w.model().vision, []
    want = tower.compute(w.pixels, stream)
    for limit in (1 << 30, 0):
        monkeypatch.setattr(bank, "IN_MEMORY", limit)
        out = empty_bank(tower, len(w.pixels), tmp_path, stream)
        fill_bank(
            tower, stream, out, lambda i: w.pixels[i], lambda _, n, of: seen.append((n, of))
        )
        assert torch.allclose(out, want, 0, 1e-12)
        assert not list(tmp_path.iterdir())  # the file has no name
    assert out.numel() * 8 == bank_bytes(tower, len(w.pixels), stream)
    assert seen[-1] == (len(w.pixels), len(w.pixels))
    assert has_room(tower, 1, tmp_path, stream)
    assert not has_room(tower, 1 << 50, tmp_path, stream)
    both = bank_bytes(tower, 3, "tokens.1", "patches")
    assert both == bank_bytes(tower, 3, "tokens.1") + bank_bytes(tower, 3, "patches")
