"""Convolutional and hierarchical trunks in stages, for K clients with adapters between them.

ResNet, ConvNeXt, Swin, FastViT, EfficientNet and MobileNet of timm, the first three of torchvision,
and CLIP's ResNet. A stage's output is ``[K, B, n, channels]``, its n places (H x W) as rows: a 1x1
convolution is a linear layer of rows. Frozen weights are shared, so all clients' images go through
a stage as one batch, in eval mode: BatchNorm keeps its statistics. What leaves a stage below the
first adapter is the same for everybody: the stream ``stage.<s>``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedvlm.models.backbone import Backbone
from fedvlm.models.towers.blocks import STAGE, Edits
from fedvlm.models.towers.clip import is_resnet, is_trunk
from fedvlm.models.towers.trunk_blocks import is_timm
from fedvlm.models.towers.vision import STAGES

_LAYERS = "layer1 layer2 layer3 layer4"
# Class -> modules before the stages, the stages (or the module that holds them), those behind.
_TIMM = {
    "ResNet": ("conv1 bn1 act1 maxpool", _LAYERS, ""),
    "ConvNeXt": ("stem", "stages", "norm_pre"),
    "SwinTransformer": ("patch_embed", "layers", "norm"),
    "FastVit": ("stem", "stages", "final_conv"),
    "EfficientNet": ("conv_stem bn1", "blocks", "conv_head bn2"),  # MobileNetV2 is one of them
    "MobileNetV3": ("conv_stem bn1", "blocks", ""),
}
_TORCHVISION = {  # in ``features`` a stage is two modules: what halves the sides, and the blocks
    "ResNet": ("conv1 bn1 relu maxpool", _LAYERS, "avgpool fc"),
    "ConvNeXt": ("features.0", "features", "avgpool classifier"),
    "SwinTransformer": ("features.0", "features", "norm permute avgpool flatten head"),
}
_CLIP = ("conv1 bn1 act1 conv2 bn2 act2 conv3 bn3 act3 avgpool", _LAYERS, "attnpool")


@dataclass(frozen=True)
class Stage:
    """One frozen stage.

    Attributes:
        index: number in its tower, from 0.
        parts: its modules' names in the tower; an adapter stands behind the last one.
        sides, channels: of its output: ``(H, W)``, and numbers of a place.
        dense: whether the map lies in memory as its axes are; what it enters computes other last
            bits of another order.
    """

    index: int
    parts: tuple[str, ...]
    sides: tuple[int, int]
    channels: int
    dense: bool

    def shape(self, site: str) -> tuple[int, int]:
        """Return (out, in) of a layer that keeps the channels, whatever ``site``."""
        return self.channels, self.channels


class StagedTower:
    """An image tower as stages (``has_stages`` says which has some).

    Attributes:
        blocks: the stages.
        last: whether the channels are a map's last axis ``[n, H, W, C]``; else ``[n, C, H, W]``.
    """

    def __init__(self, backbone: Backbone) -> None:
        self.backbone, self.visual = backbone, backbone.model.visual
        before, stages, behind = _names(self.visual)
        self.before, self.behind = before, behind
        self.last = "Swin" in type(getattr(self.visual, "trunk", self.visual)).__name__
        self.blocks: list[Stage] = []
        side, like = backbone.image_size, next(self.visual.parameters())
        with torch.no_grad():
            x = torch.zeros(1, 3, side, side, device=like.device, dtype=backbone.feature_dtype)
            x = self._run(before, x)
            for index, parts in enumerate(stages):
                x = self._run(parts, x)
                _, height, width, channels = (x if self.last else x.movedim(1, -1)).shape
                dense = x.is_contiguous()
                self.blocks.append(Stage(index, parts, (height, width), channels, dense))

    def _run(self, names: Sequence[str], x: Tensor) -> Tensor:
        for name in names:
            x = self.visual.get_submodule(name)(x)
        return x

    def _rows(self, x: Tensor) -> Tensor:
        """Return a map's places as rows, ``[n, H W, C]``."""
        return x.flatten(1, 2) if self.last else x.flatten(2).mT

    def _map(self, rows: Tensor, stage: Stage) -> Tensor:
        """Return rows ``[n, H W, C]`` as the map that leaves ``stage``."""
        if self.last:
            return rows.unflatten(1, stage.sides)
        grid = rows.contiguous().mT.unflatten(2, stage.sides)
        return grid.contiguous() if stage.dense else grid

    def enter(self, pixels: Tensor, block: int = 0) -> Tensor:
        """Return what leaves the frozen stage ``block``, ``[n, H W, C]``, of ``[n, 3, S, S]``.

        The gradient reaches the pixels if they ask for it.
        """
        backbone = self.backbone
        x = self._run(self.before, pixels.to(backbone.device, backbone.feature_dtype))
        for stage in self.blocks[: block + 1]:
            x = self._run(stage.parts, x)
        return self._rows(x).to(backbone.feature_dtype)

    def leave(self, x: Tensor, start: int, edits: Edits) -> Tensor:
        """Go on behind stage ``start``, its adapter first.

        Args:
            x: ``[K, B, n, channels]``, what left the frozen stage.
            start: its number.
            edits: what the clients change: ``branch`` of each stage from there on.

        Returns:
            Features ``[K, B, d]``, not normalised.
        """
        lead = x.shape[:2]
        for stage in self.blocks[start:]:
            x = edits.branch(stage.index, STAGE, x)
            grid = self._map(x.flatten(0, 1), stage)
            if stage is not self.blocks[-1]:
                grid = self._run(self.blocks[stage.index + 1].parts, grid)
                x = self._rows(grid).to(x.dtype).unflatten(0, lead)
        return self._pool(grid).to(x.dtype).unflatten(0, lead)

    def _pool(self, x: Tensor) -> Tensor:
        """Return features ``[n, d]`` of the map that leaves the last stage."""
        x, visual = self._run(self.behind, x), self.visual
        if is_trunk(visual):
            x = visual.head(visual.trunk.forward_head(x))
        return x.flatten(1)

    def shape(self, stream: str) -> tuple[int, int]:
        """Return rows and width of a stream ``stage.<s>`` of one image."""
        stage = self.blocks[int(stream.removeprefix(STAGES))]
        return math.prod(stage.sides), stage.channels

    def compute(self, pixels: Tensor, stream: str) -> Tensor:
        """Return a stream ``stage.<s>`` of pixels ``[n, 3, S, S]``."""
        return self.enter(pixels, int(stream.removeprefix(STAGES)))

    def numbers(self, start: int) -> int:
        """Return the numbers of an image's maps from stage ``start`` on."""
        return sum(math.prod(stage.sides) * stage.channels for stage in self.blocks[start:])


