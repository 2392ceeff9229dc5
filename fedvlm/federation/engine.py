"""The local engine: clients of a round in this process, stacked in chunks or one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from fedvlm.errors import FedvlmError
from fedvlm.federation.aggregate import Update
from fedvlm.federation.context import Context, Upload
from fedvlm.federation.trainer import Trainer
from fedvlm.federation.trees import (
    State,
    Tree,
    first_non_finite,
    matching,
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
            new, upload = trainer.local(ctx, stack_states([states[c] for c in clients]), down)
            for name, n in ctx.counters.items():
                work.counters[name] = work.counters.get(name, 0) + n
            self._collect(work, trainer, ctx, unstack_states(new, ctx.k), upload)
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
    def _collect(
        work: RoundWork, trainer: Trainer, ctx: Context, states: list[State], upload: Upload
    ) -> None:
        check_keys(trainer, ctx, upload)
        params, extras = unstack(upload.params, ctx.k), unstack(upload.extras, ctx.k)
        for k, client in enumerate(ctx.clients):
            bad = first_non_finite(params[k] | extras[k])
            if bad is not None and client not in ctx.failed:
                ctx.fail(client, f"update '{bad}'")
            if client in ctx.failed:  # its old state is kept
                work.dropped[client] = ctx.failed[client]
                continue
            metrics = {name: float(v[k]) for name, v in ctx.logs.items()}
            work.states[client] = states[k]
            work.updates.append(
                Update(client, params[k], float(upload.weight[k]), extras[k], metrics)
            )


def check_keys(trainer: Trainer, ctx: Context, upload: Upload) -> None:
    """Refuse an upload with a key outside the shared group and the declared extras.

    Raises:
        FedvlmError: names the tensors.
    """
    stray = set(upload.params) - set(ctx.groups.shared)
    stray |= set(upload.extras) - set(matching(upload.extras, trainer.extras))
    missing = set(ctx.groups.shared) - set(upload.params)
    if stray or missing:
        said = f"uploads {sorted(stray)} outside its shared group" if stray else (
            f"does not upload {sorted(missing)}"
        )
        raise FedvlmError(f"trainer {trainer.name} {said}")


def _versions(state: State) -> dict[str, int]:
    """Return the in-place version counter of every tensor: it moves when a tensor is written."""
    trees: dict[str, Tree] = state
    return {f"{slot}/{name}": v._version for slot, tree in trees.items() for name, v in tree.items()}
