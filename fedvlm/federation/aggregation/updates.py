"""Aggregation rules: pure functions from client updates to one tree, accumulated in float64."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import chain
from typing import TypeVar

import torch
from torch import Tensor

from fedvlm.core import foreach
from fedvlm.core.errors import DivergedError, FedvlmError
from fedvlm.core.trees import Tree, first_non_finite, in_double, largest, to_device

T = TypeVar("T")
PIECE = 1 << 18  # numbers at a time: within a processor's cache, and no page is new
_LATER: ContextVar[list[Tree] | None] = ContextVar("later", default=None)
NOTHING = "no update has a weight above zero: nothing to average"


@dataclass(frozen=True)
class Updates:
    """What the clients of a round sent, stacked along the client axis, by ascending id.

    Attributes:
        clients: ids.
        params: shared group only, ``[K, ...]``; what a client did not send is what it received.
        weight: ``[K]`` float64 on the CPU; usually the number of training samples.
        extras: declared side information (prototypes, control variates, ...), ``[K, ...]``.
        metrics: declared numbers of the clients' own training, ``[K]`` float64; NaN for a client
            that has no such number (no step, or another phase).
        received: what they started from, of the tensors in ``params``, ``[K, ...]``; read only:
            where all received the same, it is K times one row.
        present: of tensors that somebody did not send whole: who did, ``[K]`` bool, or which rows
            each of them sent, ``[K, n]``.
        sizes: bytes by client, as sent, of tensors that are not plainly sent by everybody.
        axes: along which axis (of ``[K, ...]``) the rows in ``present`` lie.
    """

    clients: tuple[int, ...]
    params: Tree
    weight: Tensor
    extras: Tree = field(default_factory=dict)
    metrics: Tree = field(default_factory=dict)
    received: Tree = field(default_factory=dict)
    present: Mapping[str, Tensor] = field(default_factory=dict)
    sizes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    axes: Mapping[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        """Return the number of updates."""
        return len(self.clients)

    def take(self, at: Sequence[int]) -> Updates:
        """Return the updates at the positions ``at``, ascending; all of them are no copy."""
        if len(at) == len(self):
            return self
        rows = torch.tensor(at, dtype=torch.int64)

        def taken(tree: Mapping[str, Tensor]) -> Tree:
            return {n: v[rows.to(v.device)] for n, v in tree.items()}

        return Updates(
            tuple(self.clients[k] for k in at), taken(self.params), self.weight[rows],
            taken(self.extras), taken(self.metrics), taken(self.received), taken(self.present),
            {n: tuple(size[k] for k in at) for n, size in self.sizes.items()}, self.axes,
        )

    def bytes(self) -> dict[int, dict[str, int]]:
        """Return bytes per client and tensor, as they were sent; what was not sent is not there."""
        sent = self.params | self.extras
        dense = {n: (v[0].numel() * v.element_size(),) * len(self) for n, v in sent.items()}
        sizes = dense | dict(self.sizes)
        return {
            client: {n: size[k] for n, size in sizes.items() if size[k] or n not in self.sizes}
            for k, client in enumerate(self.clients)
        }

    def messages(self) -> dict[int, Tree]:
        """Return what each client sent, without client axis: shared tensors and extras.

        Rows that it did not send are zero.
        """
        sent = self.params | self.extras
        for name in self.present:
            sent[name] = torch.where(self.sent(name), sent[name], 0)
        return {
            c: {n: v[k] for n, v in sent.items() if n not in self.sizes or self.sizes[n][k]}
            for k, c in enumerate(self.clients)
        }

    def bytes_of(self, name: str) -> tuple[int, ...]:
        """Return the bytes that each client sent of a tensor in ``params``, ``[K]``."""
        leaf = self.params[name]
        return self.sizes.get(name, (leaf[0].numel() * leaf.element_size(),) * len(self))

    def sent(self, name: str) -> Tensor:
        """Return which numbers of ``params[name]`` were sent: bool, to broadcast over it."""
        leaf = self.params[name]
        shape = [len(leaf), *[1] * (leaf.dim() - 1)]
        if name not in self.present:
            return torch.ones(shape, dtype=torch.bool, device=leaf.device)
        there = self.present[name]
        if there.dim() > 1:
            shape[self.axes[name]] = there.shape[1]
        return there.view(shape)

    def of(self, client: int) -> dict[str, float]:
        """Return the metrics of one client, without those that it does not have (NaN)."""
        k = self.clients.index(client)
        numbers = {name: float(v[k]) for name, v in self.metrics.items()}
        return {name: value for name, value in numbers.items() if not math.isnan(value)}


def join_updates(chunks: Iterable[Updates]) -> Updates:
    """Return the updates of several chunks as one, by ascending client id.

    Metrics of one chunk may lack what another's have: a client without samples has no loss. A
    tensor that nobody sent is left out where some did not receive it either.

    Where nobody else holds them, each chunk's tensor is let go once it is copied: the updates lie
    in memory once, and one chunk of one tensor twice.

    Raises:
        FedvlmError: chunks that sent different tensors, or rows along other axes.
    """
    parts = list(chunks)
    clients = [c for part in parts for c in part.clients]
    places = sorted(range(len(clients)), key=clients.__getitem__)
    some = _without_idle(parts)
    names = list(dict.fromkeys(n for part in some for n in part.metrics))
    metrics = [
        {n: p.metrics.get(n, torch.full((len(p),), torch.nan, dtype=torch.float64)) for n in names}
        for p in some
    ]
    sizes = {n: [b for p in some for b in p.bytes_of(n)] for p in some for n in p.sizes}
    axes = {n: axis for p in some for n, axis in p.axes.items()}
    present, weight = _present(some), [{"": p.weight} for p in some]
    params, extras, received = (
        [dict(tree) for tree in trees] for trees in
        zip(*((p.params, p.extras, p.received) for p in some), strict=True)
    )
    del parts, some

    def rows(trees: Sequence[Tree]) -> Tree:
        for tree in trees:
            if tree.keys() != trees[0].keys():
                odd = sorted(tree.keys() ^ trees[0].keys())
                raise FedvlmError(f"clients of one round send different tensors: {odd}")
        if len(trees) == 1 and places == list(range(len(places))):
            return trees[0]
        return _joined_rows(trees, places)

    def homes() -> Tree:
        """Join ``received``, of which K times one row stays that."""
        order = list(received[0])
        one = {n: v[:1] for n, v in received[0].items()
               if all(n in t and one_row(v, t[n]) for t in received)}
        joined = rows([{n: t.pop(n) for n in list(t) if n not in one} for t in received])
        return {n: one[n].expand(len(clients), *one[n].shape[1:]) if n in one else joined[n]
                for n in order}

    return Updates(
        tuple(clients[i] for i in places), rows(params), rows(weight)[""], rows(extras),
        rows(metrics), homes(), rows(present),
        {n: tuple(size[i] for i in places) for n, size in sizes.items()}, axes,
    )


def _joined_rows(trees: Sequence[Tree], places: Sequence[int]) -> Tree:
    """Return the rows of all ``trees`` in another order; the trees are emptied.

    Args:
        places: of each row that is returned, which it is of all rows, tree after tree.
    """
    host, out = torch.tensor(places).argsort(), Tree()
    to = {host.device: host}
    for name in list(trees[0]):
        pieces = [tree.pop(name) for tree in trees]
        kind = reduce(torch.promote_types, (v.dtype for v in pieces))
        whole = pieces[0].new_empty(len(places), *pieces[0].shape[1:], dtype=kind)
        if whole.device not in to:
            to[whole.device] = to_device(host, whole.device)
        for at in to[whole.device].split([len(v) for v in pieces]):
            whole.index_copy_(0, at, pieces.pop(0).to(kind))
        out[name] = whole
    return out


def one_row(leaf: Tensor, other: Tensor | None = None) -> bool:
    """Say whether ``leaf [K, ...]`` is K times one row, and ``other`` the same row in memory."""
    both = (leaf,) if other is None else (leaf, other)
    return (all(len(v) == 1 or v.stride(0) == 0 for v in both)
            and all(v.data_ptr() == leaf.data_ptr() for v in both))


def _without_idle(parts: Sequence[Updates]) -> Sequence[Updates]:
    """Leave out tensors that nobody sent, where they are not everybody's."""
    have = [p.params.keys() for p in parts]
    idle = {
        n for n in set().union(*have) - set(have[0]).intersection(*have)
        if not any(sum(p.bytes_of(n)) for p in parts if n in p.params)
    }

    def kept(tree: Mapping[str, T]) -> dict[str, T]:
        return {n: v for n, v in tree.items() if n not in idle}

    return [replace(
        p, params=kept(p.params), received=kept(p.received), present=kept(p.present),
        sizes=kept(p.sizes),
    ) for p in parts] if idle else parts


