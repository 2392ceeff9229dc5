"""Where clients work: a method on a model over clients, with what they keep, and their models.

A site has no more than this; ``rounds.Federation`` adds the server.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from fedvlm.core import rng
from fedvlm.core.errors import ConfigError, FedvlmError
from fedvlm.core.rows.memory import MemoryStore
from fedvlm.core.rows.store import RowStore, move_state
from fedvlm.core.trees import State, Tree, cast
from fedvlm.federation.batches import Batcher
from fedvlm.federation.clients import Clients, W
from fedvlm.federation.context import OWN, SAMPLES, UNIFORM, Context
from fedvlm.federation.engine import Bundle, Engine, LocalEngine, stack_downloads
from fedvlm.federation.groups import RECEIVED, Finetune, Groups, resolve_groups
from fedvlm.federation.local.guard import run_guarded
from fedvlm.federation.local.hooks import (
    explain_hook,
    keep_names,
    keep_shapes,
    name_of,
    slots_of,
    tree_of,
)
from fedvlm.federation.local.images import Seen, Watched
from fedvlm.federation.local.kept import drop_kept
from fedvlm.federation.local.sent import WHOLE, Portion
from fedvlm.federation.optim import Schedule
from fedvlm.federation.plan import Plan, plan_chunks
from fedvlm.federation.server import Measure, Question, Roster, Row
from fedvlm.federation.trainer import Trainer
from fedvlm.models.vlmodel import VLModel, template_groups

PersonalModels = Iterator[tuple[Sequence[int], Tree]]  # (clients, models [K, ...]) by chunk
Meter = Callable[[Measure, PersonalModels], Iterable[Row]]  # a row for every client of the models


@dataclass(frozen=True)
class TrainingStart:
    """A method on a model and its clients before anything is read of their images, checked.

    Attributes:
        p0: the untrained tensors.
        groups: who has which of them.
        roster: sizes and class counts of all clients.
        finetuning: what the final fine-tuning trains, and how long.
        weighting: how clients weigh in the average.
    """

    p0: Tree
    groups: Groups
    roster: Roster
    finetuning: Finetune
    weighting: str

    @classmethod
    def of(
        cls, trainer: Trainer, model: VLModel, batcher: Batcher, plan: Plan,
        sites: Sequence[int] = (),
    ) -> TrainingStart:
        """Return what a run starts from.

        Args:
            sites: of each client; none: they are at one.

        Raises:
            ConfigError: a plan that the method does not allow, or tensors without a group.
        """
        roster = replace(batcher.roster(), unseen=plan.unseen)
        if sites:
            roster = replace(roster, site=np.asarray(sites, np.int64))
        trained = tree_of(
            name_of(trainer, "trainables"), trainer.trainables(model, rng.stream(plan.seed, "init"))
        )
        p0 = cast(trained, model.dtype, model.device)
        groups = resolve_groups(p0, trainer.rules(list(p0)), f"trainer {trainer.name}")
        finetune: Finetune = trainer.own_finetune().configure(trainer.root)
        finetuning = finetune.select(groups, trainer.name, trainer.role)
        weighting = trainer.weighting if plan.weighting == "auto" else plan.weighting
        if trainer.weighting == OWN and weighting != OWN:
            raise ConfigError(
                f"FED.WEIGHTING {plan.weighting}: {trainer.name} has its own weighting of "
                "clients; set FED.WEIGHTING auto"
            )
        if weighting not in (SAMPLES, UNIFORM, OWN):
            raise ConfigError(
                f"trainer {trainer.name}: weighting '{weighting}' is none of {SAMPLES}, "
                f"{UNIFORM}, {OWN}"
            )
        return cls(p0, groups, roster, finetuning, weighting)


class Workplace:
    """One method on one model over one set of clients.

    Args:
        trainer: the method.
        model: the frozen model.
        batcher: training batches by client.
        plan: rounds, participation, optimiser.
        engine: where clients run.
        meter: measures personal models where they are.
        store: where clients' states lie (default: in memory, every version until ``commit``).
        start: what ``TrainingStart.of`` made of these already; its fields are this one's, too.

    Attributes:
        clients: what they keep between rounds.
        finetune_seconds: of each client's last final fine-tuning.

    Raises:
        ConfigError: a plan that the method does not allow.
    """

    def __init__(
        self, trainer: Trainer, model: VLModel, batcher: Batcher, plan: Plan, *,
        engine: Engine | None = None, meter: Meter | None = None, store: RowStore | None = None,
        start: TrainingStart | None = None,
    ) -> None:
        self.trainer, self.model, self.batcher, self.plan = trainer, model, batcher, plan
        self.engine, self.meter = engine or LocalEngine(), meter
        self.finetune_seconds: dict[int, float] = {}
        start = start or TrainingStart.of(trainer, model, batcher, plan, self.engine.sites)
        self.p0, self.groups, self.roster = start.p0, start.groups, start.roster
        self.finetuning, self.weighting = start.finetuning, start.weighting
        self.clients = Clients(
            MemoryStore() if store is None else store,
            self._init_client,
            self.p0, self.groups, trainer.reads_old,
            alike=type(trainer).init_client is Trainer.init_client,
        )

    def context(
        self, clients: Sequence[int], round_: int = 0, worked: Container[int] = (),
        portion: Portion | None = None,
    ) -> Context:
        """Return the context of a chunk of clients in a round.

        Args:
            worked: who ever did.
            portion: of the shared tensors; by default what the method trains in this round.
        """
        plan = self.plan
        metrics = self.trainer.metrics
        if plan.fairness is not None:
            metrics = (*metrics, RECEIVED)
        if portion is None:
            portion = self.trainer.portion(round_, self.groups) if round_ else WHOLE
        own = getattr(self.model, "client_templates", None)
        model = self.model.of_clients(clients) if own else self.model
        return Context(
            model, self.groups, self.batcher, list(clients), round_,
            plan.seed, plan.epochs, plan.optim, plan.schedule or Schedule(plan.optim.lr),
            self.trainer.extras_up, metrics, self.weighting, plan.nonfinite,
            plan.clock_per_round, newcomers=tuple(c not in worked for c in clients),
            effort=plan.effort, patience=plan.early_stop, class_counts=self.roster.classes,
            portion=portion, private=plan.private,
        )

    def finetuning_cost(self) -> dict[str, float]:
        """Return epochs, rate, samples and steps (all clients together) of the final fine-tuning.

        As many as a plain fit of all their training images takes.
        """
        everyone = range(self.plan.clients)
        sizes, lengths = self.batcher.sizes(everyone), self.batcher.lengths(everyone, 1)
        epochs = self.finetuning.epochs
        rate = self.finetuning.lr or self.plan.optim.lr
        return {
            "epochs": epochs, "lr": rate, "samples": epochs * sum(sizes),
            "steps": epochs * sum(lengths),
        }

    def models(self, question: Question, chunk: int | None = None) -> PersonalModels:
        """Yield the personal models that are asked for, where clients' states are (``personal``).

        Raises:
            FedvlmError: clients' states are at other places.
        """
        clients, versions = list(question.clients), question.versions
        if not self.engine.here:
            raise FedvlmError(
                "personal models stay at their sites: only their numbers (rows) are available"
            )
        most: int = chunk or self.engine.chunk
        chunks = plan_chunks(
            clients, self.batcher.sizes(clients), self.roster.site[clients].tolist(),
            self.clients.forms(
                clients, versions, question.downloads, template_groups(self.model, clients)),
            most if self.trainer.batched else 1,
        )
        worked = {c for c, version in versions.items() if version}
        for ids in (list(chunk.clients) for chunk in chunks):
            ctx = self.context(ids, question.round, worked, WHOLE)
            began = time.perf_counter()
            models = run_guarded(ctx, partial(self._models, ctx, question))[0]
            if question.tune:
                each = (time.perf_counter() - began) / len(ids)
                self.finetune_seconds |= dict.fromkeys(ids, each)
            yield ids, models

    def bundles(self, question: Question) -> Iterator[Bundle]:
        """Yield ``models``, and of each chunk whether images of its clients went into them."""
        batcher, seen = self.batcher, Seen()
        self.batcher = Watched(batcher, seen)
        try:
            for clients, models in self.models(question):
                yield clients, models, seen.images
                seen.images = False
        finally:
            self.batcher = batcher

    def _init_client(self, client: int) -> State:
        hook = name_of(self.trainer, "init_client")
        with explain_hook(f"client {client}: {hook}"):
            state = self.trainer.init_client(self.context([client]), self.p0)
            slots = slots_of(hook, state)
            keep_shapes(hook, slots.get(W, {}), self.p0, sizes=False)
            return move_state(slots, self.model.device)

    def _models(self, ctx: Context, question: Question) -> Tree:
        """Return the personal models of a chunk, made from copies of its own."""
        received = stack_downloads(question.downloads, ctx)
        own = drop_kept(self.clients.stacked(ctx.clients, question.versions))
        hook = name_of(self.trainer, "finetune" if question.tune else "personalize")
        with (
            explain_hook(f"round {question.round}: {hook}"),
            self.clients.explain(f"trainer {self.trainer.name}"),
        ):
            if question.tune:
                return self.trainer.finetune(ctx, own, received, self.finetuning)
            models = tree_of(hook, self.trainer.personalize(ctx, own, received))
            keep_names(hook, models, self.p0)
            return models

    def measured(self, question: Question, measure: Measure) -> Iterable[Row]:
        """Return what the meter of this place finds on personal models.

        Raises:
            FedvlmError: there is no meter.
        """
        if self.meter is None:
            raise FedvlmError("no meter for personal models: set Federation.meter")
        return self.meter(measure, self.models(question))
