"""What one gradient step of a linear head gives away: the labels of its images, and a feature.

A head without bias has logits ``scale * x . w_c / |w_c|`` of unit features x (``models.adapt.peft``,
``--peft head``). Row c of the mean gradient over n images, times ``|w_c| / scale``, is

    mean_i (p_ic - y_ic) (x_i - (x_i . u_c) u_c),   u_c = w_c / |w_c|,

so that a batch of one gives its feature exactly, and a larger one equations for the number of
images of each class (Zhao et al., iDLG, arXiv 2001.02610, and Wainakh et al., User-Level Label
Leakage from Gradients, PoPETs 2022, for heads with a bias).
"""

from __future__ import annotations

import numpy as np
import torch
from scipy.optimize import nnls
from torch import Tensor
from torch.nn import functional as F


def counts_of_bias(gradient: Tensor, chances: Tensor, n: int) -> Tensor:
    """Return the images of each class ``[C]`` in a batch of ``n``; exact where ``chances`` are.

    The gradient of the mean cross-entropy to a bias is ``mean p_c - n_c / n``.

    Args:
        gradient: to the bias, ``[C]``.
        chances: mean probability of each class before the step ``[C]``; ``1 / C`` of a head of
            zeros.
        n: images of the batch.
    """
    return n * (chances - gradient)


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
    kept = lengths > 1e-9 * lengths.max()  # of a class without probability nothing is known
    planes = torch.stack([F.normalize(rows[kept], dim=-1), u[kept]], 1)  # [C, 2, d], orthonormal
    line = torch.linalg.eigh(torch.einsum("cad,cae->de", planes, planes)).eigenvectors[:, -1]

    def misfit(x: Tensor) -> float:
        across = x - (u @ x)[:, None] * u
        found = (rows * across).sum(1) / (across * across).sum(1)  # p_c - y_c
        chances = (scale * u @ x).softmax(0)
        label = int(found.argmin())
        return float((found - chances + F.one_hot(torch.tensor(label), len(u))).norm())

    return min((line, -line), key=misfit)


def counts_of_head(
    gradient: Tensor, head: Tensor, scale: float, centres: Tensor, n: int
) -> np.ndarray:
    """Return an estimate of the images of each class ``[C]`` in a step of ``n`` images.

    The features of a class are taken to be the class's mean of somebody else's images; then the
    gradient is linear in the numbers of images, which are found by non-negative least squares.

    Args:
        gradient: mean over the images, ``[C, d]``.
        head: weights before the step, ``[C, d]``.
        scale: of the logits.
        centres: mean unit feature of each class, of images that the attacker has, ``[C, d]``.
        n: images of the step.
    """
    u, rows = _rows(gradient, head, scale)
    x = centres.double()
    chances = (scale * x @ u.T).softmax(1)  # [class of the image, C]
    share = chances - torch.eye(len(u), dtype=torch.float64)
    across = x[:, None] - (x @ u.T)[..., None] * u  # [class of the image, C, d]
    system = (share[..., None] * across).flatten(1).T.numpy()
    found, _ = nnls(system, rows.flatten().numpy())
    return np.asarray(n * found / max(float(found.sum()), 1e-12))


def _rows(gradient: Tensor, head: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Return the head's unit rows ``[C, d]``, and the gradient freed of their lengths."""
    w = head.double()
    return F.normalize(w, dim=-1), gradient.double() * w.norm(dim=1, keepdim=True) / scale
