"""Losses of stacked clients and their gradients, of a batch or of every single sample."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedvlm.core import foreach
from fedvlm.core.errors import MethodError
from fedvlm.core.trees import Tree
from fedvlm.federation.batches import Batch, single_samples
from fedvlm.models.vlmodel import VLModel

Loss = Callable[[VLModel, Tree, Batch], Tensor | tuple[Tensor, Mapping[str, Tensor]]]


class Grad(NamedTuple):
    """A loss ``[K]``, its named parts, and the gradients of what it was taken for."""

    value: Tensor
    parts: Mapping[str, Tensor]
    grads: Tree


def compute_gradient(
    model: VLModel, params: Tree, loss: Loss, batch: Batch, names: Sequence[str]
) -> Grad:
    """Return the loss ``[K]``, its parts, and the gradients for ``names``; all are detached.

    Clients never mix, so the gradient of the sum is each client's own. A tensor without influence
    on the loss has no entry, as in torch.optim.

    Raises:
        MethodError: a loss that is not one number for each client.
    """
    leaves = {n: params[n].detach().requires_grad_() for n in names}
    with torch.enable_grad():
        out = loss(model, params | leaves, batch)
        value, parts = out if isinstance(out, tuple) else (out, {})
        _check_one_each(value, batch)
        grads = torch.autograd.grad(value.sum(), list(leaves.values()), allow_unused=True)
    found = {n: g for n, g in zip(names, grads, strict=True) if g is not None}
    slopes = dict(zip(found, foreach.in_rows(list(found.values())), strict=True))
    return Grad(value.detach(), {k: v.detach() for k, v in parts.items()}, slopes)


def sample_gradients(
    model: VLModel, params: Tree, loss: Loss, batch: Batch, names: Sequence[str], most: int = 0,
    *, drawn: bool = False,
) -> tuple[Tensor, Tree]:
    """Return the loss ``[K, B]`` and the gradients ``[K, B, ...]`` of every single sample.

    Samples take the place of clients, each with the parameters of its own. Of padding both are 0.

    Args:
        most: samples at a time; 0: as many as there are clients.
        drawn: how many samples a client has is a secret (``Batch.counts`` has what was expected),
            so that padding is computed, too.

    Raises:
        MethodError: as ``compute_gradient``.
    """
    k, width = batch.y.shape
    real = batch.counts if any(batch.counts) and not drawn else ()
    out = dict[str, Tensor]()
    for part, own, place in single_samples(params, batch, max(1, most // k), real):
        got = compute_gradient(model, own, loss, part, names)
        for name, found in {"": got.value, **got.grads}.items():
            if name not in out:
                out[name] = found.new_zeros(k * width, *found.shape[1:])
            out[name].index_copy_(0, place, found)
    tree = {name: v.view(k, width, *v.shape[1:]) for name, v in out.items()}
    keep = batch.w > 0
    tree = {name: torch.where(_spread(keep, v), v, 0.0) for name, v in tree.items()}
    return tree.pop(""), tree


def _check_one_each(value: Tensor, batch: Batch) -> None:
    """Refuse a loss that is not one number for each client of ``batch``."""
    if value.shape != batch.y.shape[:1]:
        raise MethodError(
            f"the loss has the shape {tuple(value.shape)}, but must have one number per "
            f"client, {tuple(batch.y.shape[:1])}: sum or average over samples (axis 1) only, "
            "never over clients"
        )


def _spread(mask: Tensor, leaf: Tensor) -> Tensor:
    """Shape ``[K, B]`` so that it broadcasts over a ``[K, B, ...]`` leaf."""
    return mask.reshape(*mask.shape, *([1] * (leaf.dim() - 2)))
