"""The local engine: clients of a round in this process, stacked in chunks or one by one.

What a trainer hands back is checked before anybody uses it: keys, shapes, types, weights, and with
one read of the device whether all of it is finite.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from fedvlm.core.errors import FedvlmError, MethodError, failure_text, own_line
from fedvlm.core.trees import (
    State,
    Tree,
    expand,
    first_non_finite,
    in_double,
    matching,
    pick,
    repeat,
    stack,
)
from fedvlm.federation.aggregation.arrival import Upload
from fedvlm.federation.aggregation.updates import Updates, join_updates
from fedvlm.federation.clients import Clients, W
from fedvlm.federation.context import Context
from fedvlm.federation.groups import RECEIVED
from fedvlm.federation.local.guard import Looked, run_guarded
from fedvlm.federation.local.kept import drop_kept
from fedvlm.federation.local.sent import odd_extra, refusal
from fedvlm.federation.plan import Chunk, plan_chunks
from fedvlm.federation.server import Measure, Question, Row
from fedvlm.federation.trainer import Trainer
from fedvlm.models.vlmodel import template_groups

MakeContext = Callable[[Sequence[int]], Context]
Homes = dict[tuple[tuple[str, int], ...], Tree]  # what many received, by its tensors
Bundle = tuple[Sequence[int], Tree, bool]  # clients, models [K, ...], whether of their images


@dataclass
class RoundWork:
    """What an engine hands back: who has a new state, uploads by chunk, dropped clients.

    Attributes:
        versions: client -> the version of its state that is now stored.
        summed: in the place of uploads, their mean as the update of each client
            (``aggregation.sums.of_each``), where the engine knows no more.
    """

    versions: dict[int, int] = field(default_factory=dict)
    uploads: list[Upload] = field(default_factory=list)
    dropped: dict[int, str] = field(default_factory=dict)
    counters: Counter[str] = field(default_factory=Counter)
    summed: Updates | None = None

    def spend(self) -> Updates | None:
        """Return all updates by ascending id, with all rows; None where every client was dropped.

        ``uploads`` is empty then: each tensor lies in memory once.
        """
        if self.summed is not None:
            return self.summed
        parts = (self.uploads.pop(0).arrive() for _ in range(len(self.uploads)))
        return join_updates(parts) if self.uploads else None


class Engine(Protocol):
    """Runs the clients of one round, wherever they are; the defaults are those of one process."""

    @property
    def chunk(self) -> int:
        """Clients stacked at once, in evaluation too."""

    @property
    def sites(self) -> Sequence[int]:
        """Where each client is, by id; empty: all at one site."""
        return ()

    @property
    def here(self) -> bool:
        """Whether clients' states and personal models are in this process."""
        return True

    def run(
        self, trainer: Trainer, make: MakeContext, downloads: Mapping[int, Tree],
        clients: Clients, accepted: Mapping[int, int],
    ) -> RoundWork:
        """Train clients on their downloads, put their new states, return the updates.

        Args:
            clients: what they keep between rounds.
            accepted: who works, with the version to start from (0: it never worked).
        """

    def rows(
        self, question: Question, measure: Measure, here: Callable[[], Iterable[Row]]
    ) -> Iterable[Row]:
        """Return numbers of personal models, from where they are.

        Args:
            here: measures them in this process.
        """
        return here()

    def models(self, question: Question, here: Callable[[], Iterator[Bundle]]) -> Iterator[Bundle]:
        """Yield personal models that may leave the place where they are, chunk by chunk.

        Models that were neither made of images nor tuned may come without tensors.

        Args:
            here: makes them in this process.
        """
        return here()

    @property
    def logits(self) -> Mapping[str, Tensor]:
        """Logits of the newest ``rows`` that kept them, as far as they came from elsewhere."""
        return {}

    def origin(self, clients: Sequence[int]) -> str:
        """Return from which places the updates of ``clients`` came; empty: all from here."""
        return ""

    def memory(self) -> dict[str, Any]:
        """Return what a checkpoint keeps of where clients are: JSON values, perhaps none."""
        return {}

    def recall(self, memory: Mapping[str, Any]) -> None:
        """Go on with the ``memory`` of a checkpoint."""


