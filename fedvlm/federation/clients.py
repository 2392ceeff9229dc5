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
from functools import lru_cache

import torch

from fedvlm.core.errors import ConfigError, FedvlmError
from fedvlm.core.rows.store import AWAY, Form, RowStore, form_of, order_rows
from fedvlm.core.trees import State, Tree, repeat, stack_states
from fedvlm.federation.groups import FROZEN, SERVER, SHARED, Groups

W = "w"  # the slot of a client's model
ANYBODY = -1  # no client: whose untrained state is everybody's


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
        self, store: RowStore, init: Callable[[int], State], start: Tree, groups: Groups,
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
                f"the state of client {worked[0]} is stored at the worker or site that made it: "
                "resume with the same --engine, or use the global model"
            )
        for other in states[1:]:
            _same_form(states[0], other)
        found = [c for clients, _ in parts for c in clients]
        alone = len(states) == 1 and found == list(ids)
        state = states[0] if alone else order_rows(ids, found, states)[1]
        return self._filled(state, len(ids))

    def forms(
        self, ids: Sequence[int], versions: Mapping[int, int], received: Mapping[int, Tree],
        texts: Sequence[int] = (),
    ) -> list[str]:
        """Return a digest of the form of what each client holds and receives.

        Clients that differ in it do not stack; ``plan_chunks`` keeps them apart.

        Args:
            texts: a number of each client's templates (``template_groups``), 0 for
                everybody's; empty: all have those.
        """
        out, known = [], dict[tuple[int, Form], str]()  # most receive the same tree
        for client in ids:
            version = versions.get(client, 0)
            own = self.store.form(client, version) if version else self._untrained_form(client)
            both = id(received[client]), own
            if both not in known:
                known[both] = joint_form(received[client], own)
            out.append(known[both])
        if any(texts):
            out = [f"{form} texts {n}" if n else form for form, n in zip(out, texts, strict=True)]
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
                    f"{who} reads '{name}' from the client's state, but it belongs to the server "
                    "and comes with every download: use state['w'] | received"
                ) from error
            if name not in self._shared:
                raise
            raise FedvlmError(
                f"{who} reads '{name}' in slot 'w' of a client's state, but the shared part is "
                "not kept between rounds (every download contains it): declare reads_old = True"
            ) from error

    def _untrained(self, ids: Sequence[int]) -> State:
        """Return what ``init_client`` says; leaves that are the start's are copied at once."""
        states = [self._kept(self._init(c)) for c in (ids[:1] if self._alike else ids)]
        if len(ids) == 1 or not all(_same_leaves(states[0], s) for s in states[1:]):
            return stack_states(states)
        return {s: repeat(t, len(ids)) for s, t in states[0].items()}

    def _kept(self, state: State) -> State:
        if W not in state:
            return state
        return state | {W: {n: v for n, v in state[W].items() if n not in self._lost}}

    def _filled(self, state: State, k: int) -> State:
        """Return ``state`` with the frozen part in ``w``, names in the order of the start."""
        if W not in state:
            return state
        whole, last = state[W] | repeat(self._frozen, k), len(self._order)
        return state | {W: {n: whole[n] for n in sorted(
            whole, key=lambda name: self._order.get(name, last)
        )}}


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

