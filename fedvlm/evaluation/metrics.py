"""Metrics as pure functions; every accuracy is in percent.

``accuracy`` and ``macro_f1`` are Dassl's (scikit-learn's ``f1_score`` over the classes
present in ``y_true``). What is made of clients' numbers is ``core.stats``'s: unweighted; a client
without a value (None: it has no such samples) is left out.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

BINS = 15  # of the calibration error


def accuracy(y_true: ArrayLike, y_pred: ArrayLike) -> float | None:
    """Return the share of equal labels in percent, None for no samples."""
    true, pred = _pair(y_true, y_pred)
    return 100.0 * float(np.sum(true == pred)) / len(true) if len(true) else None


def macro_f1(y_true: ArrayLike, y_pred: ArrayLike) -> float | None:
    """Return the unweighted mean of F1 over the classes present in ``y_true``, in percent.

    A prediction outside those classes counts as a miss of the true class only.
    """
    true, pred = _pair(y_true, y_pred)
    if not len(true):
        return None
    lowest = min(true.min(), pred.min())  # -1 stands for no prediction
    width = int(max(true.max(), pred.max()) - lowest) + 1
    hits, actual, predicted = (
        np.bincount(labels - lowest, minlength=width)
        for labels in (true[true == pred], true, pred)
    )
    here = actual > 0
    return 100.0 * float(np.mean(2.0 * hits[here] / (actual[here] + predicted[here])))


def balanced_accuracy(y_true: ArrayLike, y_pred: ArrayLike) -> float | None:
    """Return the unweighted mean of the recalls of the classes present in ``y_true``, in percent.

    Each class counts alike, so that knowing which one is common earns nothing. None for no samples.
    """
    true, pred = _pair(y_true, y_pred)
    if not len(true):
        return None
    _, place, counts = np.unique(true, return_inverse=True, return_counts=True)
    hits = np.bincount(place, weights=true == pred)
    return 100.0 * float(np.mean(hits / counts))


def calibration_error(correct: ArrayLike, confidence: ArrayLike) -> float | None:
    """Return the expected calibration error in percent; None for no samples.

    Guo et al. 2017 (On Calibration of Modern Neural Networks), equation 3: confidence is the
    probability of the predicted class; ``BINS`` bins of equal width, ``(b / 15, (b + 1) / 15]``;
    the mean over samples of |share of right answers - mean confidence| of their bin.
    """
    right, sure = _pair(correct, confidence)
    if not len(right):
        return None
    place = np.clip(np.ceil(sure * BINS).astype(np.int64) - 1, 0, BINS - 1)
    gaps = np.bincount(place, weights=right.astype(np.float64) - sure, minlength=BINS)
    return 100.0 * float(np.abs(gaps).sum()) / len(right)


def _pair(y_true: ArrayLike, y_pred: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    true, pred = np.asarray(y_true).reshape(-1), np.asarray(y_pred).reshape(-1)
    if true.shape != pred.shape:
        raise ValueError(f"{len(true)} labels but {len(pred)} predictions")
    return true, pred
