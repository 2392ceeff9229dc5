"""Closed forms on sums of moments: ridge, generalised cross-validation, a Gaussian discriminant."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from fedvlm.federation.toolbox import moments
from fedvlm.federation.toolbox.moments import (
    RIDGES,
    SHARES,
    Moments,
    best_ridge,
    best_share,
    left_out_errors,
    left_out_surprise,
    ridge,
)

N, WIDTH, CLASSES = 40, 6, 3


def samples(n: int = N, width: int = WIDTH, seed: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    """Return features whose channels differ in size, and one-hot labels that they partly tell."""
    draw = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % CLASSES
    looks = torch.randn(CLASSES, width, generator=draw, dtype=torch.float64)
    z = looks[y] + 1.5 * torch.randn(n, width, generator=draw, dtype=torch.float64)
    return z * torch.linspace(0.2, 2, width).double(), F.one_hot(y, CLASSES).double()


def sums(z: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return z.mT @ z, z.mT @ y, torch.tensor(float(len(z)))


def test_errors_are_those_of_the_definition() -> None:
    z, y = samples()
    ridges, errors = left_out_errors(*sums(z, y))
    assert torch.allclose(ridges, z.square().sum() * torch.tensor(RIDGES).double())
    for strength, error in zip(ridges, errors, strict=True):
        inverse = torch.linalg.inv(z.mT @ z + strength * torch.eye(WIDTH))
        hat = z @ inverse @ z.mT
        want = (y - hat @ y).square().sum() / N / (1 - 1.2 * hat.trace() / N) ** 2
        assert torch.allclose(error, want, rtol=1e-9)


def test_with_equal_leverages_it_is_leave_one_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of a Hadamard matrix have equal leverages: every image is left out by refitting."""
    monkeypatch.setattr(moments, "FREEDOM", 1.0)
    h = torch.ones(1, 1, dtype=torch.float64)
    while len(h) < 16:
        h = torch.cat([torch.cat([h, h], 1), torch.cat([h, -h], 1)])
    z = h[:, 1:6] * torch.tensor([3.0, 2.0, 1.0, 0.5, 0.1]).double()
    y = F.one_hot(torch.arange(16) * 7 % CLASSES, CLASSES).double()
    ridges, errors = left_out_errors(*sums(z, y))
    for strength, error in zip(ridges[::4], errors[::4], strict=True):
        total = 0.0
        for i in range(16):
            rest = torch.arange(16) != i
            w = ridge(z[rest].mT @ z[rest], z[rest].mT @ y[rest], float(strength))
            total += float((z[i] @ w - y[i]).square().sum())
        assert float(error) == pytest.approx(total / 16, rel=1e-9)


def test_the_best_one_is_near_the_one_of_leave_one_out() -> None:
    """At 60 images of 50 channels, where without a ridge the error is several times as large."""
    z, y = samples(60, 50)
    ridges, _ = left_out_errors(*sums(z, y))

    def left_out(strength: float) -> float:
        hat = z @ torch.linalg.solve(z.mT @ z + strength * torch.eye(50), z.mT)
        return float(((y - hat @ y) / (1 - hat.diagonal())[:, None]).square().sum() / 60)

    exact = [left_out(float(r)) for r in ridges]
    best = best_ridge(*sums(z, y))
    assert left_out(float(best)) < 1.1 * min(exact) < exact[-1] / 3


def test_leading_axes_empty_sums_and_equals() -> None:
    one, two = sums(*samples()), sums(*samples(seed=3))
    both = tuple(torch.stack([a, b]) for a, b in zip(one, two, strict=True))
    assert torch.allclose(best_ridge(*both), torch.stack([best_ridge(*one), best_ridge(*two)]))
    nothing = best_ridge(torch.zeros(4, 4).double(), torch.zeros(4, 2).double(), torch.zeros(()))
    assert 0 < float(nothing) < 1e-300
    noise = torch.zeros(4, 2).double()  # labels that no feature tells: the strongest
    assert float(best_ridge(torch.eye(4).double(), noise, torch.tensor(9.0))) == 4.0


def test_a_share_for_each_of_the_leading_axes() -> None:
    z, y = samples()
    mean, there = y.mT @ z / y.sum(0)[:, None], torch.ones(CLASSES, dtype=torch.bool)
    each = [moments.discriminant(mean, z.mT @ z, torch.tensor(30.0), there, s) for s in (0.2, 0.7)]
    two = moments.discriminant(
        mean.expand(2, -1, -1), (z.mT @ z).expand(2, -1, -1), torch.tensor([30.0, 30.0]),
        there.expand(2, -1), torch.tensor([0.2, 0.7]),
    )
    for got, a, b in zip(two, *each, strict=True):
        assert torch.allclose(got, torch.stack([a, b]), atol=1e-12)


def gaussians(
    per_class: int, width: int, seed: int = 5
) -> tuple[torch.Tensor, torch.Tensor, Moments]:
    """Return features, labels and moments of classes with one covariance of unequal axes."""
    draw = torch.Generator().manual_seed(seed)
    y = torch.arange(per_class * CLASSES) % CLASSES
    z = torch.randn(len(y), width, generator=draw, dtype=torch.float64)
    z = z * torch.logspace(0, -2, width).double() + torch.randn(
        CLASSES, width, generator=draw, dtype=torch.float64)[y]
    member = F.one_hot(y, CLASSES).double()
    return z, y, Moments(member.sum(0), member.mT @ z, z.mT @ z)


def left_out_one_by_one(z: torch.Tensor, y: torch.Tensor, share: float) -> float:
    """Return the mean of -2 log density of each image under the discriminant of the others."""
    total = 0.0
    for i in range(len(z)):
        rest = torch.arange(len(z)) != i
        means = torch.stack([z[rest & (y == c)].mean(0) for c in range(CLASSES)])
        gap = z[rest] - means[y[rest]]
        cov = gap.mT @ gap / (len(z) - 1)
        size = (cov.diagonal().sum() / len(cov)).item()
        cov = (1 - share) * cov + share * size * torch.eye(len(cov)).double()
        apart = z[i] - means[y[i]]
        total += float(cov.logdet() + apart @ torch.linalg.solve(cov, apart))
    return total / len(z)


@pytest.mark.parametrize(("per_class", "width"), [(3, 24), (4, 6), (40, 6)])
def test_the_share_is_near_the_best_of_leave_one_out(per_class: int, width: int) -> None:
    """From fewer images than channels to many; the right answers differ."""
    z, y, m = gaussians(per_class, width)
    exact = [left_out_one_by_one(z, y, share) for share in SHARES]
    got = SHARES.index(float(best_share(m)))
    assert exact[got] - min(exact) < 0.1 * (max(exact) - min(exact))
    best = exact.index(min(exact))
    assert abs(got - best) <= 1


def test_a_share_without_images_to_leave_out_is_the_largest() -> None:
    z, _, m = gaussians(3, 6)
    one = Moments(torch.ones(CLASSES).double(), z[:CLASSES], z[:CLASSES].mT @ z[:CLASSES])
    none = Moments(*(torch.zeros_like(v) for v in (m.count, m.total, m.gram)))
    assert float(best_share(one)) == float(best_share(none)) == 1
    both = Moments(*(torch.stack([getattr(a, n) for a in (m, one)])
                     for n in ("count", "total", "gram")))
    assert torch.allclose(left_out_surprise(both)[0], left_out_surprise(m))
    assert best_share(both).tolist() == [float(best_share(m)), 1.0]
