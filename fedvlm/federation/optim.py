"""Optimisers as pure functions over trees with a leading client axis.

One client (K = 1) gives the same bits as ``torch.optim``; clients never mix. A fresh state per
client and fit: momentum cannot leak. A learning rate is a function of the epoch: Dassl's schedules
in closed form. Sources: SGD with momentum as in torch.optim.SGD; Adam (Kingma and Ba 2015,
algorithm 1); AdamW (Loshchilov and Hutter 2019, algorithm 2).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from fedvlm.core.errors import ConfigError, did_you_mean
from fedvlm.core.trees import State, Tree


class Optimiser(Protocol):
    """One rule; its state is slots of trees, so that it stacks and slices like everything else."""

    def step(
        self, p: Tree, g: Tree, state: State, lr: Sequence[float], t: int
    ) -> tuple[Tree, State]:
        """Return updated leaves for the names in ``g`` and the new state.

        Args:
            p: leaves ``[K, ...]``.
            g: gradients; names may be a subset of those of ``p``.
            state: what the last call returned; ``{}`` before the first.
            lr: one learning rate per client.
            t: step number, from 1.
        """
        ...


def _descent(p: Tensor, direction: Tensor, lr: Sequence[float]) -> Tensor:
    """Return ``p - lr * direction`` with a rate per client, in torch.optim's own rounding."""
    if len(set(lr)) <= 1:
        return torch.add(p, direction, alpha=-lr[0])
    return torch.stack(
        [torch.add(p[k], direction[k], alpha=-rate) for k, rate in enumerate(lr)]
    )


@dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent with momentum and coupled weight decay."""

    momentum: float = 0.0
    weight_decay: float = 0.0
    dampening: float = 0.0
    nesterov: bool = False

    def step(
        self, p: Tree, g: Tree, state: State, lr: Sequence[float], t: int
    ) -> tuple[Tree, State]:
        """See ``Optimiser.step``."""
        old = state.get("momentum", {})
        new, buffers = {}, {}
        for name, grad in g.items():
            d = torch.add(grad, p[name], alpha=self.weight_decay) if self.weight_decay else grad
            if self.momentum:
                if name in old:
                    buf = torch.add(old[name] * self.momentum, d, alpha=1 - self.dampening)
                else:
                    buf = d.clone()
                buffers[name] = buf
                d = torch.add(d, buf, alpha=self.momentum) if self.nesterov else buf
            new[name] = _descent(p[name], d, lr)
        return new, ({"momentum": buffers} if self.momentum else {})


@dataclass(frozen=True)
class Adam:
    """Adam; ``decoupled`` decay makes it AdamW."""

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    decoupled: bool = False

    def step(
        self, p: Tree, g: Tree, state: State, lr: Sequence[float], t: int
    ) -> tuple[Tree, State]:
        """See ``Optimiser.step``."""
        b1, b2 = self.betas
        old_m, old_v = state.get("m", {}), state.get("v", {})
        new, ms, vs = {}, {}, {}
        for name, grad in g.items():
            x = p[name]
            if self.decoupled and self.weight_decay:
                x = self._shrink(x, lr)
            elif self.weight_decay:
                grad = torch.add(grad, x, alpha=self.weight_decay)
            m = old_m[name] if name in old_m else torch.zeros_like(grad)
            v = old_v[name] if name in old_v else torch.zeros_like(grad)
            ms[name] = m = torch.lerp(m, grad, 1 - b1)
            vs[name] = v = torch.addcmul(v * b2, grad, grad, value=1 - b2)
            denominator = v.sqrt() / (1 - b2**t) ** 0.5 + self.eps
            new[name] = self._move(x, m, denominator, [rate / (1 - b1**t) for rate in lr])
        return new, {"m": ms, "v": vs}

    def _shrink(self, x: Tensor, lr: Sequence[float]) -> Tensor:
        if len(set(lr)) <= 1:
            return x * (1 - lr[0] * self.weight_decay)
        return torch.stack([x[k] * (1 - rate * self.weight_decay) for k, rate in enumerate(lr)])

    @staticmethod
    def _move(x: Tensor, m: Tensor, denominator: Tensor, step: Sequence[float]) -> Tensor:
        if len(set(step)) <= 1:
            return torch.addcdiv(x, m, denominator, value=-step[0])
        rows = [
            torch.addcdiv(x[k], m[k], denominator[k], value=-s) for k, s in enumerate(step)
        ]
        return torch.stack(rows)


@dataclass(frozen=True)
class OptimSpec:
    """What ``OPTIM`` says, as plain values."""

    name: str = "sgd"
    lr: float = 0.005
    momentum: float = 0.9
    weight_decay: float = 5e-4
    dampening: float = 0.0
    nesterov: bool = False
    betas: tuple[float, float] = field(default=(0.9, 0.999))

    def build(self) -> Optimiser:
        """Return the optimiser.

        Raises:
            ConfigError: unknown name.
        """
        if self.name == "sgd":
            return SGD(self.momentum, self.weight_decay, self.dampening, self.nesterov)
        if self.name in ("adam", "adamw"):
            return Adam(
                self.betas, weight_decay=self.weight_decay, decoupled=self.name == "adamw"
            )
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
