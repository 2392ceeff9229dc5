"""Several logistic regressions at once are scikit-learn's, one by one."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedvlm.evaluation.references.softmax import GRID, Problems, Solution, path, solve

SIZES, CLASSES, WIDTH = (40, 4, 17), (3, 4, 2), 6  # more and fewer samples than dimensions


@pytest.fixture(scope="module")
def problems() -> Problems:
    """Correlated features, padding, and a problem with fewer classes than the others."""
    draw = torch.Generator().manual_seed(1)
    n, p = max(SIZES), len(SIZES)
    mix = torch.randn(WIDTH, WIDTH, generator=draw, dtype=torch.float64)
    x = torch.randn(p, n, WIDTH, generator=draw, dtype=torch.float64) @ mix + 3
    y = torch.stack([torch.arange(n) % c for c in CLASSES])
    w = torch.stack([(torch.arange(n) < size).double() for size in SIZES])
    classes = torch.stack([torch.arange(max(CLASSES)) < c for c in CLASSES])
    return Problems(x * w.unsqueeze(-1), y, w, classes)


def theirs(problems: Problems, k: int, l2: float) -> np.ndarray:
    from sklearn.linear_model import LogisticRegression

    n, two = SIZES[k], CLASSES[k] == 2
    # Of two classes scikit-learn trains the difference, whose square is twice that of the two.
    model = LogisticRegression(
        C=(2 if two else 1) / (n * l2), fit_intercept=False, tol=1e-12, max_iter=100_000
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        weights = model.fit(problems.x[k, :n].numpy(), problems.y[k, :n].numpy()).coef_
    return np.concatenate([-weights / 2, weights / 2]) if two else weights


def test_they_are_scikit_learns(problems: Problems) -> None:
    for l2 in (1.0, 1e-2, 1e-4):
        found = solve(problems, l2, tolerance=1e-8, most=3000)
        assert bool(found.done.all())
        for k, c in enumerate(CLASSES):
            want = theirs(problems, k, l2)
            assert found.weights[k, :c].numpy() == pytest.approx(want, rel=2e-4, abs=2e-4)
            assert not found.weights[k, c:].any()


def test_each_has_an_l2_of_its_own_and_does_not_see_the_others(problems: Problems) -> None:
    l2 = torch.tensor([1e-1, 1e-2, 1e-3], dtype=torch.float64)
    every = solve(problems, l2, tolerance=1e-9)
    for k, size in enumerate(SIZES):
        alone = Problems(problems.x[k : k + 1, :size], problems.y[k : k + 1, :size],
                         problems.w[k : k + 1, :size], problems.classes[k : k + 1])
        one = solve(alone, float(l2[k]), tolerance=1e-9)
        assert torch.allclose(one.weights[0], every.weights[k], atol=1e-6)


def test_the_path_is_the_single_solutions(problems: Problems) -> None:
    found: list[tuple[float, Solution]] = list(
        path(problems, GRID[:4], tolerance=1e-7)
    )
    assert [l2 for l2, _ in found] == list(GRID[:4])
    for l2, solution in found[1::2]:
        straight = solve(problems, l2, tolerance=1e-7)
        assert torch.allclose(solution.weights, straight.weights, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("n", [40, 4], ids=["more samples than dimensions", "fewer"])
def test_the_path_has_the_bits_of_one_solve_after_the_other(problems: Problems, n: int) -> None:
    some = replace(problems, x=problems.x[:, :n], y=problems.y[:, :n], w=problems.w[:, :n])
    start: torch.Tensor | None = None
    for l2, solution in path(some, GRID[:4]):
        straight = solve(some, l2, start)
        assert torch.equal(solution.weights, straight.weights) and solution.steps > 0
        start = straight.weights


def test_what_has_no_samples_has_no_weights(problems: Problems) -> None:
    found = solve(replace(problems, w=torch.zeros_like(problems.w)), 1e-2)
    assert not found.weights.any() and bool(found.done.all())


def test_a_limit_of_steps_is_told(problems: Problems) -> None:
    found = solve(problems, 1e-5, most=2)
    assert not found.done.any()
