"""Invariants of what travels and what the server does with it."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedvlm.check.compare import Broken, copy_fed, copy_state, demand, same_state, same_tree
from fedvlm.check.world import CheckWorld, Setup, Trajectory
from fedvlm.core.errors import ConfigError
from fedvlm.core.trees import State, Tree, expand, matching
from fedvlm.federation.aggregation.updates import Updates, join_updates
from fedvlm.federation.clients import Clients
from fedvlm.federation.engine import LocalEngine, MakeContext, RoundWork
from fedvlm.federation.groups import GROUPS, resolve_groups
from fedvlm.federation.local.kept import KEPT
from fedvlm.federation.rounds import Federation, FedState, RoundFinished, WholeState
from fedvlm.federation.server import Held
from fedvlm.federation.trainer import Trainer

CLOSE, EXACT = 1e-9, 1e-12
Method = type[Trainer]


def g1_messages(world: CheckWorld, trainer: Method) -> None:
    """Only shared tensors and declared extras travel; the byte counters count them."""
    run = world.trajectory(trainer)
    shared, server = set(run.fed.groups.shared), set(run.fed.groups.server)
    for event, before, after in zip(run.events, run.states[:-1], run.states[1:], strict=True):
        updates, method = sent_in(event), run.fed.trainer
        fed = world.federation(trainer)
        got = fed.downloads(fed.adopt(before), event.round, list(event.bytes_down))
        for kind, trees, counted, allowed, extras in (
            ("upload", updates.messages(), event.bytes_up, shared, method.extras_up),
            ("download", got, event.bytes_down, shared | server, method.extras_down),
        ):
            for client, tree in trees.items():
                what = f"round {event.round}, {kind} of client {client}"
                stray = sorted(set(tree) - allowed - set(matching(tree, extras)))
                demand(not stray, f"{what}: '{''.join(stray[:1])}' is neither shared nor declared")
                known = _known(run, before, client) if kind == "download" else set()
                part = {n: v for n, v in tree.items() if n not in known}
                _count(part, counted.get(client, {}), what, _in_part(kind, updates, part))
                _form(tree, run.fed.p0, what)
                _no_value(tree, after.clients[client], run.fed.groups.personal, what)
        for client, weight in zip(updates.clients, updates.weight.tolist(), strict=True):
            said = f"round {event.round}, upload of client {client}: weight {weight}"
            demand(0 <= weight < float("inf"), f"{said} is not a number of at least 0")
        told = sorted(set(updates.metrics) - set(matching(updates.metrics, method.metrics)))
        demand(not told, f"round {event.round}: number '{''.join(told[:1])}' is not declared")
        _servers(run.fed, after)
        _nobodys(run.fed, event, after)
        _no_trace(event, after, run.fed.groups.personal)


def sent_in(event: RoundFinished) -> Updates:
    """Return a round's updates.

    Raises:
        Broken: there are none.
    """
    if event.updates is None:
        raise Broken(f"round {event.round}: no client sent an update")
    return event.updates


def _nobodys(fed: Federation, event: RoundFinished, after: WholeState) -> None:
    """The global model is no single client's upload, where clients sent different ones."""
    updates, shared = sent_in(event), fed.trainer.shared(after.server)
    for name, rows in updates.params.items():
        if name not in shared or len(updates) < 2 or torch.equal(rows[0], rows[1]):
            continue
        for client, row in zip(updates.clients, rows, strict=True):
            demand(
                not torch.equal(row, shared[name]),
                f"round {event.round}: the global '{name}' is the upload of client {client}",
            )


def _form(tree: Tree, start: Tree, what: str) -> None:
    for name in set(tree) & set(start):
        sent, own = ((tuple(v.shape), v.dtype) for v in (tree[name], start[name]))
        demand(sent == own, f"{what}: '{name}' is {sent[1]} {sent[0]}, not {own[1]} {own[0]}")


def _known(run: Trajectory, before: WholeState, client: int) -> set[str]:
    """Return the server's tensors that have not moved since a client worked last."""
    last = before.worked.get(client, 0)
    if not last:
        return set()
    now, then = (run.fed.trainer.shared(s.server) for s in (before, run.states[last - 1]))
    return {n for n in run.fed.groups.server if torch.equal(now[n], then[n])}


def _servers(fed: Federation, after: WholeState) -> None:
    """The group ``server`` is in the global model, and no client keeps it in its model."""
    for name in fed.groups.server:
        held = [c for c, state in after.clients.items() if name in state.get("w", {})]
        demand(not held, f"client {held[:1]} keeps '{name}', which is the server's")
        there = name in fed.trainer.shared(after.server)
        demand(there, f"the global model lacks '{name}' of the group server")


def _in_part(kind: str, updates: Updates, tree: Tree) -> set[str]:
    """Return the tensors of which rows may be left out: declared in uploads, zero in downloads."""
    if kind == "upload":
        return set(updates.sizes)
    return {n for n, v in tree.items() if v.dim() > 1 and bool((v == 0).any())}


