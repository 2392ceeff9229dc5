"""One way in for every backbone: the loader that ``MODEL.LOADER`` names is imported, no other.

A module of this folder that sets ``LOADERS`` has a function ``load`` for those names; one that sets
``BACKBONES`` brings backbones of these names itself.
"""

from __future__ import annotations

from typing import Any

import torch

from fedvlm.core.plugins import Plugins
from fedvlm.models.backbone import Backbone

USUAL, TEXTS = "open_clip", "transformers-text"
SHORT = ("timm", "torchvision", TEXTS)  # ``timm:resnet18`` is this loader and that name
LIBRARIES = Plugins("fedvlm.models.load", "LOADERS", "loader", (USUAL, "transformers"))
EMBEDDED = Plugins("fedvlm.models.load", "BACKBONES", "backbone")


def load_backbone(
    name: str,
    weights: str = "",
    *,
    loader: str = USUAL,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    allow_random: bool = False,
    seed: int = 0,
    plain: bool = False,
    length: int = 0,
) -> Backbone:
    """Load a frozen backbone.

    Args:
        name: CoOp's name (``ViT-B/16``), an open_clip name, ``tiny``, ``local-dir:<folder>``, or
            ``hf-hub:<owner>/<model>`` in the local cache;
            with ``loader="transformers"`` a Hugging Face name or folder.
        weights: tag, file (.safetensors, .pt state dict, OpenAI's TorchScript archive) or
            ``local-dir:<folder>``; empty: the ``openai`` tag where the build has one.
        loader: ``open_clip`` or ``transformers``; ``timm``, ``torchvision`` or
            ``transformers-vit`` for an image tower without text tower; ``transformers-text`` for
            an encoder of samples that are texts; ``timm:NAME``, ``torchvision:NAME`` and
            ``transformers-text:NAME`` say it too.
        dtype: float32, bfloat16 (linear layers only) or float64.
        device: torch device.
        allow_random: with no weights named, initialise at random from ``seed`` (bench, tests).
        seed: of the random weights; the global generators are left alone.
        plain: keep open_clip's own layers in the image tower (see ``Backbone``).
        length: tokens of a text, where the tower reads samples that are texts; 0: its default.

    Raises:
        ConfigError: unknown name, tag or loader; weights that do not fit the build.
        DataError: weights that cannot be read or downloaded.
    """
    library, _, rest = name.partition(":")
    if loader == USUAL and library in SHORT and rest:
        loader, name = library, rest
    embedded = loader == USUAL and name in EMBEDDED.names()
    module: Any = EMBEDDED.load(name) if embedded else LIBRARIES.load(loader)
    backbone: Backbone = module.load(
        name, weights, loader=loader, random=allow_random, seed=seed, dtype=dtype, device=device,
        plain=plain, **({"length": length} if length and loader == TEXTS else {}),
    )
    return backbone
