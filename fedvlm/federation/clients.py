"""What clients keep between rounds: a store of rows by client and version, and who never worked.

A client's **version** is the last round in which it worked; version 0, the untrained state, is
never stored but made by ``init_client`` when somebody asks, so that a client which was never drawn
costs nothing. The driver knows versions only (``FedState``); the rows lie where the clients are.
Of slot ``w`` only what a client does not get anew is kept: the shared part comes with every
download (unless the method declares ``reads_old``), and so does what is the server's; the frozen
part is the start's.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Protocol, TypeVar

import torch

from fedvlm.core.errors import ConfigError, FedvlmError
from fedvlm.core.trees import State, Tree, cat, expand, stack_states
from fedvlm.federation.groups import FROZEN, SERVER, SHARED, Groups

W = "w"  # the slot of a client's model
AWAY = "away."  # begins the name of a slot that stands for a state at another place
FEW = 8  # rows of a new table
ANYBODY = -1  # no client: whose untrained state is everybody's
P = TypeVar("P")
Form = tuple[tuple[str, tuple[tuple[str, torch.dtype, tuple[int, ...]], ...]], ...]


class ClientStore(Protocol):
    """Rows of clients' states by (client, version): in memory, on disk, or at another site."""

    def get(
        self, ids: Sequence[int], versions: Sequence[int]
    ) -> list[tuple[list[int], State]]:
        """Return (clients, their states ``[K, ...]``) by form, each in the order of ``ids``.

        Raises:
            FedvlmError: there is no such row.
        """
        ...

    def form(self, client: int, version: int) -> Form:
        """Return names, types and shapes of such a row, without reading it.

        Raises:
            FedvlmError: there is no such row.
        """
        ...

    def put(self, round_: int, ids: Sequence[int], state: State) -> None:
        """Keep the rows of ``state`` as version ``round_``; a second put of a round replaces it."""
        ...

    def begin(self, accepted: Mapping[int, int]) -> None:
        """Forget versions newer than ``accepted``, of these clients: a round that did not count."""
        ...

    def seal(self, round_: int) -> None:
        """Hear that everybody of ``round_`` is in: nothing more is put in that round."""
        ...

    def settle(self, accepted: Mapping[int, int]) -> None:
        """Forget what nobody asks for any more: all but ``accepted``, the version of every client.

        What lies in the records of a checkpoint stays there until that checkpoint goes.
        """
        ...


class RecordLog(Protocol[P]):
    """Sealed records of rows, and which of them count (``runs.records.Records``)."""

    def write(
        self, name: str, groups: Sequence[tuple[Sequence[int], Sequence[int], State]]
    ) -> None:
        """Write (clients, versions, rows) as one record."""
        ...

    def find(self, client: int, version: int) -> P | None:
        """Return where a row lies."""
        ...

    def read(self, places: Sequence[P]) -> State:
        """Return rows of one form ``[K, ...]``, on the CPU."""
        ...

    def forget(self, client: int, version: int) -> None:
        """Forget what is newer than ``version`` and in no checkpoint."""
        ...

    def accept(
        self, round_: int, rows: ClientStore, versions: Mapping[int, int]
    ) -> list[list[str]]:
        """Write what no record has, and return the records that a checkpoint has to name."""
        ...

    def versions(self) -> dict[int, int]:
        """Return the version of every client that has a row that counts."""
        ...

    def live(self) -> Iterator[tuple[int, list[int], State]]:
        """Yield (version, clients, their rows): all that counts."""
        ...


def form_of(state: State) -> Form:
    """Return names, types and shapes of one client's state, of stacked rows ``[K, ...]``."""
    return tuple(
        (slot, tuple((name, v.dtype, tuple(v.shape[1:])) for name, v in tree.items()))
        for slot, tree in state.items()
    )


def joint_form(received: Tree, own: Form) -> str:
    """Return a digest of names, shapes and types of a download and of a state, in any order."""
    given = tuple((n, v.dtype, tuple(v.shape)) for n, v in received.items())
    return _digest((("", given), *own))


@lru_cache(maxsize=1024)
def _digest(form: Form) -> str:
    """Return the digest; kept, since most clients are alike."""
    parts = sorted(f"{slot}/{name} {shape} {kind}" for slot, leaves in form
                   for name, kind, shape in leaves)
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


