"""What no recipe holds: a method's own prediction, traced as one graph, for ``onnx`` alone.

Any torch module of a ``ModuleTrainer``, and any method whose tensors ``recipe`` does not know by
name. The prediction runs once on images of noise over towers with open_clip's own layers, and what
it computed on the way from pixels to logits is the graph; what does not depend on the image (class
features) is a constant in it. So the graph belongs to this model and its classes.
"""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from fedvlm.export.recipe import (
    ExportRecipe,
    Unheld,
    class_names_of,
    noise_images,
    prediction_of,
    sets_card,
    transform_of,
    wanted_of,
)
from fedvlm.export.towers import plain_clip, plain_visual
from fedvlm.export.trained import TrainedModel
from fedvlm.models.load.vit import VisionOnly
from fedvlm.models.vlmodel import VLModel

STEP = "traced"
AT_ONCE = 1 << 30  # images per pass: a loop over parts of a batch would fix its size in the graph


class Deaf(Counter[str]):
    """A counter that stays at zero."""

    def __setitem__(self, name: str, value: int) -> None:
        """Pass over a count."""


class Whole(TorchFunctionMode):
    """Leaves a batch whole where it would be cut into ``AT_ONCE``: a cut fixes its size.

    Attention gets the four axes that ONNX knows, where clients stand before the images.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Call ``func``, with fewer axes, or return the batch."""
        if func is torch.Tensor.split and args[1] == AT_ONCE:
            return (args[0],)
        if func is F.scaled_dot_product_attention and args[0].dim() > 4:
            out = func(*(t.flatten(0, -4) for t in args), **(kwargs or {}))
            return out.unflatten(0, args[0].shape[:-3])
        return func(*args, **(kwargs or {}))


class Prediction(nn.Module):
    """``pixels [n, 3, S, S] -> logits [n, C]``, as the trainer's predictor gives them.

    Args:
        trained: the model.
        plain: the same over plain towers (``plain_model``).
    """

    def __init__(self, trained: TrainedModel, plain: VLModel) -> None:
        super().__init__()
        self.towers = nn.ModuleList([plain.backbone.model.visual])
        with torch.no_grad():
            self._predict = prediction_of(trained, plain)
            side = plain.backbone.image_size
            self(torch.zeros(2, 3, side, side))  # builds what is built once, outside of the graph

    def forward(self, pixels: Tensor) -> Tensor:
        """Return logits ``[n, C]``."""
        with Whole():
            out: Tensor = self._predict({"pixels": pixels[None]})[0]
        return out


@dataclass(frozen=True)
class Traced(ExportRecipe):
    """A recipe that is a graph and nothing else."""

    of: TrainedModel | None = None

    def module(self, model: VLModel) -> nn.Module:
        """Return the method's own prediction over plain towers."""
        assert self.of is not None  # noqa: S101 (``trace`` gives it)
        return Prediction(self.of, plain_model(model)).eval()


def trace(trained: TrainedModel, why: Unheld) -> Traced:
    """Return what ``onnx`` writes for a model that no recipe holds.

    Args:
        trained: the model.
        why: what ``build_recipe`` said of it.

    Raises:
        ConfigError: towers in bfloat16.
    """
    pixels = noise_images(trained.model)
    card = {
        "format": "fedvlm 1", "method": why.who, "classnames": class_names_of(trained),
        "adapted": [], "steps": [(STEP, "")], "transform": transform_of(trained.model),
        **sets_card(trained),
    }
    return Traced(card, {}, {}, 0.0, pixels, wanted_of(trained, pixels), of=trained)


def plain_model(model: VLModel) -> VLModel:
    """Return a model over open_clip's own layers in float32 on the CPU; a copy, to be traced."""
    backbone = model.backbone
    clip = copy.deepcopy(plain_clip(model)) if model.has_text else VisionOnly(plain_visual(model))
    plain = type(backbone)(
        clip, backbone.tokenizer, name=backbone.name, weights=backbone.weights, arch=backbone.arch,
        spec=backbone.transform_spec, plain=True,
    )
    plain.logit_scale = backbone.logit_scale  # an image tower alone may be part of a CLIP
    whole = VLModel(
        plain, model.classnames, templates=model.templates, packed=model.packed,
        image_chunk=AT_ONCE, sets=model.sets,
    )
    whole.counters = Deaf()  # a count of images that are not a number yet would enter the graph
    return whole
