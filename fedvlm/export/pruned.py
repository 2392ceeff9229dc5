"""A pruned model as what it is: units that add nothing are taken out of its tensors.

A unit is a component of a LoRA, a hidden channel of an adapter, or a hidden channel of a network
(``models.adapt.channels``). It is taken out where all that it writes and reads is zero, which
training alone never makes it: predictions stay the same to rounding. A group norm between the two
layers of a channel goes on counting it as zero (``channels.KeptGroupNorm``).
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from fedvlm.core.errors import FedvlmError
from fedvlm.core.trees import Tree, numel
from fedvlm.export.recipe import TOLERANCE, difference, noise_images, wanted_of
from fedvlm.export.trained import TrainedModel
from fedvlm.federation.module_trainer import FrozenModule
from fedvlm.federation.toolbox.networks import OverNetwork
from fedvlm.federation.trainer import Trainer
from fedvlm.models.adapt.channels import Held, UnitAxis, without_channels
from fedvlm.models.vlmodel import VLModel

RUNS = 15  # forwards of which the median is taken
ENDINGS = {  # of a tensor's name -> where its units lie
    ".A": UnitAxis(2, 0), ".B": UnitAxis(2, 1), ".down": UnitAxis(2, 0), ".up": UnitAxis(2, 1),
    ".down.weight": UnitAxis(2, 0), ".down.bias": UnitAxis(1, 0), ".up.weight": UnitAxis(2, 1),
}


@dataclass(frozen=True)
class Cost:
    """What a model costs: numbers, floating-point operations and milliseconds of one image."""

    numbers: int
    flops: int
    ms: float


def without_pruned(trained: TrainedModel) -> TrainedModel:
    """Return the model without units that add nothing, with a note of what that saves.

    The same object where there are none.

    Raises:
        FedvlmError: the smaller model predicts otherwise.
    """
    held = _held(trained)
    masks = _alive(trained.params, held)
    if all(bool(m.all()) for m in masks.values()):
        return trained
    params, norms = dict(trained.params), dict[str, Tensor]()
    for name in params:
        for site, axis in held.get(name, ()):
            at = axis.along(masks[site].nonzero().flatten()).to(params[name].device)
            params[name] = params[name].index_select(axis.axis, at).contiguous()
            if isinstance(trained.trainer, OverNetwork) and trained.trainer.is_norm(name):
                norms[name.rpartition(".")[0]] = at
    slim = replace(trained, params=params, trainer=_with_norms(trained, norms))
    noise = noise_images(trained.model)
    gap = difference(wanted_of(slim, noise), wanted_of(trained, noise))
    if not gap <= TOLERANCE:
        raise FedvlmError(
            f"{trained.trainer.name}: the model without its pruned units predicts otherwise "
            f"(difference {gap:.1e}, allowed {TOLERANCE:.0e}); nothing was written"
        )
    before, after = costs(trained, slim)
    left = sum(int(m.sum()) for m in masks.values())
    note = (
        f"Pruned: {left} of {sum(map(len, masks.values()))} units are left. Before and after: "
        f"{before.numbers:,} and {after.numbers:,} numbers, {before.flops / 1e6:.2f} and "
        f"{after.flops / 1e6:.2f} million floating-point operations an image, {before.ms:.2f} and "
        f"{after.ms:.2f} ms (one image at a time, on the exporting machine)"
    )
    return replace(slim, facts=replace(slim.facts, notes=(*slim.facts.notes, note)))


def costs(*models: TrainedModel) -> list[Cost]:
    """Return what one image costs each model, its text pass aside; forwards are timed in turn."""
    forwards, flops = list[Callable[[], Tensor]](), list[int]()
    times: list[list[float]] = [[] for _ in models]
    with torch.no_grad():
        for trained in models:
            model, side = trained.model, trained.model.backbone.image_size
            image = torch.zeros(1, 1, 3, side, side, device=model.device, dtype=model.dtype)
            predict = trained.trainer.predictor(model, trained.placed(model))
            forwards.append(partial(predict, {"pixels": image}))
            with FlopCounterMode(display=False) as counter:
                forwards[-1]()
            flops.append(counter.get_total_flops())
        for _ in range(RUNS):
            for forward, seen in zip(forwards, times, strict=True):
                began = time.perf_counter()
                forward().sum().item()
                seen.append(time.perf_counter() - began)
    return [Cost(numel(t.params), f, 1e3 * statistics.median(s))
            for t, f, s in zip(models, flops, times, strict=True)]


def _with_norms(trained: TrainedModel, kept: Mapping[str, Tensor]) -> Trainer:
    """Return the trainer, whose network's norms take the channels that are ``kept``."""
    trainer = trained.trainer
    if not kept or not isinstance(trainer, OverNetwork):
        return trainer

    def make(model: VLModel) -> FrozenModule:
        part = trainer._part(model)
        return FrozenModule.of(without_channels(part.module, kept), part.names)

    slim = copy.copy(trainer)
    vars(slim)["_make"] = make  # it builds its module, once for each model
    return slim


def _held(trained: TrainedModel) -> Mapping[str, Held]:
    """Return the sites of each tensor, and where their units lie in it."""
    if isinstance(trained.trainer, OverNetwork):
        return trained.trainer.hidden_channels(trained.model)
    out: dict[str, Held] = {}
    for name in trained.params:
        ending = max((e for e in ENDINGS if name.endswith(e)), key=len, default="")
        if ending and (".lora." in name or ".adapter" in name):
            out[name] = ((name.removesuffix(ending), ENDINGS[ending]),)
    sites = [site for ((site, _),) in out.values()]
    return {n: held for n, held in out.items() if sites.count(held[0][0]) > 1}


def _alive(params: Tree, held: Mapping[str, Held]) -> dict[str, Tensor]:
    """Return which units of each site add something, ``[U]`` bool; at least one stays."""
    masks: dict[str, Tensor] = {}
    for name, value in params.items():
        for site, axis in held.get(name, ()):
            rows = value.detach().movedim(axis.axis, 0).flatten(1) if value.dim() > 1 else (
                value.detach()[:, None])
            used = (rows != 0).any(1).unflatten(0, (-1, axis.each)).any(1).cpu()
            masks[site] = masks[site] | used if site in masks else used
    for mask in masks.values():
        mask[0] |= not mask.any()
    return masks
