"""A client's line, and what lines say together, where an image has a set of labels.

``accuracy``, and so ``personal`` and ``global``, is mAP here: the mean over the labels of the
average precision. So whatever reads the one number of a client (selection by validation, rounds by
themselves, baselines, tables) reads mAP; ``protocol.target`` says ``labels``. A label without a
positive image in a test split is left out of that split's means.

At the start and after the last round each client's temperature (least binary cross-entropy) and,
for each label, the threshold (best F1) are fixed on its validation images; F1 and the stored
thresholds are of probabilities at that temperature. Without validation images they are 1 and 0.5.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedvlm.core.stats import mean, population_std, quartiles, worst, worst_decile
from fedvlm.evaluation import rankings
from fedvlm.federation.server import Row

SPECIFICITY = 0.9  # at which the sensitivity is told
TEMPERATURES = np.geomspace(0.05, 20.0, 61)
LABEL = "label"  # of a row: ``label.<number>.<what>``; ``take_labels`` takes it out
LABELS = "labels"  # section of a record
WHAT = ("ap", "auroc", "f1", "sensitivity", "threshold", "positives")
MEASURE = "mAP"


class Fixed(NamedTuple):
    """What is fixed on validation images: a temperature, and a probability for each label."""

    temperature: float
    thresholds: np.ndarray


def truth_of(data: Any, samples: np.ndarray) -> np.ndarray:
    """Return the labels of samples, ``[n, C]`` of 0 and 1."""
    table: np.ndarray = data.label_sets[data.labels[samples]]
    return table


def probabilities(logits: np.ndarray, temperature: float) -> np.ndarray:
    """Return the sigmoid of logits over a temperature, float64."""
    return torch.from_numpy(_finite(logits) / temperature).sigmoid().numpy()


def _finite(logits: np.ndarray) -> np.ndarray:
    """Return logits in float64; what is not finite comes last."""
    return np.nan_to_num(np.asarray(logits, dtype=np.float64), nan=-1e9, posinf=-1e9, neginf=-1e9)


def fix(truth: np.ndarray, logits: np.ndarray) -> Fixed:
    """Return temperature and thresholds of validation images ``[n, C]``."""
    if not len(truth):
        return Fixed(1.0, np.full(truth.shape[1], rankings.HALF))
    z, y = torch.from_numpy(_finite(logits)), torch.from_numpy(truth.astype(np.float64))
    losses = [float(F.binary_cross_entropy_with_logits(z / t, y)) for t in TEMPERATURES]
    temperature = float(TEMPERATURES[int(np.argmin(losses))])
    p = probabilities(logits, temperature)
    return Fixed(temperature, rankings.thresholds(truth, p, rankings.HALF))


def set_row(
    client: int, truth: np.ndarray, logits: np.ndarray, fixed: Fixed | None = None
) -> Row:
    """Return a client's line: n, positives, accuracy (mAP), auroc; with ``fixed`` more.

    That is ``macro_f1``, ``sensitivity`` at ``SPECIFICITY``, ``nll``, ``temperature``, and a number
    for each label and ``WHAT``. Percent; None where no label has the number.
    """
    broken = int((~np.isfinite(logits)).any(-1).sum()) if len(truth) else 0
    z = _finite(logits)
    each = {"ap": rankings.average_precision(truth, z), "auroc": rankings.auroc(truth, z)}
    row: Row = {"client": int(client), "n": len(truth), "positives": int(truth.sum()),
                "accuracy": mean_percent(each["ap"]), "auroc": mean_percent(each["auroc"])}
    if fixed is not None:
        p = probabilities(logits, fixed.temperature)
        each["f1"] = rankings.f1(truth, p >= fixed.thresholds)
        each["sensitivity"] = rankings.sensitivity_at(truth, z, SPECIFICITY)
        row |= {"macro_f1": mean_percent(each["f1"]),
                "sensitivity": mean_percent(each["sensitivity"]),
                "nll": _nll(truth, z), "temperature": fixed.temperature}
        for i in range(truth.shape[1]):
            row[f"{LABEL}.{i}.positives"] = int(truth[:, i].sum())
            row[f"{LABEL}.{i}.threshold"] = float(fixed.thresholds[i])
            row |= {f"{LABEL}.{i}.{name}": mean_percent(values[i : i + 1])
                    for name, values in each.items()}
    return row | ({"broken": broken} if broken else {})


def mean_percent(values: np.ndarray) -> float | None:
    """Return 100 times the mean of the values that are numbers; None where none is."""
    there = values[~np.isnan(values)]
    return 100.0 * float(there.mean()) if len(there) else None


def _nll(truth: np.ndarray, z: np.ndarray) -> float | None:
    """Return minus the log probability of an image's set, nats, mean over images."""
    if not len(truth):
        return None
    y = torch.from_numpy(truth.astype(np.float64))
    total = F.binary_cross_entropy_with_logits(torch.from_numpy(z), y, reduction="sum")
    return float(total) / len(truth)


def take_labels(rows: Sequence[Row], names: Sequence[str]) -> dict[str, Any] | None:
    """Take the numbers by label out of clients' lines; return them, or None where none has any.

    Returns:
        ``labels``: for each its ``name``, ``clients`` (with a positive test image), ``positives``
        of all, and the mean over those clients of ``ap``, ``auroc``, ``f1``, ``sensitivity`` in
        percent; ``clients``: for each its ``client``, ``temperature`` and ``thresholds``;
        ``specificity`` in percent.
    """
    taken: list[dict[str, Any]] = []
    for row in rows:
        keys = [key for key in row if key.startswith(f"{LABEL}.")]
        taken.append({key: row.pop(key) for key in keys})
    if not any(taken):
        return None
    lines = []
    for i, name in enumerate(names):
        some = [{what: one.get(f"{LABEL}.{i}.{what}") for what in WHAT} for one in taken]
        there = [one for one in some if one["positives"]]
        lines.append({
            "name": name, "clients": len(there),
            "positives": sum(int(one["positives"] or 0) for one in some),
            **{what: mean(one[what] for one in there)
               for what in ("ap", "auroc", "f1", "sensitivity")},
        })
    return {
        LABELS: lines, "specificity": 100.0 * SPECIFICITY,
        "clients": [
            {"client": row["client"], "temperature": row.get("temperature"),
             "thresholds": [one[f"{LABEL}.{i}.threshold"] for i in range(len(names))]}
            for row, one in zip(rows, taken, strict=True) if one
        ],
    }


def set_scores(rows: Sequence[Row]) -> dict[str, Any]:
    """Return mean, spread and quartiles of mAP over the clients, and the means of the rest."""
    values = [row["accuracy"] for row in rows]
    low, middle, high = quartiles(values)
    columns = {"personal_auroc": "auroc", "personal_macro_f1": "macro_f1",
               "personal_sensitivity": "sensitivity", "personal_nll": "nll"}
    return {
        "personal": mean(values), "personal_std": population_std(values),
        "personal_worst": worst(values), "personal_worst_decile": worst_decile(values),
        "personal_q1": low, "personal_median": middle, "personal_q3": high,
    } | {
        name: mean(row.get(column) for row in rows) for name, column in columns.items()
        if any(column in row for row in rows)
    }


def shared_scores(truth: np.ndarray, logits: Tensor | None) -> Mapping[str, Any]:
    """Return mAP and AUROC of one model on the whole test set: ``global``, ``global_auroc``."""
    z = np.zeros(truth.shape) if logits is None else logits.double().numpy()
    row = set_row(-1, truth, z)
    return {"global": row["accuracy"], "global_auroc": row["auroc"]}
