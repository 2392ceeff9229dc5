"""Right answers by class and confusion counts, as Dassl's users look for them.

``TEST.PER_CLASS_RESULT`` puts Dassl's lines into ``log.txt``, ``TEST.COMPUTE_CMAT`` its file
``cmat.pt`` into the run folder: of the personal models on their clients' test images together,
which is what the headline is made of. ``results.json`` has the shared model's beside them.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from yacs.config import CfgNode

from fedvlm.core.stats import mean
from fedvlm.evaluation.scores import CONFUSION

Counts = Sequence[Sequence[int]]  # (true, predicted, images); predicted -1: logits not finite


def per_class(counts: Counts, names: Sequence[str]) -> list[dict[str, Any]]:
    """Return a line per class: ``class``, ``name``, ``n``, ``correct``, ``accuracy`` (percent).

    ``accuracy`` is None for a class without test images.
    """
    total, right = [0] * len(names), [0] * len(names)
    for true, predicted, n in counts:
        total[true] += n
        right[true] += n if predicted == true else 0
    return [
        {"class": i, "name": name, "n": total[i], "correct": right[i],
         "accuracy": 100.0 * right[i] / total[i] if total[i] else None}
        for i, name in enumerate(names)
    ]


def absent_parts(cfg: CfgNode, numbers: Mapping[str, Any]) -> list[str]:
    """Return a note for what is asked for now and was not when the last round ran.

    Args:
        numbers: the section ``results`` of ``results.json``.
    """
    return [
        f"the run did not record TEST.{key}: run it again with another --tag"
        for key, part, there in (
            ("PER_CLASS_RESULT", "per_class", numbers), ("COMPUTE_CMAT", CONFUSION, numbers),
            ("CALIBRATE", "personal_nll_calibrated", numbers.get("last", ())),
        ) if cfg.TEST[key] and part not in there
    ] + [
        f"the run did not record --metric {name}: run it again with another --tag"
        for name in (word.rpartition(":")[2] for word in cfg.TEST.METRICS)
        if name not in [one["name"] for one in numbers.get("named", ())]
    ]


def class_lines(lines: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Return Dassl's lines for ``log.txt``, as cells that tabs join; classes without images not."""
    rows = [line for line in lines if line["n"]]
    average = mean(line["accuracy"] for line in rows)
    return [
        ["=> per-class result"],
        *([f"* class: {line['class']} ({line['name']})", f"total: {line['n']:,}",
           f"correct: {line['correct']:,}", f"acc: {line['accuracy']:.1f}%"] for line in rows),
        *([[f"* average: {average:.1f}%"]] if average is not None else []),
    ]


def confusion_matrix(counts: Counts, classes: int) -> Tensor:
    """Return the confusion matrix ``[C, C]`` float64, rows (true classes) of sum 1.

    Rows without images are zero; a prediction that is not finite is in no column.
    """
    whole = torch.zeros(classes, classes, dtype=torch.float64)
    total = torch.zeros(classes, 1, dtype=torch.float64)
    for true, predicted, n in counts:
        total[true] += n
        if predicted >= 0:
            whole[true, predicted] += n
    return whole / total.clamp(min=1)


def matrix_file(counts: Counts, classes: int) -> bytes:
    """Return ``cmat.pt``: the matrix as ``torch.load`` reads it."""
    buffer = io.BytesIO()
    torch.save(confusion_matrix(counts, classes), buffer)
    return buffer.getvalue()
