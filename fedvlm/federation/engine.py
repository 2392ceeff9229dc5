"""The local engine: clients of a round in this process, stacked in chunks or one by one.

What a trainer hands back is checked before anybody uses it: keys, shapes, types, weights.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from fedvlm.core.errors import FedvlmError, failure_text
from fedvlm.core.trees import State, Tree, first_non_finite, matching, pick, stack
from fedvlm.federation.aggregation.updates import Updates, join
from fedvlm.federation.clients import Clients
from fedvlm.federation.context import Context, Upload
from fedvlm.federation.plan import Chunk, plan_chunks
from fedvlm.federation.trainer import Trainer

MakeContext = Callable[[Sequence[int]], Context]


@dataclass
class RoundWork:
    """What an engine hands back: who has a new state, updates by chunk, dropped clients.

    Attributes:
        versions: client -> the version that its owner now holds.
    """

    versions: dict[int, int] = field(default_factory=dict)
    parts: list[Updates] = field(default_factory=list)
    dropped: dict[int, str] = field(default_factory=dict)
    counters: Counter[str] = field(default_factory=Counter)

    @property
    def updates(self) -> Updates | None:
        """All updates by ascending id; None where every client was dropped."""
        return join(self.parts) if self.parts else None


class Engine(Protocol):
    """Runs the clients of one round, wherever they are."""

    @property
    def chunk(self) -> int:
        """Clients stacked at once, in evaluation too."""
        ...

    @property
    def sites(self) -> Sequence[int]:
        """Where each client is, by id; empty: all at one site."""
        ...

    def run(
        self, trainer: Trainer, make: MakeContext, downloads: Mapping[int, Tree],
        clients: Clients, accepted: Mapping[int, int],
    ) -> RoundWork:
        """Train clients on their downloads, put their new states, return the updates.

        Args:
            clients: what they keep between rounds.
            accepted: who works, with the version to start from (0: it never worked).
        """
        ...


@dataclass(frozen=True)
class LocalEngine:
    """All clients in one process, ``chunk`` at a time (1: the plain, sequential path).

    Clients of two ``sites`` share no chunk: the bits are those of a run at these sites.
    """

    chunk: int = 8
    sites: Sequence[int] = ()

    def run(
        self, trainer: Trainer, make: MakeContext, downloads: Mapping[int, Tree],
        clients: Clients, accepted: Mapping[int, int],
    ) -> RoundWork:
        """See ``Engine.run``.

        Raises:
            FedvlmError: a trainer uploads what it may not.
        """
        work, most = RoundWork(), self.chunk if trainer.batched else 1
        clients.store.begin(accepted)
        for chunk in self._chunks(make(sorted(accepted)), downloads, clients, accepted, most):
            ids = list(chunk.clients)
            ctx = make(ids)
            received = stack([downloads[c] for c in ids])
            state = clients.stacked(ids, accepted)
            out = _client_update(trainer, ctx, clients, state, received)
            new, upload = _check_work(trainer.name, ctx, out, received)
            work.counters.update(ctx.counters)
            stay = _collect(work, ctx, new, upload, received)
            if stay:
                at = torch.tensor(stay, dtype=torch.int64)
                ids = [ids[k] for k in stay]
                clients.put(ctx.round, ids, {s: _rows(tree, at) for s, tree in new.items()})
                work.versions |= dict.fromkeys(ids, ctx.round)
        return work

    def _chunks(
        self, ctx: Context, downloads: Mapping[int, Tree], clients: Clients,
        accepted: Mapping[int, int], most: int,
    ) -> list[Chunk]:
        """Cut the round's clients into chunks of one site and one form of tensors."""
        ids = ctx.clients
        return plan_chunks(
            ids, ctx.sizes.tolist(), [self.sites[c] if self.sites else 0 for c in ids],
            clients.forms(ids, accepted, downloads), most,
        )


