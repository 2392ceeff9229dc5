"""Aggregation rules: pure functions from client updates to one tree, accumulated in float64."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedvlm.core.errors import DivergedError, FedvlmError
from fedvlm.core.trees import Tree, cat, first_non_finite, in_double


@dataclass(frozen=True)
class Updates:
    """What the clients of a round sent, stacked along the client axis, by ascending id.

    Attributes:
        clients: ids.
        params: shared group only, ``[K, ...]``.
        weight: ``[K]`` float64 on the CPU; usually the number of training samples.
        extras: declared side information (prototypes, control variates, ...), ``[K, ...]``.
        metrics: declared numbers of the clients' own training, ``[K]`` float64; NaN for a client
            that has no such number (no step, or another phase).
        received: what they started from, of the tensors in ``params``, ``[K, ...]``.
    """

    clients: tuple[int, ...]
    params: Tree
    weight: Tensor
    extras: Tree = field(default_factory=dict)
    metrics: Tree = field(default_factory=dict)
    received: Tree = field(default_factory=dict)

    def __len__(self) -> int:
        """Return the number of updates."""
        return len(self.clients)

    def take(self, at: Sequence[int]) -> Updates:
        """Return the updates at the positions ``at``, ascending; all of them are no copy."""
        if len(at) == len(self):
            return self
        rows = torch.tensor(at, dtype=torch.int64)

        def taken(tree: Tree) -> Tree:
            return {n: v[rows.to(v.device)] for n, v in tree.items()}

        return Updates(
            tuple(self.clients[k] for k in at), taken(self.params), self.weight[rows],
            taken(self.extras), taken(self.metrics), taken(self.received),
        )

    def bytes(self) -> dict[int, dict[str, int]]:
        """Return bytes per client and tensor, as they were sent."""
        sizes = {n: v[0].numel() * v.element_size() for n, v in (self.params | self.extras).items()}
        return {client: dict(sizes) for client in self.clients}

    def messages(self) -> dict[int, Tree]:
        """Return what each client sent, without client axis: shared tensors and extras."""
        sent = self.params | self.extras
        return {c: {n: v[k] for n, v in sent.items()} for k, c in enumerate(self.clients)}

    def of(self, client: int) -> dict[str, float]:
        """Return the metrics of one client, without those that it does not have (NaN)."""
        k = self.clients.index(client)
        numbers = {name: float(v[k]) for name, v in self.metrics.items()}
        return {name: value for name, value in numbers.items() if not math.isnan(value)}


def join(parts: Sequence[Updates]) -> Updates:
    """Return the updates of several chunks as one, by ascending client id.

    Metrics of one chunk may lack what another's have: a client without samples has no loss.

    Raises:
        FedvlmError: chunks that sent different tensors.
    """
    clients = [c for part in parts for c in part.clients]
    order = torch.tensor(sorted(range(len(clients)), key=clients.__getitem__), dtype=torch.int64)

    def rows(trees: Sequence[Tree]) -> Tree:
        for tree in trees:
            if tree.keys() != trees[0].keys():
                odd = sorted(tree.keys() ^ trees[0].keys())
                raise FedvlmError(f"clients of one round differ in what they send: {odd}")
        joined = cat(trees)
        return {n: v[order.to(v.device)] for n, v in joined.items()}

    names = list(dict.fromkeys(n for part in parts for n in part.metrics))
    metrics = [
        {n: p.metrics.get(n, torch.full((len(p),), torch.nan, dtype=torch.float64)) for n in names}
        for p in parts
    ]
    return Updates(
        tuple(clients[i] for i in order.tolist()), rows([p.params for p in parts]),
        torch.cat([p.weight for p in parts])[order], rows([p.extras for p in parts]),
        rows(metrics), rows([p.received for p in parts]),
    )


def weighted_sum(tensors: Tensor | Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """Return the weighted mean over the rows ``[K, ...]``, in their own dtype.

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


def weighted_mean(updates: Updates, weights: Sequence[float] | None = None) -> Tree:
    """Return sum_k p_k w_k with p_k = n_k / sum n (McMahan et al. 2017, FedAvg).

    Raises:
        DivergedError: the aggregate is not finite; the message names the tensor.
    """
    share = updates.weight.tolist() if weights is None else list(weights)
    return require_finite({n: weighted_sum(rows, share) for n, rows in updates.params.items()})


def similarity_weights(
    tensors: Tensor | Sequence[Tensor], previous: Tensor | Sequence[Tensor],
    weights: Sequence[float], temperature: float, dtype: torch.dtype = torch.float64,
) -> list[float]:
    """Return FedTV's similarity-aware weights of one tensor, summing to 1.

    c_i = cos(vec(W_i), vec(W_prev)), beta = softmax(c / temperature),
    lambda_i = p_i beta_i / sum_j p_j beta_j with p_i = n_i / sum n. A zero vector has cosine 0.
    Cosines are taken in float64; ``dtype`` is that of beta and p beta (float32 in the authors'
    code, which moves the weights by about 1e-8), the normalisation is float64 again.

    Args:
        previous: W_prev: what the server had, or what each client received.
    """
    if isinstance(previous, Tensor):
        bases = [in_double(previous).flatten()] * len(tensors)
    else:
        bases = [in_double(t).flatten() for t in previous]
    cosines = torch.stack([
        _cosine(in_double(t).flatten(), base) for t, base in zip(tensors, bases, strict=True)
    ]).cpu()
    share = torch.tensor([w / sum(weights) for w in weights], dtype=dtype)
    share = share * torch.softmax(cosines.to(dtype) / temperature, 0)
    values = share.tolist()
    total = sum(values)
    return [value / total for value in values]


def similarity_aware(
    updates: Updates, previous: Tree | None, temperature: float = 1.0,
    dtype: torch.dtype = torch.float64,
) -> tuple[Tree, dict[str, list[float]]]:
    """Aggregate each tensor with its own similarity-aware weights (FedTV, SAA).

    Args:
        previous: what uploads are compared with; None: each with what its client received.

    Returns:
        The aggregate, and per tensor the weights in the order of ascending client id.

    Raises:
        DivergedError: the aggregate is not finite.
    """
    sizes = updates.weight.tolist()
    tree, used = {}, {}
    for name, rows in updates.params.items():
        home = updates.received[name].unbind(0) if previous is None else previous[name]
        used[name] = similarity_weights(rows, home, sizes, temperature, dtype)
        tree[name] = weighted_sum(rows, used[name])
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
