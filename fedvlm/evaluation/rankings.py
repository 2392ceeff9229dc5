"""How well scores order images, label by label: average precision, AUROC, F1, sensitivity.

Pure functions of ``truth [n, C]`` (0 and 1) and ``scores [n, C]`` (any order-preserving number).
Each returns ``[C]``, NaN for a label that has no such number: without a positive image, and for
AUROC and sensitivity without a negative one. Definitions are scikit-learn's, which the tests
repeat by plain sums.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
HALF = 0.5  # the threshold of a probability where validation images do not say one


def average_precision(truth: np.ndarray, scores: np.ndarray) -> Floats:
    """Return the sum over thresholds of the gain in recall times precision, in 0..1.

    Equal scores are one threshold (no interpolation, as ``average_precision_score``).
    """
    return _each(truth, scores, _precision_sum)


def auroc(truth: np.ndarray, scores: np.ndarray) -> Floats:
    """Return the share of pairs of a positive and a negative image in the right order, in 0..1.

    Equal scores count one half (Mann and Whitney 1947).
    """
    return _each(truth, scores, _pairs)


def sensitivity_at(truth: np.ndarray, scores: np.ndarray, specificity: float) -> Floats:
    """Return the highest sensitivity among the thresholds of at least this specificity, in 0..1."""
    return _each(truth, scores, lambda t, s: _sensitivity(t, s, specificity))


def f1(truth: np.ndarray, said: np.ndarray) -> Floats:
    """Return F1 of the answers ``said [n, C]`` (bool) for each label, in 0..1."""
    yes = truth.astype(bool)
    hits, all_ = (yes & said).sum(0), yes.sum(0) + said.sum(0)
    return np.where(yes.any(0), 2.0 * hits / np.maximum(all_, 1), np.nan)


def one_against_rest(
    true: np.ndarray, said: np.ndarray, scores: np.ndarray
) -> tuple[Floats, Floats, Floats]:
    """Return sensitivity, specificity and AUROC of each class against all others, ``[C]``.

    Args:
        true, said: labels ``[n]``; ``scores``: ``[n, C]``, for AUROC alone.
    """
    classes = np.arange(scores.shape[1])
    truth, yes = true[:, None] == classes, said[:, None] == classes
    with np.errstate(invalid="ignore"):  # 0 / 0: no image of the class, or of any other
        return ((truth & yes).sum(0) / truth.sum(0), (~truth & ~yes).sum(0) / (~truth).sum(0),
                auroc(truth, scores))


def thresholds(truth: np.ndarray, scores: np.ndarray, otherwise: float) -> Floats:
    """Return for each label the threshold ``[C]`` with the best F1; ``score >= threshold`` is yes.

    It lies halfway between two neighbouring scores; of equals the highest.

    Args:
        otherwise: for a label without a positive image here.
    """
    found = _each(truth, scores, _best)
    return np.where(np.isnan(found), otherwise, found)


def _each(truth: np.ndarray, scores: np.ndarray, one) -> Floats:  # type: ignore[no-untyped-def]
    pairs = zip(truth.T.astype(bool), np.asarray(scores, dtype=np.float64).T, strict=True)
    return np.array([one(t, s) for t, s in pairs], dtype=np.float64)


def _falling(truth: np.ndarray, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the distinct scores, falling, and of each threshold the true and false yeses."""
    order = np.argsort(-scores, kind="stable")
    s, t = scores[order], truth[order]
    last = np.flatnonzero(np.append(s[1:] != s[:-1], True))
    hits = np.cumsum(t)[last]
    return s[last], hits, last + 1 - hits


def _precision_sum(truth: np.ndarray, scores: np.ndarray) -> float:
    if not truth.any():
        return np.nan
    _, hits, wrong = _falling(truth, scores)
    gain = np.diff(hits, prepend=0) / truth.sum()
    return float((gain * hits / (hits + wrong)).sum())


def _pairs(truth: np.ndarray, scores: np.ndarray) -> float:
    if truth.all() or not truth.any():
        return np.nan
    _, hits, wrong = _falling(truth, scores)
    height = (hits + np.append(0, hits[:-1])) / 2.0
    return float((np.diff(wrong, prepend=0) * height).sum() / (truth.sum() * (~truth).sum()))


def _sensitivity(truth: np.ndarray, scores: np.ndarray, specificity: float) -> float:
    if truth.all() or not truth.any():
        return np.nan
    _, hits, wrong = _falling(truth, scores)
    fine = 1.0 - wrong / (~truth).sum() >= specificity - 1e-12
    return float(hits[fine].max(initial=0) / truth.sum())


def _best(truth: np.ndarray, scores: np.ndarray) -> float:
    if not truth.any():
        return np.nan
    s, hits, wrong = _falling(truth, scores)
    at = int(np.argmax(2.0 * hits / (hits + wrong + truth.sum())))  # the first: the highest
    return float(s[at] if at + 1 == len(s) else (s[at] + s[at + 1]) / 2.0)
