"""Bottlenecks beside the MLPs of both towers that meet in a middle layer of their own width.

Names: ``<image|text>.mm_adapter.<i>.{down,up}.{weight,bias}`` and ``both.mm_adapter.<i>.{weight,
bias}``, i counted from the last block of each tower (0) downwards.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedvlm.core.trees import Tree
from fedvlm.models.adapt.layers import linear
from fedvlm.models.towers.blocks import Edits

SIDES = ("image", "text")


def mm_adapters(
    widths: Mapping[str, int], hidden: int, depth: int, generator: torch.Generator
) -> Tree:
    """Return the adapters of the last ``depth`` blocks of both towers.

    Weights N(0, 2 / fan out) (He et al. 2015, fan out, for ReLU), biases zero.

    Args:
        widths: of the towers, by ``image`` and ``text``.
        hidden: width of the middle layer.
    """

    def layer(name: str, out: int, into: int) -> Tree:
        weight = torch.randn(out, into, generator=generator) * (2 / out) ** 0.5
        return {f"{name}.weight": weight, f"{name}.bias": torch.zeros(out)}

    tree: Tree = {}
    for i in range(depth):
        for side in SIDES:
            name, width = f"{side}.mm_adapter.{i}", widths[side]
            tree |= {**layer(f"{name}.down", hidden, width), **layer(f"{name}.up", width, hidden)}
        tree |= layer(f"both.mm_adapter.{i}", hidden, hidden)
    return tree


@dataclass(frozen=True)
class MultiModalEdits(Edits):
    """``MLP(x) + scale up(relu(middle(relu(down(x)))))``, x as a branch of the block reads it.

    Attributes:
        tower: ``image`` or ``text``.
        p: tree of ``mm_adapters``, ``[K, ...]``.
        blocks: of the tower.
        scale: of the bottleneck's output.
        first: x is what the attention reads, not the MLP behind it.
    """

    tower: str
    p: Tree
    blocks: int
    scale: float
    first: bool = False
    _read: dict[int, Tensor] = field(default_factory=dict)  # block -> what its MLP reads

    def _name(self, block: int) -> str:
        return f"mm_adapter.{self.blocks - 1 - block}"

    def before(self, block: int, x: Tensor, norm: nn.LayerNorm) -> None:
        """Keep what the attention reads, if that is what the bottleneck reads."""
        if self.first and f"both.{self._name(block)}.weight" in self.p:
            self._read[block] = norm(x)

    def linear(
        self, block: int, site: str, x: Tensor, weight: Tensor, bias: Tensor | None, factor: float
    ) -> Tensor:
        """Return the frozen layer's output; what enters the MLP is kept until it leaves."""
        if not self.first and site == "fc" and f"both.{self._name(block)}.weight" in self.p:
            self._read[block] = x
        return super().linear(block, site, x, weight, bias, factor)

    def branch(self, block: int, which: str, h: Tensor) -> Tensor:
        """Return the MLP's output with the bottleneck's."""
        if which != "mlp" or block not in self._read:
            return h
        name, x = self._name(block), self._read.pop(block)
        own = f"{self.tower}.{name}"
        low = F.relu(linear(self.p, f"{own}.down", x))
        middle = F.relu(linear(self.p, f"both.{name}", low))
        return h + self.scale * linear(self.p, f"{own}.up", middle)
