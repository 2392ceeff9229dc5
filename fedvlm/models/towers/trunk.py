"""timm's transformers as image towers: what stands before and behind their blocks.

``VisionTransformer`` (SigLIP, SigLIP2, DINOv2, MobileCLIP-B, ViTamin) and ``Eva`` (EVA-02, PE-Core,
DINOv3), alone or inside open_clip's ``TimmModel``. Entry (patches, class token, registers,
positions) and pool are timm's own calls; the blocks are read (``trunk_blocks``). timm 1.0.31.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fedvlm.models.backbone import Backbone
from fedvlm.models.towers.blocks import Rope, Shell, Unreadable
from fedvlm.models.towers.trunk_blocks import is_timm, read_trunk

KINDS = ("VisionTransformer", "Eva")


class TimmTower(nn.Module):
    """A timm model without classifier where open_clip's ``TimmModel`` is expected.

    Args:
        trunk: timm's model, ``num_classes=0``.
    """

    def __init__(self, trunk: nn.Module) -> None:
        super().__init__()
        self.trunk, self.head = trunk, nn.Identity()

    def forward(self, pixels: Tensor) -> Tensor:
        """[n, 3, S, S] -> [n, width]."""
        out: Tensor = self.trunk(pixels)
        return out


class Trunk(Shell):
    """The shell of a timm transformer.

    Attributes:
        class_token: whether the first row is a class token.

    Raises:
        Unreadable: a convolutional trunk, or a transformer with parts that are not computed here.
    """

    has_patches = True

    def __init__(self, visual: Any, backbone: Backbone) -> None:
        self.visual, trunk = visual, visual.trunk
        if not is_timm(trunk, *KINDS):
            raise Unreadable(f"its image tower is timm's {type(trunk).__name__}")
        pool = trunk.attn_pool
        if pool is not None and (not is_timm(pool, "AttentionPoolLatent") or (
            pool.pos_embed is not None
        )):
            raise Unreadable(f"its pool is {type(pool).__name__}")
        self.trunk: Any = trunk
        self.prefix, self.width = int(trunk.num_prefix_tokens), int(trunk.embed_dim)
        self.class_token = trunk.cls_token is not None
        self.one_row = pool is None and trunk.global_pool == "token"
        side = backbone.image_size
        like = next(trunk.parameters())
        with torch.no_grad():
            empty = torch.zeros(1, 3, side, side, device=like.device, dtype=backbone.feature_dtype)
            x, turns = self._entered(empty)
        self.tokens = int(x.shape[1])
        self.blocks = read_trunk(trunk.blocks, self._ropes(turns))

    def _entered(self, pixels: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return patches with their positions, and EVA's rotary ones (sines before cosines)."""
        out = self.trunk._pos_embed(self.trunk.patch_embed(pixels))
        return out if isinstance(out, tuple) else (out, None)

    def _ropes(self, turns: Tensor | None) -> list[Rope | None]:
        blocks = self.trunk.blocks
        if turns is None:
            return [None] * len(blocks)
        each = turns.detach().unbind(0) if self.trunk.rope_mixed else [turns.detach()] * len(blocks)
        return [
            Rope(sin, cos, self.prefix, bool(block.attn.rotate_half))
            for (sin, cos), block in zip((one.chunk(2, -1) for one in each), blocks, strict=True)
        ]

    def embed(self, pixels: Tensor) -> Tensor:
        """See ``Shell``."""
        return self.enter_norm(self._entered(pixels)[0])

    def enter_norm(self, rows: Tensor) -> Tensor:
        """See ``Shell``."""
        out: Tensor = self.trunk.norm_pre(rows)
        return out

    def pool(self, x: Tensor) -> Tensor:
        """See ``Shell``."""
        out: Tensor = self.visual.head(self.trunk.forward_head(self.trunk.norm(x)))
        return out

    def project(self, rows: Tensor) -> Tensor:
        """Return rows of the last block in the joint space, each as if it were the only one.

        Over one row attention pooling is its value, output and MLP layers.
        """
        trunk = self.trunk
        rows = trunk.norm(rows)
        if trunk.attn_pool is not None:
            rows = trunk.attn_pool(rows.reshape(-1, 1, self.width)).view(rows.shape)
        out: Tensor = self.visual.head(trunk.head(trunk.fc_norm(rows)))
        return out
