"""Test images on a plane by what the models say of them: t-SNE of class scores.

van der Maaten and Hinton, Visualizing Data using t-SNE, JMLR 2008; scikit-learn's, which starts
from the principal components and a fixed seed, so that a run always gives the same picture.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from fedvlm.report.figures import style
from fedvlm.report.figures.answers.scores import read_scores
from fedvlm.report.figures.selection import FigureRuns
from fedvlm.runs.names import class_names

NAME, ORDER, OF = "tsne", 44, "run"
CAPTION = ("Test images as points (t-SNE of the log-probabilities that the models give each "
           "class): near each other where the models say alike. Crosses are wrong answers. "
           "Distances between groups mean nothing.")
MOST, LEAST = 1000, 30  # images drawn, and needed
NEIGHBOURS = 30.0  # perplexity, as in the paper
LEGEND = 12  # classes with a name beside the points


@dataclass(frozen=True)
class Points:
    """Positions ``[n, 2]``, labels and whether the answer is right ``[n]``; names by label."""

    at: NDArray[np.float64]
    true: NDArray[np.int64]
    right: NDArray[np.bool_]
    names: Sequence[str]
    of: int


def select(selection: FigureRuns) -> Points | str:
    """Return the points of the test images, every n-th of more than a thousand."""
    scores = read_scores(selection.run)
    if isinstance(scores, str):
        return scores
    log = scores.logits - scores.logits.max(1, keepdims=True)
    log = log - np.log(np.exp(log).sum(1, keepdims=True))
    return points_of(log, scores.true, scores.right, class_names(selection.run.path))


def points_of(
    values: NDArray[np.float64], true: NDArray[np.int64], right: NDArray[np.bool_],
    names: Sequence[str],
) -> Points | str:
    """Return the places of rows ``[n, d]``, of at most a thousand; a sentence for too few.

    Args:
        true, right: label of each image, and whether the answer is right, ``[n]``.
        names: of the classes.
    """
    number = len(true)
    if number < LEAST:
        return f"{number} test images are too few for a map of them ({LEAST})"
    from sklearn.manifold import TSNE  # start-up: 1 s

    some = np.linspace(0, number - 1, min(number, MOST)).round().astype(int)
    near = min(NEIGHBOURS, (len(some) - 1) / 3)
    init = "pca" if values.shape[1] > 1 else "random"
    at = TSNE(perplexity=near, init=init, random_state=0).fit_transform(values[some])
    return Points(np.asarray(at, dtype=np.float64), true[some], right[some], names, number)


def rows(data: Points) -> list[dict[str, Any]]:
    """Return one row per point."""
    return [{"x": float(x), "y": float(y), "true": _name(data, int(c)), "right": bool(r)}
            for (x, y), c, r in zip(data.at, data.true, data.right, strict=True)]


def draw(data: Points, title: str = "", width: float = style.PAGE) -> Figure:
    """Return the map; colours are classes, as far as colours go."""
    classes = sorted({int(c) for c in data.true})
    side = min(width, 4.2)
    with style.use_style():
        named = len(classes) <= LEGEND
        figure = style.blank(min(width, side + 1.3 * named), side)
        axes = figure.subplots()
        for i, label in enumerate(classes):
            mine = data.true == label
            colour = style.PALETTE[i % len(style.PALETTE)] if named else style.PALETTE[0]
            shape = style.MARKERS[(i // len(style.PALETTE)) % len(style.MARKERS)]
            good, bad = mine & data.right, mine & ~data.right
            x, y = data.at.T
            axes.scatter(x[good], y[good], s=7, color=colour, marker=shape, linewidths=0,
                         alpha=0.75)
            axes.scatter(x[bad], y[bad], s=13, color=colour, marker="x", linewidths=0.8)
        axes.set_xticks([])
        axes.set_yticks([])
        axes.grid(visible=False)
        for spine in axes.spines.values():
            spine.set_visible(False)
        handles = [Line2D([], [], linestyle="none", marker=style.MARKERS[i // len(style.PALETTE)],
                          color=style.PALETTE[i % len(style.PALETTE)], markersize=4,
                          label=style.cut_label(_name(data, c), 18))
                   for i, c in enumerate(classes)] if named else []
        handles.append(Line2D([], [], linestyle="none", marker="x", color=style.INK, markersize=4,
                              label="wrong answer"))
        figure.legend(handles=handles, loc="outside right center" if named else
                      "outside lower center", frameon=False)
        if title:
            figure.suptitle(style.cut_label(title, int(side * 15)), fontsize=7.5, x=0.01, ha="left")
    return figure


def _name(data: Points, label: int) -> str:
    return data.names[label] if label < len(data.names) else str(label)
