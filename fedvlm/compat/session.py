"""A foreign trainer at work for one client: tensors lent to its parameters, the run's own steps.

The file's object is built once per class list and serves all clients. What it keeps on itself while
a client trains (counters, averages, a teacher) is put back before the next one: attributes that are
numbers, arrays, tensors or containers of those, bindings of all others, and tensors of its own
modules that are not trained. The towers' tensors are shared and may not be written.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedvlm.compat.data import Length
from fedvlm.compat.engine import SimpleTrainer, TrainerBase, train_mode
from fedvlm.compat.optimiser import RunOptimizer, adopt
from fedvlm.compat.towers import tower_tensors
from fedvlm.compat.world import FileEnvironment, active
from fedvlm.core import rng
from fedvlm.core.errors import ConfigError, FedvlmError
from fedvlm.core.trees import State, Tree
from fedvlm.federation.optim import Optimiser

FOREIGN = ("torch", "fedvlm", "open_clip", "timm", "transformers", "peft")  # others' modules
FIXED = (bool, int, float, complex, str, bytes, type(None))
PLAIN = (*FIXED, np.ndarray, np.generic)


class Container(nn.Module):
    """All modules that a foreign trainer holds; its registered models come first and give names."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self._modules.update(inner._models)
        taken = {id(m) for m in self._modules.values()}
        for name, module in vars(inner).items():
            if isinstance(module, nn.Module) and id(module) not in taken:
                self._modules[name if name not in self._modules else f"{name}_"] = module


@dataclass
class Learned:
    """What one ``forward_backward`` did to one client.

    Attributes:
        value: its loss, 0-d.
        parts: its other losses by name.
        grads: what its optimisers stepped with, summed over their steps.
        params: all trained tensors behind it.
        state: of the rule.
        steps: of the optimiser since the client began.
    """

    value: Tensor
    parts: Tree
    grads: Tree
    params: Tree
    state: State
    steps: int


@dataclass
class ClientStep:
    """How a client steps: None as ``rule`` records the gradients and changes nothing."""

    rule: Optimiser | None = None
    state: State = field(default_factory=dict)
    rate: float = 0.0
    count: int = 0
    grads: Tree = field(default_factory=dict)


@dataclass
class BatchPosition:
    """Where in a client's local epochs a batch stands, all from 0."""

    epoch: int = 0
    batch: int = 0
    batches: int = 2  # not the last one: nothing that belongs to the end of an epoch happens
    epochs: int = 1

    @property
    def ends_epoch(self) -> bool:
        """Whether it is the last batch of its epoch."""
        return self.batch + 1 == self.batches


class SeenLogits:
    """The evaluator of a file's own ``test``: it keeps the logits."""

    def __init__(self) -> None:
        self.rows: list[Tensor] = []

    def reset(self) -> None:
        """Forget them."""
        self.rows = []

    def process(self, output: Tensor, label: Tensor) -> None:
        """Take the logits of a batch."""
        self.rows.append(output)

    def evaluate(self) -> dict[str, float]:
        """Return no number of use: fedvlm measures."""
        return {"accuracy": 0.0}


