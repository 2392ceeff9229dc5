"""CLIP-LoRA: every client trains LoRA in both towers by itself; nothing is sent.

Paper: Zanella and Ben Ayed, Low-Rank Few-Shot Adaptation of Vision-Language Models, IEEE/CVF
    Conference on Computer Vision and Pattern Recognition Workshops 2024; here as a local reference.
Equations: W + (ALPHA / sqrt(RANK)) B A in the q, k and v of every block of both towers; logits =
    scale z . T, z and T of the changed towers, T of the template "a photo of a"; CE.
Shared: none
Personal: image.lora.*, text.lora.*
Frozen: all else of both towers, the logit scale.
Defaults: PEFT.RANK 2, ALPHA 1, SCALE root, TARGETS q,k,v, all blocks; AdamW lr 2e-4, decay 0.01,
    cosine, batch 32.
Knobs: none.
Departures from the paper: no dropout in front of A (there 0.25); rounds and local epochs of the run
    in place of 500 steps per shot, with a fresh optimiser in each round (OPTIM.KEEP_STATE true
    keeps it).
Departures from the authors' code: no dropout, as above; the test set chooses nothing. SCALE rank is
    LoRA's ALPHA / RANK (0.5 for 0.71 at rank 2), which runs of fedvlm 0.2 had.
Extra data: none.
Cost: ViT-B/16: 184,320 trained, no byte travels; both towers run in every step. `global` is the
    untrained start.
Claim: personal is higher than logistic regression's in setting rivals.
Command: python federated_main.py --demo --trainer CLIP-LoRA
"""

from __future__ import annotations

from dataclasses import replace

from fedvlm.method import TRAINER_REGISTRY, CfgNode, Option, PeftTrainer, peft


@TRAINER_REGISTRY.register("CLIP-LoRA")
class CLIPLoRA(PeftTrainer):
    """An empty shared group, LoRA in both towers (see the card)."""

    name = "CLIP-LoRA"
    label_sets = True
    image_fits = (0,)
    roles = {peft.BODY: "personal", peft.HEAD: "personal"}
    options = {
        "SCALE": Option(
            "root", "LoRA's update is scaled by PEFT.ALPHA over the square root of the rank, or "
            "over the rank", choices=("root", "rank"), neutral="rank",
        ),
    }

    def __init__(self, cfg: CfgNode) -> None:
        """Refuse other trained parts: there are methods for those."""
        super().__init__(cfg)
        self.spec = replace(self.spec, root=self.cfg.SCALE == "root")
        sides = (self.spec.text, self.spec.visual, self.spec.head)
        self.require(
            sides == ("lora", "lora", "text"), "CLIP-LoRA is LoRA in both towers, --peft "
            "text-lora+lora; to train other parts locally use --trainer LocalOnly"
        )
