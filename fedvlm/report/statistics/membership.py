"""How well somebody tells members from others: AUC, rates, and what they say of epsilon.

A *signal* is a number for each image that is larger for images that were trained on. The likelihood
ratio with shadow models is LiRA's with one variance for all images (Carlini et al., Membership
Inference Attacks From First Principles, S&P 2022, section V); the lower bound of epsilon is that of
Jagielski et al., Auditing Differentially Private Machine Learning, NeurIPS 2020, with the intervals
of Clopper and Pearson, The Use of Confidence or Fiducial Limits, Biometrika 1934.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv, ndtri

LEVEL = 0.95
RATES = (0.01, 0.05)  # shares of others taken for members
FLOOR = 1e-12  # of a loss and of a variance

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class HitRate:
    """Members found where at most so many of the others are taken for one.

    Attributes:
        allowed: largest share of others.
        hits, members: counts.
        low, high: interval of the share of members.
    """

    allowed: float
    hits: int
    members: int
    low: float
    high: float


def clopper_pearson(hits: int, of: int, level: float = LEVEL) -> tuple[float, float]:
    """Return the exact two-sided interval of a share, from ``hits`` in ``of`` tries.

    Raises:
        ValueError: more hits than tries, or no try.
    """
    if not 0 <= hits <= of or not of:
        raise ValueError(f"{hits} of {of} is no share")
    tail = (1 - level) / 2
    low = float(betaincinv(hits, of - hits + 1, tail)) if hits else 0.0
    high = float(betaincinv(hits + 1, of - hits, 1 - tail)) if hits < of else 1.0
    return low, high


def auc(members: Floats, others: Floats) -> tuple[float, float, float]:
    """Return the share of pairs in which the member's signal is larger, and its 95 % interval.

    Ties count half. The interval is DeLong's (Biometrics 1988), cut to [0, 1].

    Raises:
        ValueError: no member, or no other.
    """
    if not len(members) or not len(others):
        raise ValueError("an AUC needs members and others")
    over = _placements(members, np.sort(others))
    under = 1 - _placements(others, np.sort(members))
    centre = float(over.mean())
    parts = [float(v.var(ddof=1)) / len(v) for v in (over, under) if len(v) > 1]
    half = float(ndtri((1 + LEVEL) / 2)) * math.sqrt(sum(parts))
    return centre, max(0.0, centre - half), min(1.0, centre + half)


def _placements(values: Floats, among: Floats) -> Floats:
    """Return for each value the share of ``among`` (sorted) below it; ties count half."""
    below = np.searchsorted(among, values, "left") + np.searchsorted(among, values, "right")
    return np.asarray(below / (2 * len(among)), dtype=np.float64)


def hit_rate(members: Floats, others: Floats, allowed: float) -> HitRate:
    """Return how many members lie above all but a share ``allowed`` of the others."""
    ranked = np.sort(others)[::-1]
    least = ranked[min(int(allowed * len(ranked)), len(ranked) - 1)]
    hits = int((members > least).sum())
    return HitRate(allowed, hits, len(members), *clopper_pearson(hits, len(members)))


def epsilon_bound(
    members: Floats, others: Floats, delta: float = 0.0, among: int = 1
) -> float:
    """Return a lower bound of epsilon that holds with 95 %, 0 where nothing is shown.

    Args:
        delta: of the guarantee.
        among: attacks of which the largest bound is told: all hold at the same time (Bonferroni).

    Every second image chooses the threshold, the others count, so that the choice costs nothing.
    A mechanism that is (epsilon, delta)-private has rates with TPR <= e^epsilon FPR + delta, and
    the same of the two errors; the bound takes the worst ends of both intervals. Images count as
    independent tries.
    """
    if min(len(members), len(others)) < 4:
        return 0.0
    grid = np.unique(np.concatenate([members[::2], others[::2]])).tolist()
    best = max(grid, key=lambda t: _bound(members[::2], others[::2], t, delta, among))
    return max(0.0, _bound(members[1::2], others[1::2], best, delta, among))


def _bound(
    members: Floats, others: Floats, threshold: float, delta: float, among: int
) -> float:
    """Return the bound at a threshold; the two limits that it uses fail with 2.5 % each."""
    level = 1 - (1 - LEVEL) / among
    found = clopper_pearson(int((members >= threshold).sum()), len(members), level)
    false = clopper_pearson(int((others >= threshold).sum()), len(others), level)
    ratios = ((found[0] - delta, false[1]), (1 - false[1] - delta, 1 - found[0]))
    return max(math.log(a / b) if a > 0 and b > 0 else -math.inf for a, b in ratios)


def confidence_of(loss: Floats) -> Floats:
    """Return ``log(p / (1 - p))`` of the true class, from ``loss = -log p`` in nats."""
    loss = np.maximum(loss, FLOOR)
    return np.asarray(-loss - np.log(-np.expm1(-loss)), dtype=np.float64)


def likelihood_ratios(target: Floats, shadows: Floats, inside: Bools) -> Floats:
    """Return for each image how much likelier its confidence is if it was trained on.

    Args:
        target: confidences ``[n]`` by the model that is audited.
        shadows: confidences ``[S, n]`` by the shadow models.
        inside: whether a shadow was trained on an image, ``[S, n]``; each image on both sides.

    Returns:
        log-likelihood ratios ``[n]``; normal laws with each image's means and two variances, of
        all images together.

    Raises:
        ValueError: an image of which all shadows were trained, or none.
    """
    counts = inside.sum(0)
    if (counts == 0).any() or (counts == len(inside)).any():
        raise ValueError("every image needs shadows on both sides")
    out = np.zeros(len(target))
    for side, sign in ((inside, 1.0), (~inside, -1.0)):
        number = side.sum(0)
        mean = np.where(side, shadows, 0.0).sum(0) / number
        spread = np.where(side, (shadows - mean) ** 2, 0.0).sum()
        variance = max(float(spread) / max(int(number.sum()) - len(target), 1), FLOOR)
        out += sign * (-((target - mean) ** 2) / (2 * variance) - math.log(variance) / 2)
    return out


def random_halves(sizes: int, shadows: int, generator: np.random.Generator) -> Bools:
    """Return which of so many images each shadow gets ``[S, n]``: halves and what they leave.

    Every image is in exactly half of the shadows.

    Raises:
        ValueError: an odd number of shadows.
    """
    if shadows % 2:
        raise ValueError(f"{shadows} shadows cannot come in pairs")
    inside = np.zeros((shadows, sizes), dtype=bool)
    for pair in range(0, shadows, 2):
        order = generator.permutation(sizes)
        inside[pair, order[: (sizes + 1) // 2]] = True
        inside[pair + 1] = ~inside[pair]
    return inside
