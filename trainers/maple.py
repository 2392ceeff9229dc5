"""MaPLe: deep text prompts whose linear images are the visual prompts, averaged over clients.

Paper: Khattak et al., MaPLe: Multi-modal Prompt Learning, CVPR 2023; here with FedAvg, as the
    federated papers run it.
Equations: for blocks b < DEPTH text prompts P_b [N_CTX, w_t], visual prompts V_b = P_b W_b' + c_b;
    both take the place of the last block's; logits = scale z(V) . T(P), T of "[P_0] of a NAME.";
    CE; server: sum_k p_k.
Shared: text.ctx, text.prompt.*, image.couple.*
Personal: none
Frozen: both towers, the logit scale.
Defaults: N_CTX 2, DEPTH 9, P_0 starts as the first tokens of "a photo of a", whose other words
    stay before the name (WORDS whole), SGD lr 0.0035.
Knobs: none.
Departures from the paper: FedAvg around it.
Departures from the authors' code: none known (docs/authors.md). WORDS cut ("[P_0] NAME.") is
    what runs of fedvlm 0.2 had. Towers of unequal depth prompt the blocks that both have.
Extra data: none.
Cost: ViT-B/16: 3,555,072 numbers each way (published: 3.55 M); both towers run in every step.
Claim: personal is higher than VPT's in setting vit.
Command: python federated_main.py --demo --trainer MaPLe
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedvlm.method import (
    TRAINER_REGISTRY,
    WORDS,
    Option,
    Trainer,
    Tree,
    VLModel,
    blocks,
    kept_words,
    layers,
    prompts,
    vision,
)

COUPLE = "image.couple"


@TRAINER_REGISTRY.register("MaPLe")
class MaPLe(Trainer):
    """See the module's card."""

    name = "MaPLe"
    figure = "attention"
    label_sets = True
    title = "MaPLe (FedAvg)"
    groups = ((r"text\.ctx|text\.prompt\.\d+|image\.couple\.\d+\.(weight|bias)", "shared"),)
    options = {
        "N_CTX": Option(2, "prompts of a block", low=1),
        "DEPTH": Option(9, "blocks with prompts, from the first on", low=1),
        "CTX_INIT": Option("a photo of a", "words whose first tokens initialise P_0; '' is random"),
        "WORDS": WORDS,
    }

    def streams(self, model: VLModel) -> tuple[str, ...]:
        """Return what enters the first block."""
        return (vision.stream_name(0),)

    def trainables(self, model: VLModel, generator: torch.Generator) -> Tree:
        """Return text prompts and, for each, the layer that leads to the image tower."""
        width = model.vision.width
        depth = min(int(self.cfg.DEPTH), len(model.vision.blocks))
        tree = prompts.text_prompts(model, self.cfg.CTX_INIT, self.cfg.N_CTX, depth, generator)
        for block in range(len(tree)):
            tree |= layers.layer(f"{COUPLE}.{block}", (width, model.text_width), generator)
        return tree

    def text_features(self, model: VLModel, p: Tree) -> Tensor:
        """Return T(P), ``[K, C, d]``."""
        return prompts.encode_prompted_text(model, p, kept_words(self.cfg))

    def image_features(self, model: VLModel, p: Tree, x: Mapping[str, Tensor]) -> Tensor:
        """Return z(V), ``[K, B, d]``."""
        return model.adapted_image(x, self.edits(model, p))[0]

    def maps(self, model: VLModel, p: Tree, x: Mapping[str, Tensor]) -> Tree:
        """Return what the class token looks at in the last block."""
        return prompts.attention_maps(model, x, self.edits(model, p))

    def edits(self, model: VLModel, p: Tree) -> blocks.Edits:
        """Return the prompts V in the image tower, made of those in the text tower."""
        first = {0: p["text.ctx"]}
        text = prompts.TEXT
        each = first | {int(n.removeprefix(text)): v for n, v in p.items() if text in n}
        rows = {
            f"{prompts.IMAGE}{b}": layers.linear(p, f"{COUPLE}.{b}", v) for b, v in each.items()
        }
        return prompts.visual_prompts(model, rows)