@dataclass(frozen=True)
class LocalEngine(Engine):
    """All clients in one process, ``chunk`` at a time (1: the plain, sequential path).

    Clients of two ``sites`` share no chunk: the bits are those of a run at these sites.
    """

    chunk: int = 8
    sites: Sequence[int] = ()

    def recall(self, memory: Mapping[str, Any]) -> None:
        """See ``Engine.recall``: there is nothing."""

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
        everybody = make(sorted(accepted))
        forms = trainer.extra_forms(everybody, clients.blank)
        homes: Homes = {}  # one copy of what clients of any chunk received alike
        for chunk in self._chunks(everybody, downloads, clients, accepted, most):
            ids = list(chunk.clients)
            ctx = make(ids)
            where = _where(trainer.name, ctx)
            update = partial(_updated, trainer, ctx, clients, downloads, accepted, where)
            (state, upload), looked = run_guarded(ctx, update, _tensors, partial(_asked, ctx))
            alike = received_alike(downloads, ids, ctx.groups.shared, homes)
            upload = replace(upload, received=alike or upload.received)
            if odd := "" if forms is None else odd_extra(upload.extras, forms):
                raise MethodError(f"{where}: {odd}: the upload does not match its extra_forms")
            ctx.check_weighted(trainer.name or type(trainer).__name__)
            work.counters.update(ctx.counters)
            stay = _collect(work, where, ctx, state, upload, looked)
            if stay:
                # What is the server's is not kept, and lies there once: no copy for each client.
                own = {slot: _own(ctx, slot, tree) for slot, tree in state.items()}
                new = {slot: _rows(tree, stay) for slot, tree in own.items()}
                ids = [ids[k] for k in stay]
                clients.put(ctx.round, ids, new)
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
            clients.forms(ids, accepted, downloads, template_groups(ctx.model, ids)), most,
        )


def _tensors(done: tuple[State, Upload]) -> Iterable[Tensor]:
    """Return all of a chunk's work that must be finite, each tensor once."""
    state, upload = done
    trees = [*state.values(), upload.params, upload.extras]
    return {id(v): v for tree in trees for v in tree.values()}.values()


def _updated(
    trainer: Trainer, ctx: Context, clients: Clients, downloads: Mapping[int, Tree],
    accepted: Mapping[int, int], where: str,
) -> tuple[State, Upload]:
    """Do the work of a chunk on inputs of its own: whoever writes into them harms nobody."""
    received = stack_downloads(downloads, ctx)
    whole = clients.stacked(ctx.clients, accepted)
    state = drop_kept(whole)
    if ctx.optim.keep:  # the optimisers' states are the context's, not the method's
        ctx.kept = {slot: tree for slot, tree in whole.items() if slot not in state}
    before = _received_losses(trainer, ctx, state, received) if RECEIVED in ctx.metrics else None
    out = _client_update(trainer, ctx, clients, state, received)
    if before is not None:
        ctx.logs[RECEIVED] = before
    new, upload = _check_work(where, ctx, out, received)
    return new | (ctx.kept or {}), replace(upload, received=pick(received, ctx.groups.shared))


def _received_losses(trainer: Trainer, ctx: Context, state: State, received: Tree) -> Tensor:
    """Return each client's mean training loss ``[K]`` at what it received, float64."""
    params = state.get(W, {}) | received
    total = torch.zeros(ctx.k, dtype=torch.float64, device=in_double(torch.zeros(
        0, device=ctx.model.device)).device)
    count = torch.zeros_like(total)
    for batch in ctx.batches(RECEIVED):
        with torch.no_grad():
            out = trainer.loss(ctx.model, batch.cut(params), batch)
        value = in_double((out[0] if isinstance(out, tuple) else out).detach())
        at = torch.arange(len(batch.y), device=total.device) if batch.rows is None else batch.rows
        w = in_double(batch.w.sum(1))
        total.index_add_(0, at.to(total.device), value * w)
        count.index_add_(0, at.to(total.device), w)
    return total / count.clamp_min(1)