@dataclass
class Table:
    """Rows of one form: slot -> leaf -> ``[rows, ...]``; doubles when it is full."""

    leaves: State
    size: int = 0
    free: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, state: State) -> Table:
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
        rows = torch.tensor(at, dtype=torch.int64)
        for slot, tree in state.items():
            for name, v in tree.items():
                leaf = self.leaves[slot][name]
                leaf.index_copy_(0, rows.to(leaf.device), v.detach().to(leaf.device))

    def read(self, at: Sequence[int]) -> State:
        """Return copies of the rows ``at``; strides are those of ``torch.stack`` of the rows."""
        rows = torch.tensor(at, dtype=torch.int64)
        return {
            s: {n: v.index_select(0, rows.to(v.device)) for n, v in t.items()}
            for s, t in self.leaves.items()
        }


class MemoryStore:
    """Every version in memory until ``settle``; see ``ClientStore``."""

    def __init__(self) -> None:
        self._tables: dict[Form, Table] = {}
        self._rows: dict[int, dict[int, tuple[Form, int]]] = {}  # client -> version -> its row
        self._several: set[int] = set()  # clients with more than one version

    def get(
        self, ids: Sequence[int], versions: Sequence[int]
    ) -> list[tuple[list[int], State]]:
        """See ``ClientStore.get``."""
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
            raise missing(client, version)
        return place

    def form(self, client: int, version: int) -> Form:
        """See ``ClientStore.form``."""
        return self._row(client, version)[0]

    def put(self, round_: int, ids: Sequence[int], state: State) -> None:
        """See ``ClientStore.put``."""
        for client in ids:
            self._forget(client, round_)
        form = form_of(state)
        table = self._tables.setdefault(form, Table.of(state))
        rows = table.take(len(ids))
        table.write(rows, state)
        for client, row in zip(ids, rows, strict=True):
            versions = self._rows.setdefault(client, {})
            versions[round_] = form, row
            if len(versions) > 1:
                self._several.add(client)

    def begin(self, accepted: Mapping[int, int]) -> None:
        """See ``ClientStore.begin``."""
        for client, version in accepted.items():
            for newer in [v for v in self._rows.get(client, {}) if v > version]:
                self._forget(client, newer)

    def seal(self, round_: int) -> None:
        """See ``ClientStore.seal``."""

    def settle(self, accepted: Mapping[int, int]) -> None:
        """See ``ClientStore.settle``."""
        for client in self._several:
            for other in [v for v in self._rows[client] if v != accepted.get(client)]:
                self._forget(client, other)
        self._several = {c for c in self._several if len(self._rows.get(c, {})) > 1}

    def _forget(self, client: int, version: int) -> None:
        place = self._rows.get(client, {}).pop(version, None)
        if place is not None:
            form, row = place
            self._tables[form].free.append(row)


class DiskStore:
    """Rows are read from the records of a log; in memory is only where they lie.

    The rows of a round wait in memory until all are in; then they are one record.
    """

    def __init__(self, log: RecordLog[Any], device: torch.device) -> None:
        self._log, self._device = log, device
        self._open, self._ids = MemoryStore(), dict[int, int]()  # of this round: client -> version
        self._forms: dict[tuple[str, int], Form] = {}  # of a record's groups

    def get(
        self, ids: Sequence[int], versions: Sequence[int]
    ) -> list[tuple[list[int], State]]:
        """See ``ClientStore.get``."""
        here = [c for c, v in zip(ids, versions, strict=True) if self._ids.get(c) == v]
        groups = self._open.get(here, [self._ids[c] for c in here])
        places: dict[tuple[str, int], tuple[list[int], list[Any]]] = {}
        for client, version in zip(ids, versions, strict=True):
            if self._ids.get(client) == version:
                continue
            place = self._log.find(client, version)
            if place is None:
                raise missing(client, version)
            clients, rows = places.setdefault((place.record, place.group), ([], []))
            clients.append(client)
            rows.append(place)
        alike: dict[Form, tuple[list[int], list[State]]] = {form_of(s): (c, [s]) for c, s in groups}
        for clients, rows in places.values():
            state = on(self._device, self._log.read(rows))
            known, states = alike.setdefault(form_of(state), ([], []))
            known += clients
            states.append(state)
        return [_in_order(ids, *group) for group in alike.values()]

    def form(self, client: int, version: int) -> Form:
        """See ``ClientStore.form``; the rows of a record's group have one."""
        if self._ids.get(client) == version:
            return self._open.form(client, version)
        place = self._log.find(client, version)
        if place is None:
            raise missing(client, version)
        key = place.record, place.group
        if key not in self._forms:
            self._forms[key] = form_of(self._log.read([place]))
        return self._forms[key]

    def put(self, round_: int, ids: Sequence[int], state: State) -> None:
        """See ``ClientStore.put``."""
        self._open.put(round_, ids, state)
        self._ids |= dict.fromkeys(ids, round_)

    def begin(self, accepted: Mapping[int, int]) -> None:
        """See ``ClientStore.begin``."""
        for client, version in accepted.items():
            self._log.forget(client, version)
            if self._ids.get(client, version) > version:
                del self._ids[client]

    def seal(self, round_: int) -> None:
        """See ``ClientStore.seal``: write the round's record."""
        if self._ids:
            ids = sorted(self._ids)
            self._log.write(f"r{round_:06d}", [
                (clients, [self._ids[c] for c in clients], state)
                for clients, state in self._open.get(ids, [self._ids[c] for c in ids])
            ])
        self._open, self._ids = MemoryStore(), {}

    def settle(self, accepted: Mapping[int, int]) -> None:
        """See ``ClientStore.settle``: the log keeps what a checkpoint names."""


