"""Dassl's learning-rate schedules in closed form: a rate is a function of the epoch."""

from __future__ import annotations

import math
from dataclasses import dataclass


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
