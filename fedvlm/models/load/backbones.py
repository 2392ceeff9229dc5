"""One way in for every backbone: ``load_backbone`` knows which reader takes a name."""

from __future__ import annotations

from typing import Any

import torch

from fedvlm.core.errors import ConfigError, did_you_mean
from fedvlm.models.backbone import Backbone
from fedvlm.models.load.hf_clip import load_hf
from fedvlm.models.load.names import TINY
from fedvlm.models.load.openclip import load
from fedvlm.models.load.tiny import load_tiny
from fedvlm.models.load.vit import load_vit

LOADERS = ("open_clip", "transformers", "timm", "transformers-vit")


def load_backbone(
    name: str,
    weights: str = "",
    *,
    loader: str = "open_clip",
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    allow_random: bool = False,
    seed: int = 0,
    plain: bool = False,
) -> Backbone:
    """Load a frozen backbone.

    Args:
        name: CoOp's name (``ViT-B/16``), an open_clip name, ``tiny``, or ``local-dir:<folder>``;
            with ``loader="transformers"`` a Hugging Face name or folder.
        weights: tag, file (.safetensors, .pt state dict, OpenAI's TorchScript archive) or
            ``local-dir:<folder>``; empty: the ``openai`` tag where the build has one.
        loader: ``open_clip`` or ``transformers``; ``timm`` or ``transformers-vit`` for a
            supervised ViT without text tower (``vit``).
        dtype: float32, bfloat16 (linear layers only) or float64.
        device: torch device.
        allow_random: with no weights named, initialise at random from ``seed`` (bench, tests).
        seed: of the random weights; the global generators are left alone.
        plain: keep open_clip's own layers in the image tower (see ``Backbone``).

    Raises:
        ConfigError: unknown name, tag or loader; weights that do not fit the build.
        DataError: weights that cannot be read or downloaded.
    """
    place: dict[str, Any] = {"dtype": dtype, "device": device, "plain": plain}
    if loader == "open_clip" and name == TINY:
        return load_tiny(weights, **place)
    if loader == "open_clip":
        return load(name, weights, random=allow_random, seed=seed, **place)
    if loader == "transformers":
        return load_hf(name, weights, **place)
    if loader in LOADERS:
        return load_vit(name, weights, loader=loader, random=allow_random, seed=seed, **place)
    raise ConfigError(
        f"unknown loader '{loader}'{did_you_mean(loader, LOADERS)} (known: {', '.join(LOADERS)})"
    )
