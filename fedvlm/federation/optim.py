"""Optimisers as pure functions over trees with a leading client axis.

One client (K = 1) gives the same bits as ``torch.optim``; clients never mix. A fresh state per
client and fit (unless it is kept on request): momentum cannot leak. A learning rate is a function
of the epoch: Dassl's schedules in closed form. Tensors of different roles may have rules of their
own, as parameter groups have; gradients may be clipped. Sources: SGD with momentum as in
torch.optim.SGD; Adam (Kingma and Ba 2015, algorithm 1); AdamW (Loshchilov and Hutter 2019,
algorithm 2); clipping as in torch.nn.utils.clip_grad_norm_ (Pascanu et al. 2013).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from fedvlm.core import foreach
from fedvlm.core.errors import ConfigError, did_you_mean
from fedvlm.core.trees import State, Tree, in_double, per_client
from fedvlm.models.adapt.peft import role_of

Rate = float | Tensor | Sequence[float]  # of all clients, or one each: ``[K]`` float64, or numbers
Count = int | Tensor  # of steps: of all clients, or one each, ``[K]`` float64


class Optimiser(Protocol):
    """One rule; its state is slots of trees, so that it stacks and slices like everything else."""

    def step(self, p: Tree, g: Tree, state: State, lr: Rate, t: Count) -> tuple[Tree, State]:
        """Return updated leaves for the names in ``g`` and the new state.

        Args:
            p: leaves ``[K, ...]``.
            g: gradients; names may be a subset of those of ``p``.
            state: what the last call returned; ``{}`` before the first.
            lr: the learning rate, or one per client.
            t: step number, from 1; or one per client.

        What the state holds of names that ``g`` has not stays, as in torch.optim.
        """


class Scale:
    """A function of the learning rate, as one number or as a tensor for each leaf.

    Rates that differ stay float64 until they meet a leaf, so that their bits are those of a number.
    """

    def __init__(self, lr: Rate, of: Callable[[Any], Any]) -> None:
        if not isinstance(lr, float | int | Tensor):
            lr = lr[0] if len(set(lr)) <= 1 else torch.tensor(lr, dtype=torch.float64)
        self.value: float | Tensor = of(lr)
        self._cast: dict[tuple[torch.dtype, torch.device], Tensor] = {}

    @property
    def number(self) -> float | None:
        """The one number of all clients; None where they differ."""
        return None if isinstance(self.value, Tensor) else self.value

    def each(self, leaves: Sequence[Tensor]) -> list[Tensor]:
        """Return it per leaf, shaped to broadcast over ``[K, ...]``."""
        assert isinstance(self.value, Tensor)  # noqa: S101 (``number`` is None)
        out = []
        for leaf in leaves:
            key = (leaf.dtype, leaf.device)
            if key not in self._cast:
                self._cast[key] = self.value.to(leaf.dtype).to(leaf.device)
            out.append(per_client(self._cast[key], leaf))
        return out


def _descent(p: Sequence[Tensor], way: Sequence[Tensor], lr: Rate) -> list[Tensor]:
    """Return ``p - lr * way`` with a rate per client, in torch.optim's own rounding."""
    back = Scale(lr, lambda rate: -rate)
    if back.number is not None:
        return foreach.add(p, way, back.number)
    return foreach.addcmul(p, way, back.each(p))


def _with(state: State, names: Sequence[str], **slots: Sequence[Tensor]) -> State:
    """Return a state with new leaves in some of its slots."""
    return state | {slot: state.get(slot, {}) | dict(zip(names, leaves, strict=True))
                    for slot, leaves in slots.items()}


@dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent with momentum and coupled weight decay."""

    momentum: float = 0.0
    weight_decay: float = 0.0
    dampening: float = 0.0
    nesterov: bool = False

    def step(self, p: Tree, g: Tree, state: State, lr: Rate, t: Count) -> tuple[Tree, State]:
        """See ``Optimiser.step``."""
        names, here = list(g), foreach.in_rows([p[n] for n in g])
        d = foreach.in_rows(list(g.values()))
        if self.weight_decay:
            d = foreach.add(d, here, self.weight_decay)
        if not self.momentum:
            return dict(zip(names, _descent(here, d, lr), strict=True)), state
        buffers = self._buffers(names, d, state.get("momentum", {}))
        way = foreach.add(d, buffers, self.momentum) if self.nesterov else buffers
        new = dict(zip(names, _descent(here, way, lr), strict=True))
        return new, _with(state, names, momentum=buffers)

    def _buffers(self, names: Sequence[str], d: Sequence[Tensor], old: Tree) -> list[Tensor]:
        """Return the new momentum; of a tensor that had no gradient before, the gradient."""
        known = [k for k, n in enumerate(names) if n in old]
        kept = foreach.mul([old[names[k]] for k in known], self.momentum)
        fresh = foreach.add(kept, [d[k] for k in known], 1 - self.dampening)
        moved = dict(zip(known, fresh, strict=True))
        return [moved.get(k, v) for k, v in enumerate(d)]


@dataclass(frozen=True)
class Adam:
    """Adam; ``decoupled`` decay makes it AdamW."""

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    decoupled: bool = False

    def step(self, p: Tree, g: Tree, state: State, lr: Rate, t: Count) -> tuple[Tree, State]:
        """See ``Optimiser.step``."""
        b1, b2 = self.betas
        names = list(g)
        x, grads = foreach.in_rows([p[n] for n in g]), foreach.in_rows(list(g.values()))
        if self.decoupled and self.weight_decay:
            x = self._shrunk(x, lr)
        elif self.weight_decay:
            grads = foreach.add(grads, x, self.weight_decay)
        old_m, old_v = ([state[s][n] if n in state.get(s, {}) else torch.zeros_like(v)
                         for n, v in zip(names, grads, strict=True)] for s in ("m", "v"))
        m = foreach.lerp(old_m, grads, 1 - b1)
        v = foreach.addcmul(foreach.mul(old_v, b2), grads, grads, 1 - b2)
        below = foreach.shift(self._corrected(foreach.sqrt(v), t), self.eps)
        back = Scale(lr, lambda rate: -(rate / (1 - b1**t)))
        if back.number is not None:
            new = foreach.addcdiv(x, m, below, back.number)
        else:
            new = foreach.addcdiv(x, foreach.mul(m, back.each(m)), below)
        return dict(zip(names, new, strict=True)), _with(state, names, m=m, v=v)

    def _corrected(self, roots: Sequence[Tensor], t: Count) -> list[Tensor]:
        """Return the roots of the second moments without the pull of their start at zero."""
        if isinstance(t, int):
            return foreach.div(roots, (1 - self.betas[1] ** t) ** 0.5)
        return foreach.mul(roots, Scale(t, lambda n: (1 - self.betas[1] ** n) ** -0.5).each(roots))

    def _shrunk(self, x: Sequence[Tensor], lr: Rate) -> list[Tensor]:
        keep = Scale(lr, lambda rate: 1 - rate * self.weight_decay)
        return foreach.mul(x, keep.each(x) if keep.number is None else keep.number)


@dataclass(frozen=True)
class ByRole:
    """A rule for each role, as torch.optim has parameter groups; see ``Optimiser``.

    Attributes:
        rules: role -> its rule, and its learning rate.
        rest: the rule of the other roles.
        base: their learning rate, before any schedule: a role's own follows it in proportion.
    """

    rules: Mapping[str, tuple[Optimiser, float]]
    rest: Optimiser
    base: float

    def step(self, p: Tree, g: Tree, state: State, lr: Rate, t: Count) -> tuple[Tree, State]:
        """See ``Optimiser.step``."""
        groups: dict[str, Tree] = {}
        for name, grad in g.items():
            role = role_of(name)
            groups.setdefault(role if role in self.rules else "", {})[name] = grad
        new: Tree = {}
        for role, grads in groups.items():
            rule, own = self.rules.get(role, (self.rest, self.base))
            rate = lr if own == self.base else Scale(lr, partial(self._scaled, own)).value
            leaves, state = rule.step(p, grads, state, rate, t)
            new |= leaves
        return {n: new[n] for n in g}, state

    def _scaled(self, own: float, rate: Any) -> Any:
        return rate / self.base * own  # in this order: an undecayed rate gives the role's own bits


@dataclass(frozen=True)
class Clipped:
    """A rule on gradients of a norm of ``most`` at most, each client's by itself."""

    rule: Optimiser
    most: float

    def step(self, p: Tree, g: Tree, state: State, lr: Rate, t: Count) -> tuple[Tree, State]:
        """See ``Optimiser.step``."""
        return self.rule.step(p, clip(g, self.most), state, lr, t)


def clip(grads: Tree, most: float) -> Tree:
    """Return gradients ``[K, ...]``, each client's scaled down to a norm of ``most`` over all.

    As torch.nn.utils.clip_grad_norm_ does it, with its 1e-6; a norm that is not finite gives
    numbers that are not.
    """
    if not grads:
        return grads
    norms = [torch.linalg.vector_norm(v.reshape(len(v), -1), dim=1) for v in grads.values()]
    total = torch.linalg.vector_norm(torch.stack([in_double(n) for n in norms]), dim=0)
    factor = (most / (total + 1e-6)).clamp(max=1.0)
    leaves = list(grads.values())
    scaled = foreach.mul(leaves, Scale(factor, lambda f: f).each(leaves))
    return dict(zip(grads, scaled, strict=True))


