"""What a method calls to train: ``fit``, ``loop``, ``grad``, ``grad_each``.

Methods see trees whose leaves carry the client axis, and losses that return one number per client.
The clients and their samples are ``local/cohort.py``'s; how losses are differentiated, how clients
that finish early leave a loop and what is sent of a tree, ``local/gradients.py``'s, ``loops.py``'s
and ``sent.py``'s. A method that writes its own ``ctx.loop`` body has single steps below:
``optimise`` takes a step of the run's optimiser on one of several slots, ``descend`` one of plain
SGD without any state.

Nothing here reads the device while clients train. Whether all numbers are finite is asked once, at
the end of a client's work (``guarded``); where they are not, it is done again with a look at every
number, which names the client, the step and the tensor. So a hook must be pure: equal inputs give
equal results, and what a body closes over is not changed by it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import torch
from torch import Tensor

from fedvlm.core.errors import DivergedError, FedvlmError
from fedvlm.core.trees import State, Tree, matching, pick, to_device
from fedvlm.federation.aggregation.arrival import Rows, Upload
from fedvlm.federation.batches import Batch, Step
from fedvlm.federation.groups import PERSONAL, SHARED
from fedvlm.federation.local import sent
from fedvlm.federation.local.cohort import Cohort
from fedvlm.federation.local.effort import Trace, Work, way_of
from fedvlm.federation.local.gradients import Grad, Loss, compute_gradient, sample_gradients
from fedvlm.federation.local.kept import COUNT, keep_optimiser, resume_optimiser
from fedvlm.federation.local.ledger import Flags, Means
from fedvlm.federation.local.loops import Body, run_loop
from fedvlm.federation.local.sent import WHOLE, Portion, Ranks
from fedvlm.federation.local.stop import Patience
from fedvlm.federation.optim import SGD, OptimSpec, Rate, Schedule

Edit = Callable[[Tree, Tree, Batch], Tree]
SAMPLES, UNIFORM, OWN = "samples", "uniform", "own"  # how clients weigh in the average
FIT, LOOP, DESCENT = "fit", "loop", "descent"  # how a method's clients step


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


@dataclass
class Context(Cohort):
    """One chunk of K clients at work in one round.

    Attributes:
        optim, schedule: what ``OPTIM`` says; the schedule's clock is the whole run.
        extras: patterns of what an upload may carry beside the shared group.
        metrics: patterns of the numbers that travel with an upload.
        weighting: ``samples``, ``uniform`` or ``own`` (the method gives a weight itself).
        nonfinite: ``abort`` raises; ``drop`` lets the round go on without the client.
        clock_per_round: start the schedule again each round.
        flags: where numbers wait to be looked at together; None: each is looked at at once.
        patience: epochs without a better validation loss that end a client's fit; 0: none do.
        kept: optimisers' states from round to round (``OPTIM.KEEP_STATE``); None: none is kept.
        portion: what of the shared tensors is trained and sent in this round.
    """

    optim: OptimSpec
    schedule: Schedule
    extras: Sequence[str] = ()
    metrics: Sequence[str] = ()
    weighting: str = SAMPLES
    nonfinite: str = "abort"
    clock_per_round: bool = False
    counters: Counter[str] = field(default_factory=Counter)
    logs: dict[str, Tensor] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)
    flags: Flags | None = None
    patience: int = 0
    kept: State | None = None
    portion: Portion = WHOLE
    _means: Means | None = field(default=None, repr=False)
    _rates: dict[tuple[int, ...], Rate] = field(default_factory=dict, init=False, repr=False)

    def only(self, at: Sequence[int]) -> Self:
        """See ``Cohort.only``; the optimiser's state of a fit on it is not kept."""
        return replace(super().only(at), kept=None)

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
        self._unless_noised("grad")
        names = self.trained(params, (SHARED, PERSONAL)) if train is None else list(train)
        got = compute_gradient(self.model, params, loss, batch, names)
        self._count(batch, len(batch.y), got.value, got.grads, what)
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
            params: as for ``grad``, and so are ``train`` and ``what``.
            log: as for ``grad``; the mean over a client's samples is logged.
            most: samples at a time; 0: as many as there are clients. More are faster and take
                more memory.

        Raises:
            DivergedError: a number is not finite (policy ``abort``).
            FedvlmError: a loss that is not one number for each client.
        """
        self._unless_noised("grad_each")
        names = self.trained(params, (SHARED, PERSONAL)) if train is None else list(train)
        each, tree = sample_gradients(self.model, params, loss, batch, names, most)
        self._count(batch, batch.samples, each.sum(1), tree, what)
        if log is not None and self._means is not None:
            mean = (each * batch.w).sum(1) / batch.w.sum(1)
            self._means.add({f"{log}loss": mean}, batch.rows is not None)
        return each, tree

    def _count(self, batch: Batch, gradients: int, value: Tensor, grads: Tree, what: str) -> None:
        """Count gradients of ``batch``, and check their numbers under the name ``what``."""
        self.counters["gradients"] += gradients
        self.counters["gradient_samples"] += batch.samples
        if what:
            self.check(value, f"loss of {what}", batch)
            self.check_tree(grads, f"gradient of {what}", batch)

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
        self._unless_noised("loop")
        if epochs is None and (self.patience or self.kept is not None):
            key = "FED.EARLY_STOP" if self.patience else "OPTIM.KEEP_STATE"
            raise FedvlmError(
                f"{key} needs training by ctx.fit, but this method has its own training loop: "
                "leave the key at its default (the trainer may declare trains_by = 'loop' to "
                "report this before any work)"
            )
        return self._loop(slots, body, self._work(epochs, per_step, after), per_step, tag)[0]

    def _loop(
        self, slots: State, body: Body, work: Work, per_step: int, tag: str,
        patience: Patience | None = None, added: bool = False,
    ) -> tuple[State, Tensor, Tree, Trace]:
        """Return the slots of a loop with means of its own, and what is in a ``Fit`` of it."""
        outer, self._means = self._means, Means(self.k, work.order)
        try:
            out, trace = run_loop(
                slots, body, work, self._steps(work, per_step, tag), self._means, self.counters,
                patience, added,
            )
            means = self._means.values()
        finally:
            self._means = outer
        prefix = "" if tag == "w" else f"{tag}/"
        self.logs.update({prefix + name: value for name, value in means.items()})
        steps = way_of(trace, self.k, lambda epoch: 1.0)
        return out, steps, means, trace

    def fit(
        self, params: Tree, loss: Loss, *, train: Sequence[str] = (SHARED, PERSONAL),
        epochs: int | None = None, lr: float | None = None, edit: Edit | None = None,
        tag: str = "w", optim: OptimSpec | None = None, after: int = 0,
    ) -> Fit:
        """Train the tensors of the groups ``train`` with a fresh optimiser.

        With ``OPTIM.KEEP_STATE`` the optimiser goes on from where this client's fit of this ``tag``
        left it; with ``FED.EARLY_STOP`` a client stops where its validation loss does not fall any
        more, and keeps its last tensors. With ``FED.DP.UNIT image`` (``group``) every gradient is
        cut image by image and noised before ``edit`` sees it, and no loss is recorded.

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
        if self.private is not None:
            self.private.enter(self.counters, epochs)
        spec = optim or self.optim
        rule = spec.build()
        names = self.trained(params, train)
        kept = self.kept if spec.keep else None
        behind = None if kept is None else resume_optimiser(kept, tag, self.k, self.model.device)

        def body(slots: State, batches: tuple[Batch, ...], step: Step) -> State:
            batch = batches[0]
            if self.private is None:
                value, _, grads = self.grad(slots["p"], loss, batch, names)
                self.check(value, f"loss of fit '{tag}' at local step {step.index}", batch)
            else:
                what = f"fit '{tag}' at local step {step.index}"
                with self.private.uncounted(self.model.counters):
                    value, each = sample_gradients(
                        self.model, slots["p"], loss, batch, names, batch.y.numel(),
                        drawn=self.private.poisson)
                self._count(batch, batch.samples, value.sum(1), each, what)
                grads = self.private.noised(each, batch)
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
        slots, steps, means, trace = self._loop(start, body, work, 1, tag, watch, kept is not None)
        if kept is not None:
            keep_optimiser(kept, tag, slots, steps)
        return Fit(slots["p"], steps, means, trace)

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
        names = groups | set(matching(params, [t for t in train if t not in (SHARED, PERSONAL)]))
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
                f"the weighting is '{self.weighting}': a method must pass a weight to ctx.upload "
                f"if, and only if, it declares weighting = '{OWN}'"
            )
        if weight is None:
            sizes = self.sizes
            weight = (sizes > 0).to(sizes) if self.weighting == UNIFORM else sizes
        idle = {*sent.unsent_names(self.groups.shared, only), *self.portion.resting}
        left = [n for n in self.groups.shared if n in idle]
        whole = pick(params, set(self.groups.shared) - set(left))
        ranks = self.portion.of(self.clients, whole, rows) | dict(ranks or {})
        parts, places, told = sent.cut_upload(whole, rows, ranks)
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
                "FED.NONFINITE drop to continue without such clients"
            )
        self.failed.setdefault(client, message)


def rates(ctx: Context, step: Step) -> Rate:
    """Return the schedule's learning rate: one number, or a tensor ``[K']`` where clients differ.

    They differ where they are at different epochs of the schedule's clock.
    """
    if step.epochs not in ctx._rates:
        of = {e: ctx.schedule(ctx.clock(e)) for e in set(step.epochs)}
        each = [of[e] for e in step.epochs]
        ctx._rates[step.epochs] = each[0] if len(set(each)) == 1 else (
            to_device(torch.tensor(each, dtype=torch.float64), ctx.model.device)
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
