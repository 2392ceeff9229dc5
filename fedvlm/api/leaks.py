"""What one gradient step gives away: labels of its images, and of a linear head a feature.

A head without bias has logits ``scale * x . w_c / |w_c|`` of unit features x (``--peft head``,
``models.adapt.peft``). Row c of the mean gradient over n images, times ``|w_c| / scale``, is

    mean_i (p_ic - y_ic) (x_i - (x_i . u_c) u_c),   u_c = w_c / |w_c|,

so that a batch of one gives its feature exactly. Numbers of images by class: Zhao et al., iDLG,
arXiv 2001.02610 (one image), Wainakh et al., User-Level Label Leakage from Gradients, PoPETs 2022
(a batch, with the attacker's own images).
"""

from __future__ import annotations

import numpy as np
import torch
from scipy.optimize import nnls
from torch import Tensor
from torch.nn import functional as F


def feature_of(gradient: Tensor, head: Tensor, scale: float) -> Tensor:
    """Return the unit feature ``[d]`` of the one image of a step, in float64.

    It lies in the plane of u_c and row c, for every class: in the common line of all planes. Its
    sign is that under which the rows' lengths are the head's own probabilities.

    Args:
        gradient: of the loss to the head, ``[C, d]``, C >= 2 and d > 2.
        head: weights before the step, ``[C, d]``.
        scale: of the logits.
    """
    u, rows = _rows(gradient, head, scale)
    lengths = rows.norm(dim=1)
    kept = lengths > 1e-6 * lengths.max()  # smaller ones are rounding; the two largest are there
    planes = torch.stack([F.normalize(rows[kept], dim=-1), u[kept]], 1)  # [C, 2, d], orthonormal
    line = torch.linalg.eigh(torch.einsum("cad,cae->de", planes, planes)).eigenvectors[:, -1]

    def misfit(x: Tensor) -> float:
        across = x - (u @ x)[:, None] * u
        found = (rows * across).sum(1) / (across * across).sum(1)  # p_c - y_c
        chances = (scale * u @ x).softmax(0)
        label = int(found.argmin())
        return float((found - chances + F.one_hot(torch.tensor(label), len(u))).norm())

    return min((line, -line), key=misfit)


def counts_of_step(gradient: Tensor, columns: Tensor, n: int) -> np.ndarray:
    """Return an estimate of the images of each class ``[C]`` in a step of ``n`` images.

    The gradient of n images is the mean of theirs, so that it is near the mean of the classes'
    gradients, weighted by their images; the weights are found by non-negative least squares. Exact
    where the images of a class have one gradient.

    Args:
        gradient: mean over the images, flat, ``[P]``.
        columns: mean gradient of each class, over images that the attacker has, ``[C, P]``.
        n: images of the step.
    """
    q, r = torch.linalg.qr(columns.double().T)  # the same least squares in C equations
    found, _ = nnls(r.numpy(), (q.T @ gradient.double()).numpy())
    return np.asarray(n * found / max(float(found.sum()), 1e-12))


def _rows(gradient: Tensor, head: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Return the head's unit rows ``[C, d]``, and the gradient freed of their lengths."""
    w = head.double()
    return F.normalize(w, dim=-1), gradient.double() * w.norm(dim=1, keepdim=True) / scale