def stack_downloads(downloads: Mapping[int, Tree], ctx: Context) -> Tree:
    """Return what the clients of a chunk received, ``[K, ...]``.

    Copies, which whoever works may write into, but for tensors of the group ``server``: those are
    everybody's, and lie there once.
    """
    trees = [downloads[c] for c in ctx.clients]
    if not ctx.groups.server:
        alike = all(tree is trees[0] for tree in trees)
        return repeat(trees[0], ctx.k) if alike else stack(trees)
    own = stack([{n: v for n, v in t.items() if n not in ctx.groups.server} for t in trees])
    return own | expand(pick(trees[0], ctx.groups.server), ctx.k)


def received_alike(
    downloads: Mapping[int, Tree], ids: Sequence[int], shared: Sequence[str],
    known: Homes,
) -> Tree:
    """Return the tensors ``shared`` that all clients ``ids`` received alike; {}: they did not.

    ``[K, ...]``, to be read only: K times one row, which stands for other chunks' clients, too.

    Args:
        known: the rows so far; written to.
    """
    # The downloads live as long as the round: no id stands for two.
    first = pick(downloads[ids[0]], shared)
    mark = _mark(first)
    if any(downloads[c] is not downloads[ids[0]] and _mark(pick(downloads[c], shared)) != mark
           for c in ids):
        return {}
    if mark not in known:
        known[mark] = repeat(first, 1)
    return {n: v.expand(len(ids), *v.shape[1:]) for n, v in known[mark].items()}


def _mark(tree: Tree) -> tuple[tuple[str, int], ...]:
    return tuple((name, id(v)) for name, v in tree.items())


def _asked(ctx: Context, done: tuple[State, Upload]) -> list[Tensor]:
    """Return the numbers that the host needs of a chunk: weights, counts of rows, metrics."""
    return [done[1].weight, *done[1].told.values(), *ctx.logs.values()]


def _collect(
    work: RoundWork, where: str, ctx: Context, state: State, upload: Upload, looked: Looked
) -> list[int]:
    """Add a chunk's uploads to ``work`` but those that the policy drops; say which rows stay.

    Raises:
        DivergedError: a number is not finite (policy ``abort``).
        FedvlmError: a weight that is no finite number >= 0, or rows that are not there.
    """
    weights, *numbers = looked.numbers
    counts = {n: list(map(int, row)) for n, row in zip(upload.told, numbers, strict=False)}
    _check_rows(where, ctx, upload, counts)
    stay = []
    for k, client in enumerate(ctx.clients):
        if not looked.finite:
            sent = upload.params | upload.extras
            own = {slot: {n: v[k] for n, v in tree.items()} for slot, tree in state.items()}
            _check_finite(ctx, k, own, {n: v[k] for n, v in sent.items()})
        if client in ctx.failed:  # its old state is kept
            work.dropped[client] = ctx.failed[client]
            continue
        stay.append(k)
    if not stay:
        return []
    for k in stay:
        if not (0 <= weights[k] < float("inf")):
            raise MethodError(
                f"{where}: client {ctx.clients[k]} has weight {weights[k]}, not a number >= 0")
    everybody, told = range(ctx.k), dict(zip(ctx.logs, numbers[len(counts) :], strict=True))
    work.uploads.append(replace(
        upload, params=_rows(upload.params, everybody), extras=_rows(upload.extras, everybody),
        weight=torch.tensor(weights, dtype=torch.float64), absent=(), told={},
        clients=tuple(ctx.clients), counts=counts,
        metrics={n: torch.tensor(row, dtype=torch.float64) for n, row in told.items()},
        received={n: v.detach() for n, v in upload.received.items()},
    ).take(stay))
    return stay


def _own(ctx: Context, slot: str, tree: Tree) -> Tree:
    """Return of slot ``w`` what is not the server's."""
    server = ctx.groups.server if slot == W else ()
    return {n: v for n, v in tree.items() if n not in server} if server else tree