def has_stages(backbone: Backbone) -> bool:
    """Tell whether a backbone's image tower can be read as stages."""
    return _family(backbone.model.visual) is not None


def _family(visual: nn.Module) -> tuple[str, str, str] | None:
    """Return an image tower's row in the tables above; None where it has none."""
    if is_resnet(visual):
        return _CLIP
    if is_trunk(visual):
        trunk: Any = visual.trunk
        return _TIMM.get(type(trunk).__name__) if is_timm(trunk, *_TIMM) else None
    kind = type(visual)
    return _TORCHVISION.get(kind.__name__) if kind.__module__.startswith("torchvision.") else None


def _names(visual: Any) -> tuple[list[str], list[tuple[str, ...]], list[str]]:
    """Return the modules' names before the stages, of each stage, and behind."""
    family = _family(visual)
    assert family is not None, type(visual)  # noqa: S101 (``has_stages`` was asked)
    at = "trunk." if is_trunk(visual) else ""
    before, stages, behind = ([at + name for name in names.split()] for names in family)
    if len(stages) == 1:
        (holder,) = stages
        stages = [f"{holder}.{i}" for i in range(len(visual.get_submodule(holder)))]
        if holder == "features":
            later = zip(stages[2::2], stages[3::2], strict=True)
            return before, [(stages[1],), *later], behind
    return before, [(name,) for name in stages], behind