class Session:
    """One foreign trainer, built on one class list.

    Args:
        inner: the file's object.
        world: that it was built in.

    Raises:
        ConfigError: it trains nothing, or tensors that cannot be trained.
    """

    def __init__(self, inner: Any, world: FileEnvironment) -> None:
        self.inner, self.world = inner, world
        kind = type(inner)
        self.tests_itself = (kind.test is not TrainerBase.test
                             and kind.model_inference is SimpleTrainer.model_inference)
        self.optimisers = self._adopt()
        self.container = Container(inner)
        self.built = [(m, m.training) for m in self.container.modules()]
        held = {id(p) for o in self.optimisers for g in o.param_groups for p in g["params"]}
        for p in self.container.parameters():
            p.requires_grad_(p.requires_grad and id(p) in held)
        self.params = {n: p for n, p in self.container.named_parameters() if p.requires_grad}
        self.name_of = {id(p): n for n, p in self.params.items()}
        who = type(inner).__name__
        if not self.params:
            raise ConfigError(
                f"{who}: its optimisers have no parameter that requires a gradient; only "
                "parameters given to build_optimizer are trained (for zero-shot: --trainer "
                "ZeroShot)"
            )
        shared = tower_tensors(world.model.backbone)
        self.trains_towers = any(id(p) in shared for p in self.params.values())
        self._keep_frozen(shared | (world.towers - {id(p) for p in self.params.values()}))
        self.pristine = [(o, *_snapshot(o)) for o in self._objects()]

    def _adopt(self) -> list[RunOptimizer]:
        """Return the optimisers; torch's own are replaced by the run's wherever they are kept."""
        inner, by_id = self.inner, dict[int, RunOptimizer]()
        for place in (vars(inner), inner._optims):
            for name, value in list(place.items()):
                if isinstance(value, torch.optim.Optimizer):
                    place[name] = by_id.setdefault(id(value), adopt(value))
        return list(by_id.values())

    # ---- what must be as it was ---------------------------------------------------------------
    def _keep_frozen(self, shared: set[int]) -> None:
        """Copy what the file may write, and guard what it may not."""
        own = dict(self.container.named_parameters()) | dict(self.container.named_buffers())
        loose = {n: v for n, v in own.items() if id(v) not in shared and n not in self.params}
        self.kept = {n: (v, v.detach().clone(), v._version) for n, v in loose.items()}
        self.guarded = [(n, v) for n, v in own.items() if id(v) in shared]
        self.versions = {id(v): v._version for _, v in self.guarded}
        for module in self.container.modules():
            mine = {n: v for n, v in module._parameters.items() if id(v) in shared}
            if mine:
                module.register_load_state_dict_pre_hook(self._skip(mine))

    def _skip(self, mine: Mapping[str, Any]) -> Callable[..., None]:
        """Return a hook: a state dict loads its own tensors into the towers, not rounded ones."""
        def hook(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
            for name, value in mine.items():
                if prefix + name in state and not value.requires_grad:
                    state[prefix + name] = value
                    self.versions[id(value)] = value._version + 1

        return hook

    def _objects(self) -> list[Any]:
        modules = [m for m in self.container.modules()
                   if type(m).__module__.partition(".")[0] not in FOREIGN]
        return [self.inner, *modules]

    def restore(self) -> None:
        """Put everything that the file keeps on itself back to how it was built.

        Raises:
            FedvlmError: it wrote into the towers.
        """
        for owner, attributes, data in self.pristine:
            hidden = {n: v for n, v in vars(owner).items() if n in _INSIDE}
            vars(owner).clear()
            vars(owner).update(hidden | attributes | {
                n: copy.deepcopy(attributes[n]) for n in data})
        with torch.no_grad():
            for name, (live, backup, version) in self.kept.items():
                if live._version != version:
                    live.copy_(backup)
                    self.kept[name] = (live, backup, live._version)
        for name, value in self.guarded:
            if value._version != self.versions[id(value)] and id(value) not in self.name_of:
                raise FedvlmError(
                    f"{type(self.inner).__name__} modifies '{name}' of the frozen towers, which "
                    "would affect every other client"
                )

    # ---- running it ---------------------------------------------------------------------------
    @contextmanager
    def lent(self, params: Mapping[str, Tensor], train: bool) -> Iterator[None]:
        """Put a client's tensors into the file's parameters for a while."""
        before = {n: self.params[n].data for n in params}
        modes = [(m, m.training) for m in self.container.modules()] if train else []
        try:
            for name, value in params.items():
                self.params[name].data = value.detach().clone()
                self.params[name].requires_grad_(True)
            if train:  # as Dassl: what the file built, and registered models in training mode
                for module, mode in self.built:
                    module.training = mode and getattr(module, "running_mean", None) is None
                for model in self.inner._models.values():
                    train_mode(model, True)
            with active(self.world):
                yield
        finally:
            for name, data in before.items():
                p = self.params[name]
                p.data, p.grad = data, None
                p.requires_grad_(False)
            for module, mode in modes:
                module.training = mode

    def predict(self, params: Mapping[str, Tensor], image: Tensor) -> Tensor:
        """Return logits ``[B, C]`` of one client's model."""
        label = torch.zeros(len(image), dtype=torch.long, device=image.device)
        batch = {"img": image, "label": label, "domain": torch.zeros_like(label)}
        with self.lent(params, train=False):
            if self.tests_itself:
                out = self._tested(batch)
            else:
                out = self.inner.model_inference(self.inner.parse_batch_test(batch)[0])
        logits = out[0] if isinstance(out, (tuple, list)) else out
        classes = len(self.world.model.classnames)
        if tuple(logits.shape) != (len(image), classes):
            own = " (it has a test() of its own)" if "test" in vars(type(self.inner)) else ""
            raise ConfigError(
                f"{type(self.inner).__name__}.model_inference returns {list(logits.shape)}, not "
                f"logits [{len(image)}, {classes}]{own}: give the class a model_inference that "
                "returns the logits of a batch"
            )
        return logits

    def _tested(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Return what the file's own ``test`` hands to its evaluator for one batch."""
        inner, seen = self.inner, SeenLogits()
        before = vars(inner).copy()
        inner.evaluator, inner.test_loader, inner.val_loader = seen, [dict(batch)], None
        try:
            inner.test()
        finally:
            vars(inner).update({n: before[n] for n in ("evaluator", "test_loader", "val_loader")})
        return torch.cat(seen.rows) if seen.rows else torch.empty(0, 0)

    def learn(
        self, params: Mapping[str, Tensor], batch: Mapping[str, Any], step: ClientStep,
        place: BatchPosition, seed: int,
    ) -> Learned:
        """Run ``forward_backward`` on one client's batch.

        Args:
            params: one client's tensors, no client axis.
            batch: ``img`` ``[B, ...]`` (a list of views with ``DATALOADER.K_TRANSFORMS``),
                ``label`` ``[B]``, ``domain`` ``[B]``.
            seed: of whatever it draws.

        Raises:
            FedvlmError: no loss comes back, or no optimiser was stepped.
        """
        inner, who = self.inner, type(self.inner).__name__
        inner.epoch, inner.max_epoch = place.epoch, place.epochs
        inner.batch_idx, inner.num_batches = place.batch, place.batches
        loader = getattr(inner, "train_loader_x", None)
        if isinstance(loader, Length):
            loader.length = place.batches
        for optimiser in self.optimisers:
            optimiser.on_step = lambda o: self._step(o, step)
            for group, factor in zip(optimiser.param_groups, optimiser.factors, strict=True):
                group["lr"] = step.rate * factor
        began = step.count
        device = self.world.model.device
        try:
            with (rng.fork_generators(seed, device), self.lent(params, train=True),
                  torch.enable_grad()):
                if place.batch == 0 and step.rule is not None:
                    if place.epoch == 0:
                        inner.before_train()
                    inner.before_epoch()
                summary = inner.forward_backward(dict(batch))
                if place.ends_epoch and step.rule is not None:
                    inner.after_epoch()
                    if place.epoch + 1 == place.epochs:
                        inner.after_train()
                after = {n: self.params[n].detach().clone() for n in params}
        finally:
            for optimiser in self.optimisers:
                optimiser.on_step = None
        if step.count == began:
            raise FedvlmError(
                f"{who}.forward_backward does not step its optimiser: nothing is learnt"
            )
        losses = {n: float(v) for n, v in (summary or {}).items() if "loss" in n}
        if not losses:
            raise FedvlmError(f"{who}.forward_backward returns no loss ({summary})")
        first = "loss" if "loss" in losses else next(iter(losses))
        dtype = self.world.model.dtype
        value, *rest = (torch.tensor(v, dtype=dtype, device=device)
                        for v in (losses.pop(first), *losses.values()))
        return Learned(
            value, dict(zip(losses, rest, strict=True)), step.grads, after, step.state, step.count
        )

    def _step(self, optimiser: RunOptimizer, step: ClientStep) -> None:
        """Step one optimiser's tensors by the rule, in place."""
        step.count += 1
        for group in optimiser.param_groups:
            pairs = [(self.name_of[id(p)], p) for p in group["params"]
                     if id(p) in self.name_of and p.grad is not None]
            grads = {n: p.grad.detach() for n, p in pairs}
            for name, grad in grads.items():
                step.grads[name] = step.grads[name] + grad if name in step.grads else grad.clone()
            if step.rule is None or not grads:
                continue
            with torch.no_grad():
                new, step.state = step.rule.step(
                    {n: p.detach()[None] for n, p in pairs},
                    {n: g[None] for n, g in grads.items()}, step.state, float(group["lr"]),
                    step.count,
                )
                for name, p in pairs:
                    p.copy_(new[name][0])


_INSIDE = ("_parameters", "_buffers", "_modules", "training")


def _snapshot(owner: Any) -> tuple[dict[str, Any], list[str]]:
    """Return the attributes of an object, and which of them are data that can change: copies."""
    hidden = _INSIDE if isinstance(owner, nn.Module) else ()
    attributes = {n: v for n, v in vars(owner).items() if n not in hidden}
    data = [n for n, v in attributes.items() if type(v) not in FIXED and _plain(v)]
    return attributes | {n: copy.deepcopy(attributes[n]) for n in data}, data


def _plain(value: Any) -> bool:
    """Tell whether a value is data through and through: what a copy of keeps nothing alive."""
    if isinstance(value, Tensor):
        return not isinstance(value, nn.Parameter) and value.grad_fn is None
    if isinstance(value, Mapping):
        config = hasattr(value, "freeze")
        return not config and all(_plain(k) and _plain(v) for k, v in value.items())
    if isinstance(value, (list, tuple, set, frozenset, deque)):
        return all(map(_plain, value))
    return isinstance(value, PLAIN)


def padded_out(rows: Tensor, weight: Tensor) -> Tensor:
    """Return the rows of a batch that are samples: what a file's own mean may see."""
    return rows if bool((weight > 0).all()) else rows[weight > 0]
