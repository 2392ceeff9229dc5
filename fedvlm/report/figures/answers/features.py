"""Test images on a plane by their features in a run's model: t-SNE, as ``tsne`` of class scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedvlm.report.figures.answers.tsne import Points, draw, points_of, rows
from fedvlm.report.figures.selection import FigureRuns

NAME, ORDER, OF = "features", 45, "run"
CAPTION = ("Test images as points (t-SNE of the image features of one model, of length 1): near "
           "each other where the image tower and what the method adds to it see alike. Crosses are "
           "wrong answers. Distances between groups mean nothing.")
__all__ = ["CAPTION", "NAME", "OF", "ORDER", "Features", "draw", "rows", "select"]


@dataclass(frozen=True)
class Features:
    """Features ``[n, d]`` of length 1, labels and whether the answer is right ``[n]``; names."""

    values: NDArray[np.float64]
    true: NDArray[np.int64]
    right: NDArray[np.bool_]
    names: Sequence[str]


def select(selection: FigureRuns) -> Points | str | None:
    """Return the points of the test images that the command asks for; None without any."""
    found: Features | None = selection.features
    return None if found is None else points_of(found.values, found.true, found.right, found.names)
