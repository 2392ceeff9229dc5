"""Captions and images: the contrastive loss of a batch, and the ranks of what was looked for.

The loss is CLIP's symmetric InfoNCE (Radford et al., ICML 2021; van den Oord et al., 2018) with the
backbone's own scale, where an image may have several captions: s_ijm is the scaled cosine of image
i and caption m of image j,

    L_text(i, m)  = -log( e^s_iim / (e^s_iim + sum_{j != i, n} e^s_ijn) )
    L_image(i, m) = -log( e^s_iim / sum_j e^s_jim )

so that captions of one image are never each other's negatives. The mean over an image's captions,
then over images, of (L_text + L_image) / 2. With one caption each it is CLIP's loss. All captions
of an image are in each of its batches: nothing is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from fedvlm.federation.batches import Batch

STREAM = "captions"  # of a batch: text features [K, B, M, d] of length one; zero where there are
# less than M
_NEVER = -1e30  # a logit whose exponential is zero, also beside others of its kind
_ROWS = 1024  # similarities of so many at a time


def caption_loss(z: Tensor, batch: Batch, scale: Tensor | float) -> Tensor:
    """Return the loss of each client, ``[K]``; padding counts neither as pair nor as negative.

    Args:
        z: image features ``[K, B, d]``, not normalised.
        batch: with the stream ``captions``.
        scale: the backbone's logit scale.
    """
    texts = batch.x[STREAM].to(z)
    k, b, m = texts.shape[:3]
    there = (texts != 0).any(-1) & (batch.w > 0)[..., None]  # [K, B, M]
    flat, mask = texts.flatten(1, 2), there.flatten(1)  # [K, B * M, ...]
    s = scale * F.normalize(z, dim=-1) @ flat.mT  # [K, images, captions]
    own = torch.eye(b, dtype=torch.bool, device=z.device).repeat_interleave(m, 1)  # [B, B * M]
    mine = s.masked_select(own).view(k, b, m)
    foreign = s.masked_fill(own | ~mask[:, None], _NEVER).logsumexp(-1)  # [K, B]
    to_text = torch.logaddexp(mine, foreign[..., None]) - mine
    images = s.masked_fill((batch.w == 0)[..., None], _NEVER).logsumexp(1).view(k, b, m)
    each = (to_text + images - mine).masked_fill(~there, 0.0) / 2
    per_image = each.sum(-1) / there.sum(-1).clamp_min(1)
    return (per_image * batch.w).sum(1) / batch.w.sum(1)


def ranks(images: Tensor, texts: Tensor, owner: Tensor) -> tuple[Tensor, Tensor]:
    """Return how many of the others come before what was looked for, or are as near as it.

    So ties count against a model: one that gives everything one feature finds nothing, and a
    caption that another image has, too, is as near as the image's own. Equal features have equal
    similarities: each is computed once, as a matrix product may give equal columns different last
    bits.

    Args:
        images: ``[n, d]`` features, normalised here; what is not finite is found by nobody.
        texts: ``[m, d]``.
        owner: the image of each text, ``[m]``, ascending; each image has one.

    Returns:
        For each image, among texts of other images, those at least as near as its nearest own
        ``[n]``; for each text, among other images, those at least as near as its own ``[m]``.
    """
    (z, z_at), (t, t_at) = _distinct(images), _distinct(texts)
    to_texts, to_images = list[Tensor](), list[Tensor]()
    for at in torch.arange(len(z_at), device=z.device).split(_ROWS):
        s = _finite(z[z_at[at]] @ t.mT)[:, t_at]
        own = owner[None] == at[:, None]
        best = s.masked_fill(~own, -torch.inf).max(1).values
        to_texts.append(((s >= best[:, None]) & ~own).sum(1))
    for at in torch.arange(len(t_at), device=z.device).split(_ROWS):
        s = _finite(t[t_at[at]] @ z.mT)[:, z_at]
        mine = s.gather(1, owner[at][:, None])
        others = torch.arange(len(z_at), device=z.device)[None] != owner[at][:, None]
        to_images.append(((s >= mine) & others).sum(1))
    return torch.cat(to_texts), torch.cat(to_images)


def _distinct(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the different rows ``[u, d]``, of length one, and each row's place there ``[n]``."""
    first: dict[bytes, int] = {}
    same = [first.setdefault(row.tobytes(), i) for i, row in enumerate(x.double().cpu().numpy())]
    kept, place = torch.tensor(same, device=x.device).unique(return_inverse=True)
    return F.normalize(x[kept].double(), dim=-1), place


def _finite(s: Tensor) -> Tensor:
    return s.nan_to_num(nan=-2.0, posinf=-2.0, neginf=-2.0)  # below any cosine


def recall(found: Tensor, at: Sequence[int]) -> list[float]:
    """Return the share of ``found`` (``ranks``) below each of ``at``, percent."""
    return [100.0 * float((found < k).double().mean()) for k in at]
