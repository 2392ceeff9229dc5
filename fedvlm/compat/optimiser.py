"""The optimiser that a foreign file gets: its parameter groups, the run's rule.

``step`` is where the file's own code calls it. Inside a round the rule and its state come from the
session of the client at work (``session``); the file's schedule does nothing, the run's counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from yacs.config import CfgNode

from fedvlm.compat.world import here
from fedvlm.core.errors import FedvlmError

Params = nn.Module | Iterable[nn.Parameter] | Iterable[dict[str, Any]]


class RunOptimizer(torch.optim.Optimizer):
    """Groups of parameters; ``lr`` of a group over ``OPTIM.LR`` is its share of the run's rate."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr})
        self.factors = [group["lr"] / lr for group in self.param_groups]
        self.on_step: Callable[[RunOptimizer], None] | None = None

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Step by the run's rule.

        Raises:
            FedvlmError: outside of a client's training.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self.on_step is None:
            raise FedvlmError("a trainer's file steps its optimiser outside of forward_backward")
        self.on_step(self)
        return loss


class RunSchedule:
    """Stands where the file keeps its scheduler: the run's schedule is ``OPTIM``'s own."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        self.last_epoch = 0

    def step(self, epoch: int | None = None) -> None:
        """Change nothing."""

    def get_last_lr(self) -> list[float]:
        """Return the rates of the groups."""
        return [group["lr"] for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """Return nothing to save."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take nothing."""


def build_optimizer(
    model: Params, optim_cfg: CfgNode, param_groups: Iterable[dict[str, Any]] | None = None
) -> RunOptimizer:
    """Return the optimiser of a module's (or of given) parameters.

    Args:
        optim_cfg: ``cfg.OPTIM``; only the rate is read, for groups with rates of their own.
        param_groups: instead of ``model``.
    """
    params: Any = model.parameters() if isinstance(model, nn.Module) else model
    return RunOptimizer(list(param_groups or params), float(optim_cfg.LR))


def build_lr_scheduler(optimizer: torch.optim.Optimizer, optim_cfg: CfgNode) -> RunSchedule:
    """Return a schedule that leaves the rate to the run."""
    return RunSchedule(optimizer)


def adopt(optimizer: torch.optim.Optimizer) -> RunOptimizer:
    """Return the run's optimiser for one of torch's that a file made itself.

    Raises:
        FedvlmError: its groups differ in more than the rate.
    """
    if isinstance(optimizer, RunOptimizer):
        return optimizer
    groups = optimizer.param_groups
    kept = [{k: v for k, v in g.items() if k not in ("params", "lr", "initial_lr")} for g in groups]
    if any(other != kept[0] for other in kept):
        raise FedvlmError(
            f"the file's {type(optimizer).__name__} has groups that differ in more than lr, "
            "but fedvlm uses OPTIM.* for all of them; use one weight decay and momentum"
        )
    plain = [{"params": g["params"], "lr": g["lr"]} for g in groups]
    return RunOptimizer(plain, float(here().cfg.OPTIM.LR))
