"""A ViT-CLIP as plain modules, equal bit for bit to open_clip's on the same weights.

For the embedded ``tiny``: importing open_clip brings timm, torchvision and transformers along,
three seconds of CPU. All other backbones are open_clip's own modules.

Source: Radford et al. 2021 (CLIP), Dosovitskiy et al. 2021 (ViT). Tensors carry OpenAI's names, so
that one state dict fills either model; attributes that ``Backbone`` and ``VisionTower`` read carry
open_clip's.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor, nn

from fedvlm.core.errors import ConfigError

_MLP_RATIO = 4
_VISION = {"image_size", "patch_size", "width", "layers", "head_width"}
_TEXT = {"context_length", "vocab_size", "width", "heads", "layers"}


class ResidualBlock(nn.Module):
    """``x + attention(norm(x))``, then ``x + mlp(norm(x))``, with exact GELU."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = nn.MultiheadAttention(width, heads, batch_first=True)
        hidden = _MLP_RATIO * width
        layers = {"c_fc": nn.Linear(width, hidden), "gelu": nn.GELU(),
                  "c_proj": nn.Linear(hidden, width)}  # fmt: skip
        self.mlp = nn.Sequential(OrderedDict(layers))
        self.ls_1, self.ls_2 = nn.Identity(), nn.Identity()  # where others scale their branches

    def forward(self, x: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        """[n, L, width] -> [n, L, width]; ``attn_mask`` [L, L] is added to the scores."""
        h = self.ln_1(x)
        x = x + self.attn(h, h, h, need_weights=False, attn_mask=attn_mask)[0]
        return x + self.mlp(self.ln_2(x))


class Transformer(nn.Module):
    """Blocks one after the other."""

    def __init__(self, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.resblocks = nn.ModuleList(ResidualBlock(width, heads) for _ in range(layers))

    def forward(self, x: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        """[n, L, width] -> [n, L, width]."""
        for block in self.resblocks:
            x = block(x, attn_mask)
        return x


class ImageTower(nn.Module):
    """ViT with a class token, which is read out: [n, 3, S, S] -> [n, embed_dim]."""

    attn_pool, pool_type = None, "tok"  # in open_clip's words: read by ``VisionTower``

    def __init__(
        self, embed_dim: int, image_size: int, patch_size: int, width: int, layers: int,
        head_width: int,
    ) -> None:  # fmt: skip
        super().__init__()
        tokens = (image_size // patch_size) ** 2 + 1
        self.conv1 = nn.Conv2d(3, width, patch_size, stride=patch_size, bias=False)
        self.class_embedding = nn.Parameter(torch.empty(width))
        self.positional_embedding = nn.Parameter(torch.empty(tokens, width))
        self.ln_pre, self.ln_post = nn.LayerNorm(width), nn.LayerNorm(width)
        self.transformer = Transformer(width, layers, width // head_width)
        self.proj = nn.Parameter(torch.empty(width, embed_dim))

    def _embeds(self, pixels: Tensor) -> Tensor:
        """[n, 3, S, S] -> what enters the first block, [n, tokens, width]."""
        patches = self.conv1(pixels).flatten(2).transpose(1, 2)
        first = self.class_embedding.expand(len(patches), 1, -1)
        return self.ln_pre(torch.cat([first, patches], dim=1) + self.positional_embedding)

    def _pool(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """[n, tokens, width] -> the class token's row and the patches', normalised."""
        x = self.ln_post(x)
        return x[:, 0], x[:, 1:]

    def forward(self, pixels: Tensor) -> Tensor:
        """[n, 3, S, S] -> [n, embed_dim]."""
        return self._pool(self.transformer(self._embeds(pixels)))[0] @ self.proj


class Clip(nn.Module):
    """Both towers, the text tower's parts at the top as in OpenAI's files.

    A holder of parts for ``Backbone``, whose values are undefined until a state dict is loaded.

    Args:
        arch: open_clip's model config: ``embed_dim``, ``vision_cfg``, ``text_cfg``.

    Raises:
        ConfigError: a config with parts that are not of the plain architecture.
    """

    text_pool_type, logit_bias = "argmax", None

    def __init__(self, arch: dict[str, Any]) -> None:
        super().__init__()
        vision, text = arch["vision_cfg"], arch["text_cfg"]
        if set(vision) != _VISION or set(text) != _TEXT or arch.get("quick_gelu"):
            raise ConfigError("this model config is not a plain CLIP: load it with open_clip")
        width, self.context_length = text["width"], text["context_length"]
        with torch.random.fork_rng(devices=[]):  # the caller's generator is left alone
            self.visual = ImageTower(arch["embed_dim"], **vision)
            self.token_embedding = nn.Embedding(text["vocab_size"], width)
            self.positional_embedding = nn.Parameter(torch.empty(self.context_length, width))
            self.transformer = Transformer(width, text["layers"], text["heads"])
            self.ln_final = nn.LayerNorm(width)
            self.text_projection = nn.Parameter(torch.empty(width, arch["embed_dim"]))
            self.logit_scale = nn.Parameter(torch.empty(()))
        causal = torch.full((self.context_length, self.context_length), -math.inf).triu(1)
        self.register_buffer("attn_mask", causal, persistent=False)


def is_block(module: nn.Module) -> bool:
    """Tell whether a module is a standard residual block: ours, or open_clip's."""
    return type(module) is ResidualBlock or _is_open_clip(module, "ResidualAttentionBlock")


def is_image_tower(module: nn.Module) -> bool:
    """Tell whether a module is a ViT: ours, or open_clip's."""
    return type(module) is ImageTower or _is_open_clip(module, "VisionTransformer")


def is_resnet(module: nn.Module) -> bool:
    """Tell whether an image tower is CLIP's ResNet, whose pool is an attention: open_clip's."""
    return _is_open_clip(module, "ModifiedResNet", "open_clip.modified_resnet")


def is_trunk(module: nn.Module) -> bool:
    """Tell whether an image tower is a model of timm's: in ``trunk.TimmTower``, or open_clip's."""
    kind = type(module)
    return (kind.__module__, kind.__qualname__) in (
        ("fedvlm.models.towers.trunk", "TimmTower"), ("open_clip.timm_model", "TimmModel"),
    )


def is_encoder(module: nn.Module) -> bool:
    """Tell whether a module reads texts in an image tower's place: ``encoder.EncoderTower``."""
    kind = type(module)
    return (kind.__module__, kind.__qualname__) == (
        "fedvlm.models.towers.encoder", "EncoderTower")


def is_quick_gelu(module: nn.Module | None) -> bool:
    """Tell whether a module is open_clip's QuickGELU, ``x * sigmoid(1.702 x)``."""
    return _is_open_clip(module, "QuickGELU")


def _is_open_clip(
    module: nn.Module | None, name: str, where: str = "open_clip.transformer"
) -> bool:
    kind = type(module)  # by name: whoever holds such a module has imported its class
    return (kind.__module__, kind.__qualname__) == (where, name)