def _count(tree: Tree, counted: Mapping[str, int], what: str, part: Container[str]) -> None:
    """The bytes are those of whole tensors; of ``part`` those of rows that are not zero, or more.

    An index of 4 bytes comes with every row.
    """
    size = {name: v.numel() * v.element_size() for name, v in tree.items()}
    least = {name: int(v.count_nonzero()) * v.element_size() for name, v in tree.items()}
    same = counted.keys() == size.keys() and all(
        n == size[name] or (name in part and least[name] <= n <= 5 * size[name])
        for name, n in counted.items()
    )
    demand(same, f"{what}: counted bytes {dict(counted)}, sent {size}")


def _no_value(tree: Tree, state: State, personal: Sequence[str], what: str) -> None:
    """No tensor of ``tree`` may hold the numbers of a personal tensor, under whatever name.

    What a kept optimiser remembers of any tensor is personal.
    """
    for slot, own in state.items():
        for name in own if slot.startswith(KEPT) else personal:
            secret = own.get(name)
            if secret is None or secret.numel() < 2 or bool((secret == secret.flatten()[0]).all()):
                continue
            for key, value in tree.items():
                demand(
                    not torch.equal(value.flatten(), secret.flatten()),
                    f"{what}: '{key}' holds the personal tensor '{name}' (slot '{slot}')",
                )


def _no_trace(event: RoundFinished, after: WholeState, personal: Sequence[str]) -> None:
    """No personal name or value in what a log or metric is made of, or in the server's state."""
    metrics = {c: sent_in(event).of(c) for c in sent_in(event).clients}
    seen = {
        "metrics": metrics, "report": event.report, "counters": event.counters,
        "dropped": event.dropped, "server state": after.server,
    }
    names = [re.compile(rf"(?<![\w.]){re.escape(name)}(?![\w.])") for name in personal]
    for where, value in seen.items():
        for item in _walk(value):
            what = f"round {event.round}, {where}"
            if isinstance(item, str):
                named = [p.search(item) for p in names]
                leak = next((m.group() for m in named if m), "")
                demand(not leak, f"{what}: names the personal tensor '{leak}'")
            elif item.numel() > 1:
                for client, state in after.clients.items():
                    _no_value({where: item}, state, personal, f"{what}, client {client}")


def _walk(value: Any) -> Iterator[str | Tensor]:
    """Yield the texts and the tensors (lists of numbers included) in nested values."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _walk(key)
            yield from _walk(item)
    elif isinstance(value, (list, tuple)):
        if value and all(isinstance(v, (int, float)) for v in value):
            yield torch.tensor(value, dtype=torch.float64)
        else:
            for item in value:
                yield from _walk(item)
    elif isinstance(value, (str, Tensor)):
        yield value


def work(fed: Federation, state: FedState, clients: Sequence[int] | None = None) -> RoundWork:
    """Do the clients' part of the round after ``state``; the server's is left out."""
    chosen = fed.plan.sample(state.round + 1) if clients is None else clients
    return fed.engine.run(
        fed.trainer, lambda ids: fed.context(ids, state.round + 1, state.versions),
        fed.downloads(state, state.round + 1, chosen), fed.clients,
        {c: state.versions.get(c, 0) for c in chosen},
    )


def g2_server_untouched(world: CheckWorld, trainer: Method) -> None:
    """Client work changes neither the server's tensors nor the states and start it was given.

    Once on views of the very tensors (an engine may hand out copies, none has to), once stacked.
    """
    for stacked in (False, True):
        fed = world.federation(trainer, Setup(chunk=len(world.splits)))
        before = world.trajectory(trainer).states[1]
        state, start = fed.adopt(copy_fed(before)), copy_state({"start": fed.p0})
        given = fed.read(state)
        if stacked:
            work(fed, state)
        else:
            _bare_work(fed, given)
        same_state(state.server, before.server, "the server's state after client work")
        whole = fed.read(state) if stacked else given
        for client, old in before.clients.items():
            same_state(whole.clients[client], old, f"the state that client {client} started with")
        same_state({"start": fed.p0}, start, "the initial tensors after client work")


def _bare_work(fed: Federation, whole: WholeState) -> None:
    """Train each client on views of the server's and its own tensors."""
    state = fed.adopt(whole)
    for client, own in whole.clients.items():
        views = {slot: expand(tree, 1) for slot, tree in own.items()}
        received = expand(fed.downloads(state, state.round + 1, [client])[client], 1)
        ctx = fed.context([client], state.round + 1, state.versions)
        fed.trainer.client_update(ctx, views, received)


@dataclass(frozen=True)
class Ordered(LocalEngine):
    """The sequential engine with its clients in a given order."""

    order: tuple[int, ...] = ()

    def run(
        self, trainer: Trainer, make: MakeContext, downloads: Mapping[int, Tree],
        clients: Clients, accepted: Mapping[int, int],
    ) -> RoundWork:
        """See ``Engine.run``: each client is a round's work of its own."""
        whole = RoundWork()
        for client in (c for c in self.order if c in accepted):
            one = {client: accepted[client]}
            part = LocalEngine(1).run(trainer, make, downloads, clients, one)
            whole.versions |= part.versions
            whole.uploads += part.uploads
        return whole


