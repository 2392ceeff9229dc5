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
from fedvlm.models.towers.adapters import TreeEdits, prompt_tree
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
        return prompt_tree(model.vision.blocks, 2, generator)

    def text_features(self, model: VLModel, params: Tree) -> Tensor:
        k = next(iter(params.values())).shape[0]
        return model.anchor("template", 0).expand(k, -1, -1)

    def image_features(self, model: VLModel, params: Tree, x: Mapping[str, Tensor]) -> Tensor:
        cached = pick_stream(x)[1] >= 0
        own = {
            f"image.prompt.{one.index}": self.prompt(params, one.index, cached)
            for one in model.vision.blocks
        }
        return model.adapted_image(x, TreeEdits("image", own))[0]

    def prompt(self, params: Tree, block: int, cached: bool) -> Tensor:
        return params[f"image.prompt.{block}"]


class FirstClients(BlockPrompts):
    """On the cached path everybody computes with the first client's prompts.

    The gradient is each client's own, so that clients that are alike hide it.
    """

    name = "FirstClients"

    def prompt(self, params: Tree, block: int, cached: bool) -> Tensor:
        prompt = super().prompt(params, block, cached)
        return prompt + (prompt[:1] - prompt).detach() if cached else prompt


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


class TwoStreams(BlockPrompts):
    """The prompted feature beside the frozen one; both from caches."""

    name = "TwoStreams"

    def streams(self, model: VLModel) -> tuple[str, ...]:
        return (*super().streams(model), "features")

    def image_features(self, model: VLModel, params: Tree, x: Mapping[str, Tensor]) -> Tensor:
        return super().image_features(model, params, x) + self.frozen(model, x)

    def frozen(self, model: VLModel, x: Mapping[str, Tensor]) -> Tensor:
        return model.image(x)


class HalfFeatures(TwoStreams):
    """Takes the second stream for something else than it is."""

    name = "HalfFeatures"

    def frozen(self, model: VLModel, x: Mapping[str, Tensor]) -> Tensor:
        return model.image(x) * (0.5 if "features" in x else 1.0)


class Patches(Trainer):
    """Attends to patch features with a query of its own."""

    name = "Patches"

    def streams(self, model: VLModel) -> tuple[str, ...]:
        return ("patches",)

    def trainables(self, model: VLModel, generator: torch.Generator) -> Tree:
        return {"image.query": torch.randn(model.embed_dim, generator=generator) * 0.02}

    def text_features(self, model: VLModel, params: Tree) -> Tensor:
        return model.anchor("template", 0).expand(len(params["image.query"]), -1, -1)

    def image_features(self, model: VLModel, params: Tree, x: Mapping[str, Tensor]) -> Tensor:
        rows = self.rows(model, x)  # [K, B, M, d]
        share = (rows @ params["image.query"][:, None, :, None]).softmax(2)
        return (share * rows).sum(2)

    def rows(self, model: VLModel, x: Mapping[str, Tensor]) -> Tensor:
        return model.patches(x)


class LastPatches(Patches):
    """On the cached path it leaves the first patch out."""

    name = "LastPatches"

    def rows(self, model: VLModel, x: Mapping[str, Tensor]) -> Tensor:
        rows = super().rows(model, x)
        return rows[:, :, 1:] if "patches" in x else rows


class AllStreams(Patches):
    """Tokens, features, patches and pixels at once."""

    name = "AllStreams"
    options = {"ENTER": ENTER}

    def streams(self, model: VLModel) -> tuple[str, ...]:
        return ("pixels", f"tokens.{self.cfg.ENTER}", "patches", "features")

    def image_features(self, model: VLModel, params: Tree, x: Mapping[str, Tensor]) -> Tensor:
        late, _ = model.adapted_image(x, NoEdits())
        bright = x["pixels"].to(late).mean((-1, -2, -3))[..., None]
        return super().image_features(model, params, x) + late + bright * model.image(x)
