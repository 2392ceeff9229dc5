"""Logistic regressions whose classes count by ``OPTIM.CLASS_WEIGHTS``, against plain fits."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedvlm.evaluation.references.by_label import _path
from fedvlm.evaluation.references.logistic import FeatureScale, Frozen, regressions
from fedvlm.evaluation.references.softmax import GRID
from fedvlm.federation.batches import IndexSplit
from fedvlm.federation.local.balance import sample_costs

DRAW = torch.Generator().manual_seed(3)
LABELS = np.array([0] * 30 + [1] * 4 + [0, 1] * 200)
X = torch.randn(len(LABELS), 5, generator=DRAW, dtype=torch.float64)
X[:, 0] += 0.7 * torch.from_numpy(LABELS)
SOURCE: Any = SimpleNamespace(fetch=lambda at, view: {"features": X[at]})


def fitted(x: Tensor, y: Tensor, costs: Tensor, l2: float) -> Tensor:
    """Return the weights ``[2, d]`` of a weighted softmax regression, by PyTorch's optimiser."""
    w = torch.zeros(2, x.shape[1], dtype=x.dtype, requires_grad=True)
    rule = torch.optim.LBFGS([w], max_iter=500, tolerance_grad=1e-11, tolerance_change=1e-14,
                             line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        rule.zero_grad()
        each = F.cross_entropy(x @ w.mT, y, reduction="none")
        loss = (each * costs).sum() / len(y) + l2 / 2 * w.square().sum()
        loss.backward()
        return loss

    rule.step(closure)  # type: ignore[no-untyped-call]
    return w.detach()


@pytest.mark.parametrize("kind", ["none", "balanced"])
def test_a_client_s_regression(kind: str) -> None:
    none = np.zeros(0, dtype=np.int64)
    share = IndexSplit(np.arange(34), none, np.arange(34, 434))
    frozen = replace(Frozen(SOURCE, LABELS), weights=kind)
    (found,) = regressions(frozen, [share], [0.1])
    train, test = frozen.x(share.train), frozen.x(share.test)
    scale = FeatureScale.of(train)
    cost = {"none": [1.0, 1.0], "balanced": [34 / 60, 34 / 8]}[kind]
    y = torch.from_numpy(LABELS[:34])
    w = fitted(scale(train), y, torch.tensor(cost, dtype=torch.float64)[y], 0.1)
    same = found.labels == (scale(test) @ w.mT).argmax(1).numpy()
    assert same.mean() > 0.99  # the solver's own tolerance
    assert (found.labels == 1).mean() < 0.15 if kind == "none" else (found.labels == 1).mean() > 0.3


def test_the_regressions_of_labels() -> None:
    sets = np.array([[0, 0], [1, 0], [1, 1]])
    rows = np.array([0] * 20 + [1] * 3 + [2] * 2)
    x, y = X[:25], torch.from_numpy(sets[rows].astype(np.float64))
    costs = torch.from_numpy(sample_costs(rows, 2, "balanced", sets))
    assert float(costs[0, 0]) == 25 / 40 and float(costs[24, 1]) == 25 / 4
    found = _path(x, y, costs)
    for label in range(2):
        plain = fitted(x, y[:, label].long(), costs[:, label], GRID[2])
        np.testing.assert_allclose(
            found[2][label].numpy(), (plain[1] - plain[0]).numpy(), atol=2e-2)