def missing(client: int, version: int) -> FedvlmError:
    """Return the error of a row that a store does not have."""
    return FedvlmError(
        f"the store has no state of client {client} from round {version}: it was settled, "
        "or a later round was begun from another state"
    )


def on(device: torch.device, state: State) -> State:
    """Return ``state`` with its tensors on ``device``; types stay."""
    return {s: {n: v.to(device) for n, v in tree.items()} for s, tree in state.items()}


def _in_order(
    ids: Sequence[int], clients: Sequence[int], states: Sequence[State]
) -> tuple[list[int], State]:
    """Join rows of one form in the order of ``ids``."""
    state = {slot: cat([s[slot] for s in states]) for slot in states[0]}
    at = {c: k for k, c in enumerate(clients)}
    wanted = [c for c in ids if c in at]
    rows = torch.tensor([at[c] for c in wanted], dtype=torch.int64)
    return wanted, {s: {n: v.index_select(0, rows.to(v.device)) for n, v in t.items()}
                    for s, t in state.items()}


class Clients:
    """Clients' states as engines and evaluation ask for them.

    Args:
        store: the rows of who worked.
        init: ``init_client`` of one client (no client axis); asked whenever it is needed.
        start: the untrained tensors.
        reads_old: the method reads the shared part of its last round's ``w``.
        alike: ``init`` says the same of every client, so one answer stands for all.

    Attributes:
        blank: names, shapes and types of ``start``, without numbers.
    """

    def __init__(
        self, store: ClientStore, init: Callable[[int], State], start: Tree, groups: Groups,
        reads_old: bool = False, alike: bool = False,
    ) -> None:
        self.store, self._init, self._start, self._alike = store, init, start, alike
        self._frozen = {n: start[n] for n in groups.names(FROZEN)}
        self._lost = set(groups.names(FROZEN, SERVER, *([] if reads_old else [SHARED])))
        self._shared, self._server = set(groups.names(SHARED)) & self._lost, set(groups.server)
        self._order = {n: i for i, n in enumerate(start)}
        self._first: dict[int, Form] = {}  # of clients that never worked
        self.blank: Tree = {n: torch.empty_like(v, device="meta") for n, v in start.items()}

    def stacked(self, ids: Sequence[int], versions: Mapping[int, int]) -> State:
        """Return the states ``[K, ...]`` of ``ids``, as of ``versions`` (absent: never worked).

        Always a copy, with the strides of ``torch.stack``: they decide which kernel runs.

        Raises:
            FedvlmError: clients with other slots, tensors or shapes than the others'.
        """
        worked = [c for c in ids if versions.get(c, 0)]
        parts = self.store.get(worked, [versions[c] for c in worked]) if worked else []
        fresh = [c for c in ids if not versions.get(c, 0)]
        if fresh:
            parts.append((fresh, self._untrained(fresh)))
        states = [state for _, state in parts]
        if any(slot.startswith(AWAY) for state in states for slot in state):
            raise ConfigError(
                f"the state of client {worked[0]} lies with the worker or site that made it: go on "
                "with the same --engine, or take the global model"
            )
        for other in states[1:]:
            _same_form(states[0], other)
        found = [c for clients, _ in parts for c in clients]
        alone = len(states) == 1 and found == list(ids)
        state = states[0] if alone else _in_order(ids, found, states)[1]
        return self._filled(state, len(ids))

    def forms(
        self, ids: Sequence[int], versions: Mapping[int, int], received: Mapping[int, Tree]
    ) -> list[str]:
        """Return a digest of the form of what each client holds and receives.

        Clients that differ in it do not stack; ``plan_chunks`` keeps them apart.
        """
        out = []
        for client in ids:
            version = versions.get(client, 0)
            own = self.store.form(client, version) if version else self._untrained_form(client)
            out.append(joint_form(received[client], own))
        return out

    def _untrained_form(self, client: int) -> Form:
        who = ANYBODY if self._alike else client
        if who not in self._first:
            self._first[who] = form_of(stack_states([self._kept(self._init(client))]))
        return self._first[who]

    def put(self, round_: int, ids: Sequence[int], state: State) -> None:
        """Keep what clients do not get anew of their new states ``[K, ...]``."""
        self.store.put(round_, ids, self._kept(state))

    def read(self, ids: Sequence[int], versions: Mapping[int, int]) -> dict[int, State]:
        """Return each client's state without client axis: for files, checks and exports."""
        out = {}
        for client in ids:
            state = self.stacked([client], versions)
            out[client] = {s: {n: v[0] for n, v in t.items()} for s, t in state.items()}
        return out

    @contextlib.contextmanager
    def explain(self, who: str) -> Iterator[None]:
        """Say what is the matter where a method asks for the shared part that is not kept.

        Raises:
            FedvlmError: instead of a bare ``KeyError`` of such a name.
        """
        try:
            yield
        except KeyError as error:
            name = error.args[0] if error.args else ""
            if name in self._server:
                raise FedvlmError(
                    f"{who} looks for '{name}' with the client: it is the server's, and comes with "
                    "every download (state['w'] | received)"
                ) from error
            if name not in self._shared:
                raise
            raise FedvlmError(
                f"{who} reads '{name}' in slot 'w' of a client's state: the shared part is not "
                "kept between rounds, since every download brings it; declare reads_old = True"
            ) from error

    def _untrained(self, ids: Sequence[int]) -> State:
        """Return what ``init_client`` says; leaves that are the start's are copied at once."""
        states = [self._kept(self._init(c)) for c in (ids[:1] if self._alike else ids)]
        if len(ids) == 1 or not all(_same_leaves(states[0], s) for s in states[1:]):
            return stack_states(states)
        return {s: _copies(t, len(ids)) for s, t in states[0].items()}

    def _kept(self, state: State) -> State:
        if W not in state:
            return state
        return state | {W: {n: v for n, v in state[W].items() if n not in self._lost}}

    def _filled(self, state: State, k: int) -> State:
        """Return ``state`` with the frozen part in ``w``, names in the order of the start."""
        if W not in state:
            return state
        whole, last = state[W] | _copies(self._frozen, k), len(self._order)
        return state | {W: {n: whole[n] for n in sorted(
            whole, key=lambda name: self._order.get(name, last)
        )}}


def _copies(tree: Tree, k: int) -> Tree:
    """Return ``k`` equal rows of each leaf, as ``torch.stack`` would lay them out."""
    return {n: v.clone(memory_format=torch.contiguous_format) for n, v in expand(tree, k).items()}


def _same_leaves(ours: State, theirs: State) -> bool:
    """Return whether two states are made of the very same tensors."""
    return ours.keys() == theirs.keys() and all(
        tree.keys() == theirs[slot].keys()
        and all(v is theirs[slot][name] for name, v in tree.items())
        for slot, tree in ours.items()
    )


def _same_form(ours: State, theirs: State) -> None:
    one, other = (
        {(s, n): (v.dtype, tuple(v.shape[1:])) for s, t in state.items() for n, v in t.items()}
        for state in (ours, theirs)
    )
    odd = sorted({f"{s}/{n}" for s, n in one.keys() | other.keys()
                  if one.get((s, n)) != other.get((s, n))}
                 | {f"{s}" for s in ours.keys() ^ theirs.keys()})
    if odd:
        raise FedvlmError(
            f"clients of one chunk differ in their slots or tensors {odd}: every client must have "
            "the same ones, of the same shapes, from its first round on (make them in init_client)"
        )

