"""The image tower from block b on, for K clients with edits of their own (``blocks.Edits``).

``open_clip``'s VisionTransformer, functionally: tokens ``[K, B, n, width]``, frozen weights shared
by all clients. What lies below the first edited block is the same for everybody: its output is a
stream of its own, ``tokens.<b>``, that can be computed once and kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedvlm.core.errors import ConfigError, FedvlmError
from fedvlm.models.backbone import Backbone
from fedvlm.models.towers.blocks import Edits, FrozenBlock, NoEdits, Unreadable, read_blocks
from fedvlm.models.towers.clip import is_image_tower

PREFIX = "tokens."
PATCHES = "patches"


def stream_name(block: int) -> str:
    """Return the name of the stream of activations that enter ``block``."""
    return f"{PREFIX}{block}"


class VisionTower:
    """A backbone's image tower in pieces.

    Args:
        backbone: with open_clip's VisionTransformer.

    Raises:
        ConfigError: another image tower (a ResNet, a timm trunk).
    """

    def __init__(self, backbone: Backbone) -> None:
        self.backbone, visual = backbone, backbone.model.visual
        try:
            if not is_image_tower(visual):
                raise Unreadable(f"its image tower is {type(visual).__name__}")
            self.blocks: list[FrozenBlock] = read_blocks(visual.transformer.resblocks)
        except Unreadable as reason:
            raise ConfigError(
                "PEFT.VISUAL lora and adapter, PEFT.LN, tokens and patches need a ViT image tower; "
                f"{backbone.name} has none ({reason}): use --backbone ViT-B/16, or PEFT.VISUAL "
                "feature without LN"
            ) from reason
        self.visual = visual
        # Only the class token is read out: behind the last block no other row is needed.
        self._one_row = visual.attn_pool is None and visual.pool_type == "tok"

    @property
    def tokens(self) -> int:
        """Rows per image, the class token included."""
        return int(self.visual.positional_embedding.shape[0])

    @property
    def width(self) -> int:
        """Width of a row."""
        return int(self.visual.positional_embedding.shape[1])

    def enter(self, pixels: Tensor, block: int = 0) -> Tensor:
        """Return the activations ``[B, n, width]`` that enter ``block``, of ``[B, 3, H, W]``.

        The gradient reaches the pixels if they ask for it (attacks).
        """
        backbone = self.backbone
        x: Tensor = self.visual._embeds(pixels.to(backbone.device, backbone.feature_dtype))
        x = x.to(backbone.feature_dtype).unsqueeze(0)
        for one in self.blocks[:block]:
            x = one(x, NoEdits())
        return x.squeeze(0)

    @property
    def patch_shape(self) -> tuple[int, int]:
        """Patches of an image, and the width of a patch feature.

        Raises:
            ConfigError: the tower pools by attention and has no such rows.
        """
        if self.visual.attn_pool is not None:
            raise ConfigError(
                f"{self.backbone.name} pools its patches by attention: there are no patch features"
            )
        proj = self.visual.proj
        return self.tokens - 1, self.width if proj is None else int(proj.shape[1])

    def patches(self, x: Tensor, start: int, edits: Edits | None = None) -> Tensor:
        """Return patch features ``[K, B, M, d]`` of activations that enter block ``start``.

        ``project`` of every patch row of the last block, so that a patch feature compares with a
        text feature.

        Raises:
            ConfigError: the tower has none (see ``patch_shape``).
        """
        (count, _), own = self.patch_shape, x.shape[2]
        edits = edits or NoEdits()
        for one in self.blocks[start:]:
            x = one(x, edits, own=own)
        return self.project(x[..., own - count : own, :])

    def project(self, rows: Tensor) -> Tensor:
        """Return rows ``[..., width]`` of the last block in the joint space, ``[..., d]``.

        They go through the norm and the projection that the class token goes through.
        """
        rows = self.visual.ln_post(rows)
        return rows if self.visual.proj is None else rows @ self.visual.proj

    def compute(self, pixels: Tensor, stream: str) -> Tensor:
        """Return a stream, ``tokens.<b>`` or ``patches``, of pixels ``[B, 3, H, W]``."""
        if stream == PATCHES:
            return self.patches(self.enter(pixels)[None], 0)[0]
        return self.enter(pixels, int(stream.removeprefix(PREFIX)))

    def shape(self, stream: str) -> tuple[int, int]:
        """Return rows and width of what ``compute`` returns for one image."""
        return self.patch_shape if stream == PATCHES else (self.tokens, self.width)

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
        one_row = self._one_row and last not in taps and type(edits).leave is Edits.leave
        for one in self.blocks[start:]:
            short = one.index == last and one_row
            read = torch.zeros(x.shape[1], dtype=torch.int64, device=x.device) if short else None
            x = one(x, edits, read=read, own=own)
            if one.index in taps:
                outputs[one.index] = x
        x = x[:, :, :own]
        pooled, _ = self.visual._pool(x.flatten(0, 1))
        out = pooled if self.visual.proj is None else pooled @ self.visual.proj
        return out.view(*x.shape[:2], -1), outputs


def pick_stream(x: Mapping[str, Tensor]) -> tuple[str, int]:
    """Return the stream to start from and the block it enters; pixels enter below all blocks.

    Raises:
        FedvlmError: the batch has features only.
    """
    entered = {name: int(name.removeprefix(PREFIX)) for name in x if name.startswith(PREFIX)}
    if entered:
        name = max(entered, key=lambda n: entered[n])
        return name, entered[name]
    if "pixels" in x:
        return "pixels", -1
    raise FedvlmError(
        f"the image tower needs pixels or tokens to start from; the batch has {', '.join(x)}"
    )
