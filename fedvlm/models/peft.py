"""The trainable set as the user's choice: ``PEFT.TEXT``, ``PEFT.VISUAL``, ``PEFT.HEAD``.

Every tensor has a role by its name: ``body`` (image side) or ``head`` (text side or classifier).
All functions work on trees with a leading client axis ``[K, ...]``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fedvlm.errors import ConfigError
from fedvlm.models.prompts import INIT_STD

Tree = dict[str, Tensor]
BODY, HEAD = "body", "head"
TEXT, VISUAL, HEADS = ("none", "prompt"), ("none", "feature"), ("text", "linear")


@dataclass(frozen=True)
class PeftSpec:
    """What is trained.

    Attributes:
        text: ``prompt`` (a CoOp context) or ``none``.
        visual: ``feature`` (a residual bottleneck on the image feature) or ``none``.
        head: ``text`` (text features classify; unseen classes stay defined) or ``linear``
            (rows of weights, started at the template's text features).
        n_ctx: context tokens.
        width: hidden width of the feature adapter.
    """

    text: str = "prompt"
    visual: str = "none"
    head: str = "text"
    n_ctx: int = 16
    width: int = 32

    @classmethod
    def of(cls, cfg: Any) -> PeftSpec:
        """Read the ``PEFT`` node of a config.

        Raises:
            ConfigError: nothing would be trained, or a prompt beside a linear head.
        """
        node = cfg.PEFT
        spec = cls(node.TEXT, node.VISUAL, node.HEAD, int(node.N_CTX), int(node.WIDTH))
        if (spec.text, spec.visual, spec.head) == ("none", "none", "text"):
            raise ConfigError("PEFT trains nothing: set PEFT.TEXT, PEFT.VISUAL or PEFT.HEAD linear")
        if spec.text == "prompt" and spec.head == "linear":
            raise ConfigError("PEFT.HEAD linear has no text side: set PEFT.TEXT none")
        return spec


def role(name: str) -> str:
    """Return ``body`` for ``image.*`` and ``head`` for ``text.*`` and ``head.*``."""
    return BODY if name.startswith("image.") else HEAD


def build(spec: PeftSpec, model: Any, generator: torch.Generator) -> Tree:
    """Return the initial trainable tensors, without client axis.

    ``text.ctx [n_ctx, text_width]`` ~ N(0, 0.02^2) (CoOp); ``image.adapter.down [width, d]``
    uniform in +-1/sqrt(d) and ``image.adapter.up [d, width]`` zero, so that the start is the frozen
    feature; ``head.weight [C, d]`` the template's text features.
    """
    tree: Tree = {}
    if spec.text == "prompt":
        shape = (spec.n_ctx, model.text_width)
        tree["text.ctx"] = torch.randn(shape, generator=generator) * INIT_STD
    if spec.visual == "feature":
        d = model.embed_dim
        down = torch.rand(spec.width, d, generator=generator) * 2 - 1
        tree["image.adapter.down"] = down * d**-0.5
        tree["image.adapter.up"] = torch.zeros(d, spec.width)
    if spec.head == "linear":
        tree["head.weight"] = model.anchor("template", 0).detach().clone().cpu()
    return tree


def text_features(spec: PeftSpec, model: Any, p: Tree) -> Tensor:
    """Return the classifier ``[K, C, d]``, normalised."""
    if spec.head == "linear":
        rows = p["head.weight"]
        return F.normalize(rows, dim=-1)
    if spec.text == "prompt":
        features: Tensor = model.text(p["text.ctx"])
        return features
    k = next(iter(p.values())).shape[0]
    anchor: Tensor = model.anchor("template", 0)
    return anchor.expand(k, *anchor.shape)


def image_features(spec: PeftSpec, model: Any, p: Tree, x: Mapping[str, Tensor]) -> Tensor:
    """Return image features ``[K, B, d]``, not normalised."""
    z: Tensor = model.image(x)
    if spec.visual == "feature":
        hidden = F.gelu(z @ p["image.adapter.down"].mT)
        z = z + hidden @ p["image.adapter.up"].mT
    return z
