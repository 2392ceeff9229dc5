"""Methods inside the image tower, each with a cache that may enter at a wrong block.

Prompts of their own in the blocks from 0 on (VPT, with a fixed text), and LoRA of the packaged
kind. ``ENTER`` is added to the block that is right.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fedvlm.config.option import Option
from fedvlm.core.trees import Tree
from fedvlm.federation.peft_trainer import PeftTrainer
from fedvlm.federation.trainer import Trainer
from fedvlm.models.towers.blocks import NoEdits
from fedvlm.models.towers.vision import pick_stream, stream_name
from fedvlm.models.vlmodel import VLModel

ENTER = Option(0, "added to the right block; -1: behind all blocks", low=-1)


class BlockPrompts(Trainer):
    """Two tokens in each block, their outputs replaced in the next one."""

    name = "BlockPrompts"
    options = {"ENTER": ENTER}

    def streams(self, model: VLModel) -> tuple[str, ...]:
        enter = self.cfg.ENTER
        return (stream_name(len(model.vision.blocks) if enter < 0 else enter),)

    def trainables(self, model: VLModel, generator: torch.Generator) -> Tree:
        width = model.vision.width
        return {
            f"image.prompt.{one.index}": torch.randn(2, width, generator=generator) * 0.02
            for one in model.vision.blocks
        }

    def text_features(self, model: VLModel, params: Tree) -> Tensor:
        k = next(iter(params.values())).shape[0]
        return model.anchor("template", 0).expand(k, -1, -1)

    def image_features(self, model: VLModel, params: Tree, x: Mapping[str, Tensor]) -> Tensor:
        tower, (name, start) = model.vision, pick_stream(x)
        out = x[name].to(model.device, model.dtype)
        if start < 0:
            with torch.no_grad():
                out = tower.enter(out.flatten(0, 1)).unflatten(0, out.shape[:2])
        batch, own = out.shape[1:3]
        for one in tower.blocks[max(start, 0):]:
            prompt = self.prompt(params, one.index, cached=start >= 0)
            wide = prompt.unsqueeze(1).expand(len(out), batch, -1, -1)
            out = one(torch.cat([out[:, :, :own], wide], 2), NoEdits())
        return tower.leave(out[:, :, :own], len(tower.blocks), NoEdits())[0]

    def prompt(self, params: Tree, block: int, cached: bool) -> Tensor:
        return params[f"image.prompt.{block}"]


class FirstClients(BlockPrompts):
    """On the cached path everybody has the first client's prompts."""

    name = "FirstClients"

    def prompt(self, params: Tree, block: int, cached: bool) -> Tensor:
        prompt = super().prompt(params, block, cached)
        return prompt[:1].expand_as(prompt) if cached else prompt


class LateLora(PeftTrainer):
    """LoRA as PEFT has it, its cache ``ENTER`` blocks behind the first changed one."""

    name = "LateLora"
    options = {"ENTER": ENTER}

    def streams(self, model: VLModel) -> tuple[str, ...]:
        (stream,) = super().streams(model)
        return (stream_name(int(stream.rpartition(".")[2]) + self.cfg.ENTER),)


class Wants(Trainer):
    """Reads the features themselves, which a run on pixels does not have."""

    name = "Wants"

    def trainables(self, model: Any, generator: torch.Generator) -> Tree:
        return {"text.ctx": torch.randn(4, model.text_width, generator=generator) * 0.02}

    def image_features(self, model: Any, params: Tree, x: Mapping[str, Tensor]) -> Tensor:
        return x["features"]
