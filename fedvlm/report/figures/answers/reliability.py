"""Reliability diagram (Guo et al. 2017): how often a model is right by how sure it says it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from fedvlm.report.figures import style
from fedvlm.report.figures.answers.scores import Scores, read_scores
from fedvlm.report.figures.selection import FigureRuns

NAME, ORDER, OF = "reliability", 42, "run"
CAPTION = ("Accuracy by confidence in 15 bins of equal width, all clients' test images together. "
           "Orange: how much a bin's mean confidence is above its accuracy (the models are too "
           "sure); green: how much its accuracy is above its confidence. On the dashed line both "
           "are equal. Lower panel: share of the images. ECE is the mean over bins of this "
           "difference, weighted by their images.")
FAINT = 0.35  # opacity of the difference
BINS = 15  # as the run's ``personal_ece``
TOO_SURE, UNSURE = (style.PALETTE[1], "confidence above accuracy"), (
    style.PALETTE[2], "accuracy above confidence")


@dataclass(frozen=True)
class Bin:
    """Images whose confidence lies in a bin: its edges, how many, mean confidence and accuracy."""

    low: float
    high: float
    count: int
    confidence: float
    accuracy: float


def select(selection: FigureRuns) -> list[Bin] | str:
    """Return the bins that have images."""
    scores = read_scores(selection.run)
    return scores if isinstance(scores, str) else bins_of(scores)


def bins_of(scores: Scores) -> list[Bin]:
    """Return the bins of equal width that have images."""
    sure, right = scores.confidence, scores.right
    at = np.clip(np.ceil(sure * BINS).astype(int) - 1, 0, BINS - 1)  # a bin holds its upper edge
    return [Bin(b / BINS, (b + 1) / BINS, int(mask.sum()), float(sure[mask].mean()),
                float(right[mask].mean()))
            for b in range(BINS) if (mask := at == b).any()]


def ece_of_bins(bins: Sequence[Bin]) -> float:
    """Return the expected calibration error in percent (Guo et al. 2017, eq. 3)."""
    total = sum(b.count for b in bins)
    return 100 * sum(b.count / total * abs(b.accuracy - b.confidence) for b in bins)


def rows(bins: Sequence[Bin]) -> list[dict[str, Any]]:
    """Return one row per bin."""
    return [{"low": b.low, "high": b.high, "images": b.count, "confidence": b.confidence,
             "accuracy": b.accuracy} for b in bins]


def draw(bins: Sequence[Bin], title: str = "", width: float = style.PAGE) -> Figure:
    """Return the diagram over the share of images."""
    total = sum(b.count for b in bins)
    side = min(width, 3.4)
    with style.use_style():
        figure = style.blank(side, 1.25 * side + 0.35)
        top, below = figure.subplots(2, 1, height_ratios=(4, 1), sharex=True)
        for b in bins:
            low, over = min(b.accuracy, b.confidence), b.confidence - b.accuracy
            top.bar(b.low, low, b.high - b.low, align="edge", color=style.PALETTE[0],
                    edgecolor="white", linewidth=0.6)
            top.bar(b.low, abs(over), b.high - b.low, bottom=low, align="edge",
                    color=(TOO_SURE if over > 0 else UNSURE)[0], alpha=FAINT,
                    edgecolor="white", linewidth=0.6)
            below.bar(b.low, 100 * b.count / total, b.high - b.low, align="edge", color=style.REST,
                      edgecolor="white", linewidth=0.6)
        equal, = top.plot([0, 1], [0, 1], color=style.INK, linewidth=0.7, linestyle=(0, (4, 2)))
        top.text(0.04, 0.92, f"ECE {ece_of_bins(bins):.1f} %", transform=top.transAxes)
        top.set_ylabel("accuracy")
        top.set_ylim(0, 1)
        top.set_xlim(0, 1)
        below.set_ylabel("images, %")
        below.set_xlabel("confidence: probability of the predicted class")
        gaps = [Patch(color=colour, alpha=FAINT) for colour, _ in (TOO_SURE, UNSURE)]
        figure.legend(
            [Patch(color=style.PALETTE[0]), *gaps, equal],
            ["accuracy", TOO_SURE[1], UNSURE[1], "both equal"],
            loc="outside lower left", frameon=False, ncols=2, borderaxespad=0.2,
            handlelength=1.5, columnspacing=1.0)
        if title:
            figure.suptitle(style.cut_label(title, int(side * 19)), fontsize=7.5, x=0.01, ha="left")
    return figure
