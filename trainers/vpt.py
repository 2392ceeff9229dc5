"""VPT: visual prompts in the image tower's blocks, averaged over clients.

Paper: Jia et al., Visual Prompt Tuning, ECCV 2022; here with FedAvg, on CLIP.
Equations: [x_b, _] = Block_b([x_{b-1}, P_b]) for blocks b < DEPTH, each with TOKENS rows P_b of its
    own (DEPTH 1: shallow, the rows of P_0 stay); logits = scale z . T0; server P = sum_k p_k P_k.
Shared: image.prompt.*
Personal: none
Frozen: both towers, the logit scale.
Defaults: DEPTH 9, TOKENS 4, SGD lr 0.005. A DEPTH of 1 is VPT-shallow, of 0 VPT-deep (all blocks).
Knobs: TOKENS 2 to 16 log.
Departures from the paper: the template's text features classify (there a linear head); prompts
    start as N(0, 0.02^2) (there uniform), P_0 goes through CLIP's first norm, rows stand behind the
    image's (their order changes nothing); FedAvg around it.
Departures from the authors' code: compared with that of MaPLe's authors, who brought VPT to CLIP:
    there the text is "a photo of a NAME." for every data set, here the data set's template.
Extra data: none.
Cost: ViT-B/16: 27,648 numbers each way (shallow 3,072); the image tower runs in every step, since
    no block lies below the first prompt; its embeddings are cached.
Claim: personal is higher than logistic regression's in setting vit.
Command: python federated_main.py --demo --trainer VPT
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedvlm.method import (
    TRAINER_REGISTRY,
    Option,
    TemplateTrainer,
    Tree,
    VLModel,
    adapters,
    prompts,
    vision,
)


@TRAINER_REGISTRY.register("VPT")
class VPT(TemplateTrainer):
    """See the module's card."""

    name = "VPT"
    figure = "attention"
    label_sets = True
    captions = True
    title = "VPT (FedAvg)"
    groups = ((r"image\.prompt\.\d+", "shared"),)
    options = {
        "TOKENS": Option(4, "prompts of a block", low=1),
        "DEPTH": Option(9, "blocks with prompts, from the first on; 0: all", low=0),
    }

    def streams(self, model: VLModel) -> tuple[str, ...]:
        """Return what enters the first block."""
        return (vision.stream_name(0),)

    def trainables(self, model: VLModel, generator: torch.Generator) -> Tree:
        """Return the prompts ``[TOKENS, width]`` of each block."""
        blocks = model.vision.blocks[: self.cfg.DEPTH or None]
        return adapters.prompt_tree(blocks, self.cfg.TOKENS, generator)

    def image_features(self, model: VLModel, p: Tree, x: Mapping[str, Tensor]) -> Tensor:
        """Return features ``[K, B, d]`` of the prompted tower."""
        return model.adapted_image(x, prompts.visual_prompts(model, p))[0]

    def maps(self, model: VLModel, p: Tree, x: Mapping[str, Tensor]) -> Tree:
        """Return what the class token looks at in the last block."""
        return prompts.attention_maps(model, x, prompts.visual_prompts(model, p))
