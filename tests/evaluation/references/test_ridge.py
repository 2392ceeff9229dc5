"""AFL is ridge regression on everybody's samples, however they are split."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from fedvlm.evaluation.references.ridge import GRID, Ridge, best, statistics, together

N, WIDTH, CLASSES = 30, 5, 3


@pytest.fixture(scope="module")
def samples() -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(2)
    x = torch.randn(N, WIDTH, generator=draw, dtype=torch.float64)
    return x, torch.arange(N) % CLASSES


def pooled(x: torch.Tensor, y: torch.Tensor, l2: float) -> torch.Tensor:
    hot = F.one_hot(y, CLASSES).double()
    eye = torch.eye(WIDTH, dtype=torch.float64)
    return torch.linalg.solve(x.mT @ x + len(x) * l2 * eye, x.mT @ hot)


@pytest.mark.parametrize("cuts", [(30,), (1, 9, 20), (10, 0, 10, 10)])
def test_together_is_pooled(
    samples: tuple[torch.Tensor, torch.Tensor], cuts: tuple[int, ...]
) -> None:
    x, y = samples
    parts = [statistics(a, b, CLASSES) for a, b in zip(x.split(cuts), y.split(cuts), strict=True)]
    whole = Ridge(together(parts))
    for l2 in GRID:
        assert torch.allclose(whole.weights(l2), pooled(x, y, l2), atol=1e-10)
    assert parts[0].bytes == 8 * WIDTH * (WIDTH + CLASSES)


def test_left_out_is_the_solution_without_the_sample(
    samples: tuple[torch.Tensor, torch.Tensor]
) -> None:
    x, y = samples
    whole = Ridge(statistics(x, y, CLASSES))
    found = whole.left_out(x[:7], y[:7], CLASSES, 1e-2)
    for i in range(7):
        rest = torch.arange(N) != i
        l2 = N * 1e-2 / (N - 1)  # the same sum of squares is added
        assert torch.allclose(found[i], x[i] @ pooled(x[rest], y[rest], l2), atol=1e-10)


def test_of_equal_counts_the_strongest() -> None:
    assert best([3, 5, 5, 1, 5, 0]) == GRID[1]
