"""AFL: the server's solution is that of all images, however they are dealt, with its ridge."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedvlm.check.world import Setup
from fedvlm.federation.batches import IndexSplit
from fedvlm.federation.discovery import load_trainer
from fedvlm.federation.toolbox.moments import RIDGES
from tests import jobs
from tests.trainers.small_world import world

IMAGES = 30
DEALT = [(0, 30), (0, 3, 12, 30), (0, 29, 30)]


def trained(edges: tuple[int, ...], **options: object) -> dict[str, dict[str, torch.Tensor]]:
    """Return the server's state after two rounds over clients of the images between ``edges``."""
    none = np.zeros(0, np.int64)
    splits = [IndexSplit(np.arange(i, j), none, none)
              for i, j in zip(edges[:-1], edges[1:], strict=True)]
    setup = Setup(splits=splits, rounds=2, chunk=2, opts={"GAMMA": 3.0, **options})
    return world().federation(load_trainer("AFL"), setup).run().server


def images() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    z, y = world().features[:IMAGES], F.one_hot(world().labels[:IMAGES], 4).double()
    return z, y, torch.eye(z.shape[1], dtype=z.dtype)


@pytest.mark.parametrize("edges", DEALT)
@pytest.mark.parametrize("variant", ["published", "fixed"])
@pytest.mark.parametrize("keep", [0.0, 0.5])
def test_solution_is_that_of_all_images(
    edges: tuple[int, ...], variant: str, keep: float
) -> None:
    head = trained(edges, KEEP=keep, VARIANT=variant)["w"]["head.weight"]
    z, y, eye = images()
    if keep:
        want = torch.linalg.solve(z.T @ z + keep * eye, z.T @ y)
    elif variant == "published":
        want = torch.linalg.lstsq(z, y).solution
    else:
        errors = []
        for strength in (float(z.square().sum()) * r for r in RIDGES):
            hat = z @ torch.linalg.solve(z.T @ z + strength * eye, z.T)
            left = 1 - 1.2 * float(hat.trace()) / IMAGES
            errors.append((float((y - hat @ y).square().sum()) / left**2, strength))
        assert 0 < errors.index(min(errors)) < len(errors) - 1
        want = torch.linalg.solve(z.T @ z + min(errors)[1] * eye, z.T @ y)
    assert torch.allclose(head, want.T, atol=1e-6)


def test_each_client_counts_once() -> None:
    sums = trained((0, 3, 12, 30))["sums"]
    assert float(sums["count"]) == IMAGES
    assert "count" not in trained((0, 30), VARIANT="published")["sums"]


def test_it_is_the_baseline_of_the_same_table(tmp_path: Path) -> None:
    """The method and the reference of its name give every client the same accuracy."""
    assert jobs.run(tmp_path, "--trainer", "AFL", "--rounds", "1") == 0
    found = jobs.results(tmp_path)
    reference = found["references"]["afl"]
    assert found["last"]["personal"] == pytest.approx(reference["personal"], abs=1e-9)
    assert found["last"]["personal_worst"] == pytest.approx(reference["personal_worst"], abs=1e-9)