def _present(parts: Sequence[Updates]) -> list[Tree]:
    """Return ``present`` of all parts with the same names, and rows where one part has rows."""
    shapes = {
        n: (p.axes[n], v.shape[1]) for p in parts for n, v in p.present.items() if v.dim() > 1
    }
    out: list[Tree] = []
    for part in parts:
        there: Tree = {}
        for name in dict.fromkeys(n for p in parts for n in p.present):
            leaf = part.params[name]
            one = part.present.get(
                name, torch.ones(len(part), dtype=torch.bool, device=leaf.device)
            )
            if name in shapes and one.dim() > 1 and shapes[name][0] != part.axes[name]:
                raise FedvlmError(
                    f"clients of one round send rows of '{name}' along different axes"
                )
            if name in shapes and one.dim() == 1:
                one = one[:, None].expand(-1, shapes[name][1])
            there[name] = one
        out.append(there)
    return out


def weighted_sum(tensors: Iterable[Tensor], weights: Sequence[float]) -> Tensor:
    """Return the weighted mean over the rows ``[K, ...]``, in their own dtype.

    Weights are normalised; the sum runs in float64, in the order given.

    Raises:
        FedvlmError: all weights are zero, or their sum is not finite.
    """
    total = float(sum(weights))
    if math.isinf(total):
        raise FedvlmError("the weights of the updates have no finite sum: no mean is possible")
    if not total > 0:
        raise FedvlmError(NOTHING)
    rows = iter(tensors)
    first = next(rows)
    out = torch.zeros(first.shape, dtype=torch.float64, device=in_double(first).device)
    for tensor, weight in zip(chain([first], rows), weights, strict=True):
        out.add_(tensor if tensor.device == out.device else in_double(tensor), alpha=weight / total)
    return out.to(first.dtype).to(first.device)


