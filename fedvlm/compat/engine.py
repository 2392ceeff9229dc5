"""``dassl.engine``: the base classes that a file of the CoOp family derives from.

The order of calls is fedvlm's (``session``); what is here is what files call on themselves.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from yacs.config import CfgNode

from fedvlm.compat.data import DataManager
from fedvlm.compat.tools import Registry, load_checkpoint, save_checkpoint, tolist_if_not
from fedvlm.compat.world import here
from fedvlm.core.errors import FedvlmError

Names = Sequence[str] | str | None


class TrainerBase:
    """Registered models with their optimisers, and what is done to all of them."""

    U: Tensor  # of files that step in a subspace

    def __init__(self) -> None:
        self._models: OrderedDict[str, nn.Module] = OrderedDict()
        self._optims: OrderedDict[str, Any] = OrderedDict()
        self._scheds: OrderedDict[str, Any] = OrderedDict()
        self._writer = None

    def register_model(
        self, name: str = "model", model: Any = None, optim: Any = None, sched: Any = None
    ) -> None:
        """Register a model: its name is the first part of its tensors' names."""
        if name in self._models:
            raise FedvlmError(f"the trainer registers two models as '{name}'")
        self._models[name], self._optims[name], self._scheds[name] = model, optim, sched

    def get_model_names(self, names: Names = None) -> list[str]:
        """Return all registered names, or those of ``names``."""
        if names is None:
            return list(self._models)
        chosen = list(tolist_if_not(names))
        unknown = [n for n in chosen if n not in self._models]
        if unknown:
            raise FedvlmError(f"the trainer has no model '{unknown[0]}' (it has: "
                              f"{', '.join(self._models)})")
        return chosen

    def set_model_mode(self, mode: str = "train", names: Names = None) -> None:
        """Put models into ``train`` or ``eval`` mode; BatchNorm keeps its statistics."""
        for name in self.get_model_names(names):
            train_mode(self._models[name], mode == "train")

    def update_lr(self, names: Names = None) -> None:
        """Step the schedules, which leave the rate to the run."""
        for name in self.get_model_names(names):
            if self._scheds[name] is not None:
                self._scheds[name].step()

    def get_current_lr(self, names: Names = None) -> float:
        """Return the rate of the first model."""
        return float(self._optims[self.get_model_names(names)[0]].param_groups[0]["lr"])

    def detect_anomaly(self, loss: Tensor) -> None:
        """Leave numbers that are not finite to ``FED.NONFINITE``."""

    def model_zero_grad(self, names: Names = None) -> None:
        """Clear gradients."""
        for name in self.get_model_names(names):
            if self._optims[name] is not None:
                self._optims[name].zero_grad()

    def model_backward(self, loss: Tensor) -> None:
        """Compute gradients."""
        self.detect_anomaly(loss)
        loss.backward()

    def model_update(self, names: Names = None) -> None:
        """Step the optimisers."""
        for name in self.get_model_names(names):
            if self._optims[name] is not None:
                self._optims[name].step()

    def model_backward_and_update(self, loss: Tensor, names: Names = None) -> None:
        """Clear, compute, step."""
        self.model_zero_grad(names)
        self.model_backward(loss)
        self.model_update(names)

    def prograd_backward_and_update(
        self, loss_a: Tensor, loss_b: Tensor, lambda_: float = 1, names: Names = None
    ) -> None:
        """Step along the gradient of ``loss_a`` without what opposes that of ``loss_b``.

        ProGrad (Zhu et al. 2023, eq. 4), tensor by tensor: with a the gradient of ``loss_a`` and u
        the unit gradient of ``loss_b``, a - lambda (a . u) u where a . u < 0, else a. Dassl lacks
        it; ProGrad's authors ship their own Dassl.
        """
        self._project(loss_a, loss_b, lambda_, names, always=False)

    def vertical_grad_backward_and_update(
        self, loss_a: Tensor, loss_b: Tensor, lambda_: float = 1, names: Names = None
    ) -> None:
        """Do the same whether or not the two gradients oppose each other."""
        self._project(loss_a, loss_b, lambda_, names, always=True)

    def model_subspace_backward_and_update(self, loss: Tensor, names: Names = None) -> None:
        """Step along the part of the gradient that the rows of ``self.U`` ``[k, n]`` span.

        SubPT (Ma et al. 2023): U' U g, g all gradients end to end, ``[n]``. Its authors ship their
        own Dassl.
        """
        self.model_zero_grad(names)
        self.model_backward(loss)
        params = [p for name in self.get_model_names(names)
                  for p in self._models[name].parameters() if p.grad is not None]
        line = torch.cat([p.grad.flatten() for p in params if p.grad is not None])
        basis: Tensor = self.U.to(line)
        rows = (basis.t() @ (basis @ line)).split([p.numel() for p in params])
        for p, row in zip(params, rows, strict=True):
            p.grad = row.view_as(p)
        self.model_update(names)

    def _project(
        self, loss_a: Tensor, loss_b: Tensor, share: float, names: Names, *, always: bool
    ) -> None:
        params = [p for name in self.get_model_names(names)
                  for p in self._models[name].parameters() if p.requires_grad]
        grads = torch.autograd.grad(loss_b, params, retain_graph=True, allow_unused=True)
        self.model_zero_grad(names)
        self.model_backward(loss_a)
        for p, b in zip(params, grads, strict=True):
            if p.grad is None or b is None or not bool(b.norm() > 0):
                continue
            unit = b / b.norm()
            along = (p.grad * unit).sum()
            if always or bool(along < 0):
                p.grad = p.grad - share * along * unit
        self.model_update(names)

    def save_model(
        self, epoch: int, directory: str, is_best: bool = False, val_result: Any = None,
        model_name: str = "",
    ) -> None:
        """Write every registered model as Dassl does."""
        for name, model in self._models.items():
            state = {"state_dict": model.state_dict(), "epoch": epoch + 1, "optimizer": None,
                     "scheduler": None, "val_result": val_result}
            save_checkpoint(state, f"{directory}/{name}", is_best=is_best, model_name=model_name)

    def load_model(self, directory: str, epoch: int | None = None) -> None:
        """Load every registered model from Dassl's checkpoints."""
        if not directory:
            return
        file = "model-best.pth.tar" if epoch is None else f"model.pth.tar-{epoch}"
        for name, model in self._models.items():
            model.load_state_dict(load_checkpoint(f"{directory}/{name}/{file}")["state_dict"])

    def init_writer(self, log_dir: str) -> None:
        """Open nothing: ``SINKS`` is fedvlm's way to TensorBoard."""

    def close_writer(self) -> None:
        """Close nothing."""

    def write_scalar(self, tag: str, scalar_value: float, global_step: int | None = None) -> None:
        """Drop a number of the file's own; its losses are recorded."""

    def before_train(self) -> None:
        """Before a client's local epochs."""

    def after_train(self) -> None:
        """After a client's local epochs."""

    def before_epoch(self) -> None:
        """Before each local epoch."""

    def after_epoch(self) -> None:
        """After each local epoch."""

    def train(self, *args: Any, **more: Any) -> None:
        """Refuse: rounds are fedvlm's."""
        raise FedvlmError("a trainer's file calls train(), but fedvlm runs the rounds")

    run_epoch = test = train


