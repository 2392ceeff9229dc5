"""What a method calls to train: ``fit``, ``loop``, ``grad``, ``grad_each``.

Only this file knows about optimisers, schedules and clients that finish early. Methods see trees
whose leaves carry the client axis, and losses that return one number per client. A method that
writes its own ``ctx.loop`` body has single steps below: ``optimise`` takes a step of the run's
optimiser on one of several slots, ``descend`` one of plain SGD without any state.

Nothing here reads the device while clients train. Whether all numbers are finite is asked once, at
the end of a client's work (``guarded``); where they are not, it is done again with a look at every
number, which names the client, the step and the tensor. So a hook must be pure: equal inputs give
equal results, and what a body closes over is not changed by it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedvlm.core import rng
from fedvlm.core.errors import DivergedError, FedvlmError, MethodError
from fedvlm.core.trees import State, Tree, in_double, matching, pick
from fedvlm.federation.aggregation.arrival import Rows
from fedvlm.federation.batches import Batch, Batcher, Step, single_samples
from fedvlm.federation.groups import PERSONAL, SHARED, Groups
from fedvlm.federation.local import sent
from fedvlm.federation.local.effort import Effort, Trace, Work, steps_of, way_of
from fedvlm.federation.local.ledger import Flags, Means
from fedvlm.federation.local.parts import cut, inverse, joined, take
from fedvlm.federation.local.sent import WHOLE, Portion, Ranks, Upload
from fedvlm.federation.local.stop import Patience
from fedvlm.federation.optim import SGD, OptimSpec, Rate, Schedule
from fedvlm.models.vlmodel import VLModel

Loss = Callable[[VLModel, Tree, Batch], Tensor | tuple[Tensor, Mapping[str, Tensor]]]
Edit = Callable[[Tree, Tree, Batch], Tree]
Body = Callable[[State, tuple[Batch, ...], Step], State]
SAMPLES, UNIFORM, OWN = "samples", "uniform", "own"  # how clients weigh in the average
FIT, LOOP, DESCENT = "fit", "loop", "descent"  # how a method's clients step
KEPT, COUNT = "optim/", "steps"  # slots of a kept optimiser's state; steps that are behind it


@dataclass(frozen=True)
class Fit:
    """What came of a fit.

    Attributes:
        params: all of the tree that was given, trained where asked for.
        steps: local steps of each client, ``[K]`` float64 on the CPU.
        means: means over its own steps of the loss and its parts, ``[K]``.
        trace: of every step, who took it and at which epochs on the round's clock.
    """

    params: Tree
    steps: Tensor
    means: Tree
    trace: Trace = ()

    def way(self, rate: Callable[[int], float]) -> Tensor:
        """Return the sum of the rates of each client's steps, ``[K]`` float64.

        Args:
            rate: of an epoch on the round's clock.
        """
        return way_of(self.trace, len(self.steps), rate)


class Looped(NamedTuple):
    """What came of a loop: the slots, means by name, and ``Fit.steps`` and ``Fit.trace``."""

    slots: State
    steps: Tensor
    means: Tree
    trace: Trace


class Grad(NamedTuple):
    """A loss ``[K]``, its named parts, and the gradients of what it was taken for."""

    value: Tensor
    parts: Mapping[str, Tensor]
    grads: Tree


@dataclass
class Context:
    """One chunk of K clients at work in one round.

    Attributes:
        model: the frozen model.
        groups: group of every trainable tensor.
        clients: ids, sorted by falling number of training samples.
        round: 1-based round; 0 outside training.
        seed: the model seed.
        epochs: local epochs of a round, by which it moves the schedule's clock.
        optim, schedule: what ``OPTIM`` says; the schedule's clock is the whole run.
        extras: patterns of what an upload may carry beside the shared group.
        metrics: patterns of the numbers that travel with an upload.
        weighting: ``samples``, ``uniform`` or ``own`` (the method gives a weight itself).
        nonfinite: ``abort`` raises; ``drop`` lets the round go on without the client.
        clock_per_round: start the schedule again each round.
        newcomers: whether each client never worked in a round; empty: all.
        flags: where numbers wait to be looked at together; None: each is looked at at once.
        effort: local epochs or steps of a plain ``fit`` or ``loop``; None: ``epochs``.
        patience: epochs without a better validation loss that end a client's fit; 0: none do.
        kept: optimisers' states from round to round (``OPTIM.KEEP_STATE``); None: none is kept.
        class_counts: training images of every client by class, ``[N, C]`` (``Roster.classes``).
        portion: what of the shared tensors is trained and sent in this round.
    """

    model: VLModel
    groups: Groups
    _batcher: Batcher
    clients: Sequence[int]
    round: int
    seed: int
    epochs: int
    optim: OptimSpec
    schedule: Schedule
    extras: Sequence[str] = ()
    metrics: Sequence[str] = ()
    weighting: str = SAMPLES
    nonfinite: str = "abort"
    clock_per_round: bool = False
    newcomers: Sequence[bool] = ()
    counters: Counter[str] = field(default_factory=Counter)
    logs: dict[str, Tensor] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)
    flags: Flags | None = None
    effort: Effort | None = None
    patience: int = 0
    kept: State | None = None
    class_counts: np.ndarray | None = field(default=None, repr=False)
    portion: Portion = WHOLE
    _whole: Batcher | None = field(default=None, repr=False)
    _means: Means | None = field(default=None, repr=False)
    _rates: dict[tuple[int, ...], Rate] = field(default_factory=dict, init=False, repr=False)

    @property
    def batcher(self) -> Batcher:
        """Refused: the batches are the engine's.

        Raises:
            FedvlmError: says what there is instead.
        """
        raise FedvlmError(
            "a context gives no batcher: a method reaches its samples by ctx.subset, ctx.whole and "
            "ctx.batches, and their numbers by ctx.sizes"
        )

    @property
    def k(self) -> int:
        """Number of clients in the chunk."""
        return len(self.clients)

    @property
    def sizes(self) -> Tensor:
        """Training samples per client, ``[K]``, float64."""
        return torch.tensor(self._batcher.sizes(self.clients), dtype=torch.float64)

    @property
    def fresh(self) -> Tensor:
        """Which clients never worked in a round, ``[K]`` bool on the model's device."""
        flags = list(self.newcomers) or [True] * self.k
        return torch.tensor(flags, dtype=torch.bool).to(self.model.device, non_blocking=True)

    @property
    def classes(self) -> Tensor:
        """Which classes each client has training images of, ``[K, C]`` bool on the model's device.

        C are the model's classes. All of the client's images count, also in a ``subset``.

        Raises:
            FedvlmError: the context was made without the clients' class counts.
        """
        if self.class_counts is None:
            raise FedvlmError("this context was made without the clients' class counts")
        held = self.class_counts[list(self.clients)] > 0
        flags = np.zeros((self.k, max(len(self.model.classnames), held.shape[1])), dtype=bool)
        flags[:, : held.shape[1]] = held
        return torch.from_numpy(flags).to(self.model.device, non_blocking=True)

    def stream(self, purpose: str, client: int = -1) -> torch.Generator:
        """Return a generator for ``purpose`` in this round (of one client, if given)."""
        return rng.stream(self.seed, purpose, self.round, client)

    # ---- samples ---------------------------------------------------------------------------
    def subset(self, part: str, share: float) -> Context:
        """Return this context on a part of each client's training samples.

        Args:
            part: ``fit`` or ``held``: the stratified ``share`` that is held out, or what is left.
                Its ``whole("val")`` is the other part. Equal seeds and labels give equal parts.

        Raises:
            FedvlmError: another part.
        """
        if part not in ("fit", "held"):
            raise FedvlmError(f"a method may train on the parts fit and held, not on '{part}'")
        part_of = self._batcher.subset(self.clients, part, share)
        return replace(self, _batcher=part_of, _whole=self._whole or self._batcher)

    def only(self, at: Sequence[int]) -> Context:
        """Return this context for those of its clients that lie at ``at``, ascending.

        The optimiser's state of a fit on it is not kept.
        """
        newcomers = [self.newcomers[k] for k in at] if self.newcomers else ()
        clients = [self.clients[k] for k in at]
        return replace(self, clients=clients, newcomers=newcomers, kept=None)

    def whole(self, part: str, fallback: str = "") -> Batch | None:
        """Return all samples of ``train`` or ``val`` of each client as one batch, un-augmented.

        A client without any has those of ``fallback`` (``present`` is 0), or padding only; None if
        nobody has any. The test split is out of reach here.
        """
        if not {part, fallback} <= {"train", "val", ""}:
            raise FedvlmError(f"a method may read train and val, not '{part}' or '{fallback}'")
        return self._batcher.whole(self.clients, part, fallback)

    def draw(self, tag: str, most: int) -> Batch | None:
        """Return up to ``most`` training samples of each client as one batch, un-augmented.

        Drawn without replacement, from the seed, for this round, client and ``tag``. A client
        without training samples has padding only, which may show another client's; None if nobody
        has any.
        """
        return self._batcher.draw(self.clients, self.round, tag, most)

    def batches(self, tag: str, epochs: int = 1) -> Iterator[Batch]:
        """Yield the batches of a pass without an optimiser; ``Batch.cut`` cuts trees to them."""
        for step in self._steps(self._work(epochs, 1), 1, tag):
            yield step.batches[0]

    def _work(self, epochs: int | None, per_step: int, after: int = 0) -> Work:
        """Return who trains how long, in the order of the loop: by falling number of steps."""
        effort = Effort(self.epochs if epochs is None else epochs)
        if epochs is None and self.effort is not None:
            effort = self.effort
        lengths = self._batcher.lengths(self.clients, per_step)
        sizes = self._batcher.sizes(self.clients)
        cuts, plain = effort.unreliable.cuts, lengths
        if cuts:
            plain = (self._whole or self._batcher).lengths(self.clients, 1)
        totals = effort.cut(self.round, self.clients, lengths, plain)
        order = sorted(range(self.k), key=lambda i: (-totals[i], -sizes[i], i))
        each: int | list[int] = effort.epochs
        if effort.span:
            drawn = effort.drawn(self.round, self.clients)
            each = [drawn[i] for i in order]
        return Work(
            [lengths[i] for i in order], [totals[i] for i in order], each, effort.steps, after,
            None if order == list(range(self.k)) else torch.tensor(order, dtype=torch.int64),
            tuple(totals[i] for i in order) if cuts else (),
        )

    def _steps(self, work: Work, per_step: int, tag: str) -> Iterator[Step]:
        """Yield steps; where clients are not in the context's own order, batches say whose rows."""
        how = work.epochs, per_step, tag, work.after, work.limit, work.most
        if work.order is None:
            yield from self._batcher.steps(self.clients, self.round, *how)
            return
        ids = [self.clients[i] for i in work.order.tolist()]
        there = work.order.to(self.model.device, non_blocking=True)
        for step in self._batcher.steps(ids, self.round, *how):
            at = there[: step.active]
            yield replace(step, batches=tuple(replace(b, rows=at) for b in step.batches))

    def accuracy(
        self, params: Tree, predict: Callable[[VLModel, Tree, Mapping[str, Tensor]], Tensor]
    ) -> Tensor:
        """Return each client's accuracy ``[K]`` on its validation split, float64, 0 to 1.

        It stays on the device; NaN for a client without validation samples. The test split is out
        of reach here.

        Args:
            predict: ``predict(model, params, x)`` -> logits ``[K, B, C]``.
        """
        b = self.whole("val")
        if b is None:
            return in_double(torch.full((self.k,), torch.nan, device=self.model.device))
        with torch.no_grad():
            right = predict(self.model, params, b.x).argmax(-1) == b.y
        weight = in_double(b.w)
        return (in_double(right) * weight).sum(-1) / weight.sum(-1)

    # ---- gradients -------------------------------------------------------------------------
    def grad(
        self, params: Tree, loss: Loss, batch: Batch, train: Sequence[str] | None = None, *,
        what: str = "", log: str | None = "",
    ) -> Grad:
        """Return the loss ``[K]``, its named parts, and gradients at ``params``.

        Clients never mix, so the gradient of the sum is each client's own. A tensor without
        influence on the loss has no entry, as in torch.optim.

        Args:
            params: leaves of the clients of ``batch``.
            train: names to differentiate for; default: those that are shared or personal.
            what: names the place for messages; empty: nothing is checked.
            log: prefix under which loss and parts enter the means of the loop around (``""``:
                none); None: they are not recorded.

        Raises:
            DivergedError: a number is not finite (policy ``abort``).
            FedvlmError: a loss that is not one number for each client.
        """
        self.counters["gradients"] += len(batch.y)
        self.counters["gradient_samples"] += batch.samples
        names = self.trained(params, (SHARED, PERSONAL)) if train is None else list(train)
        leaves = {n: params[n].detach().requires_grad_() for n in names}
        with torch.enable_grad():
            out = loss(self.model, params | leaves, batch)
            value, parts = out if isinstance(out, tuple) else (out, {})
            _one_for_each(value, batch)
            grads = torch.autograd.grad(value.sum(), list(leaves.values()), allow_unused=True)
        slopes = {n: g for n, g in zip(names, grads, strict=True) if g is not None}
        got = Grad(value.detach(), {k: v.detach() for k, v in parts.items()}, slopes)
        if what:
            self.check(got.value, f"loss of {what}", batch)
            self.check_tree(slopes, f"gradient of {what}", batch)
        if log is not None and self._means is not None:
            named = {log + n: v for n, v in {"loss": got.value, **got.parts}.items()}
            self._means.add(named, batch.rows is not None)
        return got

    def grad_each(
        self, params: Tree, loss: Loss, batch: Batch, train: Sequence[str] | None = None, *,
        most: int = 0, what: str = "", log: str | None = "",
    ) -> tuple[Tensor, Tree]:
        """Return the loss ``[K, B]`` and the gradients ``[K, B, ...]`` of every single sample.

        Samples take the place of clients, each with the parameters of its own: the loss sees
        batches of one sample. Of padding both are 0.

        Args:
            params, train, what, log: as for ``grad``; the mean over a client's samples is logged.
            most: samples at a time; 0: as many as there are clients. More are faster and take
                more memory.

        Raises:
            DivergedError: a number is not finite (policy ``abort``).
            FedvlmError: a loss that is not one number for each client.
        """
        k, width = batch.y.shape
        names = self.trained(params, (SHARED, PERSONAL)) if train is None else list(train)
        size = max(1, most // k)
        values, slopes = list[Tensor](), list[Tree]()
        for part, own in single_samples(params, batch, size):
            leaves = {n: own[n].detach().requires_grad_() for n in names}
            with torch.enable_grad():
                out = loss(self.model, own | leaves, part)
                value = out[0] if isinstance(out, tuple) else out
                _one_for_each(value, part)
                grads = torch.autograd.grad(
                    value.sum(), list(leaves.values()), allow_unused=True
                )
            values.append(value.detach().view(k, -1))
            slopes.append({
                n: g.view(k, -1, *g.shape[1:])
                for n, g in zip(names, grads, strict=True) if g is not None
            })
        real = batch.w > 0
        each = torch.where(real, torch.cat(values, 1), 0.0)
        tree = {n: torch.cat([s[n] for s in slopes], 1) for n in slopes[0]}
        tree = {n: torch.where(_beside(real, v), v, 0.0) for n, v in tree.items()}
        self.counters["gradients"] += k * width
        self.counters["gradient_samples"] += batch.samples
        if what:
            self.check(each.sum(1), f"loss of {what}", batch)
            self.check_tree(tree, f"gradient of {what}", batch)
        if log is not None and self._means is not None:
            mean = (each * batch.w).sum(1) / batch.w.sum(1)
            self._means.add({f"{log}loss": mean}, batch.rows is not None)
        return each, tree

    # ---- loops -----------------------------------------------------------------------------
    def loop(
        self, slots: State, body: Body, *, epochs: int | None = None, per_step: int = 1,
        tag: str = "w", after: int = 0,
    ) -> State:
        """Run ``body`` once per step and return the final values of ``slots``.

        ``body(slots, batches, step)`` gets ``per_step`` disjoint batches and returns new slots
        (it may add some, which are gone at the end). Clients that have no step left drop out,
        exactly: their rows are set aside and joined again at the end. Slots are cut with the
        clients; what the body closes over is not: ``batch.cut(tree)`` cuts it. The means of what
        ``ctx.grad`` computed go to the log, under ``tag`` unless that is ``w``.

        Args:
            epochs: local epochs (default: what the run says, which may be a number of steps).
            per_step: batches of a step.
            tag: names this loop; loops of different tags see different shuffles.
            after: epochs of the round that earlier loops took: clock and views go on from there.

        Raises:
            FedvlmError: the run asks for what only a ``fit`` can do.
        """
        if epochs is None and (self.patience or self.kept is not None):
            key = "FED.EARLY_STOP" if self.patience else "OPTIM.KEEP_STATE"
            raise FedvlmError(
                f"{key} needs training by ctx.fit; this method steps in a loop of its own: leave "
                "the key at its default (its trainer may declare trains_by = 'loop', which says so "
                "before any work)"
            )
        return self._loop(slots, body, self._work(epochs, per_step, after), per_step, tag).slots

    def _loop(
        self, slots: State, body: Body, work: Work, per_step: int, tag: str,
        patience: Patience | None = None, added: bool = False,
    ) -> Looped:
        """Run a loop; with ``added`` the slots that the body adds are given back, too."""
        names, finished = tuple(slots), list[tuple[list[int], State]]()
        places = list(range(self.k))  # whose rows the slots hold, by place in the loop's order
        order, trace = work.order, list[tuple[Sequence[int], tuple[int, ...]]]()
        if order is not None:
            slots = take(slots, order)
        outer, self._means = self._means, Means(self.k, order)
        try:
            for step in self._steps(work, per_step, tag):
                left = bisect_left(places, step.active)
                if left < len(places):
                    finished.append((places[left:], cut(slots, left, len(places))))
                    slots, places = cut(slots, 0, left), places[:left]
                if not places:
                    break
                if left < step.active:  # somebody before them has stopped
                    step = step.take(places)
                    self._means.places = tuple(places)
                slots = body(slots, step.batches, step)
                trace.append((places, step.epochs))
                self.counters["steps"] += left
                self.counters["samples"] += step.samples
                gone = patience.leaving(slots["p"], places, step.index) if patience else []
                if gone:
                    stay = [i for i in range(left) if i not in gone]
                    finished.append(([places[i] for i in gone], take(slots, torch.tensor(gone))))
                    slots = take(slots, torch.tensor(stay, dtype=torch.int64))
                    places = [places[i] for i in stay]
            means = self._means.values()
        finally:
            self._means = outer
        parts = [(places, slots), *reversed(finished)]
        out = joined([part for _, part in parts], tuple(slots) if added else names, added)
        back = inverse([place for whose, _ in parts for place in whose], order)
        if back is not None:
            out = take(out, back)
        if order is not None:
            at = order.tolist()
            trace = [([at[place] for place in whose], epochs) for whose, epochs in trace]
        prefix = "" if tag == "w" else f"{tag}/"
        self.logs.update({prefix + name: value for name, value in means.items()})
        return Looped(out, steps_of(trace, self.k), means, trace)

    def fit(
        self, params: Tree, loss: Loss, *, train: Sequence[str] = (SHARED, PERSONAL),
        epochs: int | None = None, lr: float | None = None, edit: Edit | None = None,
        tag: str = "w", optim: OptimSpec | None = None, after: int = 0,
    ) -> Fit:
        """Train the tensors of the groups ``train`` with a fresh optimiser.

        With ``OPTIM.KEEP_STATE`` the optimiser goes on from where this client's fit of this ``tag``
        left it; with ``FED.EARLY_STOP`` a client stops where its validation loss does not fall any
        more, and keeps its last tensors.

        Args:
            params: leaves ``[K, ...]``; names outside ``train`` stay as they are.
            loss: ``loss(model, params, batch)`` -> ``[K]`` or ``([K], {name: [K]})``.
            train: group names, or full-match patterns of tensor names.
            epochs: local epochs (default: what the run says, which may be a number of steps).
            lr: a constant rate instead of the schedule; roles have theirs in proportion.
            edit: changes gradients before the step: ``edit(params, grads, batch) -> grads``. Trees
                of all clients that it or the loss closes over are cut by ``batch.cut(tree)``.
            tag: names this fit; fits of different tags see different shuffles.
            optim: an optimiser of the method's own: it is neither kept nor stopped early.
            after: epochs of the round that earlier fits took: clock and views go on from there.

        Raises:
            DivergedError: a loss or gradient is not finite (policy ``abort``).
        """
        spec = optim or self.optim
        rule = spec.build()
        names = self.trained(params, train)
        keeps = spec.keep and self.kept is not None
        behind = None if not keeps else self._behind(tag)

        def body(slots: State, batches: tuple[Batch, ...], step: Step) -> State:
            batch = batches[0]
            value, _, grads = self.grad(slots["p"], loss, batch, names)
            self.check(value, f"loss of fit '{tag}' at local step {step.index}", batch)
            if edit is not None:
                grads = edit(slots["p"], grads, batch)
            self.check_tree(grads, f"gradient in fit '{tag}' at local step {step.index}", batch)
            rate = rates(self, step) if lr is None else lr
            state = {s: t for s, t in slots.items() if s not in ("p", COUNT)}
            t = slots[COUNT][COUNT] + step.index if behind is not None else step.index
            with torch.no_grad():
                new, state = rule.step(slots["p"], grads, state, rate, t)
            rest = {COUNT: slots[COUNT]} if behind is not None else {}
            return {"p": slots["p"] | new, **state, **rest}

        work, start = self._work(epochs, 1, after), {"p": params} | (behind or {})
        watch = self._watch(loss, work) if self.patience and optim is None else None
        slots, steps, means, trace = self._loop(start, body, work, 1, tag, watch, keeps)
        if keeps:
            self._keep(tag, slots, steps)
        return Fit(slots["p"], steps, means, trace)

    def _behind(self, tag: str) -> State:
        """Return the optimiser's state that a fit goes on from, with the steps behind it."""
        prefix = f"{KEPT}{tag}/"
        kept = self.kept or {}
        old = {s.removeprefix(prefix): t for s, t in kept.items() if s.startswith(prefix)}
        none = torch.zeros(self.k, dtype=torch.float64)
        return {COUNT: {COUNT: none.to(self.model.device, non_blocking=True)}} | old

    def _keep(self, tag: str, slots: State, steps: Tensor) -> None:
        """Keep the optimiser's state that a fit ended with."""
        assert self.kept is not None  # noqa: S101 (asked by the caller)
        for slot, tree in slots.items():
            if slot == COUNT:
                count = tree[COUNT]
                tree = {COUNT: count + steps.to(count.device, non_blocking=True)}
            if slot != "p":
                name = f"{KEPT}{tag}/{slot}"
                self.kept[name] = self.kept.get(name, {}) | tree

    def _watch(self, loss: Loss, work: Work) -> Patience:
        """Return who looks after the validation losses of a fit (``FED.EARLY_STOP``)."""
        batch = (self._whole or self._batcher).whole(self.clients, "val")
        if batch is None:
            raise FedvlmError("FED.EARLY_STOP: no client of this chunk has validation images")
        at = list(range(self.k)) if work.order is None else work.order.tolist()

        def score(params: Tree, places: Sequence[int]) -> list[float]:
            with torch.no_grad():
                out = loss(self.model, params, batch.take([at[p] for p in places]))
            return (out[0] if isinstance(out, tuple) else out).tolist()

        return Patience(self.patience, work.lengths, work.totals, score)

    def trained(self, params: Tree, train: Sequence[str]) -> list[str]:
        """Return the names in ``params`` that groups or patterns ``train`` select.

        None of the group ``server``, which the server alone moves, and none that rests.
        """
        groups = set(self.groups.names(*train))
        names = groups | set(
            matching(params, [t for t in train if t not in (SHARED, PERSONAL)])
        )
        still = {*self.groups.server, *self.portion.resting}
        return [n for n in params if n in names and n not in still]

    def clock(self, local_epoch: int) -> int:
        """Return the 0-based epoch of the schedule's clock."""
        before = 0 if self.clock_per_round else max(self.round - 1, 0) * self.epochs
        return before + local_epoch

    # ---- messages and checks ---------------------------------------------------------------
    def upload(
        self, params: Tree, weight: Tensor | None = None, extras: Tree | None = None, *,
        only: Sequence[str] | None = None, rows: Mapping[str, Rows] | None = None,
        ranks: Mapping[str, Ranks] | None = None,
    ) -> Upload:
        """Keep only the shared group of ``params``, and of it what is sent.

        What is not sent is filled on arrival from what its client received, so that ``aggregate``
        sees whole tensors; its bytes are not counted.

        Args:
            weight: by default the number of samples, or 1 under ``uniform`` (0 without samples);
                a method of the weighting ``own`` gives it.
            only: full-match patterns of the shared tensors that are sent.
            rows: by name, the rows that each client sends (a row costs 4 bytes more, its index).
            ranks: by the name of a LoRA without ``.A`` and ``.B``, how many of its components each
                client sends, ``[K]``: the first rows of A, the first columns of B.

        Raises:
            FedvlmError: a weight that would not be used, or none where one is due; patterns, rows
                or ranks of what is not there.
        """
        if (self.weighting == OWN) != (weight is not None):
            raise FedvlmError(
                f"clients weigh by '{self.weighting}': a method gives ctx.upload a weight if, and "
                f"only if, it declares weighting = '{OWN}'"
            )
        if weight is None:
            sizes = self.sizes
            weight = (sizes > 0).to(sizes) if self.weighting == UNIFORM else sizes
        idle = {*sent.absent(self.groups.shared, only), *self.portion.resting}
        left = [n for n in self.groups.shared if n in idle]
        whole = pick(params, set(self.groups.shared) - set(left))
        ranks = self.portion.of(self.clients, whole, rows) | dict(ranks or {})
        parts, places, told = sent.cut(whole, rows, ranks)
        return Upload(parts, weight, extras or {}, left, places, told)

    def check(self, value: Tensor, what: str, batch: Batch | None = None) -> None:
        """Apply the non-finite policy to one number per client (of ``batch``), ``[K']``."""
        if self.flags is not None:
            self.flags.add([value])
            return
        bad = ~torch.isfinite(value)
        if bool(bad.any()):
            for k in bad.nonzero().flatten().tolist():
                at = k if batch is None or batch.rows is None else int(batch.rows[k])
                self.fail(self.clients[at], what)

    def check_tree(self, tree: Tree, what: str, batch: Batch | None = None) -> None:
        """Apply the non-finite policy to every leaf ``[K', ...]``."""
        if self.flags is not None:
            self.flags.watch(tree.values())
            return
        for name, v in tree.items():
            if not bool(torch.isfinite(v.sum())):  # one pass; located only when it fails
                sums = torch.isfinite(v.reshape(len(v), -1)).all(1)
                self.check(torch.where(sums, 0.0, torch.nan), f"'{name}', {what},", batch)

    def fail(self, client: int, what: str) -> None:
        """Record a client whose numbers are not finite, or stop the run.

        Raises:
            DivergedError: under policy ``abort``.
        """
        message = f"round {self.round}, client {client}: {what} is not finite"
        if self.nonfinite == "abort":
            raise DivergedError(
                f"{message}; lower --lr (now {self.optim.lr:g}), use MODEL.PREC fp32, or set "
                "FED.NONFINITE drop to go on without such clients"
            )
        self.failed.setdefault(client, message)


def without_kept(state: State) -> State:
    """Return a client's state as methods see it: without the optimisers' (``OPTIM.KEEP_STATE``)."""
    return {slot: tree for slot, tree in state.items() if not slot.startswith(KEPT)}


def rates(ctx: Context, step: Step) -> Rate:
    """Return the schedule's learning rate: one number, or a tensor ``[K']`` where clients differ.

    They differ where they are at different epochs of the schedule's clock.
    """
    if step.epochs not in ctx._rates:
        each = [ctx.schedule(ctx.clock(e)) for e in step.epochs]
        ctx._rates[step.epochs] = each[0] if len(set(each)) == 1 else (
            torch.tensor(each, dtype=torch.float64).to(ctx.model.device, non_blocking=True)
        )
    return ctx._rates[step.epochs]


def descend(params: Tree, grads: Tree, lr: Rate) -> Tree:
    """Return ``params - lr grads``, one rate or one per client; leaves without gradient stay."""
    return params | SGD().step(params, grads, {}, lr, 1)[0]


def optimise(
    ctx: Context, slots: State, slot: str, grads: Tree, step: Step, key: str = ""
) -> State:
    """Return slot ``slot`` after a step of the run's optimiser, and that optimiser's state.

    The state lies in slots of its own, ``"<slot>/<key><name>"``: give back all of it from the body,
    so that it is cut with the clients.

    Args:
        key: tells apart the states of several optimisers on one slot.
    """
    prefix = f"{slot}/{key}"
    state = {s.removeprefix(prefix): t for s, t in slots.items() if s.startswith(prefix)}
    rule = ctx.optim.build()
    with torch.no_grad():
        new, state = rule.step(slots[slot], grads, state, rates(ctx, step), step.index)
    return {slot: slots[slot] | new} | {prefix + s: t for s, t in state.items()}


def _one_for_each(value: Tensor, batch: Batch) -> None:
    """Refuse a loss that is not one number for each client of ``batch``."""
    if value.shape != batch.y.shape[:1]:
        raise MethodError(
            f"the loss has the shape {tuple(value.shape)}, and {len(batch.y)} clients want one "
            f"number each, {tuple(batch.y.shape[:1])}: sum or average over samples (axis 1) only, "
            "never over clients, which do not mix"
        )


def _beside(mask: Tensor, leaf: Tensor) -> Tensor:
    """Shape ``[K, B]`` so that it broadcasts over a ``[K, B, ...]`` leaf."""
    return mask.reshape(*mask.shape, *([1] * (leaf.dim() - 2)))
