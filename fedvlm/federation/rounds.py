"""The round loop: sample -> work -> check -> aggregate -> tell the subscribers -> save.

``Plan`` says what a run does, ``Budget`` where it ends, ``Federation`` does it; subscribers hear
``RoundStarted`` and ``RoundFinished``. All there is to save lies in ``FedState``, which only savers
get: an event has no tensor of a client.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from fedvlm.core.errors import ConfigError, DivergedError, FedvlmError
from fedvlm.core.rows.memory import MemoryStore
from fedvlm.core.rows.store import CheckpointStore, RowStore, move_state
from fedvlm.core.stats import mean
from fedvlm.core.trees import State, Tree, expand, matching, pick
from fedvlm.federation.aggregation.rules import check_rule, fewest
from fedvlm.federation.aggregation.server_optim import NONE, SLOTS
from fedvlm.federation.aggregation.telltale import Telltale
from fedvlm.federation.aggregation.updates import Updates
from fedvlm.federation.batches import Batcher
from fedvlm.federation.context import OWN
from fedvlm.federation.engine import Engine, RoundWork
from fedvlm.federation.groups import SERVER, SHARED, Groups
from fedvlm.federation.local.hooks import name_of, slots_of
from fedvlm.federation.peft_trainer import PeftTrainer
from fedvlm.federation.plan import Budget, Plan, Plateau, check_footing
from fedvlm.federation.reliability.elsewhere import aggregate_updates
from fedvlm.federation.reliability.unreliable import AWAY, drop_kind
from fedvlm.federation.server import (
    MOVED,
    Downloads,
    Held,
    Measure,
    Proxy,
    Question,
    Roster,
    Row,
    ServerContext,
    only_numbers,
)
from fedvlm.federation.trainer import Trainer
from fedvlm.federation.workplace import Meter, PersonalModels, TrainingStart, Workplace
from fedvlm.models.vlmodel import VLModel


@dataclass
class FedState:
    """All there is to save: everything else is a function of config and seeds.

    Attributes:
        server: the server's slots.
        versions: the last round in which each client worked; the others never did. Their states
            lie in the store of ``Federation.clients``.
        held: the round in which the server last wrote what it keeps for a client, where a method
            does (``ServerContext.held``); the tensors lie in ``Federation.held``.
    """

    round: int
    server: State
    versions: dict[int, int] = field(default_factory=dict)
    held: dict[int, int] = field(default_factory=dict)


@dataclass
class WholeState:
    """A state with everybody's tensors (``Federation.read``): for files, checks and tests.

    Attributes:
        clients: every client's slots, as its method would find them, no client axis.
        held: what the server keeps for each client.
        worked: see ``FedState.versions``.
    """

    round: int
    server: State
    clients: dict[int, State]
    held: dict[int, State] = field(default_factory=dict)
    worked: dict[int, int] = field(default_factory=dict)


CLIENTS, HELD, WORKED = "clients", "held", "worked"
Logs = Mapping[str, CheckpointStore]  # CLIENTS, HELD -> records


def convert_format1(round_: int, slots: State, clients: dict[int, State]) -> WholeState:
    """Return a state of format 1 (``runs.state``), where the server's slots tell of clients, too.

    ``held/<client>/<slot>`` is what the server keeps for a client, ``worked`` the last round of
    each; in states saved before that was, everybody has worked.
    """
    server: State = {}
    held: dict[int, State] = {}
    for slot, tree in slots.items():
        if slot.startswith(f"{HELD}/"):
            client, _, name = slot.removeprefix(f"{HELD}/").partition("/")
            held.setdefault(int(client), {})[name] = tree
        elif slot != WORKED:
            server[slot] = tree
    worked = {c: round_ for c in clients if round_}
    if WORKED in slots:
        ids, rounds = (slots[WORKED][name].tolist() for name in ("client", "round"))
        worked = dict(zip(ids, rounds, strict=True))
    return WholeState(round_, server, clients, held, worked)


@dataclass(frozen=True)
class RoundStarted:
    """Clients are chosen; nothing has happened yet."""

    round: int
    total_rounds: int
    clients: Sequence[int]


@dataclass(frozen=True)
class RoundFinished:
    """A round is done, its aggregate is in ``server`` (round 0: the untrained start).

    What a server knows after a round, and a way to ask for numbers of personal models.

    Attributes:
        server: the server's slots.
        shared: the global model ``[1, ...]``: what a new client would start from.
        roster: sizes and class counts of all clients.
        rows: clients, what to measure -> a row of numbers for each (``Federation.rows``).
        finetuning: what the final fine-tuning of the personal models cost (see
            ``Federation.finetuning_cost``); empty where there is none.
        updates: what the clients sent (None in round 0, and where nobody answered).
        dropped: clients that were lost or left out by the non-finite policy, with the reason.
        partial: clients that sent what they had at the deadline, with the share of their work.
        bytes_up, bytes_down: per client and tensor.
        counters: steps, samples and tower forwards of this round.
        seconds: wall time of the round's training and aggregation.
        report: what the aggregation rule has to tell (similarity weights, ...).
        telltale: length and direction of every update, and the outliers.
        val, val_loss: mean accuracy on the clients' validation images, and mean loss in nats,
            where ``Plateau`` checks the round and looks at them.
    """

    round: int
    total_rounds: int
    server: State
    shared: Tree
    roster: Roster
    rows: Callable[[Sequence[int], Measure], list[Row]]
    finetuning: Mapping[str, float] = field(default_factory=dict)
    updates: Updates | None = None
    dropped: dict[int, str] = field(default_factory=dict)
    partial: dict[int, float] = field(default_factory=dict)
    bytes_up: dict[int, dict[str, int]] = field(default_factory=dict)
    bytes_down: dict[int, dict[str, int]] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    report: dict[str, Any] = field(default_factory=dict)
    telltale: Telltale = Telltale()
    val: float | None = None
    val_loss: float | None = None

    @property
    def drawn(self) -> list[int]:
        """The clients of the round, ascending: those that worked and those that were dropped."""
        return sorted({*(self.updates.clients if self.updates else ()), *self.dropped})


Event = RoundStarted | RoundFinished
Subscriber = Callable[[Event], object]
Saver = Callable[[FedState], object]


class Federation(Workplace):
    """A server beside a workplace: it runs rounds, saves them, and asks for models and numbers.

    Args:
        trainer, model, batcher, plan, engine, meter, store, start: as of ``Workplace``; the model's
            ``verify_frozen()`` is asked before and after the run.
        subscribers: called with every event, in order.
        savers: called with the state after the round's event.
        budget, plateau: what ends the run before ``plan.rounds`` (default: nothing).
        proxy: the server's own images, for methods that train there.
        held: where the server keeps what is one client's.
    """

    def __init__(
        self, trainer: Trainer, model: VLModel, batcher: Batcher, plan: Plan, *,
        engine: Engine | None = None, subscribers: Sequence[Subscriber] = (),
        budget: Budget | None = None, plateau: Plateau | None = None, proxy: Proxy | None = None,
        savers: Sequence[Saver] = (), meter: Meter | None = None,
        store: RowStore | None = None, held: RowStore | None = None,
        start: TrainingStart | None = None,
    ) -> None:
        super().__init__(
            trainer, model, batcher, plan, engine=engine, meter=meter, store=store, start=start
        )
        self.budget, self.plateau = budget or Budget(), plateau or Plateau()
        self.proxy = proxy
        self.subscribers, self.savers = list(subscribers), list(savers)
        self.held: RowStore = MemoryStore() if held is None else held
        check_rounds(trainer, model, batcher, plan, self.roster, self.groups)
        trainer.seal()

    def server_context(self, round_: int, held: Held) -> ServerContext:
        """Return what the method's server side may use in a round."""
        plan = self.plan
        return ServerContext(
            self.model, self.groups, self.p0, round_, plan.rounds, plan.seed, plan.epochs,
            plan.optim, self.roster, held, self.proxy, plan.aggregator, plan.server_optim,
        )

    def downloads(
        self, state: FedState, round_: int, clients: Sequence[int],
        servers: Mapping[int, State] | None = None,
    ) -> Downloads:
        """Return what each of ``clients`` receives, and how many bytes of it travel.

        A tensor of the group ``server`` travels to who has not received it since it moved.

        Args:
            servers: the state that a client receives its download from; by default the newest.

        Raises:
            FedvlmError: a tensor that is neither shared nor declared, no such client, or without
                the server's tensors.
        """
        ctx = self.server_context(round_, Held(self.held, state.held))
        names = self.groups.server
        whole = pick(self.trainer.shared(state.server), names) if names else {}
        out, moved = Downloads(), {n: int(v) for n, v in state.server.get(MOVED, {}).items()}
        checked: dict[int, dict[str, int]] = {}  # most methods send the same tree to everybody
        for client in clients:
            if not 0 <= client < self.plan.clients:
                raise FedvlmError(f"no client {client}: clients are numbered 0 to "
                                  f"{self.plan.clients - 1}")
            server = state.server if servers is None else servers[client]
            out[client] = tree = self.trainer.download(ctx, server, client)
            if id(tree) not in checked:  # all of them are kept: no id stands for two trees
                self._check_download(client, tree, whole)
                checked[id(tree)] = ctx.sizes(tree)
            last = state.versions.get(client, 0)  # in that round it received all
            known = {n for n in whole if last and moved[n] < last}
            sizes = checked[id(tree)]
            out.sizes[client] = {n: b for n, b in sizes.items() if n not in known}
        return out

    def _check_download(self, client: int, tree: Tree, whole: Tree) -> None:
        names = [n for n in tree if n not in self.groups.names(SHARED, SERVER)]
        stray = set(names) - set(matching(names, self.trainer.extras_down))
        if stray:
            raise FedvlmError(
                f"trainer {self.trainer.name}: client {client} would receive {sorted(stray)}, "
                "outside the shared group and the declared `extras_down`"
            )
        lost = [n for n in self.groups.server if n not in whole or tree.get(n) is not whole[n]]
        if lost:
            raise FedvlmError(
                f"trainer {self.trainer.name}: client {client} would not receive {lost} of the "
                "group server as the global model has them: download and shared(server) must "
                "return the tensors that the server keeps"
            )

    def _moved(self, old: State, new: State, round_: int) -> State:
        """Return ``new`` with a note of the round in which the server's tensors moved last."""
        names = self.groups.server
        if not names:
            return new
        before, after = self.trainer.shared(old), self.trainer.shared(new)
        lost = [n for n in names if n not in after]
        if lost:
            raise FedvlmError(
                f"trainer {self.trainer.name}: after its aggregate the global model lacks {lost} "
                "of the group server"
            )
        changed = torch.stack([(before[n] != after[n]).any() for n in names]).tolist()
        rounds = {n: torch.tensor(round_) if c else old[MOVED][n]
                  for n, c in zip(names, changed, strict=True)}
        return new | {MOVED: rounds}

    @property
    def last_round(self) -> int:
        """The number of the last round, as far as it is known."""
        rounds = self.plan.rounds
        return min(self.budget.last(rounds), self.plateau.last(rounds))

    def start(self) -> FedState:
        """Return the untrained state (round 0).

        Raises:
            ConfigError: the method has a slot of the server optimiser's name.
        """
        held = Held(self.held)
        hook = name_of(self.trainer, "init_server")
        made = slots_of(hook, self.trainer.init_server(self.server_context(0, held), self.p0))
        server = move_state(made, self.model.device)
        taken = [s for s in SLOTS if s in server]
        if taken and self.plan.server_optim.kind != NONE:
            raise ConfigError(
                f"trainer {self.trainer.name}: the server's slot '{taken[0]}' is used by "
                f"FED.SERVER_OPTIM {self.plan.server_optim.kind}; choose another name"
            )
        if self.groups.server:
            server = server | {MOVED: {n: torch.tensor(0) for n in self.groups.server}}
        if self.plan.fairness is not None:
            slot = self.plan.fairness.start(self.plan.members, self.plan.clients)
            server = server | move_state(slot, self.model.device)
        return FedState(0, server, {}, held.commit(0))

    def read(self, state: FedState, clients: Sequence[int] | None = None) -> WholeState:
        """Return ``state`` with the tensors of ``clients`` (default: all) and what is held."""
        ids = range(self.plan.clients) if clients is None else clients
        held = Held(self.held, state.held)
        return WholeState(
            state.round, state.server, self.clients.read(ids, state.versions),
            {c: held.get(c) for c in state.held}, dict(state.versions),
        )

    def adopt(self, whole: WholeState) -> FedState:
        """Put the tensors of ``whole`` into the stores and return the state without them."""
        for client, version in whole.worked.items():
            self.clients.store.begin({client: version})
            own = {slot: expand(tree, 1) for slot, tree in whole.clients[client].items()}
            self.clients.put(version, [client], own)
        held = Held(self.held)
        for client, state in whole.held.items():
            held.put(client, state)
        return FedState(whole.round, whole.server, dict(whole.worked), held.commit(whole.round))

    def commit(self, state: FedState) -> None:
        """Forget clients' states that a run which goes on from ``state`` never reads again."""
        self.clients.store.settle(state.versions)
        self.held.settle(state.held)

    def save(self, state: FedState, logs: Logs) -> dict[str, list[list[str]]]:
        """Write rows that no record has yet; return the records that a checkpoint has to name.

        The server's slots (``state.server``) are all that is left to save then.
        """
        stores = {CLIENTS: (self.clients.store, state.versions), HELD: (self.held, state.held)}
        return {kind: logs[kind].accept(state.round, *store) for kind, store in stores.items()}

    def keep_on_disk(self, logs: Logs) -> None:
        """Read clients' rows from records, from now on, instead of keeping them in memory."""
        for log in logs.values():
            log.device = self.model.device
        self.clients.store, self.held = logs[CLIENTS], logs[HELD]

    def load(self, round_: int, server: State, logs: Logs) -> FedState:
        """Return the state of a checkpoint whose records ``logs`` hold."""
        device = self.model.device
        for kind, store in ((CLIENTS, self.clients.store), (HELD, self.held)):
            if store is not logs[kind]:
                for version, ids, rows in logs[kind].live():
                    store.put(version, ids, move_state(rows, device))
        return FedState(
            round_, move_state(server, device), logs[CLIENTS].versions(), logs[HELD].versions()
        )

    def run(self, state: FedState | None = None, until: int | None = None) -> FedState:
        """Run rounds until ``until`` (default: all) from ``state`` (default: the start).

        Whoever goes on from a ``state`` enters its rounds in ``budget`` and ``plateau`` first.

        Raises:
            DivergedError: a number is not finite (policy ``abort``), or no client is left.
            FedvlmError: the frozen backbone changed, or a trainer broke a contract.
            QuorumError: too few clients answer (``FED.UNRELIABLE.QUORUM``).
        """
        before = self.model.verify_frozen()
        if state is None:
            state = self.start()
            self._publish(state)
        last = self.plan.rounds if until is None else until
        for round_ in range(state.round + 1, last + 1):
            if round_ > self.last_round:
                break
            state = self.round(state, round_)
        if self.model.verify_frozen() != before:
            raise FedvlmError(
                "the frozen backbone changed during the run (or a frozen tensor of the method's "
                "own module); no result is valid"
            )
        return state

    def round(self, state: FedState, round_: int) -> FedState:
        """Run one round and return the state after it; ``state`` itself is left as it was."""
        chosen = self.plan.sample(round_)
        lost, partial = dict[int, str](), dict[int, float]()
        if self.plan.unreliable.active:
            lost, partial = self.plan.fates(round_, chosen, self.batcher.lengths(chosen, 1))
        there = [c for c in chosen if c not in lost or drop_kind(lost[c]) != AWAY]
        chosen = [c for c in chosen if c not in lost]
        self._tell(RoundStarted(round_, self.plan.rounds, chosen))
        began, towers = time.perf_counter(), dict(self.model.counters)
        turn = self.plan.turn(round_) if self.plan.unreliable.buffer else None
        servers = turn.servers(state.server, state.round) if turn else None
        downloads = self.downloads(state, round_, there, servers)
        if not chosen and self.plan.dp is None:  # nobody answers: the model stays as it was
            after = FedState(round_, state.server, dict(state.versions), dict(state.held))
            self.budget.record(round_, {})
            self._publish(
                after, dropped=lost, bytes_down=downloads.sizes,
                seconds=time.perf_counter() - began,
            )
            return after
        versions = _versions(state.server)
        work = self.engine.run(
            self.trainer, lambda ids: self.context(ids, round_, state.versions), downloads,
            self.clients, {c: state.versions.get(c, 0) for c in chosen},
        ) if chosen else RoundWork()
        self.clients.store.seal(round_)
        if _versions(state.server) != versions:
            raise FedvlmError(
                f"trainer {self.trainer.name} changed server tensors during client work"
            )
        dp, updates, ahead, bound = self.plan.dp, self._arrived(work.spend()), State(), 0.0
        sent, public = updates.bytes() if updates else {}, updates
        shares = dict[str, float]()
        hidden = dp is not None or work.summed is not None
        if hidden:
            public = updates and Updates(updates.clients, {}, updates.weight)
        if dp is not None:
            home = pick(self.trainer.shared(state.server), self.groups.shared)
            bound = dp.bound(state.server)
            ahead = dp.follow(updates, bound, round_)
            updates = dp.release(updates, home, round_, bound, shares)
        if updates is None:
            raise DivergedError(
                f"round {round_}: every client was dropped ({'; '.join(work.dropped.values())})"
            )
        held, weighed = Held(self.held, state.held), dict[str, Tree]()
        ctx = self.server_context(round_, held)
        if shares:
            ctx.log("mean_weight", shares)
        if ahead:
            ctx.log("bound", bound)
        if self.plan.fairness is not None:
            updates, weighed, fair = self.plan.fairness.weigh(state.server, updates)
            ctx.log("client_weights", fair)
        if turn is not None:
            home = self.trainer.shared(state.server)
            updates, stale = turn.discount(updates, home, state.round)
            ctx.log("staleness", stale)
        origin = "" if dp else self.engine.origin(updates.clients)
        server, told = aggregate_updates(self.trainer, ctx, state.server, updates, origin)
        if hidden:  # equal ones, of the copies of one mean: they mislead
            ctx.report.pop("aggregation_weights", None)
        server = self._moved(state.server, server, round_) | weighed | ahead
        if turn is not None:
            server = turn.remember(state.server, server, round_)
        after = FedState(round_, server, state.versions | work.versions, held.commit(round_))
        spent = {n: v - towers.get(n, 0) for n, v in self.model.counters.items()}
        self.budget.record(round_, work.counters)
        self._publish(
            after, updates=public, partial=partial,
            dropped=dict(sorted((lost | work.dropped).items())), bytes_up=sent,
            bytes_down=downloads.sizes,
            counters={n: work.counters[n] + spent.get(n, 0) for n in [*work.counters, *spent]},
            seconds=time.perf_counter() - began, report=dict(ctx.report),
            telltale=Telltale() if hidden else told,
        )
        return after

    def _arrived(self, updates: Updates | None) -> Updates | None:
        """Return a round's updates with what hostile clients send, if they hold what is declared.

        Raises:
            FedvlmError: an update has more than ``Trainer.releases`` says.
        """
        if updates is None:
            return None
        stray = self.trainer.releases(self.groups).outside(
            updates.params, updates.extras, updates.metrics
        )
        if stray:
            raise FedvlmError(
                f"trainer {self.trainer.name}: an update holds {', '.join(map(repr, stray[:3]))}, "
                "which its list of releases does not have (Trainer.releases)"
            )
        hostile = self.plan.hostile
        return updates if hostile is None else hostile.corrupt(updates)

    def finetunes(self, state: FedState) -> bool:
        """Say whether the personal models of ``state`` are fine-tuned: after the last round."""
        return self.finetuning.epochs > 0 and state.round >= self.last_round

    def personal(
        self, state: FedState, clients: Sequence[int], chunk: int | None = None, *,
        finetune: bool = True,
    ) -> PersonalModels:
        """Yield (clients, personal models ``[K, ...]``) after aggregation, chunk by chunk.

        After the last round they have had the final fine-tuning, unless ``finetune`` is False. A
        client whose fine-tuning is not finite keeps numbers that are not (policy ``drop``).

        Raises:
            DivergedError: the fine-tuning is not finite (policy ``abort``).
        """
        yield from self.models(self.question(state, clients, finetune), chunk)

    def question(self, state: FedState, clients: Sequence[int], finetune: bool) -> Question:
        """Return the question for personal models, with what their clients receive."""
        return Question(
            state.round, list(clients), self.downloads(state, state.round, clients),
            {c: state.versions.get(c, 0) for c in clients},
            finetune and self.finetunes(state),
        )

    def shared(self, state: FedState) -> Tree:
        """Return the global model ``[1, ...]``: initial personal tensors, aggregated shared ones.

        That is what a client that was never trained would hold; no personal tensor enters it.
        """
        return expand(self.p0 | self.trainer.shared(state.server), 1)

    def rows(self, state: FedState, clients: Sequence[int], measure: Measure) -> list[Row]:
        """Return what the meter finds on the personal models of ``clients``, in their order.

        Raises:
            FedvlmError: there is no meter, or its rows are not numbers of all of them.
        """
        question = self.question(state, clients, measure.finetuned)
        rows = self.engine.rows(question, measure, lambda: self.measured(question, measure))
        return only_numbers(rows, clients)

    def _publish(self, state: FedState, **work: Any) -> None:
        """Tell the subscribers of a round, then the savers; ``work`` is what was done in it."""
        val, loss = self._validate(state)

        def rows(clients: Sequence[int], measure: Measure) -> list[Row]:
            return self.rows(state, clients, measure)

        self._tell(RoundFinished(
            state.round, self.last_round, state.server, self.shared(state), self.roster, rows,
            self.finetuning_cost() if self.finetunes(state) else {}, val=val, val_loss=loss, **work,
        ))
        for save in self.savers:
            save(state)

    def _validate(self, state: FedState) -> tuple[float | None, float | None]:
        """Return accuracy and loss on the clients' validation images where a check is due."""
        if not self.plateau.due(state.round):
            return None, None
        measure = Measure(split="val", finetuned=False, calibration=self.plateau.loss)
        rows = self.rows(state, self.plateau.clients, measure)
        found = mean(row["accuracy"] for row in rows)
        losses = [row.get("nll") for row in rows if row["accuracy"] is not None]
        loss = None if None in losses else mean(losses)
        self.plateau.record(state.round, found, loss)
        return found, loss

    def _tell(self, event: Event) -> None:
        for subscriber in self.subscribers:
            subscriber(event)


