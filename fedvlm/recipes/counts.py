"""How many numbers a method trains and sends at a backbone's shapes, without its weights.

The cheapest check of a method against its paper: it needs no image and no GPU.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import torch
from yacs.config import CfgNode

from fedvlm.core.errors import ConfigError
from fedvlm.core.trees import numel, pick
from fedvlm.federation.groups import PERSONAL, SHARED, resolve_groups
from fedvlm.federation.module_trainer import ModuleTrainer
from fedvlm.federation.trainer import Trainer
from fedvlm.models.vlmodel import VLModel

COPIES = ".prompt.sent"  # FedMGP's copies of what was drawn to travel: trained once, counted once
COLOURS = 3
MLP = 4  # width of a block's hidden layer, in widths of the block


@dataclass(frozen=True)
class Counts:
    """Numbers of one client: what it trains, and what of it is shared."""

    trained: int
    sent: int


@dataclass(frozen=True)
class Shape:
    """Sizes of a CLIP: joint embedding, text width, image width, blocks of the towers.

    Source: Radford et al. 2021, tables 19 and 20. ``blocks`` of the image tower is 0 for a ResNet.
    """

    embed: int
    text: int
    vision: int
    blocks: int
    text_blocks: int


SHAPES = {
    "ViT-B/16": Shape(512, 512, 768, 12, 12), "ViT-B/32": Shape(512, 512, 768, 12, 12),
    "ViT-L/14": Shape(768, 768, 1024, 24, 12), "RN50": Shape(1024, 512, 2048, 0, 12),
}


def stand_in(backbone: str, classes: int) -> VLModel:
    """Return what ``Trainer.trainables`` reads of a model: sizes, and zeros for its anchors.

    Args:
        backbone: one of ``SHAPES`` (else ``ConfigError``).
    """
    if backbone not in SHAPES:
        raise ConfigError(f"no shapes are known of backbone '{backbone}' ({', '.join(SHAPES)})")
    shape = SHAPES[backbone]

    memo: dict[Hashable, Any] = {}

    def blocks(count: int, width: int) -> list[SimpleNamespace]:
        return [SimpleNamespace(index=i, shape=partial(_layer, width)) for i in range(count)]

    return cast(VLModel, SimpleNamespace(
        text_width=shape.text, embed_dim=shape.embed, classnames=("x",) * classes, has_text=True,
        vision=SimpleNamespace(width=shape.vision, blocks=blocks(shape.blocks, shape.vision)),
        backbone=SimpleNamespace(
            model=torch.nn.ModuleDict({"visual": torch.nn.Module()}),
            text_blocks=blocks(shape.text_blocks, shape.text),
            transform_spec=SimpleNamespace(mean=(0.0,) * COLOURS, std=(1.0,) * COLOURS),
            tokenize=_token_ids, token_ends=lambda ids: (ids > 0).sum(-1) - 1,
            embed_tokens=lambda ids: torch.zeros(*ids.shape, shape.text),
        ),
        anchor=lambda kind, n: torch.zeros(classes, shape.embed),
        once=lambda key, make: memo[key] if key in memo else memo.setdefault(key, make()),
        freeze=lambda module: module, device=torch.device("cpu"),
    ))


def _layer(width: int, site: str) -> tuple[int, int]:
    """Return (out, in) of a layer of a transformer's block: its MLP is four times as wide."""
    return {"fc": (MLP * width, width), "proj": (width, MLP * width)}.get(site, (width, width))


def _token_ids(texts: Sequence[str]) -> torch.Tensor:
    """Return ids ``[n, L]`` of a start mark, a token for each word, and an end mark."""
    rows = [[1, *(sum(map(ord, word)) + 2 for word in text.split()), 2] for text in texts]
    longest = max(map(len, rows))
    return torch.tensor([row + [0] * (longest - len(row)) for row in rows])


def count(trainer: Trainer, backbone: str, classes: int) -> Counts:
    """Return the counts of a method (``ConfigError``: unknown shapes, or what it refuses)."""
    model = stand_in(backbone, classes)
    if isinstance(trainer, ModuleTrainer):
        with torch.device("meta"):  # without numbers: its weights are not fetched
            module = trainer.build(model)
        vars(trainer)["build"] = lambda model: module
    tree = trainer.trainables(model, torch.Generator())
    groups = resolve_groups(tree, trainer.rules(list(tree)), trainer.name)
    trained = [n for n in groups.names(SHARED, PERSONAL) if not n.endswith(COPIES)]
    return Counts(numel(pick(tree, trained)), numel(pick(tree, groups.shared)))


def counts_of(trainer: type[Trainer], cfg: CfgNode, classes: int) -> Counts:
    """Return the counts of a method by a run's config (see ``count``)."""
    made: Any = trainer(cfg)
    return count(made, cfg.MODEL.BACKBONE.NAME, classes)
