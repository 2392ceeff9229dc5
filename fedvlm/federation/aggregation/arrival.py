"""Uploads as they were sent, and how they become the dense rows that a server's rule sees.

A client may send some tensors, and some rows of a tensor. What it does not send is on arrival
filled from what **that** client received, so that every rule sees ``[K, ...]``: for it such a
tensor, or row, has not moved. The client sends nothing for that, and is counted nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from fedvlm.core.trees import Tree
from fedvlm.federation.aggregation.updates import Updates

INDEX_BYTES = 4  # of an index as it travels


@dataclass(frozen=True)
class Rows:
    """Which rows of a tensor each client sends.

    Attributes:
        index: ``[K, n]`` int64; -1: none, where clients send unequally many.
        axis: what counts as a row: an axis of the tensor, its client axis aside.
    """

    index: Tensor
    axis: int = 0

    def along(self, leaf: Tensor) -> int:
        """Return the axis of ``leaf [K, ...]``."""
        return self.axis + 1 if self.axis >= 0 else leaf.dim() + self.axis

    def cut(self, leaf: Tensor) -> Tensor:
        """Return the rows of ``leaf [K, ...]``, n instead of all; zero where there is none."""
        axis = self.along(leaf)
        at = self.index.clamp(0, leaf.shape[axis] - 1)
        found = leaf.gather(axis, _beside(at, leaf, axis))
        return torch.where(_beside(self.index >= 0, leaf, axis), found, 0)

    def fill(self, home: Tensor, values: Tensor) -> Tensor:
        """Return ``home [K, ...]`` with the rows ``values`` in their places."""
        axis = self.along(home)
        size = home.shape[axis]
        at = torch.where(self.index < 0, size, self.index)  # one row more takes what is none
        wide = torch.cat([home, home.narrow(axis, 0, 1)], axis)
        filled = wide.scatter(axis, _beside(at, home, axis), values)
        return filled.narrow(axis, 0, size).contiguous()

    def present(self, size: int) -> Tensor:
        """Return which of ``size`` rows are sent, ``[K, size]`` bool."""
        at = torch.where(self.index < 0, size, self.index)
        none = torch.zeros(len(at), size + 1, dtype=torch.bool, device=at.device)
        return none.scatter(1, at, True)[:, :size]

    def told(self, size: int) -> Tensor:
        """Return how many rows each client sends, ``[K]``; -1: one out of reach, -2: one twice."""
        ordered = self.index.sort(1).values
        twice = ((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)).any(1)
        out = ((self.index < -1) | (self.index >= size)).any(1)
        count = (self.index >= 0).sum(1)
        return torch.where(out, -1, torch.where(twice, -2, count))


def _beside(per_row: Tensor, leaf: Tensor, axis: int) -> Tensor:
    """Expand ``[K, n]`` to ``leaf`` with n at ``axis``."""
    shape, whole = [1] * leaf.dim(), list(leaf.shape)
    shape[0], shape[axis] = per_row.shape
    whole[axis] = per_row.shape[1]
    return per_row.view(shape).expand(whole)


@dataclass(frozen=True)
class Upload:
    """What the clients of a chunk send, all the way to the server; made by ``Context.upload``.

    The engine notes whose it is, what goes along and what they received (``clients`` to
    ``counts``); ``arrive`` makes ``Updates`` of it.

    Attributes:
        params: shared tensors, ``[K, ...]``; cut where ``rows`` says.
        weight: one each, ``[K]``; with the engine's notes float64 on the CPU.
        extras: declared side information, ``[K, ...]``.
        absent: shared tensors that are not sent.
        rows: of which tensors only rows are sent.
        told: how many each client sends of those, ``[K]`` (``Rows.told``), until they are read.
        clients: ids.
        metrics: see ``Updates``.
        received: what these clients received of the shared group, ``[K, ...]``; read only.
        counts: how many rows each client sends, by name.
    """

    params: Tree
    weight: Tensor
    extras: Tree = field(default_factory=dict)
    absent: Sequence[str] = ()
    rows: Mapping[str, Rows] = field(default_factory=dict)
    told: Mapping[str, Tensor] = field(default_factory=dict)
    clients: tuple[int, ...] = ()
    metrics: Tree = field(default_factory=dict)
    received: Tree = field(default_factory=dict)
    counts: Mapping[str, Sequence[int]] = field(default_factory=dict)

    def take(self, at: Sequence[int]) -> Upload:
        """Return what the clients at the positions ``at`` send; all of them are no copy.

        As it is with the engine's notes.
        """
        if len(at) == len(self.clients):
            return self
        rows = torch.tensor(at, dtype=torch.int64)

        def taken(tree: Tree) -> Tree:
            return {n: v[rows.to(v.device)] for n, v in tree.items()}

        return replace(
            self, clients=tuple(self.clients[k] for k in at), params=taken(self.params),
            weight=self.weight[rows], extras=taken(self.extras), metrics=taken(self.metrics),
            received=taken(self.received),
            rows={n: Rows(r.index[rows.to(r.index.device)], r.axis) for n, r in self.rows.items()},
            counts={n: [row[k] for k in at] for n, row in self.counts.items()},
        )

    def arrive(self) -> Updates:
        """Return these updates with all rows: what was not sent is what its client received."""
        k, params = len(self.clients), dict(self.params)
        present: dict[str, Tensor] = {}
        sizes: dict[str, tuple[int, ...]] = {}
        for name, home in self.received.items():
            if name not in params:
                params[name], sizes[name] = home.contiguous(), (0,) * k
                present[name] = torch.zeros(k, dtype=torch.bool, device=home.device)
        for name, rows in self.rows.items():
            sent, home, axis = params[name], self.received[name], rows.along(params[name])
            row = sent.numel() // max(1, k * sent.shape[axis]) * sent.element_size()
            sizes[name] = tuple(n * (row + INDEX_BYTES) for n in self.counts[name])
            params[name] = rows.fill(home, sent)
            if any(n < home.shape[axis] for n in self.counts[name]):
                present[name] = rows.present(home.shape[axis])
        if sizes:  # in one order, whatever was sent
            params = {n: params[n] for n in self.received if n in params} | params
        return Updates(
            self.clients, params, self.weight, self.extras, self.metrics,
            {n: self.received[n] for n in params if n in self.received}, present, sizes,
            {n: self.rows[n].along(params[n]) for n in present if n in self.rows},
        )