def check_rounds(
    trainer: Trainer, model: VLModel, batcher: Batcher, plan: Plan, roster: Roster, groups: Groups
) -> None:
    """Refuse rounds that a method cannot do with these clients (``ConfigError``)."""
    if plan.unreliable.buffer:
        from fedvlm.federation.reliability.buffered import check_buffer  # start-up: such runs only

        plain = (bool(groups.shared) and not groups.server and _takes_mean(trainer)
                 and trainer.linear and type(trainer).init_server is Trainer.init_server
                 and type(trainer).download in (Trainer.download, PeftTrainer.download)
                 and trainer.weighting != OWN and not trainer.extras_up and not trainer.extras_down)
        check_buffer(trainer.name or type(trainer).__name__, plan.unreliable.buffer, plain=plain,
                     rule=plan.aggregator.rule, others={
                         "FED.WEIGHTING by losses": plan.fairness, "FED.HOSTILE": plan.hostile,
                         "FED.DP": plan.dp or plan.private})
    lengths = batcher.lengths(range(plan.clients), 1) if plan.unreliable.active else ()
    check_aggregation(trainer, plan, lengths)
    trainer.check_loss(model)
    check_footing(trainer, plan, roster.train.tolist(), roster.val.tolist())


def check_aggregation(trainer: Trainer, plan: Plan, lengths: Sequence[int] = ()) -> None:
    """Refuse ``FED.AGGREGATOR`` and ``FED.SERVER_OPTIM`` where the method cannot use them.

    Args:
        lengths: steps of one plain epoch of every client, where some may be lost.

    Raises:
        ConfigError: such a rule or optimiser, or rounds of too few clients for Krum.
    """
    name, kind = trainer.name or type(trainer).__name__, plan.server_optim.kind
    smallest = plan.cohort if plan.dp else len(plan.sample(plan.rounds))
    if plan.unreliable.active and fewest(plan.aggregator) > 1:
        rounds = (len(plan.answering(r, lengths)) for r in range(1, plan.rounds + 1))
        smallest = min((n for n in rounds if n), default=smallest)
    check_rule(plan.aggregator, name, trainer.aggregators, smallest)
    if plan.fairness is not None:
        from fedvlm.federation.aggregation.fairness import check_fairness  # start-up: q-FFL only

        check_fairness(
            plan.fairness.kind, name, trainer.aggregators, plan.aggregator.rule,
            trainer.weighting == OWN, _takes_mean(trainer),
            plan.frac >= 1 and not plan.unreliable.active, plan.dp is not None)
    if kind != NONE and not trainer.server_optim:
        raise ConfigError(f"FED.SERVER_OPTIM {kind}: {name}, as configured, allows {NONE}")


def _takes_mean(trainer: Trainer) -> bool:
    """Say whether the aggregate is the mean by weights where no rule is named."""
    cls = type(trainer)
    return (cls.combine in (Trainer.combine, PeftTrainer.combine)
            and cls.aggregate in (Trainer.aggregate, PeftTrainer.aggregate))


def _versions(state: State) -> dict[str, int]:
    """Return the in-place version counter of every tensor; it moves when a tensor is written."""
    return {
        f"{slot}/{name}": v._version for slot, tree in state.items() for name, v in tree.items()
    }
