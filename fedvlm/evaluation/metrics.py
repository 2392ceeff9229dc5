"""Metrics as pure functions; every accuracy is in percent.

``accuracy`` and ``macro_f1`` are Dassl's (scikit-learn's ``f1_score`` over the classes
present in ``y_true``). What is made of clients' numbers is ``core.stats``'s: unweighted; a client
without a value (None: it has no such samples) is left out.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from fedvlm.core.stats import cm, harmonic_mean, pooled, worst, worst_decile

__all__ = [
    "accuracy", "cm", "harmonic_mean", "macro_f1", "pooled", "worst", "worst_decile",
]


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


def _pair(y_true: ArrayLike, y_pred: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    true, pred = np.asarray(y_true).reshape(-1), np.asarray(y_pred).reshape(-1)
    if true.shape != pred.shape:
        raise ValueError(f"{len(true)} labels but {len(pred)} predictions")
    return true, pred
