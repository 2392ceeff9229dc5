"""The local engine: clients of a round in this process, stacked in chunks or one by one.

What a trainer hands back is checked before anybody uses it: keys, shapes, types, weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from fedvlm.core.errors import FedvlmError
from fedvlm.core.trees import (
    State,
    Tree,
    first_non_finite,
    matching,
    stack,
    stack_states,
    unstack,
    unstack_states,
)
from fedvlm.federation.aggregate import Update
from fedvlm.federation.context import Context, Upload
from fedvlm.federation.trainer import Trainer

MakeContext = Callable[[Sequence[int]], Context]


@dataclass
class RoundWork:
    """What an engine hands back: new client states, updates by ascending id, dropped clients."""

    states: dict[int, State] = field(default_factory=dict)
    updates: list[Update] = field(default_factory=list)
    dropped: dict[int, str] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)


class Engine(Protocol):
    """Runs the clients of one round, wherever they are."""

    @property
    def chunk(self) -> int:
        """Clients stacked at once, in evaluation too."""
        ...

    def run(
        self, trainer: Trainer, make: MakeContext, server: State, states: dict[int, State]
    ) -> RoundWork:
        """Train every client in ``states`` and return its new state and update."""
        ...


@dataclass(frozen=True)
class LocalEngine:
    """All clients in one process, ``chunk`` at a time (1: the plain, sequential path)."""

    chunk: int = 8

    def run(
        self, trainer: Trainer, make: MakeContext, server: State, states: dict[int, State]
    ) -> RoundWork:
        """See ``Engine.run``.

        Raises:
            FedvlmError: a trainer changed the server's tensors or uploads what it may not.
        """
        work = RoundWork()
        versions = _versions(server)
        for clients in self._chunks(make(sorted(states)), 1 if not trainer.batched else self.chunk):
            ctx = make(clients)
            down = stack([trainer.down(server, c) for c in clients])
            state = stack_states([states[c] for c in clients])
            new, upload = _check_work(trainer.name, ctx, _local(trainer, ctx, state, down), down)
            for name, n in ctx.counters.items():
                work.counters[name] = work.counters.get(name, 0) + n
            self._collect(work, ctx, unstack_states(new, ctx.k), upload)
        if _versions(server) != versions:
            raise FedvlmError(f"trainer {trainer.name} changed server tensors during client work")
        work.updates.sort(key=lambda u: u.client)
        return work

    @staticmethod
    def _chunks(ctx: Context, size: int) -> list[list[int]]:
        """Sort clients by falling number of samples (ties by id) and cut them into chunks."""
        order = [
            c for _, c in sorted(zip((-s for s in ctx.batcher.sizes(ctx.clients)), ctx.clients,
                                     strict=True))
        ]
        return [order[i : i + size] for i in range(0, len(order), size)]

    @staticmethod
    def _collect(work: RoundWork, ctx: Context, states: list[State], upload: Upload) -> None:
        params, extras = unstack(upload.params, ctx.k), unstack(upload.extras, ctx.k)
        for k, client in enumerate(ctx.clients):
            _check_finite(ctx, k, states[k], params[k] | extras[k])
            if client in ctx.failed:  # its old state is kept
                work.dropped[client] = ctx.failed[client]
                continue
            metrics = {name: float(v[k]) for name, v in ctx.logs.items()}
            work.states[client] = states[k]
            work.updates.append(
                Update(client, params[k], float(upload.weight[k]), extras[k], metrics)
            )


def _local(trainer: Trainer, ctx: Context, state: State, down: Tree) -> object:
    """Call the method; what it raises is told with the clients it was working on."""
    try:
        return trainer.local(ctx, state, down)
    except FedvlmError:
        raise
    except Exception as error:
        raise FedvlmError(
            f"trainer {trainer.name}, round {ctx.round}, {_who(ctx)}: "
            f"{type(error).__name__}: {error} (--debug shows the traceback)"
        ) from error


def _versions(state: State) -> dict[str, int]:
    """Return the in-place version counter of every tensor; it moves when a tensor is written."""
    return {
        f"{slot}/{name}": v._version for slot, tree in state.items() for name, v in tree.items()
    }


def _check_work(name: str, ctx: Context, out: Any, down: Tree) -> tuple[State, Upload]:
    """Return what ``local`` of trainer ``name`` returned, if it keeps the contract.

    Raises:
        FedvlmError: not (state, Upload), keys outside the shared group and the declared extras,
            a wrong shape or type, state without a client axis, weights that are not one finite
            number >= 0 per client.
    """
    where = f"trainer {name}, round {ctx.round}, {_who(ctx)}"
    if not (isinstance(out, tuple) and len(out) == 2 and isinstance(out[1], Upload)):
        raise FedvlmError(f"{where}: local returned {type(out).__name__}, not (state, ctx.upload)")
    state, upload = out
    _check_keys(where, ctx, upload)
    _check_axis(where, ctx, state)
    for tensor, value in upload.params.items():
        if tensor not in down:
            raise FedvlmError(f"{where}: the download lacks '{tensor}' of the shared group")
        if value.shape != down[tensor].shape:
            raise FedvlmError(
                f"{where}: upload '{tensor}' has shape {list(value.shape)}, "
                f"the download had {list(down[tensor].shape)}"
            )
        if value.dtype != down[tensor].dtype:
            raise FedvlmError(
                f"{where}: upload '{tensor}' is {value.dtype}, the download was "
                f"{down[tensor].dtype}"
            )
    _check_weight(where, ctx, upload.weight)
    return state, upload


def _check_keys(where: str, ctx: Context, upload: Upload) -> None:
    stray = set(upload.params) - set(ctx.groups.shared)
    stray |= set(upload.extras) - set(matching(upload.extras, ctx.extras))
    missing = set(ctx.groups.shared) - set(upload.params)
    if stray:
        raise FedvlmError(
            f"{where}: uploads {sorted(stray)} outside the shared group and the declared extras"
        )
    if missing:
        raise FedvlmError(f"{where}: does not upload {sorted(missing)} of the shared group")


def _check_axis(where: str, ctx: Context, state: State) -> None:
    """Refuse leaves that would be cut along another axis than the clients'."""
    for slot, tree in state.items():
        for name, value in tree.items():
            if value.dim() == 0 or len(value) != ctx.k:
                raise FedvlmError(
                    f"{where}: '{name}' in slot '{slot}' of the new state has shape "
                    f"{list(value.shape)}, without a leading axis of {ctx.k} clients"
                )


def _check_weight(where: str, ctx: Context, weight: Tensor) -> None:
    if weight.shape != (ctx.k,):
        raise FedvlmError(
            f"{where}: the upload's weight has shape {list(weight.shape)}, not one per client"
        )
    for client, value in zip(ctx.clients, weight.tolist(), strict=True):
        if not (0 <= value < float("inf")):
            raise FedvlmError(f"{where}: client {client} has weight {value}, not a number >= 0")


def _check_finite(ctx: Context, k: int, state: State, params: Tree) -> None:
    """Apply the non-finite policy to one client's new state and its message.

    Raises:
        DivergedError: policy ``abort``.
    """
    client = ctx.clients[k]
    if client in ctx.failed:
        return
    bad = first_non_finite(params)
    if bad is not None:
        ctx.fail(client, f"update '{bad}'")
        return
    for slot, tree in state.items():
        bad = first_non_finite(tree)
        if bad is not None:
            ctx.fail(client, f"'{bad}' in slot '{slot}' of its new state")
            return


def _who(ctx: Context) -> str:
    """Return the clients of a chunk for a message."""
    return f"client{'s' if ctx.k > 1 else ''} {', '.join(map(str, ctx.clients))}"
