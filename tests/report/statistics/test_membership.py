"""Membership: closed forms, brute force, and planted answers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import beta, norm

from fedvlm.report.statistics import membership as room


def test_clopper_pearson_inverts_the_binomial() -> None:
    """No hit in n: the upper limit is 1 - (a/2)^(1/n); the rest by the quantiles of beta."""
    assert room.clopper_pearson(0, 20) == (0.0, pytest.approx(1 - 0.025 ** (1 / 20)))
    assert room.clopper_pearson(20, 20) == (pytest.approx(0.025 ** (1 / 20)), 1.0)
    low, high = room.clopper_pearson(7, 30)
    assert low == pytest.approx(beta.ppf(0.025, 7, 24)) and high == pytest.approx(
        beta.ppf(0.975, 8, 23))
    with pytest.raises(ValueError, match="no share"):
        room.clopper_pearson(3, 2)


def test_auc_counts_pairs() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 5, 30).astype(float) + 1, rng.integers(0, 5, 40).astype(float)
    pairs = [(x > y) + 0.5 * (x == y) for x in a for y in b]
    centre, low, high = room.auc(a, b)
    assert centre == pytest.approx(float(np.mean(pairs))) and low < centre < high
    assert room.auc(np.array([3.0, 4.0]), np.array([1.0, 2.0])) == (1.0, 1.0, 1.0)
    with pytest.raises(ValueError, match="needs members"):
        room.auc(a[:0], b)


def test_the_interval_of_auc_covers() -> None:
    """Of two normal laws at distance 1 the AUC is Phi(1 / sqrt 2)."""
    rng, true = np.random.default_rng(1), float(norm.cdf(1 / math.sqrt(2)))
    inside = 0
    for _ in range(400):
        _, low, high = room.auc(rng.normal(1, 1, 60), rng.normal(0, 1, 60))
        inside += low <= true <= high
    assert 0.91 <= inside / 400 <= 0.98


def test_hits_above_all_but_a_share_of_the_others() -> None:
    others = np.arange(100.0)
    rate = room.hit_rate(np.array([98.5, 99.5, 50.0, 98.0]), others, 0.01)
    assert (rate.hits, rate.members) == (2, 4), "one of the others may lie above"
    assert room.hit_rate(others, others, 0.05).hits == 5
    assert (rate.low, rate.high) == room.clopper_pearson(2, 4)


def test_confidence_is_the_logit_of_the_true_class() -> None:
    p = np.array([0.01, 0.5, 0.9, 0.999999])
    assert np.allclose(room.confidence_of(-np.log(p)), np.log(p / (1 - p)))
    assert np.isfinite(room.confidence_of(np.array([0.0]))).all()


def test_every_image_is_in_half_of_the_shadows() -> None:
    inside = room.random_halves(7, 6, np.random.default_rng(0))
    assert (inside.sum(0) == 3).all() and set(inside.sum(1).tolist()) == {3, 4}
    with pytest.raises(ValueError, match="pairs"):
        room.random_halves(7, 5, np.random.default_rng(0))


def planted(shift: float, n: int = 300, s: int = 16) -> tuple[np.ndarray, ...]:
    """Images of unequal difficulty whose confidence rises by ``shift`` where trained on."""
    rng = np.random.default_rng(3)
    hard, member = rng.normal(0, 3, n), np.arange(n) < n // 2
    inside = room.random_halves(n, s, rng)
    shadows = hard + shift * inside + rng.normal(0, 1, (s, n))
    return hard + shift * member + rng.normal(0, 1, n), shadows, inside, member


def test_shadows_see_what_a_threshold_does_not() -> None:
    """With normal noise of 1 the best AUC is Phi(shift / sqrt 2); difficulty hides it otherwise."""
    target, shadows, inside, member = planted(2.0)
    ratios = room.likelihood_ratios(target, shadows, inside)
    found = room.auc(ratios[member], ratios[~member])[0]
    assert found == pytest.approx(float(norm.cdf(2 / math.sqrt(2))), abs=0.05)
    assert found > room.auc(target[member], target[~member])[0] + 0.15


def test_members_and_others_exchanged_are_seen() -> None:
    target, shadows, inside, member = planted(2.0)
    ratios = room.likelihood_ratios(target, shadows, ~inside)
    assert room.auc(ratios[member], ratios[~member])[0] < 0.2
    with pytest.raises(ValueError, match="both sides"):
        room.likelihood_ratios(target, shadows, np.ones_like(inside))


def test_no_signal_shows_no_epsilon_and_perfect_signals_the_largest() -> None:
    rng = np.random.default_rng(5)
    assert room.epsilon_bound(rng.normal(size=400), rng.normal(size=400)) <= 0.3
    low, high = room.clopper_pearson(200, 200)[0], room.clopper_pearson(0, 200)[1]
    found = room.epsilon_bound(np.ones(400), np.zeros(400))
    assert found == pytest.approx(math.log(low / high))
    assert room.epsilon_bound(np.ones(2), np.zeros(2)) == 0.0


def test_the_bound_of_epsilon_holds_for_randomised_response() -> None:
    """Told right with e^eps / (1 + e^eps): the bound exceeds eps in at most 5 % of tries."""
    rng, eps, above = np.random.default_rng(6), 1.5, 0
    right = math.exp(eps) / (1 + math.exp(eps))
    for _ in range(200):
        a, b = (rng.random(500) < right), (rng.random(500) > right)
        above += room.epsilon_bound(a.astype(float), b.astype(float)) > eps
    assert above <= 0.05 * 200
    assert room.epsilon_bound(a.astype(float), b.astype(float)) > 0.8, "and is not idle"