def _collect(
    work: RoundWork, ctx: Context, state: State, upload: Upload, received: Tree
) -> list[int]:
    """Add a chunk's updates to ``work`` but those that the policy drops; say which rows stay."""
    stay = []
    for k, client in enumerate(ctx.clients):
        message = {n: v[k] for n, v in (upload.params | upload.extras).items()}
        own = {slot: {n: v[k] for n, v in tree.items()} for slot, tree in state.items()}
        _check_finite(ctx, k, own, message)
        if client in ctx.failed:  # its old state is kept
            work.dropped[client] = ctx.failed[client]
            continue
        stay.append(k)
    if not stay:
        return []
    at = torch.tensor(stay, dtype=torch.int64)
    metrics = {n: v.detach().double().cpu() for n, v in ctx.logs.items()}
    work.parts.append(Updates(
        tuple(ctx.clients[k] for k in stay), _rows(upload.params, at),
        upload.weight.detach().cpu().double()[at], _rows(upload.extras, at), _rows(metrics, at),
        _rows(pick(received, upload.params), at),
    ))
    return stay


def _rows(tree: Tree, at: Tensor) -> Tree:
    return {n: v.detach()[at.to(v.device)] for n, v in tree.items()}


def _client_update(
    trainer: Trainer, ctx: Context, clients: Clients, state: State, received: Tree
) -> object:
    """Call the method; what it raises is told with the clients it was working on."""
    try:
        with clients.explain(f"trainer {trainer.name or type(trainer).__name__}"):
            return trainer.client_update(ctx, state, received)
    except FedvlmError:
        raise
    except Exception as error:
        raise FedvlmError(
            f"trainer {trainer.name}, round {ctx.round}, {_who(ctx)}: "
            f"{failure_text(error)} (--debug shows the traceback)"
        ) from error


def _check_work(name: str, ctx: Context, out: Any, received: Tree) -> tuple[State, Upload]:
    """Return what ``client_update`` returned, if it keeps the contract.

    Raises:
        FedvlmError: not (state, Upload), keys outside the shared group and the declared extras,
            a wrong shape or type, state without a client axis, weights that are not one finite
            number >= 0 per client.
    """
    where = f"trainer {name}, round {ctx.round}, {_who(ctx)}"
    if not (isinstance(out, tuple) and len(out) == 2 and isinstance(out[1], Upload)):
        raise FedvlmError(
            f"{where}: client_update returned {type(out).__name__}, not (state, ctx.upload)"
        )
    state, upload = out
    _check_keys(where, ctx, upload)
    _check_axis(where, ctx, state)
    for tensor, value in upload.params.items():
        if tensor not in received:
            raise FedvlmError(f"{where}: the download lacks '{tensor}' of the shared group")
        if value.shape != received[tensor].shape:
            raise FedvlmError(
                f"{where}: upload '{tensor}' has shape {list(value.shape)}, "
                f"the download had {list(received[tensor].shape)}"
            )
        if value.dtype != received[tensor].dtype:
            raise FedvlmError(
                f"{where}: upload '{tensor}' is {value.dtype}, the download was "
                f"{received[tensor].dtype}"
            )
    _check_weight(where, ctx, upload.weight)
    return state, upload


def _check_keys(where: str, ctx: Context, upload: Upload) -> None:
    stray = set(upload.params) - set(ctx.groups.shared)
    stray |= set(upload.extras) - set(matching(upload.extras, ctx.extras))
    missing = set(ctx.groups.shared) - set(upload.params)
    told = set(ctx.logs) - set(matching(ctx.logs, ctx.metrics))
    if stray:
        raise FedvlmError(
            f"{where}: uploads {sorted(stray)} outside the shared group and the declared extras"
        )
    if missing:
        raise FedvlmError(f"{where}: does not upload {sorted(missing)} of the shared group")
    if told:
        raise FedvlmError(
            f"{where}: sends the numbers {sorted(told)} along, which its `metrics` do not declare: "
            "add a pattern there if the server may know them, or record them with log=None"
        )


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