def weighted_mean(updates: Updates, weights: Sequence[float] | None = None) -> Tree:
    """Return sum_k p_k w_k with p_k = n_k / sum n (McMahan et al. 2017, FedAvg).

    Raises:
        DivergedError: the aggregate is not finite; the message names the tensor.
    """
    share = updates.weight.tolist() if weights is None else list(weights)
    out: Tree = {}
    for names in _alike(updates.params):
        flat = chain.from_iterable(v for _, v in _side_by_side(updates.params, names))
        out |= _apart(weighted_sum(flat, share), names, updates.params)
    return require_finite({n: out[n] for n in updates.params})


def _side_by_side(tree: Tree, names: Sequence[str]) -> Iterator[tuple[slice, Tensor]]:
    """Yield clients and their rows ``[k, d]`` of some leaves side by side, ``PIECE`` at a time."""
    leaves = [tree[n].reshape(len(tree[n]), -1) for n in names]
    k, size = len(leaves[0]), sum(v.shape[1] for v in leaves)
    step = max(1, PIECE // max(1, size))
    for start in range(0, k, step):
        rows = slice(start, min(k, start + step))
        yield rows, leaves[0][rows] if len(leaves) == 1 else torch.cat([v[rows] for v in leaves], 1)


def _alike(tree: Tree) -> list[list[str]]:
    """Return the names of leaves that can lie beside each other in one row: of a type and place."""
    groups: dict[tuple[torch.dtype, torch.device], list[str]] = {}
    for name, v in tree.items():
        groups.setdefault((v.dtype, v.device), []).append(name)
    return list(groups.values())


def _apart(row: Tensor, names: Sequence[str], like: Tree) -> Tree:
    """Cut one row into leaves of the shapes of ``like [K, ...]``, without client axis."""
    parts = row.split([like[n][0].numel() for n in names])
    return {n: part.view(like[n].shape[1:]) for n, part in zip(names, parts, strict=True)}


def weighted_apart(tree: Tree, weights: Mapping[str, Sequence[float]]) -> Tree:
    """Return the weighted mean over the rows of each leaf ``[K, ...]`` with weights of its own.

    The bits of ``weighted_sum`` leaf by leaf, with one kernel per client for all leaves.
    """
    out: Tree = {}
    for names in _alike(tree):
        parts = [[w / sum(weights[n]) for w in weights[n]] for n in names]
        like = torch.cat([tree[n][0].reshape(-1) for n in names])
        total = torch.zeros_like(in_double(like))
        share = torch.tensor(parts, dtype=torch.float64).to(total.device).mT  # [K, leaves]
        for rows, flat in _side_by_side(tree, names):
            wide = torch.cat([
                share[rows, t : t + 1].expand(-1, tree[n][0].numel()) for t, n in enumerate(names)
            ], 1)
            for row, by in zip(in_double(flat), wide, strict=True):
                total.addcmul_(row, by)
        out |= _apart(total.to(like.dtype).to(like.device), names, tree)
    return {n: out[n] for n in tree}


def similarity_weights(
    cosines: Sequence[float], weights: Sequence[float], temperature: float,
    dtype: torch.dtype = torch.float64,
) -> list[float]:
    """Return FedTV's similarity-aware weights of one tensor, summing to 1.

    beta = softmax(c / temperature), lambda_i = p_i beta_i / sum_j p_j beta_j with p_i = n_i / sum
    n. ``dtype`` is that of beta and p beta (float32 in the authors' code, which moves the weights
    by about 1e-8), the normalisation is float64 again.

    Args:
        cosines: c_i = cos(vec(W_i), vec(W_prev)).

    Raises:
        FedvlmError: all weights are zero.
    """
    if not sum(weights) > 0:
        raise FedvlmError(NOTHING)
    share = torch.tensor([w / sum(weights) for w in weights], dtype=dtype)
    scores = torch.tensor(cosines, dtype=torch.float64).to(dtype) / temperature
    values = (share * torch.softmax(scores, 0)).tolist()
    total = sum(values)
    if not total > 0:  # beta of all that weigh something is below the smallest number
        values = torch.softmax(scores.double() + share.double().log(), 0).tolist()
        total = sum(values)
    return [value / total for value in values]


def cosines(updates: Updates, previous: Tree | None) -> dict[str, list[float]]:
    """Return the cosine of every client's tensor to ``previous``, in float64; one read.

    Args:
        previous: what the server had; None: what each client received. A zero vector has cosine 0.
    """
    inner, norm, home = list[Tensor](), list[Tensor](), list[Tensor]()
    for name, rows in updates.params.items():
        x = in_double(rows.reshape(len(rows), -1))
        if previous is None:
            y = in_double(updates.received[name].reshape(len(rows), -1))
            inner.append((x * y).sum(1))
            home.append(y.norm(dim=1))
        else:
            y = in_double(previous[name].flatten())
            inner.append(x @ y)
            home.append(y.norm()[None])
        norm.append(x.norm(dim=1))
    if not inner:
        return {}
    product = torch.stack(norm) * torch.stack(home)
    least = torch.finfo(product.dtype).tiny
    found = torch.where(product > 0, torch.stack(inner) / product.clamp_min(least), 0.0)
    return dict(zip(updates.params, found.tolist(), strict=True))


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
    used = {
        name: similarity_weights(row, sizes, temperature, dtype)
        for name, row in cosines(updates, previous).items()
    }
    return require_finite(weighted_apart(updates.params, used)), used


def require_finite(tree: Tree) -> Tree:
    """Return ``tree`` if all of it is finite; within ``finite_later`` that is asked at its end.

    Raises:
        DivergedError: a leaf is not; the message names it.
    """
    later = _LATER.get()
    if later is not None:
        later.append(tree)
        return tree
    return refuse_non_finite(tree)


@contextmanager
def finite_later() -> Iterator[list[Tree]]:
    """Put off the question of ``require_finite``, so that one read of the device answers it.

    Yields:
        The trees to ask about: ``refuse_non_finite`` of each, after the block.

    Raises:
        DivergedError: the block fails, and one of the trees is not finite: that is the reason.
    """
    trees = list[Tree]()
    before = _LATER.set(trees)
    try:
        yield trees
    except DivergedError:
        raise
    except Exception:
        for tree in trees:
            refuse_non_finite(tree)
        raise
    finally:
        _LATER.reset(before)


def largest_norm(trees: Sequence[Tree]) -> Tensor:
    """Return the largest length of a leaf, 0-d: not finite if a number is not."""
    leaves = [v for tree in trees for v in tree.values() if v.is_floating_point()]
    return largest(foreach.tensor_norms(leaves)) if leaves else torch.zeros(())


def refuse_non_finite(tree: Tree) -> Tree:
    """Do as ``require_finite``, at once."""
    bad = first_non_finite(tree)
    if bad is not None:
        raise DivergedError(f"the aggregate of '{bad}' is not finite; lower --lr")
    return tree
