"""What a method calls to train: ``fit``, ``loop``, ``grad``.

Only this file knows about optimisers, schedules and clients that finish early. Methods see trees
whose leaves carry the client axis, and losses that return one number per client. A method that
writes its own ``ctx.loop`` body has single steps below: ``gradient`` applies the non-finite policy,
``optimise`` takes a step of the run's optimiser on one of several slots, ``descend`` one of plain
SGD without any state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from fedvlm.core import rng
from fedvlm.core.errors import DivergedError
from fedvlm.core.trees import State, Tree, cat, matching, pick, rows
from fedvlm.federation.batches import Batch, Batcher, Step
from fedvlm.federation.groups import Groups
from fedvlm.federation.optim import SGD, OptimSpec, Schedule

Loss = Callable[[Any, Tree, Batch], Tensor | tuple[Tensor, Mapping[str, Tensor]]]
Edit = Callable[[Tree, Tree, Batch], Tree]
Body = Callable[[State, tuple[Batch, ...], Step], State]


@dataclass(frozen=True)
class Upload:
    """What K clients send: shared tensors, declared extras, one weight each (``[K]``)."""

    params: Tree
    weight: Tensor
    extras: Tree = field(default_factory=dict)


class Means:
    """Running means per client; clients that finished early keep the mean of their own steps."""

    def __init__(self, k: int) -> None:
        self._k = k
        self._sums: dict[str, Tensor] = {}
        self._counts: dict[str, Tensor] = {}

    def add(self, values: Mapping[str, Tensor]) -> None:
        """Add one number for each of the first ``len(value)`` clients."""
        for name, value in values.items():
            if name not in self._sums:
                self._sums[name] = torch.zeros(self._k, dtype=torch.float64)
                self._counts[name] = torch.zeros(self._k, dtype=torch.float64)
            self._sums[name][: len(value)] += value.cpu().double()
            self._counts[name][: len(value)] += 1

    def values(self) -> Tree:
        """Return the means ``[K]``; NaN for a client without a step."""
        return {name: total / self._counts[name] for name, total in self._sums.items()}


@dataclass
class Context:
    """One chunk of K clients at work in one round.

    Attributes:
        model: the frozen model (``fedvlm.models.vlmodel.VLModel``).
        groups: group of every trainable tensor.
        batcher: source of batches.
        clients: ids, sorted by falling number of steps.
        round: 1-based round; 0 outside training.
        seed: the model seed.
        epochs: local epochs of a plain ``fit``.
        optim, schedule: what ``OPTIM`` says; the schedule's clock is the whole run.
        extras: patterns of what an upload may carry beside the shared group.
        nonfinite: ``abort`` raises; ``drop`` lets the round go on without the client.
        clock_per_round: start the schedule again each round.
    """

    model: Any
    groups: Groups
    batcher: Batcher
    clients: Sequence[int]
    round: int
    seed: int
    epochs: int
    optim: OptimSpec
    schedule: Schedule
    extras: tuple[str, ...] = ()
    nonfinite: str = "abort"
    clock_per_round: bool = False
    counters: Counter[str] = field(default_factory=Counter)
    logs: dict[str, Tensor] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)

    @property
    def k(self) -> int:
        """Number of clients in the chunk."""
        return len(self.clients)

    @property
    def sizes(self) -> Tensor:
        """Training samples per client, ``[K]``, float64."""
        return torch.tensor(self.batcher.sizes(self.clients), dtype=torch.float64)

    def stream(self, purpose: str, client: int = -1) -> torch.Generator:
        """Return a generator for ``purpose`` in this round (of one client, if given)."""
        return rng.stream(self.seed, purpose, self.round, client)

    # ---- gradients -------------------------------------------------------------------------
    def grad(
        self, p: Tree, loss: Loss, batch: Batch, train: Sequence[str] | None = None
    ) -> tuple[Tensor, Mapping[str, Tensor], Tree]:
        """Return (loss ``[K]``, its named parts, gradients of ``train`` (default: all of ``p``)).

        Clients never mix, so the gradient of the sum is each client's own. A tensor without
        influence on the loss has no entry, as in torch.optim.
        """
        self.counters["gradients"] += len(batch.y)
        self.counters["gradient_samples"] += int(batch.w.sum())
        names = list(p) if train is None else list(train)
        leaves = {n: p[n].detach().requires_grad_() for n in names}
        with torch.enable_grad():
            out = loss(self.model, p | leaves, batch)
            value, parts = out if isinstance(out, tuple) else (out, {})
            grads = torch.autograd.grad(value.sum(), list(leaves.values()), allow_unused=True)
        slopes = {n: g for n, g in zip(names, grads, strict=True) if g is not None}
        return value.detach(), {k: v.detach() for k, v in parts.items()}, slopes

    # ---- loops -----------------------------------------------------------------------------
    def loop(
        self, slots: State, body: Body, *, epochs: int | None = None, per_step: int = 1,
        tag: str = "w", const: Mapping[str, Tree] | None = None,
    ) -> State:
        """Run ``body`` once per step and return the final values of ``slots``.

        ``body(slots, batches, step)`` gets ``per_step`` disjoint batches and returns new slots
        (it may add some, which are gone at the end). Clients that have no step left drop out,
        exactly: their rows are set aside and joined again at the end. ``const`` trees reach the
        body as ``batch.const``.
        """
        names, finished = tuple(slots), list[State]()
        active, const = self.k, dict(const or {})
        count = self.epochs if epochs is None else epochs
        for step in self.batcher.steps(self.clients, self.round, count, per_step, tag):
            if step.active < active:
                finished.append(_cut(slots, step.active, active))
                slots = _cut(slots, 0, step.active)
                const = {s: rows(t, 0, step.active) for s, t in const.items()}
                active = step.active
            if const:
                fixed = tuple(replace(b, const=const) for b in step.batches)
                step = replace(step, batches=fixed)
            slots = body(slots, step.batches, step)
            self.counters["steps"] += active
            self.counters["samples"] += step.samples
        parts = [slots, *reversed(finished)]
        return {slot: cat([part[slot] for part in parts]) for slot in names}

    def fit(
        self, p: Tree, loss: Loss, *, train: Sequence[str] = ("shared", "personal"),
        epochs: int | None = None, lr: float | None = None, edit: Edit | None = None,
        tag: str = "w", const: Mapping[str, Tree] | None = None, optim: OptimSpec | None = None,
    ) -> Tree:
        """Train the tensors of the groups ``train`` with a fresh optimiser and return all of ``p``.

        Args:
            p: leaves ``[K, ...]``; names outside ``train`` stay as they are.
            loss: ``loss(model, p, batch)`` -> ``[K]`` or ``([K], {name: [K]})``.
            train: group names, or full-match patterns of tensor names.
            epochs: local epochs (default: the run's).
            lr: a constant rate instead of the schedule.
            edit: changes gradients before the step: ``edit(p, grads, batch) -> grads``.
            tag: names this fit; fits of different tags see different shuffles.
            const: trees that ``loss`` and ``edit`` find in ``batch.const``.

        Raises:
            DivergedError: a loss or gradient is not finite (policy ``abort``).
        """
        spec = optim or self.optim
        rule = spec.build()
        names = self.trained(p, train)
        means = Means(self.k)

        def body(slots: State, batches: tuple[Batch, ...], step: Step) -> State:
            value, parts, grads = self.grad(slots["p"], loss, batches[0], names)
            self.check(value, f"loss of fit '{tag}' at local step {step.index}")
            if edit is not None:
                grads = edit(slots["p"], grads, batches[0])
            self.check_tree(grads, f"gradient in fit '{tag}' at local step {step.index}")
            rate = [self.schedule(self.clock(e)) if lr is None else lr for e in step.epochs]
            state = {s: t for s, t in slots.items() if s != "p"}
            with torch.no_grad():
                new, state = rule.step(slots["p"], grads, state, rate, step.index)
            means.add({"loss": value, **parts})
            return {"p": slots["p"] | new, **state}

        fitted = self.loop({"p": p}, body, epochs=epochs, tag=tag, const=const)["p"]
        prefix = "" if tag == "w" else f"{tag}/"
        self.logs.update({prefix + name: value for name, value in means.values().items()})
        return fitted

    def trained(self, p: Tree, train: Sequence[str]) -> list[str]:
        """Return the names in ``p`` that groups or patterns ``train`` select."""
        groups = set(self.groups.names(*train))
        names = groups | set(matching(p, [t for t in train if t not in ("shared", "personal")]))
        return [n for n in p if n in names]

    def clock(self, local_epoch: int) -> int:
        """Return the 0-based epoch of the schedule's clock."""
        before = 0 if self.clock_per_round else max(self.round - 1, 0) * self.epochs
        return before + local_epoch

    # ---- messages and checks ---------------------------------------------------------------
    def upload(
        self, p: Tree, weight: Tensor | None = None, extras: Tree | None = None
    ) -> Upload:
        """Keep only the shared group of ``p``; weight is the number of samples unless given."""
        return Upload(
            pick(p, self.groups.shared), self.sizes if weight is None else weight, extras or {}
        )

    def check(self, value: Tensor, what: str) -> None:
        """Apply the non-finite policy to one number per client, ``[K']``."""
        bad = ~torch.isfinite(value)
        if bool(bad.any()):
            for k in bad.nonzero().flatten().tolist():
                self.fail(self.clients[k], what)

    def check_tree(self, tree: Tree, what: str) -> None:
        """Apply the non-finite policy to every leaf ``[K', ...]``."""
        for name, v in tree.items():
            if not bool(torch.isfinite(v.sum())):  # one pass; located only when it fails
                sums = torch.isfinite(v.reshape(len(v), -1)).all(1)
                self.check(torch.where(sums, 0.0, torch.nan), f"'{name}', {what},")

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

    def accuracy(self, p: Tree, predict: Callable[[Any, Tree, Any], Tensor]) -> Tensor:
        """Return each client's accuracy ``[K]`` on its validation split, float64, 0 to 1.

        NaN for a client without validation samples. The test split is out of reach here.

        Args:
            predict: ``predict(model, p, x)`` -> logits ``[K, B, C]``.
        """
        b = self.batcher.held_out(self.clients)
        if b is None:
            return torch.full((self.k,), torch.nan, dtype=torch.float64)
        with torch.no_grad():
            right = predict(self.model, p, b.x).argmax(-1) == b.y
        weight = b.w.double().cpu()
        return (right.double().cpu() * weight).sum(-1) / weight.sum(-1)


def rates(ctx: Context, step: Step) -> list[float]:
    """Return the schedule's learning rate of each client at work."""
    return [ctx.schedule(ctx.clock(e)) for e in step.epochs]


def gradient(
    ctx: Context, p: Tree, loss: Loss, batch: Batch, what: str, train: Sequence[str] | None = None
) -> tuple[Tensor, Tree]:
    """Return (loss ``[K]``, gradients) at ``p``; ``what`` names the place for messages.

    Args:
        train: names to differentiate for; default: those in ``p`` that are shared or personal.

    Raises:
        DivergedError: a number is not finite (policy ``abort``).
    """
    names = ctx.trained(p, ("shared", "personal")) if train is None else train
    value, _, grads = ctx.grad(p, loss, batch, names)
    ctx.check(value, f"loss of {what}")
    ctx.check_tree(grads, f"gradient of {what}")
    return value, grads


def descend(p: Tree, grads: Tree, lr: Sequence[float]) -> Tree:
    """Return ``p - lr grads`` with a rate per client; leaves without gradient stay."""
    return p | SGD().step(p, grads, {}, lr, 1)[0]


def optimise(ctx: Context, slots: State, slot: str, grads: Tree, step: Step) -> State:
    """Return slot ``slot`` after a step of the run's optimiser, and that optimiser's state.

    The state lies in slots of its own, ``"<slot>/<name>"``: give back all of it from the body, so
    that it is cut with the clients.
    """
    prefix = f"{slot}/"
    state = {s.removeprefix(prefix): t for s, t in slots.items() if s.startswith(prefix)}
    rule = ctx.optim.build()
    new, state = rule.step(slots[slot], grads, state, rates(ctx, step), step.index)
    return {slot: slots[slot] | new} | {prefix + s: t for s, t in state.items()}


def _cut(state: State, start: int, stop: int) -> State:
    return {slot: rows(tree, start, stop) for slot, tree in state.items()}