@dataclass(frozen=True)
class RoleSpec:
    """What ``OPTIM.<ROLE>`` says; what is left out is as ``OPTIM`` has it."""

    name: str = ""
    lr: float = 0.0
    weight_decay: float = -1.0


@dataclass(frozen=True)
class OptimSpec:
    """What ``OPTIM`` says, as plain values.

    Attributes:
        roles: role (``peft.role_of``) -> what differs for its tensors.
        clip: longest gradient of a client's step; 0: any.
        keep: clients keep the optimiser's state from round to round.
        eps: what Adam adds to the root of the second moment.
    """

    name: str = "sgd"
    lr: float = 0.005
    momentum: float = 0.9
    weight_decay: float = 5e-4
    dampening: float = 0.0
    nesterov: bool = False
    betas: tuple[float, float] = field(default=(0.9, 0.999))
    roles: Mapping[str, RoleSpec] = field(default_factory=dict)
    clip: float = 0.0
    keep: bool = False
    eps: float = 1e-8

    @property
    def parts(self) -> dict[str, OptimSpec]:
        """What holds for each role that differs from the rest, and under ``""`` for the rest."""
        rest = replace(self, roles={}, clip=0.0)
        own = {role: replace(
            rest, name=r.name or self.name, lr=r.lr or self.lr,
            weight_decay=self.weight_decay if r.weight_decay < 0 else r.weight_decay,
        ) for role, r in self.roles.items()}
        return {"": rest} | {role: spec for role, spec in own.items() if spec != rest}

    @property
    def stateful(self) -> bool:
        """Whether there is anything to keep: plain SGD has no state."""
        return any(s.name != "sgd" or s.momentum > 0 for s in self.parts.values())

    def build(self) -> Optimiser:
        """Return the optimiser.

        Raises:
            ConfigError: unknown name.
        """
        if not (self.roles or self.clip):
            return self._rule()
        parts = self.parts
        rest = parts.pop("")
        rule = rest._rule()
        if parts:
            rules = {role: (spec._rule(), spec.lr) for role, spec in parts.items()}
            rule = ByRole(rules, rule, self.lr)
        return Clipped(rule, self.clip) if self.clip else rule

    def _rule(self) -> Optimiser:
        if self.name == "sgd":
            return SGD(self.momentum, self.weight_decay, self.dampening, self.nesterov)
        if self.name in ("adam", "adamw"):
            return Adam(self.betas, self.eps, self.weight_decay, decoupled=self.name == "adamw")
        known = ("sgd", "adam", "adamw")
        raise ConfigError(
            f"OPTIM.NAME '{self.name}' is not known{did_you_mean(self.name, known)} "
            f"(known: {', '.join(known)})"
        )


@dataclass(frozen=True)
class Schedule:
    """Learning rate of 0-based epoch ``e`` (Dassl's ``build_lr_scheduler``, RECOUNT=True).

    Attributes:
        base: learning rate before any decay.
        kind: ``constant``, ``single_step``, ``multi_step`` or ``cosine``.
        max_epoch: length of the clock, ``T`` of the cosine.
        stepsize: epochs between (single_step; <= 0 means ``max_epoch``) or at which
            (multi_step) the rate is multiplied by ``gamma``.
        warmup_epoch, warmup_type, warmup_cons_lr, warmup_min_lr: first epochs.
    """

    base: float
    kind: str = "constant"
    max_epoch: int = 1
    stepsize: tuple[int, ...] = (-1,)
    gamma: float = 0.1
    warmup_epoch: int = -1
    warmup_type: str = "linear"
    warmup_cons_lr: float = 1e-5
    warmup_min_lr: float = 1e-5

    def __call__(self, epoch: int) -> float:
        """Return the rate of ``epoch`` (from 0)."""
        warm = max(self.warmup_epoch, 0)
        if epoch < warm:
            if self.warmup_type == "constant":
                return self.warmup_cons_lr
            return self.warmup_min_lr if epoch == 0 else self.base * epoch / warm
        return self._decayed(epoch - warm)

    def _decayed(self, e: int) -> float:
        if self.kind == "cosine":
            return self.base / 2 * (1 + math.cos(math.pi * e / self.max_epoch))
        if self.kind == "single_step":
            size = self.stepsize[-1] if self.stepsize[-1] > 0 else self.max_epoch
            return self.base * self.gamma ** (e // size)
        if self.kind == "multi_step":
            return self.base * self.gamma ** sum(e >= s for s in self.stepsize)
        return self.base
