"""Aggregation rules: pure functions from client updates to one tree, accumulated in float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedvlm.core.errors import DivergedError, FedvlmError
from fedvlm.core.trees import Tree, first_non_finite, in_double


@dataclass(frozen=True)
class Update:
    """What one client sent: its shared tensors, declared extras and a weight.

    Attributes:
        client: id.
        params: shared group only, no client axis.
        weight: usually the number of training samples.
        extras: declared side information (prototypes, control variates, ...).
        metrics: scalars of the client's own training, for the log.
    """

    client: int
    params: Tree
    weight: float
    extras: Tree = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)


def weighted_sum(tensors: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """Return the weighted mean of equal-shaped tensors, in their own dtype.

    Weights are normalised; the sum runs in float64, in the order given.

    Raises:
        FedvlmError: all weights are zero.
    """
    total = float(sum(weights))
    if not total > 0:
        raise FedvlmError("no update has a weight above zero; there is nothing to average")
    first = tensors[0]
    out = torch.zeros(first.shape, dtype=torch.float64, device=in_double(first).device)
    for tensor, weight in zip(tensors, weights, strict=True):
        out.add_(in_double(tensor), alpha=weight / total)
    return out.to(first.dtype).to(first.device)


def weighted_mean(updates: Sequence[Update], weights: Sequence[float] | None = None) -> Tree:
    """Return sum_k p_k w_k with p_k = n_k / sum n (McMahan et al. 2017, FedAvg).

    Raises:
        DivergedError: the aggregate is not finite; the message names the tensor.
    """
    ordered = sorted(updates, key=lambda u: u.client)
    share = [u.weight for u in ordered] if weights is None else list(weights)
    tree = {
        name: weighted_sum([u.params[name] for u in ordered], share)
        for name in ordered[0].params
    }
    return require_finite(tree)


def similarity_weights(
    tensors: Sequence[Tensor], previous: Tensor, weights: Sequence[float], temperature: float,
    dtype: torch.dtype = torch.float64,
) -> list[float]:
    """Return FedTV's similarity-aware weights of one tensor, summing to 1.

    c_i = cos(vec(W_i), vec(W_prev)), beta = softmax(c / temperature),
    lambda_i = p_i beta_i / sum_j p_j beta_j with p_i = n_i / sum n. A zero vector has cosine 0.
    Cosines are taken in float64; ``dtype`` is that of beta and p beta (float32 in the authors'
    code, which moves the weights by about 1e-8), the normalisation is float64 again.
    """
    base = in_double(previous).flatten()
    cosines = torch.stack([_cosine(in_double(t).flatten(), base) for t in tensors]).cpu()
    share = torch.tensor([w / sum(weights) for w in weights], dtype=dtype)
    share = share * torch.softmax(cosines.to(dtype) / temperature, 0)
    values = share.tolist()
    total = sum(values)
    return [value / total for value in values]


def similarity_aware(
    updates: Sequence[Update], previous: Tree, temperature: float = 1.0,
    dtype: torch.dtype = torch.float64,
) -> tuple[Tree, dict[str, list[float]]]:
    """Aggregate each tensor with its own similarity-aware weights (FedTV, SAA).

    Returns:
        The aggregate, and per tensor the weights in the order of ascending client id.

    Raises:
        DivergedError: the aggregate is not finite.
    """
    ordered = sorted(updates, key=lambda u: u.client)
    sizes = [u.weight for u in ordered]
    tree, used = {}, {}
    for name in ordered[0].params:
        tensors = [u.params[name] for u in ordered]
        used[name] = similarity_weights(tensors, previous[name], sizes, temperature, dtype)
        tree[name] = weighted_sum(tensors, used[name])
    return require_finite(tree), used


def require_finite(tree: Tree) -> Tree:
    """Return ``tree`` if all of it is finite.

    Raises:
        DivergedError: a leaf is not; the message names it.
    """
    bad = first_non_finite(tree)
    if bad is not None:
        raise DivergedError(f"the aggregate of '{bad}' is not finite; lower --lr")
    return tree


def _cosine(x: Tensor, y: Tensor) -> Tensor:
    norm = x.norm() * y.norm()
    return torch.where(norm > 0, (x @ y) / norm.clamp_min(torch.finfo(x.dtype).tiny), 0.0)
