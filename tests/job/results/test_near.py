"""Nearly equal images across the split are told, and a column for groups is asked for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedvlm.cli.main import main
from fedvlm.job.results.near import near_ones


def test_copies_are_near_and_other_images_of_the_class_are_not() -> None:
    g = torch.Generator().manual_seed(0)
    x, z = torch.randn(40, 8, generator=g), torch.randn(10, 8, generator=g)
    y, of = torch.arange(40) % 2, torch.arange(10) % 2
    z[3] = 5 * x[1] + 0.01  # of class 1, longer
    z[4] = x[1]  # of the other class
    assert near_ones(x, z, y, of).nonzero().flatten().tolist() == [3]


@pytest.mark.parametrize("copies", [1, 5])
def test_a_run_asks_for_the_groups(
    copies: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dice = np.random.default_rng(0)
    lines = ["file,class,person"]
    for p in range(40 // copies):
        pixels = dice.integers(0, 255, (32, 32, 3))
        for i in range(copies):
            moved = (pixels + dice.integers(0, 3, pixels.shape)).clip(0, 255)
            Image.fromarray(moved.astype(np.uint8)).save(tmp_path / f"{p}_{i}.png")
            lines.append(f"{p}_{i}.png,{('cat', 'dog')[p % 2]},P{p}")
    (tmp_path / "t.csv").write_text("\n".join(lines))
    words = ["--images", str(tmp_path / "t.csv"), "--trainer", "FedAvg", "--peft", "head",
             "--backbone", "tiny", "--rounds", "1", "--local-epochs", "1"]
    assert main([*words, "--output-dir", str(tmp_path / "a")]) == 0
    said = "test images look nearly the same as a training image"
    assert (said in capsys.readouterr().out) == (copies > 1)
    if copies > 1:
        assert main([*words, "--output-dir", str(tmp_path / "b"), "--groups", "person"]) == 0
        assert said not in capsys.readouterr().out
