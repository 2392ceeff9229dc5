"""Losses between features: in-batch contrast, SigLIP's pairs, nearness to frozen text features."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

SOFTMAX, SIGMOID = "softmax", "sigmoid"  # OPTIM.LOSS
OUT = -1e9  # of a score that takes no part; finite, so that a row of padding has no NaN


def symmetric_contrast(scores: Tensor, w: Tensor) -> Tensor:
    """Return the mean of image-to-text and text-to-image cross-entropy, ``[K]`` (CLIP's loss).

    Args:
        scores: ``[K, B, B]``, image b against the text of image b'.
        w: 1 for a sample, 0 for padding, ``[K, B]``; padding is in neither direction.
    """
    no = w == 0
    scores = scores.masked_fill(no.unsqueeze(1), OUT).masked_fill(no.unsqueeze(2), OUT)
    right = torch.arange(scores.shape[1], device=scores.device).expand(len(scores), -1)
    each = torch.stack([
        F.cross_entropy(s.flatten(0, 1), right.reshape(-1), reduction="none").view_as(w)
        for s in (scores, scores.mT)
    ]).mean(0)
    return (each * w).sum(1) / w.sum(1)


def text_gap(text: Tensor, anchor: Tensor, squared: bool) -> Tensor:
    """Return the mean over classes of 1 - cos, or of the squared distance, which is twice that.

    Args:
        text, anchor: ``[K, C, d]`` and ``[C, d]``, of length 1.
    """
    gap = 1 - (text * anchor).sum(-1)
    return (2 * gap if squared else gap).mean(-1)


def sigmoid_pairs(logits: Tensor, y: Tensor, w: Tensor, bias: float) -> Tensor:
    """Return the mean over images of the sum over classes of ``-log sigmoid(s (z + bias))``, [K].

    Every pair of an image and a class text is a decision of its own, s = 1 for the image's class,
    -1 for the others (Zhai et al. 2023, SigLIP, equation 1, with the class list as the texts).

    Args:
        logits: scaled cosines z, ``[K, B, C]``; -inf takes no part.
        y: labels ``[K, B]``.
        w: 1 for a sample, 0 for padding, ``[K, B]``.
        bias: the backbone's ``logit_bias``.
    """
    own = F.one_hot(y, logits.shape[-1]).bool()
    pairs = F.logsigmoid(torch.where(own, logits + bias, -(logits + bias)))
    return -(pairs.sum(-1) * w).sum(1) / w.sum(1)
