"""Test images nearly equal to a training image: one patient, slide or video, as it seems."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedvlm.core.progress import Progress
from fedvlm.evaluation import Panel
from fedvlm.job.build import Built
from fedvlm.job.results.references import features_source

NEAR = 0.05  # of the usual squared distance of two images of a class
SHARE, LEAST = 0.05, 3  # of the test images, and how many, before anything is said
MOST_TEST, MOST_TRAIN = 2_000, 10_000  # images that are looked at, evenly from the lists
_ROWS = 512


def near_duplicates(built: Built, panel: Panel, progress: Progress | None = None) -> str:
    """Return a note on nearly equal images across the split; empty where there are few.

    Asked for the user's own sets where no groups say what belongs together. The features are those
    that the run has or the store's; at most ``MOST_TEST`` x ``MOST_TRAIN`` are compared.
    """
    data = built.data
    source = features_source(built, panel, built.federation.roster.present, progress)
    clients = [data.clients[c] for c in built.federation.roster.present]
    train = _some(np.unique(np.concatenate([c.train for c in clients])), MOST_TRAIN)
    test = _some(np.unique(np.concatenate([c.test for c in clients])), MOST_TEST)
    if len(train) < LEAST or len(test) < LEAST:
        return ""
    x, z = (source.fetch(torch.from_numpy(at), view=0)["features"] for at in (train, test))
    labels = (torch.from_numpy(data.labels[at]) for at in (train, test))
    twins = int(near_ones(x, z, *labels).sum())
    if twins < max(LEAST, SHARE * len(test)):
        return ""
    return (
        f"{twins:,} of {len(test):,} test images look nearly the same as a training image of their "
        "class: if images belong together (one patient, slide, video), the numbers are too high; "
        "name the column that says so: --groups COLUMN"
    )


def near_ones(x: Tensor, z: Tensor, y: Tensor, of: Tensor) -> Tensor:
    """Return which test images have a nearly equal training image of their class, ``[m]``.

    Args:
        x, z: features of training ``[n, d]`` and test images ``[m, d]``, of any length.
        y, of: their classes.
    """
    x, z = (F.normalize(t.float().cpu(), dim=1) for t in (x, z))
    out = torch.zeros(len(z), dtype=torch.bool)
    for label in of.unique():
        at, own = (of == label).nonzero().flatten(), x[y == label]
        if len(own) < LEAST:
            continue
        usual = (2 - 2 * own.mean(0).square().sum()).clamp_min(1e-9)  # of two images of the class
        for begin in range(0, len(at), _ROWS):
            rows = at[begin : begin + _ROWS]
            nearest = (2 - 2 * z[rows] @ own.T).clamp_min(0).amin(1)
            out[rows] = nearest < NEAR * usual
    return out


def _some(indices: np.ndarray, most: int) -> np.ndarray:
    return indices if len(indices) <= most else indices[np.linspace(0, len(indices) - 1, most)
                                                        .astype(np.int64)]
