"""The references of sets of labels: each against a computation of its own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedvlm.evaluation import rankings
from fedvlm.evaluation.references.by_label import label_references
from fedvlm.evaluation.references.logistic import FeatureScale
from fedvlm.evaluation.references.suite import ALONE, BOUND, TOGETHER, Asked
from fedvlm.federation.batches import IndexSplit

SETS = np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [1, 1, 0], [0, 0, 1]], dtype=np.uint8)
N, WIDTH = 120, 8


class Source:
    """A label is a direction; images are noisy sums of their labels' directions."""

    def __init__(self) -> None:
        draw = torch.Generator().manual_seed(0)
        self.labels = torch.randint(0, len(SETS), (N,), generator=draw)
        noise = torch.randn(N, WIDTH, generator=draw)
        self.features = torch.from_numpy(SETS)[self.labels].float() @ torch.eye(3, WIDTH) \
            + 0.5 * noise + 1.0

    def fetch(self, indices: torch.Tensor, view: int) -> dict[str, torch.Tensor]:
        return {"features": self.features[indices]}


def asked(val: bool = True) -> Asked:
    source = Source()
    parts = np.arange(N).reshape(2, 3, 20)
    none = np.zeros(0, dtype=np.int64)
    clients = [IndexSplit(p[0], p[1] if val else none, p[2]) for p in parts]
    data: Any = SimpleNamespace(
        labels=source.labels.numpy(), label_sets=SETS, clients=clients, groups=None)
    return Asked(source, data, [0, 1], [0, 1], 3)


@pytest.fixture(scope="module")
def found() -> dict[str, dict[str, Any]]:
    return label_references(asked())


def truth(one: Asked, at: np.ndarray) -> np.ndarray:
    rows: np.ndarray = SETS[one.data.labels[at]]
    return rows


def test_chance_is_a_label_s_share(found: dict[str, dict[str, Any]]) -> None:
    one = asked()
    shares = [100 * truth(one, c.test).mean(0).mean() for c in one.data.clients]
    assert [row["accuracy"] for row in found["chance"]["clients"]] == pytest.approx(shares)
    assert found["chance"]["personal"] == pytest.approx(np.mean(shares))


def test_kinds_and_what_federation_is_compared_with(found: dict[str, dict[str, Any]]) -> None:
    assert {name: one["kind"] for name, one in found.items()} == {
        "chance": ALONE, "logreg": ALONE, "afl": TOGETHER, "pooled": BOUND}
    assert all("personal_auroc" in one and "personal_balanced" not in one
               for one in found.values())
    assert found["pooled"]["personal"] > found["chance"]["personal"] + 20


def test_afl_is_ridge_regression_of_the_labels(found: dict[str, dict[str, Any]]) -> None:
    one = asked()
    at = np.concatenate([c.train for c in one.data.clients])
    x = one.source.fetch(torch.from_numpy(at), 0)["features"].double().numpy()
    y = truth(one, at).astype(float)
    strength = float(found["afl"]["how"].split("ridge ")[-1].split()[0])
    weights = np.linalg.solve(x.T @ x + strength * np.eye(WIDTH), x.T @ y)
    for client, row in zip(one.data.clients, found["afl"]["clients"], strict=True):
        z = one.source.fetch(torch.from_numpy(client.test), 0)["features"].double().numpy()
        ap = rankings.average_precision(truth(one, client.test), z @ weights)
        assert row["accuracy"] == pytest.approx(100 * ap.mean(), abs=1e-6)


def descent(x: torch.Tensor, y: torch.Tensor, l2: float) -> torch.Tensor:
    """Two classes by plain gradient descent; the l2 is of both classes' weights."""
    w = torch.zeros(2, x.shape[1], dtype=torch.float64, requires_grad=True)
    solver = torch.optim.LBFGS(
        [w], max_iter=500, tolerance_grad=1e-9, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        solver.zero_grad()
        value = F.cross_entropy(x @ w.mT, y) + l2 / 2 * w.square().sum()
        value.backward()
        return value

    solver.step(loss)
    return (w[1] - w[0]).detach()


def test_logreg_is_a_regression_for_each_label(found: dict[str, dict[str, Any]]) -> None:
    one = asked()
    client = one.data.clients[0]
    train, test = one.frozen.x(client.train), one.frozen.x(client.test)
    scale = FeatureScale.of(train)
    y = torch.from_numpy(truth(one, client.train)).long()
    best = None
    for l2 in (1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5):
        w = torch.stack([descent(scale(train), y[:, i], l2) for i in range(3)])
        val = scale(one.frozen.x(client.val)) @ w.mT
        of = torch.from_numpy(truth(one, client.val)).double()
        loss = float(F.binary_cross_entropy_with_logits(val, of))
        if best is None or loss < best[0]:
            best = loss, rankings.auroc(truth(one, client.test), (scale(test) @ w.mT).numpy())
    assert best is not None
    row = found["logreg"]["clients"][0]
    assert row["auroc"] == pytest.approx(100 * best[1].mean(), abs=1.0)


def test_without_validation_images_the_training_ones_choose() -> None:
    one = label_references(asked(val=False))["logreg"]
    assert "cross-validation" in one["how"] and one["personal"] > 40