def g3_order(world: CheckWorld, trainer: Method) -> None:
    """The order of clients changes nothing, nor does who trained before."""
    run = world.trajectory(trainer)  # its engine goes by falling size, which is by ascending id
    state, first = run.states[1], run.events[1]
    order = sent_in(first).clients[::-1]
    fed = world.federation(trainer, Setup(engine=Ordered(1, order=order)))
    after = fed.read(fed.round(fed.adopt(copy_fed(state)), 2))
    said = f"clients in the order {', '.join(map(str, order))}"
    for client, old in run.states[2].clients.items():
        same_state(after.clients[client], old, f"{said}: client {client}", EXACT)
    same_state(after.server, run.states[2].server, f"{said}: server", EXACT)
    for client, message in sent_in(first).messages().items():
        fed = world.federation(trainer)
        alone = work(fed, fed.adopt(copy_fed(state)), [client])
        what = f"client {client} alone, not after the others"
        own = fed.clients.read([client], alone.versions)[client]
        same_state(own, run.states[2].clients[client], what, EXACT)
        (part,) = alone.uploads
        same_tree(part.arrive().messages()[client], message, f"{what}: upload", EXACT)


def g6_identical(world: CheckWorld, trainer: Method) -> None:
    """With identical clients and data the server holds what each client sent."""
    same = [world.splits[0]] * 3
    setup = Setup(splits=same, batch=len(same[0].train), rounds=2)
    run, fed = world.record(trainer, setup), world.federation(trainer, setup)
    for event, after in zip(run.events, run.states[1:], strict=True):
        said = f"round {event.round}, identical clients"
        updates = sent_in(event)
        there = {n: updates.sent(n).expand_as(v) for n, v in updates.params.items()}
        each = {c: {n: v[k][there[n][k]] for n, v in updates.params.items()}
                for k, c in enumerate(updates.clients)}
        first = updates.clients[0]
        for client, params in each.items():
            what = f"{said}: clients {first} and {client}"
            same_tree(params, each[first], f"{what}, upload", CLOSE)
        downloads = fed.downloads(fed.adopt(after), event.round, updates.clients)
        for k, (client, params) in enumerate(each.items()):
            down = downloads[client]
            sent = {n: v for n, v in params.items() if n in down}
            got = {n: v[there[n][k]] for n, v in down.items() if n in sent}
            same_tree(got, sent, f"{said}: server against client {client}", CLOSE)


def g7_weights(world: CheckWorld, trainer: Method) -> None:
    """Four times as many samples at every client change nothing in the aggregate."""
    run = world.trajectory(trainer)
    for before, event in zip(run.states[:-1], run.events, strict=True):
        servers = []
        for factor in (1.0, 4.0):  # a power of two: no rounding of its own
            fed = world.federation(trainer)
            updates = sent_in(event)
            ctx = fed.server_context(event.round, Held(fed.held, fed.adopt(before).held))
            servers.append(fed.trainer.aggregate(
                ctx, copy_state(before.server), replace(updates, weight=updates.weight * factor)
            ))
        same_state(servers[1], servers[0], f"round {event.round}, weights times 4: server", EXACT)


def g10_groups(world: CheckWorld, trainer: Method) -> None:
    """Every trainable tensor has exactly one group, and a tensor without a rule is refused."""
    fed = world.federation(trainer)
    rules = fed.trainer.rules(list(fed.p0))
    for name in fed.p0:
        groups = {group for pattern, group in rules if re.fullmatch(pattern, name)}
        demand(
            len(groups) == 1 and groups <= set(GROUPS),
            f"'{name}' is in {len(groups)} groups ({', '.join(sorted(groups)) or 'no rule'})",
        )
    stray = "stray.tensor"
    try:
        resolve_groups([*fed.p0, stray], rules, "check")
    except ConfigError as error:
        demand(stray in str(error), f"an extra tensor '{stray}' is refused without its name")
        return
    rule = next(pattern for pattern, _ in rules if re.fullmatch(pattern, stray))
    raise Broken(f"an extra tensor '{stray}' matches the rule '{rule}'; name what it means")


def shuffled_server(world: CheckWorld, trainer: Method) -> None:
    """The server's rule does not depend on the order in which updates arrive."""
    run = world.trajectory(trainer)
    fed = world.federation(trainer)
    parts = work(fed, fed.adopt(copy_fed(run.states[1]))).uploads
    servers = []
    for arrived in ([p.arrive() for p in order] for order in (parts, parts[::-1])):
        fed = world.federation(trainer)
        ctx = fed.server_context(2, Held(fed.held, fed.adopt(run.states[1]).held))
        server = copy_state(run.states[1].server)
        servers.append(fed.trainer.aggregate(ctx, server, join_updates(arrived)))
    same_state(servers[1], servers[0], "updates in reverse order: server", EXACT)
