"""Prompts in both towers' blocks: names, starts and how they enter.

``text.ctx`` enters the text tower, ``text.prompt.<b>`` takes its place in block b, and
``image.prompt.<b>`` enters block b of the image tower (``towers.adapters``).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedvlm.core.trees import Tree
from fedvlm.models.adapt.contexts import random_context, start_context
from fedvlm.models.towers.adapters import TreeEdits
from fedvlm.models.towers.blocks import Edits
from fedvlm.models.vlmodel import VLModel

TEXT, IMAGE = "text.prompt.", "image.prompt."


def text_prompts(
    model: VLModel, words: str, n_ctx: int, depth: int, generator: torch.Generator
) -> Tree:
    """Return ``text.ctx [n_ctx, width]`` and ``text.prompt.<b>`` for blocks 1 to ``depth`` - 1.

    The first starts as the first ``n_ctx`` tokens of ``words`` where there are as many.
    """
    first = start_context(model, words, n_ctx, generator)
    if len(first) < n_ctx:
        first = random_context((n_ctx, model.text_width), generator)
    tree = {"text.ctx": first[:n_ctx].clone()}
    for block in range(1, min(depth, len(model.backbone.text_blocks))):
        tree[f"{TEXT}{block}"] = random_context((n_ctx, model.text_width), generator)
    return tree


def encode_prompted_text(model: VLModel, p: Tree, words: str = "") -> Tensor:
    """Return text features ``[K, C, d]`` of ``text.ctx`` and its followers.

    ``words``: see ``VLModel.text``.
    """
    deep = {int(n.removeprefix(TEXT)): v for n, v in p.items() if n.startswith(TEXT)}
    return model.text(p["text.ctx"], deep=deep, words=words)


def visual_prompts(model: VLModel, p: Tree) -> TreeEdits:
    """Return the edits of ``image.prompt.<b>`` for ``model.adapted_image``.

    Prompts of block 0 go through the norm that stands before all blocks, as the image's own rows
    did: there CLIP's prompt methods put them (MaPLe, PromptSRC, FedMGP).
    """
    rows = {n: v for n, v in p.items() if n.startswith(IMAGE)}
    first = f"{IMAGE}0"
    if first in rows:
        rows[first] = model.vision.enter_norm(rows[first])
    return TreeEdits("image", rows)


def attention_maps(model: VLModel, x: Mapping[str, Tensor], edits: Edits) -> Tree:
    """Return what the class token looks at in the last block, as ``Trainer.maps`` names it.

    ``class token's attention [K, B, M]`` to the patches, and the sums over the prompts and over the
    rows before the patches (itself, registers), ``[K, B]``; all together have the sum 1.
    """
    rows = model.attention(x, edits)
    own, first = model.vision.tokens, model.vision.prefix
    tree = {"class token's attention": rows[..., first:own],
            "to itself": rows[..., :first].sum(-1)}
    return tree | ({"to prompts": rows[..., own:].sum(-1)} if rows.shape[-1] > own else {})
