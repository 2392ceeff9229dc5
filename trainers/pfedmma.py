"""pFedMMA: personal bottlenecks in both towers meet in a small layer, the only one that travels.

Paper: Mohammadi et al., pFedMMA: Personalized Federated Fine-Tuning with Multi-Modal Adapter for
    Vision-Language Models, ICLR 2026 (arXiv 2507.05394).
Equations: in the last BLOCKS blocks of both towers h = MLP + SCALE U relu(S relu(D x)), x what the
    block's attention reads, D, U of each tower, S [HIDDEN x HIDDEN] common to both; logits = scale
    z . T, T of "a photo of a c."; CE; gradients of D, S, U over SCALE; server S = sum_k p_k S_k.
Shared: both.mm_adapter.*
Personal: image.mm_adapter.*, text.mm_adapter.*
Frozen: both towers, the logit scale.
Defaults: BLOCKS 8 (the authors' 5 to 12), HIDDEN 32, SCALE 0.001, SGD lr 0.001.
Knobs: SCALE 0.001 to 0.1 log.
Departures from the paper: known from its abstract and public code. VARIANT published: as above,
    which is the released code; fixed: x what the MLP reads, the data set's template, and the plain
    gradient, which at SCALE 0.001 is a thousandth. Layers have biases, as there; S's bias travels
    with it.
Departures from the authors' code: none known beside a fresh optimiser per client and round (there
    one goes through all clients). The global model has the bottlenecks of the start.
Extra data: none.
Cost: ViT-B/16: 674,560 trained, 8,448 sent each way; both towers run from the first changed block
    on in every step (tokens are cached below it).
Claim: personal is higher than PromptFL's in setting rivals.
Command: python federated_main.py --demo --trainer pFedMMA
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedvlm.method import TRAINER_REGISTRY, Option, Trainer, Tree, VLModel, multimodal, vision

WORDS = ("a photo of a {}.",)  # of the released code, for every data set


@TRAINER_REGISTRY.register("pFedMMA")
class PFedMMA(Trainer):
    """See the module's card."""

    name = "pFedMMA"
    label_sets = True
    groups = (
        (r"both\.mm_adapter\..*", "shared"), (r"(image|text)\.mm_adapter\..*", "personal"),
    )
    options = {
        "BLOCKS": Option(8, "last blocks of both towers that are changed; fewer where a tower has "
                         "fewer", low=1),
        "HIDDEN": Option(32, "width of the shared layer", low=1),
        "SCALE": Option(0.001, "scale of the bottlenecks' output", low=0.0, low_open=True),
        "VARIANT": Option("published", "what the bottlenecks read, the texts, and the gradient: "
                                       "see the card",
                          choices=("published", "fixed"), neutral="fixed"),
    }

    @property
    def reads_templates(self) -> bool:
        """Whether the class texts are the data set's: not the released code's own words."""
        return not self.published

    def depth(self, model: VLModel) -> int:
        """Return how many blocks of each tower are changed."""
        most = min(len(model.vision.blocks), len(model.backbone.text_blocks))
        return min(int(self.cfg.BLOCKS), most)

    def streams(self, model: VLModel) -> tuple[str, ...]:
        """Return what enters the first changed block."""
        return (vision.stream_name(len(model.vision.blocks) - self.depth(model)),)

    def trainables(self, model: VLModel, generator: torch.Generator) -> Tree:
        """Return the bottlenecks of both towers and the layers that they share."""
        widths = {"image": model.vision.width, "text": model.text_width}
        return multimodal.mm_adapters(widths, self.cfg.HIDDEN, self.depth(model), generator)

    def edits(self, tower: str, p: Mapping[str, Tensor], blocks: int) -> multimodal.MultiModalEdits:
        """Return what ``p`` changes in a tower of so many blocks."""
        scale = float(self.cfg.SCALE)
        if not self.published:
            return multimodal.MultiModalEdits(tower, dict(p), blocks, scale)
        larger = {n: v.detach() + (v - v.detach()) / scale for n, v in p.items()}
        return multimodal.MultiModalEdits(tower, larger, blocks, scale, first=True)

    def text_features(self, model: VLModel, p: Tree) -> Tensor:
        """Return the template's text features through the changed tower, ``[K, C, d]``."""
        blocks, clients = len(model.backbone.text_blocks), len(p["both.mm_adapter.0.weight"])
        model = model.with_classes(model.classnames, WORDS) if self.published else model
        edits = self.edits("text", p, blocks)
        return model.adapted_text(edits, clients, blocks - self.depth(model))

    def image_features(self, model: VLModel, p: Tree, x: Mapping[str, Tensor]) -> Tensor:
        """Return features of the changed tower, ``[K, B, d]``."""
        return model.adapted_image(x, self.edits("image", p, len(model.vision.blocks)))[0]
