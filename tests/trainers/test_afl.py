"""AFL: the server's solution is least squares on all images, however they are dealt."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedvlm.check.world import Setup
from fedvlm.federation.batches import IndexSplit
from fedvlm.federation.discovery import load_trainer
from tests.trainers.small_world import world

IMAGES = 30


@pytest.mark.parametrize("edges", [(0, 30), (0, 3, 12, 30), (0, 29, 30)])
@pytest.mark.parametrize("keep", [0.0, 0.5])
def test_solution_is_that_of_all_images(edges: tuple[int, ...], keep: float) -> None:
    none = np.zeros(0, np.int64)
    splits = [IndexSplit(np.arange(i, j), none, none)
              for i, j in zip(edges[:-1], edges[1:], strict=True)]
    setup = Setup(splits=splits, rounds=2, chunk=2, opts={"KEEP": keep, "GAMMA": 3.0})
    head = world().federation(load_trainer("AFL"), setup).run().server["w"]["head.weight"]
    z, y = world().features[:IMAGES], F.one_hot(world().labels[:IMAGES], 4).double()
    eye = torch.eye(z.shape[1], dtype=z.dtype)
    want = torch.linalg.lstsq(z, y).solution if not keep else (
        torch.linalg.solve(z.T @ z + keep * eye, z.T @ y)
    )
    assert torch.allclose(head, want.T, atol=1e-6)
