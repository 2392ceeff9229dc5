"""The local engine: clients of a round in this process, stacked in chunks or one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from fedvlm.errors import FedvlmError
from fedvlm.federation.aggregate import Update
from fedvlm.federation.context import Context, Upload
from fedvlm.federation.messages import check_finite, check_work, who
from fedvlm.federation.trainer import Trainer
from fedvlm.federation.trees import (
    State,
    Tree,
    stack,
    stack_states,
    unstack,
    unstack_states,
)

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
            new, upload = check_work(trainer.name, ctx, _local(trainer, ctx, state, down), down)
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
            check_finite(ctx, k, states[k], params[k] | extras[k])
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
            f"trainer {trainer.name}, round {ctx.round}, {who(ctx)}: "
            f"{type(error).__name__}: {error} (--debug shows the traceback)"
        ) from error


def _versions(state: State) -> dict[str, int]:
    """Return the in-place version counter of every tensor; it moves when a tensor is written."""
    return {
        f"{slot}/{name}": v._version for slot, tree in state.items() for name, v in tree.items()
    }
