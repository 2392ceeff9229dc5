"""The image tower from block b on, for K clients with edits of their own (``blocks.Edits``).

``open_clip``'s VisionTransformer, or timm's, functionally: tokens ``[K, B, n, width]``, frozen
weights shared by all clients. What lies below the first edited block is the same for everybody: its
output is a stream of its own, ``tokens.<b>``, that can be computed once and kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedvlm.core.errors import ConfigError, FedvlmError
from fedvlm.models.backbone import Backbone
from fedvlm.models.towers.blocks import (
    STAGE,
    Edits,
    FrozenBlock,
    NoEdits,
    Shell,
    Unreadable,
    read_blocks,
)
from fedvlm.models.towers.clip import is_encoder, is_image_tower, is_resnet, is_trunk

PREFIX = "tokens."
PATCHES = "patches"
STAGES = f"{STAGE}."
INSIDE = (PREFIX, STAGES)  # what begins the name of a stream inside the tower


def stream_name(block: int) -> str:
    """Return the name of the stream of activations that enter ``block``."""
    return f"{PREFIX}{block}"


class ClipShell(Shell):
    """What open_clip's VisionTransformer, or ours, has around its blocks.

    Raises:
        Unreadable: another image tower, or blocks of another kind.
    """

    prefix, class_token = 1, True

    def __init__(self, visual: Any) -> None:
        if not is_image_tower(visual):
            raise Unreadable(f"its image tower is {type(visual).__name__}")
        self.blocks = read_blocks(visual.transformer.resblocks)
        self.visual = visual
        self.tokens, self.width = (int(n) for n in visual.positional_embedding.shape)
        self.one_row = visual.attn_pool is None and visual.pool_type == "tok"
        self.has_patches = visual.attn_pool is None

    def embed(self, pixels: Tensor) -> Tensor:
        """See ``Shell``, as for the others."""
        out: Tensor = self.visual._embeds(pixels)
        return out

    def enter_norm(self, rows: Tensor) -> Tensor:
        """See ``Shell``."""
        out: Tensor = self.visual.ln_pre(rows)
        return out

    def pool(self, x: Tensor) -> Tensor:
        """See ``Shell``."""
        pooled: Tensor = self.visual._pool(x)[0]
        return pooled if self.visual.proj is None else pooled @ self.visual.proj

    def project(self, rows: Tensor) -> Tensor:
        """See ``Shell``."""
        rows = self.visual.ln_post(rows)
        return rows if self.visual.proj is None else rows @ self.visual.proj


class ResNetShell(Shell):
    """CLIP's ResNet: no blocks that anybody could change, but patches.

    Its rows are what its attention pool reads: the mean over all positions, and each position of
    the last stage, with their embeddings of positions. The tower's feature is what the pool gives
    for the mean as the query; a patch feature is what it gives for that position as the query (PLOT
    and FedOTP, Li et al., CVPR 2024, use CLIP's ResNet so).
    """

    prefix, class_token, one_row, has_patches = 1, False, False, True

    def __init__(self, visual: Any) -> None:
        self.blocks, self.visual = [], visual
        self.tokens, self.width = (int(n) for n in visual.attnpool.positional_embedding.shape)

    def embed(self, pixels: Tensor) -> Tensor:
        """Return the pool's rows, ``[n, tokens, width]``, of ``[n, 3, S, S]``."""
        tower = self.visual
        x = tower.stem(pixels.to(tower.conv1.weight.dtype))
        for stage in (tower.layer1, tower.layer2, tower.layer3, tower.layer4):
            x = stage(x)
        rows = x.flatten(2).mT
        rows = torch.cat([rows.mean(1, keepdim=True), rows], 1)
        out: Tensor = rows + tower.attnpool.positional_embedding.to(rows.dtype)
        return out

    def attend(self, rows: Tensor) -> Tensor:
        """Return what the pool gives with each row as a query: ``[..., tokens, d]``."""
        pool = self.visual.attnpool
        x = rows.to(pool.q_proj.weight.dtype)
        q, k, v = (p(x).unflatten(-1, (pool.num_heads, -1)).transpose(-2, -3)
                   for p in (pool.q_proj, pool.k_proj, pool.v_proj))
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(-2, -3).flatten(-2)
        out: Tensor = pool.c_proj(mixed).to(rows.dtype)
        return out

    def pool(self, x: Tensor) -> Tensor:
        """Return features ``[n, d]``: the mean's."""
        return self.attend(x)[..., 0, :]

    def project(self, rows: Tensor) -> Tensor:
        """Return rows in the joint space, each as if the pool read it alone."""
        return self.attend(rows.unsqueeze(-2)).squeeze(-2)


class VisionTower:
    """A backbone's image tower in pieces.

    Args:
        backbone: with open_clip's VisionTransformer or ModifiedResNet (patches only), or a
            transformer of timm's (``trunk``).

    Attributes:
        tokens: rows per image: patches, and what stands before them (class token, registers).
        width: of a row.
        prefix: rows before the patches.
        class_token: whether the first row is a class token.

    Raises:
        ConfigError: another image tower (a convolutional trunk).
    """

    def __init__(self, backbone: Backbone) -> None:
        self.backbone, visual = backbone, backbone.model.visual
        try:
            self.shell = _shell(visual, backbone)
        except Unreadable as reason:
            raise self._lacks(str(reason)) from reason
        self.tokens, self.width, self.prefix = (
            self.shell.tokens, self.shell.width, self.shell.prefix
        )
        self.class_token = self.shell.class_token

    def _lacks(self, reason: str) -> ConfigError:
        return ConfigError(
            "Adapters in the image tower need a ViT, ResNet, ConvNeXt, Swin, FastViT, "
            "EfficientNet or MobileNet; LoRA, PEFT.LN and prompts there (and patches, but for "
            f"CLIP's ResNet) need a ViT image tower; {self.backbone.name} has none ({reason}): use "
            "--backbone ViT-B/16, or a method that trains outside it (PEFT.VISUAL feature without "
            "LN, --peft text-lora)"
        )

    @property
    def blocks(self) -> list[FrozenBlock]:
        """The tower's blocks.

        Raises:
            ConfigError: it is a ResNet, which has patches only.
        """
        self._check_blocks()
        return self.shell.blocks

    def _check_blocks(self) -> None:
        if isinstance(self.shell, ResNetShell):
            raise self._lacks("its image tower is CLIP's ModifiedResNet")

    def enter(self, pixels: Tensor, block: int = 0) -> Tensor:
        """Return the activations ``[B, n, width]`` that enter ``block``, of ``[B, 3, H, W]``.

        The gradient reaches the pixels if they ask for it (attacks).
        """
        backbone = self.backbone
        x = self.shell.embed(pixels.to(backbone.device, backbone.feature_dtype))
        x = x.to(backbone.feature_dtype).unsqueeze(0)
        for one in self.blocks[:block] if block else ():
            x = one(x, NoEdits())
        return x.squeeze(0)

    def enter_norm(self, rows: Tensor) -> Tensor:
        """Return rows ``[..., width]`` through the norm before all blocks, where there is one."""
        return self.shell.enter_norm(rows)

    def centred(self, rows: Tensor) -> Tensor:
        """Return rows that enter the first block as they were before the norm in front of it.

        Of each row its mean is taken away, and it is divided by its standard deviation, as that
        norm did; where there is none, that is done here.
        """
        norm = getattr(self.backbone.model.visual, "ln_pre", None)
        if not isinstance(norm, nn.LayerNorm):
            return F.layer_norm(rows, rows.shape[-1:])
        scale = torch.where(norm.weight == 0, 1.0, norm.weight)
        return (rows - norm.bias) / scale

    @property
    def patch_shape(self) -> tuple[int, int]:
        """Patches of an image, and the width of a patch feature.

        Raises:
            ConfigError: the tower pools by attention and has no such rows.
        """
        if not self.shell.has_patches:
            why = "pools its patches by attention"
            if is_encoder(self.backbone.model.visual):
                why = "reads texts"
            raise ConfigError(f"{self.backbone.name} {why}: there are no patch features")
        return self.tokens - self.prefix, self.backbone.embed_dim

    def patches(self, x: Tensor, start: int, edits: Edits | None = None) -> Tensor:
        """Return patch features ``[K, B, M, d]`` of activations that enter block ``start``.

        ``project`` of every patch row of the last block, so that a patch feature compares with a
        text feature; of CLIP's ResNet see ``ResNetShell``.

        Raises:
            ConfigError: the tower has none (see ``patch_shape``).
        """
        if isinstance(self.shell, ResNetShell):
            return self.shell.attend(x)[..., self.prefix :, :]
        (count, _), own = self.patch_shape, x.shape[2]
        edits = edits or NoEdits()
        for one in self.blocks[start:]:
            x = one(x, edits, own=own)
        return self.project(x[..., own - count : own, :])

    def attention(self, x: Tensor, start: int, edits: Edits) -> Tensor:
        """Return what the class token looks at in the last block, ``[K, B, n]`` of sum 1.

        The mean of its heads' attention, to the tower's own rows and then to those that ``edits``
        add.

        Args:
            x: ``[K, B, n, width]``; start: the block that it enters; edits: see ``leave``.

        Raises:
            ConfigError: no class token is read out.
        """
        if not (self.class_token and self.shell.one_row):
            raise ConfigError(f"{self.backbone.name} reads out no class token: its image feature "
                              "is pooled from all patches, so there is no attention to draw")
        own, last = x.shape[2], self.blocks[-1]
        for one in self.blocks[start:-1]:
            x = one(x, edits, own=own)
        first = torch.zeros(x.shape[1], dtype=torch.int64, device=x.device)
        return last.attention(x, edits, first, own).mean(2)

    def project(self, rows: Tensor) -> Tensor:
        """Return rows ``[..., width]`` of the last block in the joint space, ``[..., d]``.

        They go through what the pooled row goes through: norm and projection of CLIP; with
        attention pooling through the pool too, each as if it were the image's only row.
        """
        return self.shell.project(rows)

    def compute(self, pixels: Tensor, stream: str) -> Tensor:
        """Return a stream, ``tokens.<b>`` or ``patches``, of pixels ``[B, 3, H, W]``."""
        if stream == PATCHES:
            return self.patches(self.enter(pixels)[None], 0)[0]
        return self.enter(pixels, int(stream.removeprefix(PREFIX)))

    def shape(self, stream: str) -> tuple[int, int]:
        """Return rows and width of what ``compute`` returns for one image.

        Raises:
            ConfigError: the tower has no such stream.
        """
        if stream == PATCHES:
            return self.patch_shape
        self._check_blocks()
        return self.tokens, self.width

    def numbers(self, start: int) -> int:
        """Return the numbers of an image's activations, one row of each block from ``start`` on."""
        return self.tokens * self.width * (len(self.blocks) - start)

    def leave(
        self, x: Tensor, start: int, edits: Edits, taps: Sequence[int] = ()
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """Go on from block ``start``.

        Args:
            x: ``[K, B, n, width]``.
            start: the block that ``x`` enters.
            edits: what the clients change; ``NoEdits()`` is the frozen tower.
            taps: blocks whose outputs are wanted as well; rows that were added come last.

        Returns:
            Features ``[K, B, d]``, not normalised, and ``{tap: [K, B, n, width]}``.
        """
        outputs, last, own = {}, len(self.blocks) - 1, x.shape[2]
        one_row = self.shell.one_row and last not in taps and type(edits).leave is Edits.leave
        for one in self.blocks[start:]:
            short = one.index == last and one_row
            read = torch.zeros(x.shape[1], dtype=torch.int64, device=x.device) if short else None
            x = one(x, edits, read=read, own=own)
            if one.index in taps:
                outputs[one.index] = x
        x = x[:, :, :own]
        return self.shell.pool(x.flatten(0, 1)).view(*x.shape[:2], -1), outputs


def pick_stream(x: Mapping[str, Tensor]) -> tuple[str, int]:
    """Return the stream to start from and its block or stage; pixels enter below all of them.

    Raises:
        FedvlmError: the batch has features only.
    """
    entered = {name: int(name.partition(".")[2]) for name in x if name.startswith(INSIDE)}
    if entered:
        name = max(entered, key=lambda n: entered[n])
        return name, entered[name]
    if "pixels" in x:
        return "pixels", -1
    raise FedvlmError(
        f"the image tower needs pixels or tokens to start from; the batch has {', '.join(x)}"
    )


def _shell(visual: Any, backbone: Backbone) -> Shell:
    """Return the shell of an image tower.

    Raises:
        Unreadable: it is none of the known kinds.
    """
    if is_encoder(visual):
        from fedvlm.models.towers.encoder import EncoderShell  # start-up: for texts as samples only

        return EncoderShell(visual, backbone)
    if is_resnet(visual):
        return ResNetShell(visual)
    if not is_trunk(visual):
        return ClipShell(visual)
    from fedvlm.models.towers.trunk import Trunk  # start-up: for timm's towers only

    return Trunk(visual, backbone)
