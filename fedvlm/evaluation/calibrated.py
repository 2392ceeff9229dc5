"""``TEST.CALIBRATE``: a temperature for each client's model, fixed on its validation images.

Guo et al. 2017 (On Calibration of Modern Neural Networks), section 4.2: probabilities are
softmax(logits / T), with the T of the least negative log-likelihood of the validation images. No
prediction changes. Sets of labels have theirs always (``label_rows``).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from fedvlm.evaluation import metrics
from fedvlm.evaluation.scores import certainty
from fedvlm.federation.server import Row

LOWEST, HIGHEST = 0.05, 20.0  # of a temperature
_HALVINGS = 60

Judged = tuple[np.ndarray, np.ndarray]  # logits [n, C], labels [n]


def temperature_of(logits: np.ndarray, labels: np.ndarray) -> float:
    """Return the temperature with the least negative log-likelihood of ``[n, C]`` logits.

    The likelihood is convex in 1/T, so the zero of its slope is found by halving. 1 where the
    images do not fix it: there are none, some logit is not finite, or every image is classified
    correctly, so that any smaller T is likelier. At least ``LOWEST``, at most ``HIGHEST``.
    """
    if not len(labels) or not np.isfinite(logits).all():
        return 1.0
    z = logits.astype(np.float64) - logits.max(1, keepdims=True)
    own = z[np.arange(len(z)), labels]

    def slope(inverse: float) -> float:
        p = np.exp(inverse * z)
        return float(((p * z).sum(1) / p.sum(1) - own).mean())

    low, high = 1 / HIGHEST, 1 / LOWEST
    if not own.any():
        return 1.0
    if slope(high) <= 0:
        return LOWEST
    if slope(low) >= 0:
        return HIGHEST
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if slope(middle) < 0 else (low, middle)
    return 2 / (low + high)


def add_calibration(
    rows: Sequence[Row], held: Sequence[Judged], judged: Sequence[Judged]
) -> None:
    """Add ``temperature``, and ``nll_calibrated`` and ``ece_calibrated`` at it, to clients' lines.

    Args:
        rows: of clients.
        held: of each, logits and labels of its validation images.
        judged: of its test images; without any the two numbers are None.
    """
    for row, val, (logits, labels) in zip(rows, held, judged, strict=True):
        t = temperature_of(*val)
        row |= {"temperature": t, "nll_calibrated": None, "ece_calibrated": None}
        if not len(labels) or not np.isfinite(logits).all():
            continue
        confidence, loss = certainty(torch.from_numpy(logits / t), labels)
        row["nll_calibrated"] = float(loss.mean())
        row["ece_calibrated"] = metrics.calibration_error(logits.argmax(1) == labels, confidence)