class SimpleTrainer(TrainerBase):
    """One model, one loader: what ``TrainerX`` stands on."""

    model: Any

    def __init__(self, cfg: CfgNode) -> None:
        super().__init__()
        self.check_cfg(cfg)
        self.device = here().model.device
        self.start_epoch = self.epoch = 0
        self.max_epoch = int(cfg.OPTIM.MAX_EPOCH)
        self.output_dir = cfg.OUTPUT_DIR
        self.cfg = cfg
        self.batch_idx, self.num_batches = 0, 1
        self.best_result, self.evaluator = float("-inf"), None
        self.build_data_loader()
        self.build_model()

    def check_cfg(self, cfg: CfgNode) -> None:
        """Check the config; a file's own assertions stand here."""

    def build_data_loader(self) -> None:
        """Set what is known of the data: names of classes, never a client's images."""
        self.dm = DataManager(self.cfg)
        self.num_classes, self.lab2cname = self.dm.num_classes, self.dm.lab2cname
        self.num_source_domains = self.dm.num_source_domains
        self.train_loader_x, self.train_loader_u = self.dm.train_loader_x, self.dm.train_loader_u
        self.val_loader, self.test_loader = self.dm.val_loader, self.dm.test_loader

    def build_model(self) -> None:
        """Build and register the model: a file's own."""
        raise FedvlmError(f"{type(self).__name__} has no build_model")

    def model_inference(self, input: Tensor) -> Any:  # noqa: A002 (Dassl's name)
        """Return logits ``[B, C]``."""
        return self.model(input)

    def parse_batch_test(self, batch: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """Return (images, labels) on the run's device."""
        return batch["img"].to(self.device), batch["label"].to(self.device)


class TrainerX(SimpleTrainer):
    """A trainer with labelled data only: all of the CoOp family."""

    def forward_backward(self, batch: dict[str, Any]) -> dict[str, float]:
        """Learn from one batch: a file's own."""
        raise FedvlmError(f"{type(self).__name__} has no forward_backward")

    def parse_batch_train(self, batch: dict[str, Any]) -> tuple[Tensor, ...]:
        """Return (images, labels, domains) on the run's device."""
        keys = ("img", "label", "domain")
        return tuple(batch[k].to(self.device) for k in keys)


EVALUATOR_REGISTRY = Registry("EVALUATOR")


def build_evaluator(cfg: CfgNode, **more: Any) -> Any:
    """Return the registered evaluator that ``cfg.TEST.EVALUATOR`` means."""
    return EVALUATOR_REGISTRY.get(cfg.TEST.EVALUATOR)(cfg, **more)


def train_mode(model: nn.Module, train: bool) -> None:
    """Put a module into training mode, but for layers that would then write statistics."""
    model.train(train)
    for module in model.modules():
        if train and getattr(module, "running_mean", None) is not None:
            module.eval()
