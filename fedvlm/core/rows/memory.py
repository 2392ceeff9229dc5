"""Rows in memory: tables of stacked rows, one for each form."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedvlm.core.rows.store import Form, form_of, missing_row
from fedvlm.core.trees import State, to_device

FEW = 8  # rows of a new table


@dataclass
class RowTable:
    """Rows of one form: slot -> leaf -> ``[rows, ...]``; doubles when it is full."""

    leaves: State
    size: int = 0
    free: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, state: State) -> RowTable:
        """Return an empty table for rows like those of ``state``."""
        return cls({s: {n: v.new_empty(0, *v.shape[1:]) for n, v in t.items()}
                    for s, t in state.items()})

    def take(self, count: int) -> list[int]:
        """Return rows that are free from now on taken."""
        while len(self.free) < count:
            more = max(self.size, FEW)
            self.leaves = {
                s: {n: torch.cat([v, v.new_empty(more, *v.shape[1:])]) for n, v in t.items()}
                for s, t in self.leaves.items()
            }
            self.free += range(self.size + more - 1, self.size - 1, -1)
            self.size += more
        return [self.free.pop() for _ in range(count)]

    def write(self, at: Sequence[int], state: State) -> None:
        """Put the rows of ``state`` at ``at``."""
        rows = _places(at)
        for slot, tree in state.items():
            for name, v in tree.items():
                leaf = self.leaves[slot][name]
                leaf.index_copy_(0, rows(leaf.device), v.detach().to(leaf.device))

    def read(self, at: Sequence[int]) -> State:
        """Return copies of the rows ``at``; strides are those of ``torch.stack`` of the rows."""
        rows = _places(at)
        return {
            s: {n: v.index_select(0, rows(v.device)) for n, v in t.items()}
            for s, t in self.leaves.items()
        }


def _places(at: Sequence[int]) -> Callable[[torch.device], Tensor]:
    """Return who gives the rows ``at`` on a device; they are copied there once."""
    rows, there = torch.tensor(at, dtype=torch.int64), dict[torch.device, Tensor]()

    def on(device: torch.device) -> Tensor:
        if device not in there:
            there[device] = to_device(rows, device)
        return there[device]

    return on


class MemoryStore:
    """Every version in memory until ``settle``; see ``RowStore``."""

    def __init__(self) -> None:
        self._tables: dict[Form, RowTable] = {}
        self._rows: dict[int, dict[int, tuple[Form, int]]] = {}  # client -> version -> its row
        self._several: set[int] = set()  # clients with more than one version

    def get(self, ids: Sequence[int], versions: Sequence[int]) -> list[tuple[list[int], State]]:
        """See ``RowStore.get``."""
        groups: dict[Form, tuple[list[int], list[int]]] = {}
        for client, version in zip(ids, versions, strict=True):
            form, row = self._row(client, version)
            clients, rows = groups.setdefault(form, ([], []))
            clients.append(client)
            rows.append(row)
        return [(c, self._tables[form].read(rows)) for form, (c, rows) in groups.items()]

    def _row(self, client: int, version: int) -> tuple[Form, int]:
        place = self._rows.get(client, {}).get(version)
        if place is None:
            raise missing_row(client, version)
        return place

    def form(self, client: int, version: int) -> Form:
        """See ``RowStore.form``."""
        return self._row(client, version)[0]

    def put(self, round_: int, ids: Sequence[int], state: State) -> None:
        """See ``RowStore.put``."""
        for client in ids:
            if round_ in self._rows.get(client, ()):
                self._forget(client, round_)
        form = form_of(state)
        table = self._tables.setdefault(form, RowTable.of(state))
        rows = table.take(len(ids))
        table.write(rows, state)
        for client, row in zip(ids, rows, strict=True):
            versions = self._rows.setdefault(client, {})
            versions[round_] = form, row
            if len(versions) > 1:
                self._several.add(client)

    def begin(self, accepted: Mapping[int, int]) -> None:
        """See ``RowStore.begin``."""
        for client, version in accepted.items():
            for newer in [v for v in self._rows.get(client, {}) if v > version]:
                self._forget(client, newer)

    def seal(self, round_: int) -> None:
        """See ``RowStore.seal``."""

    def settle(self, accepted: Mapping[int, int]) -> None:
        """See ``RowStore.settle``."""
        for client in self._several:
            for other in [v for v in self._rows[client] if v != accepted.get(client)]:
                self._forget(client, other)
        self._several = {c for c in self._several if len(self._rows.get(c, {})) > 1}

    def _forget(self, client: int, version: int) -> None:
        place = self._rows.get(client, {}).pop(version, None)
        if place is not None:
            form, row = place
            self._tables[form].free.append(row)