def _rows(tree: Tree, at: Sequence[int]) -> Tree:
    """Return the rows ``at``, ascending; all of them are no copy."""
    if all(len(v) == len(at) for v in tree.values()):
        return {n: v.detach().contiguous() for n, v in tree.items()}
    rows = torch.tensor(at, dtype=torch.int64)
    return {n: v.detach()[rows.to(v.device)] for n, v in tree.items()}


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
        raise MethodError(
            f"{_where(trainer.name, ctx)}: {failure_text(error)}{own_line(error)} "
            "(--debug shows the traceback)"
        ) from error


def _check_work(where: str, ctx: Context, out: Any, received: Tree) -> tuple[State, Upload]:
    """Return what ``client_update`` returned, if it keeps the contract; nothing is read.

    Raises:
        MethodError: not (state, Upload), keys outside the shared group and the declared extras,
            a wrong shape or type, state without a client axis, not one weight per client.
    """
    if not (isinstance(out, tuple) and len(out) == 2 and isinstance(out[1], Upload)):
        raise MethodError(
            f"{where}: client_update returned {type(out).__name__}, not (state, ctx.upload)"
        )
    state, upload = out
    _check_keys(where, ctx, upload)
    _check_axis(where, ctx, state)
    for tensor, value in upload.params.items():
        if tensor not in received:
            raise MethodError(f"{where}: the download lacks '{tensor}' of the shared group")
        home = list(received[tensor].shape)
        if tensor in upload.rows:
            rows = upload.rows[tensor]
            home[rows.along(received[tensor])] = rows.index.shape[1]
        if list(value.shape) != home:
            raise MethodError(
                f"{where}: upload '{tensor}' has shape {list(value.shape)}, the download had {home}"
            )
        if value.dtype != received[tensor].dtype:
            raise MethodError(
                f"{where}: upload '{tensor}' is {value.dtype}, the download was "
                f"{received[tensor].dtype}"
            )
    if upload.weight.shape != (ctx.k,):
        raise MethodError(
            f"{where}: the upload's weight has shape {list(upload.weight.shape)}, "
            "not one per client"
        )
    return state, upload


def _check_keys(where: str, ctx: Context, upload: Upload) -> None:
    stray = set(upload.params) - set(ctx.groups.shared)
    stray |= set(upload.extras) - set(matching(upload.extras, ctx.extras))
    stray |= set(upload.extras) & set(ctx.groups.server)
    missing = set(ctx.groups.shared) - set(upload.params) - set(upload.absent)
    told = set(ctx.logs) - set(matching(ctx.logs, ctx.metrics))
    if stray:
        raise MethodError(
            f"{where}: uploads {sorted(stray)} outside the shared group and the declared extras"
        )
    if missing:
        raise MethodError(f"{where}: does not upload {sorted(missing)} of the shared group")
    if told:
        raise MethodError(
            f"{where}: uploads the numbers {sorted(told)}, which its `metrics` do not declare: "
            "add a pattern there if the server may see them, or record them with log=None"
        )


def _check_axis(where: str, ctx: Context, state: State) -> None:
    """Refuse leaves that would be cut along another axis than the clients'."""
    for slot, tree in state.items():
        for name, value in tree.items():
            if not isinstance(value, Tensor):
                raise MethodError(f"{where}: '{name}' in slot '{slot}' of the new state is a "
                                  f"{type(value).__name__}, not a tensor")
            if value.dim() == 0 or len(value) != ctx.k:
                raise MethodError(
                    f"{where}: '{name}' in slot '{slot}' of the new state has shape "
                    f"{list(value.shape)}, without a leading axis of {ctx.k} clients"
                )


def _check_rows(
    where: str, ctx: Context, upload: Upload, counts: Mapping[str, Sequence[int]]
) -> None:
    """Refuse rows that are not there, and rows sent twice."""
    for name, row in counts.items():
        home = upload.received[name]
        size = home.shape[upload.rows[name].along(home)]
        for client, count in zip(ctx.clients, row, strict=True):
            said = refusal(name, count, size)
            if said:
                raise MethodError(f"{where}: client {client} sends {said}")


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


def _where(name: str, ctx: Context) -> str:
    """Return trainer, round and clients of a chunk for a message."""
    who = f"client{'s' if ctx.k > 1 else ''} {', '.join(map(str, ctx.clients))}"
    return f"trainer {name}, round {ctx.round}, {who}"
