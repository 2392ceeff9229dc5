"""What is held out when, and images that are nearly the same.

A fold is one for all clients: what is held out at one client trains no other. Images of one group
are in one fold, wherever they lie.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fedvlm.core.errors import DataError
from fedvlm.data.datum import IntArray
from fedvlm.job.results.near import NEAR

_PART = 1024  # rows of a table of distances at a time


class NothingToJudge(DataError):
    """No client has images that can be held out."""


def fold_count(groups: int) -> int:
    """Return how many folds so many groups are dealt to: more of few, so that little is lost."""
    return 20 if groups <= 500 else 10 if groups <= 5_000 else 5


def deal_folds(
    groups: Sequence[IntArray], labels: Sequence[IntArray], count: int
) -> list[IntArray]:
    """Return the fold of each image of each client, class by class in turn; none is empty.

    Clients begin at folds that are far apart: where all have the same classes, what one fold holds
    out of a class would else be at all of them, and be most of it or all.

    Args:
        groups: numbers of each client's images' groups; the same number is the same group.
        labels: of the same images.
    """
    fold: dict[int, int] = {}
    for k, (own, classes) in enumerate(zip(groups, labels, strict=True)):
        order = np.argsort(classes, kind="stable")
        new = [g for g in dict.fromkeys(own[order].tolist()) if g not in fold]
        fold |= {g: (k * count // len(groups) + i) % count for i, g in enumerate(new)}
    number = {f: i for i, f in enumerate(sorted(set(fold.values())))}
    return [np.array([number[fold[int(g)]] for g in own], dtype=np.int64) for own in groups]


def twin_share(x: Tensor, y: Tensor, groups: IntArray) -> float:
    """Return the share of images with a nearly equal one in another group.

    Nearly equal: at most ``NEAR`` of the median distance between images of the class, by squared
    distance of features. Cross-validation is then too kind, as it is where images of one patient
    are on both sides.

    Args:
        x: features of unit length ``[n, d]``.
        y: classes ``[n]``.
        groups: ``[n]``.
    """
    ids, twins, judged = torch.from_numpy(groups), 0, 0
    for label in y.unique():
        at = (y == label).nonzero().flatten()
        if len(at) < 3:
            continue
        z, own = x[at].float(), ids[at]
        near = torch.full((len(at),), torch.inf)
        for begin in range(0, len(at), _PART):
            rows = slice(begin, begin + _PART)
            apart = (2 - 2 * z[rows] @ z.T).clamp_min(0)
            apart[own[rows, None] == own[None]] = torch.inf
            near[rows] = apart.amin(1)
        usual = (2 - 2 * z.mean(0).square().sum()).clamp_min(1e-9)  # mean distance of two images
        twins += int((near < NEAR * usual).sum())
        judged += len(at)
    return twins / judged if judged else 0.0
