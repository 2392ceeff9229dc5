"""What one more image of a class brings: accuracy by the images of it that a client has.

Where clients' images are dealt in class shares, a test image of a class meets all n training images
that the client has of it. A held-out one met n - 1, which of one to three is much less. So counts
are shifted by one, as Good (1953) shifts those of species: an image whose class was left with m is
worth what images whose class was left with m + 1 were. Such images are there, of classes with one
image more; what is left is not weighed up to what was there, so that m + 1 are as rare as they
would be. The curve over m does not fall (isotonic regression: Ayer et al. 1955). Above the highest
m the error falls as a power of the images.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from scipy.optimize import isotonic_regression
from torch import Tensor

PART = 1 / 8  # of the shift, as its standard error: classes with more images are easier, too


def one_more(
    left: Sequence[Tensor], right: Sequence[Tensor], weights: Sequence[Tensor],
    trains: Sequence[Tensor], slope: float, lone: float,
) -> tuple[list[Tensor], float]:
    """Return right answers as with one more image of the class, and the standard error of that.

    Args:
        left: of each client, images (groups) of an image's class that were left ``[n]``.
        right: 1 for a right answer ``[n]``.
        weights: how much an image counts ``[n]``.
        trains: which are training images; the others met all of the class.
        slope: power with which the error falls.
        lone: share of the step that is due where none was left: some test images are of classes
            that the client lacks.

    Returns:
        ``right`` of each client, and points.
    """
    counts = [one.round().long() for one in left]
    own = torch.cat([w * t for w, t in zip(weights, trains, strict=True)])
    m, said = torch.cat(counts), torch.cat(list(right))
    places = m[own > 0].unique()
    if not len(places):
        return list(right), 0.0
    sizes = torch.stack([own[m == i].sum() for i in places]).numpy()
    hits = torch.stack([(own * said)[m == i].sum() for i in places]).numpy()
    at, curve = places.numpy(), rising(hits / sizes, sizes)
    top = int(at[-1])
    fall = (top / (top + 1)) ** max(slope, 0.0) if top else 1.0
    last = 1 - (1 - curve[-1]) * fall
    steps = np.diff(np.interp(np.arange(top + 2), [*at, top + 1], [*curve, last]))
    steps[0] *= lone
    size = torch.from_numpy(steps)
    out = [one + torch.where(t, size[n.clamp_max(top)], 0.0)
           for one, n, t in zip(right, counts, trains, strict=True)]
    share = torch.zeros(top + 2, dtype=torch.float64)  # of the mean over clients, by m
    for n, w, t in zip(counts, weights, trains, strict=True):
        share.index_add_(0, n.clamp_max(top), w * t / (w.sum() * len(counts)))
    shift = float(share[:-1] @ size)
    due = share.numpy()[: top + 1] * np.where(np.arange(top + 1) == 0, lone, 1.0)
    due[top] *= 1 - fall  # the last step is made of the last place
    pulls = -np.diff(due, prepend=0.0)[at]  # how far the shift hangs on each place of the curve
    doubt = (pulls**2 * (hits + 1) * (sizes - hits + 1) / (sizes + 2) ** 2 / (sizes + 1)).sum()
    return out, 100 * math.sqrt(float(doubt) + (PART * shift) ** 2)


def rising(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the nearest values, by weighted squares, that do not fall."""
    return np.asarray(isotonic_regression(values, weights=weights).x)


def lone_share(trains: int, tests: int) -> float:
    """Return the share of the step that is due to classes of one image, dealt in class shares.

    Proportions are cut to whole images. Where a class has more test than training images, a client
    that was cut down to no training image may have a test image of it. Of proportions that are
    even near nothing these are a sixth of the classes of one training image, of such as 1/p about
    a third, and none if there are no more test images.

    Args:
        trains, tests: how many images of each are dealt.
    """
    return 1 - max(0.0, 1 - trains / max(tests, 1)) / 3
