"""Heads at their fixed points are what plain solvers find; a group counts once."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import log_softmax

from fedvlm.evaluation.references import heads as h
from fedvlm.evaluation.references.logistic import FeatureScale

CLASSES, WIDTH = 4, 5


def make(n: int, classes: tuple[int, ...], seed: int) -> h.HeadClient:
    draw = torch.Generator().manual_seed(seed)
    y = torch.tensor([classes[i % len(classes)] for i in range(n)])
    x = torch.eye(WIDTH)[y] + 0.7 * torch.randn(n, WIDTH, generator=draw) + 2
    return h.HeadClient(x.double(), y)


@pytest.fixture(scope="module")
def clients() -> list[h.HeadClient]:
    return [make(11, (0, 1), 1), make(3, (1, 2, 3), 2), make(24, (0, 3), 3)]


def plain(
    x: torch.Tensor, y: torch.Tensor, l2: float, scale: FeatureScale, classes: list[int],
    home: np.ndarray | None = None,
) -> np.ndarray:
    """Return scores on ``x`` of a regression that scipy fits, held to ``home`` in scaled space."""
    z, labels = scale(x).numpy(), y.numpy()
    home = np.zeros((CLASSES, WIDTH + 1)) if home is None else home
    out = np.full(CLASSES, -np.inf)
    out[classes] = 0

    def loss(flat: np.ndarray) -> float:
        weights = flat.reshape(CLASSES, -1)
        logs = log_softmax(z @ weights.T + out, axis=1)
        return float(-logs[np.arange(len(z)), labels].mean() + l2 / 2 * ((weights - home)**2).sum())

    found = minimize(loss, home.ravel(), method="L-BFGS-B", options={
        "maxiter": 5000, "maxfun": 500_000, "ftol": 1e-14, "gtol": 1e-8})
    return found.x.reshape(CLASSES, -1)


def plain_from(
    x: torch.Tensor, y: torch.Tensor, start: torch.Tensor, l2: float, scale: FeatureScale,
    own: list[int],
) -> np.ndarray:
    """Return weights of all classes that scipy fits on top of ``start``; unseen ones have one."""
    rest = [c for c in range(CLASSES) if c not in own]
    z, labels, base = scale(x).numpy(), y.numpy(), start.numpy()
    rows = np.array([own.index(c) if c in own else len(own) for c in range(CLASSES)])

    def loss(flat: np.ndarray) -> float:
        weights = flat.reshape(len(own) + bool(rest), -1)
        logs = log_softmax(base + z @ weights[rows].T, axis=1)
        return float(-logs[np.arange(len(z)), labels].mean() + l2 / 2 * (weights**2).sum())

    begin = np.zeros((len(own) + bool(rest)) * z.shape[1])
    found = minimize(loss, begin, method="L-BFGS-B", options={
        "maxiter": 5000, "maxfun": 500_000, "ftol": 1e-14, "gtol": 1e-8})
    return found.x.reshape(-1, z.shape[1])[rows]


def on(weights: np.ndarray, scale: FeatureScale, x: torch.Tensor) -> np.ndarray:
    return scale(x).numpy() @ weights.T


def close(ours: torch.Tensor, theirs: np.ndarray, classes: list[int]) -> None:
    """Compare scores of some classes, less their mean (which no answer depends on)."""
    mine = ours[:, classes].numpy()
    want = theirs[:, classes]
    assert mine - mine.mean(1, keepdims=True) == pytest.approx(
        want - want.mean(1, keepdims=True), abs=0.02)


def test_alone_each_is_its_own_regression(clients: list[h.HeadClient]) -> None:
    for l2, found in zip((0.1, 0.01), h.alone_heads(clients, CLASSES, (0.1, 0.01)), strict=True):
        for k, one in enumerate(clients):
            scale, own = FeatureScale.of(one.x), one.y.unique().tolist()
            close(found.one(k).logits(one.x)[0], on(plain(one.x, one.y, l2, scale, own), scale,
                                                    one.x), own)
            assert found.seen[k].nonzero().flatten().tolist() == own


def test_a_regression_may_start_from_logits(clients: list[h.HeadClient]) -> None:
    """What it adds is what scipy adds; classes that a client has no image of share one weight."""
    draw, grid, every = torch.Generator().manual_seed(5), (1.0, 0.1), list(range(CLASSES))
    starts = [3 * torch.randn(len(c), CLASSES, generator=draw).double() for c in clients]
    for l2, found in zip(grid, h.alone_heads(clients, CLASSES, grid, starts), strict=True):
        assert found.seen.all()
        for k, (one, own) in enumerate(zip(clients, ([0, 1], [1, 2, 3], [0, 3]), strict=True)):
            scale = FeatureScale.of(one.x)
            want = plain_from(one.x, one.y, starts[k], l2, scale, own)
            close(found.one(k).logits(one.x)[0] + starts[k],
                  on(want, scale, one.x) + starts[k].numpy(), every)


def test_shared_is_one_regression_on_all_and_personal_is_held_to_it(
    clients: list[h.HeadClient],
) -> None:
    x, y = (torch.cat([getattr(c, name) for c in clients]) for name in "xy")
    scale, every = h.common_scale(clients), list(range(CLASSES))
    (shared,) = h.shared_heads(clients, CLASSES, scale, (0.01,))
    one = plain(x, y, 0.01, scale, every)
    close(shared.logits(x)[0], on(one, scale, x), every)
    (personal,) = h.personal_heads(clients, shared, scale, (0.1,))
    for k, client in enumerate(clients):
        want = plain(client.x, client.y, 0.1, scale, every, one)
        close(personal.one(k).logits(client.x)[0], on(want, scale, client.x), every)
    (held,) = h.personal_heads(clients, shared, scale, (1e9,))
    assert torch.allclose(held.logits(x)[0], shared.logits(x)[0], atol=1e-4)


def test_ridge_of_sums_is_the_ridge_of_all_images(clients: list[h.HeadClient]) -> None:
    x, y = (torch.cat([getattr(c, name) for c in clients]) for name in "xy")
    total = h.Sums.of(clients[0], CLASSES)
    for one in clients[1:]:
        total += h.Sums.of(one, CLASSES)
    hot = torch.eye(CLASSES, dtype=torch.float64)[y]
    want = torch.linalg.solve(x.T @ x + 0.3 * torch.eye(WIDTH), x.T @ hot)
    assert torch.allclose(h.ridge_head(total, 0.3).logits(x)[0], x @ want)
    chosen = h.ridge_head(total).logits(x)[0]
    assert not torch.allclose(chosen, x @ want) and float(total.count) == len(x)


def test_shares_move_scores_by_their_logs(clients: list[h.HeadClient]) -> None:
    total = sum((h.Sums.of(c, CLASSES) for c in clients[1:]), h.Sums.of(clients[0], CLASSES))
    ridge, x = h.ridge_head(total), clients[0].x
    shares = torch.stack([c.shares(CLASSES, 0.5) for c in clients])
    assert shares[1].tolist() == pytest.approx([0.1, 0.3, 0.3, 0.3])
    moved = h.add_shares(ridge, shares, 0.2)
    assert len(moved) == len(clients)
    for k in range(len(clients)):
        assert torch.allclose(moved.logits(x)[k], ridge.logits(x)[0] + 0.2 * shares[k].log())


def test_a_group_that_is_there_ten_times_counts_once(clients: list[h.HeadClient]) -> None:
    def many(one: h.HeadClient) -> h.HeadClient:
        ids = torch.arange(len(one))
        times = torch.where(ids == 0, 10, 1)
        return h.HeadClient(one.x.repeat_interleave(times, 0), one.y.repeat_interleave(times),
                            ids.repeat_interleave(times))

    def heads(some: list[h.HeadClient]) -> list[torch.Tensor]:
        scale = h.common_scale(some)
        alone = h.alone_heads(some, CLASSES, (0.1,))[0]
        shared = h.shared_heads(some, CLASSES, scale, (0.1,))[0]
        personal = h.personal_heads(some, shared, scale, (0.1,))[0]
        total = sum((h.Sums.of(c, CLASSES) for c in some[1:]), h.Sums.of(some[0], CLASSES))
        return [alone.weights, shared.weights, personal.weights, h.ridge_head(total).weights]

    doubled = [many(one) for one in clients]
    assert [c.size for c in doubled] == pytest.approx([len(c) for c in clients])
    for a, b in zip(heads(clients), heads(doubled), strict=True):
        assert torch.allclose(a, b, atol=1e-3)
