"""torchvision's classifiers as image towers without a text tower: ResNet, ConvNeXt, Swin, ...

What stands before a model's last linear layer is the feature. Nothing is downloaded.
"""

from __future__ import annotations

import re
from typing import Any

from torch import nn

from fedvlm.core.errors import ConfigError, DataError, did_you_mean
from fedvlm.core.files import user_path
from fedvlm.core.transform import TransformSpec
from fedvlm.models.load.vit import VisionOnly, ViTBackbone
from fedvlm.models.load.weights import private_rng, read_state_dict

LOADERS = ("torchvision",)
_OLD = re.compile(r"(denselayer\d+\.(?:norm|relu|conv))\.(?=[12]\.)")
MEAN, STD, SIDE = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225), 224  # of ImageNet's recipes


def load(
    name: str, weights: str = "", *, loader: str, random: bool = False, seed: int = 0,
    **place: Any,
) -> ViTBackbone:
    """Load a classifier of torchvision without its last layer; see ``backbones.load_backbone``.

    Args:
        name: torchvision's (``resnet18``, ``swin_t``).
        weights: a file with a state dict (.pth, .safetensors), as torchvision's own are.
        random: only where no file is named.
        place: arguments of ``Backbone``: dtype, device, plain.

    Raises:
        ConfigError: unknown name, a model without linear layer at its end, or no weights named.
        DataError: weights that cannot be read or do not fit.
    """
    from torchvision import models  # start-up: 1 s

    known = models.list_models(module=models)
    if name not in known:
        hint = did_you_mean(name, known)
        raise ConfigError(f"torchvision has no classifier '{name}'{hint}")
    if not weights and not random:
        raise ConfigError(
            f"torchvision's '{name}' needs weights: --weights FILE (its state dict, .pth or "
            ".safetensors), or MODEL.BACKBONE.PRETRAINED False for random ones"
        )
    with private_rng(seed):
        model: nn.Module = models.get_model(name, weights=None)
    if weights:
        path = user_path(weights)
        try:
            # DenseNet's published files have older names
            model.load_state_dict({_OLD.sub(r"\1", n): v for n, v in read_state_dict(path).items()})
        except RuntimeError as error:
            reason = " ".join(str(error).split())[:160]
            raise DataError(f"'{path}' does not fit torchvision's '{name}': {reason}") from error
    width = _without_classifier(model.eval(), name)
    arch = {"torchvision": name, "width": width, "image_size": SIDE}
    return ViTBackbone(
        VisionOnly(model), name=name, arch=arch, weights=weights or "random",
        spec=TransformSpec(SIDE, MEAN, STD, "bilinear"), **place,
    )


def empty_classifier(name: str) -> nn.Module:
    """Return the image tower of a name, with random weights."""
    from torchvision import models  # start-up: 1 s

    model: nn.Module = models.get_model(name, weights=None)
    _without_classifier(model, name)
    return model


def _without_classifier(model: nn.Module, name: str) -> int:
    """Take the last linear layer away, in place; return how wide a feature then is."""
    layers = [(n, m) for n, m in model.named_modules() if isinstance(m, nn.Linear)]
    if not layers:
        raise ConfigError(f"torchvision's '{name}' has no linear layer at its end")
    place, layer = layers[-1]
    owner, _, leaf = place.rpartition(".")
    setattr(model.get_submodule(owner), leaf, nn.Identity())
    return layer.in_features
