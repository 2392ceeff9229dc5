"""PromptSRC beside its authors' ``trainers/promptsrc.py``."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from parity.authors import Theirs, check_start, no_prompts, repository, settings, their_clip
from parity.figures import AUTHORS, Source, Values
from parity.world import Case, World

SOURCE = Source(
    "PromptSRC", AUTHORS, "muzairkhattak/PromptSRC", "bb95c77b634d63488f2cad81ff4a72d53bdd06d5",
    ("trainers/promptsrc.py", "clip/model.py"),
    differs="three templates for the teacher (there ImageNet's); FedAvg around it, and GPA, which "
            "their trainer computes over epochs, over rounds",
)
TEXTS = ("a photo of a {}.", "a drawing of many {}.", "the {}.")
CASES = {
    "4 tokens": Case("PromptSRC", {"DEPTH": 2, "GPA_MEAN": 0.5, "GPA_STD": 0.3}, layers=3,
                     rounds=4, epochs=1, templates=TEXTS),
    "2 of 4 words": Case("PromptSRC", {"N_CTX": 2, "DEPTH": 1}, rounds=0, templates=TEXTS),
}
SIDES = (("text.prompt", "transformer"), ("image.prompt", "visual.transformer"))


def other(world: World, folder: Path) -> Values:
    """Return the numbers of the authors' ``CustomCLIP`` and of their trainer's averages."""
    c, o = world.case, world.trainer.cfg
    with repository(folder) as load:
        clip_model = load("clip.model")
        deep = {"trainer": "IVLP", "vision_depth": o.DEPTH, "language_depth": o.DEPTH,
                "vision_ctx": o.N_CTX, "language_ctx": o.N_CTX}
        module = load("trainers.promptsrc")
        module.load_clip_to_cpu = lambda *_: their_clip(world, clip_model, no_prompts("IVLP"))
        module.IMAGENET_TEMPLATES = list(c.templates)
        clip = their_clip(world, clip_model, deep)
        node = {"PROMPT_DEPTH_TEXT": o.DEPTH, "PROMPT_DEPTH_VISION": o.DEPTH,
                "N_CTX_TEXT": o.N_CTX, "N_CTX_VISION": o.N_CTX, "CTX_INIT": o.CTX_INIT,
                "TEXT_LOSS_WEIGHT": o.TEXT_LOSS_WEIGHT, "IMAGE_LOSS_WEIGHT": o.IMAGE_LOSS_WEIGHT}
        cfg = settings(TRAINER={"PROMPTSRC": node}, INPUT={"SIZE": (c.image,) * 2},
                       OPTIM={"MAX_EPOCH": c.rounds})
        net = module.CustomCLIP(cfg, world.names, clip).double()
        check_start(world, "text.ctx", net.prompt_learner.ctx)
        tensors = {"text.ctx": net.prompt_learner.ctx, "image.prompt.0": clip.visual.VPT}
        for name, place in SIDES:
            for block in range(1, o.DEPTH):
                layer = clip.get_submodule(f"{place}.resblocks.{block}")
                tensors[f"{name}.{block}"] = layer.VPT_shallow

        def loss(x: Tensor, y: Tensor) -> Tensor:  # as their forward_backward, which steps too
            cross, text, zero, frozen, image, guide, logits = net.train()(x, y)
            apart = F.kl_div(logits.log_softmax(1), guide.log_softmax(1), reduction="sum",
                             log_target=True) / logits.numel()
            return (cross + apart + o.TEXT_LOSS_WEIGHT * F.l1_loss(text, zero)
                    + o.IMAGE_LOSS_WEIGHT * F.l1_loss(image, frozen))

        theirs = Theirs.of(world, tensors, loss, lambda x: net.eval()(x))
        found = theirs.gradients()
        return found | (averaged(theirs, module.PromptSRC) if c.rounds else {})


def averaged(theirs: Theirs, trainer: Any) -> Values:
    """Return FedAvg's rounds and, as the last model, their weighted sum of all rounds' models."""
    world, rounds = theirs.world, theirs.world.case.rounds
    o, own = world.trainer.cfg, SimpleNamespace()
    gauss = trainer.get_gauss(own, o.GPA_MEAN * rounds, o.GPA_STD * rounds)
    shares = [gauss(t) for t in range(1, rounds + 1)]
    common, total = {n: v.clone() for n, v in world.start.items()}, None
    for share in shares:
        sent = []
        for rows in world.rows:
            theirs.put({n: v.clone() for n, v in common.items()})
            theirs.fit(torch.from_numpy(rows))
            sent.append({n: v.clone() for n, v in theirs.get().items()})
        common = {n: torch.stack([p * s[n] for p, s in zip(world.shares, sent, strict=True)]).sum(0)
                  for n in common}
        part = trainer.state_dict_weighting(own, common, share / sum(shares))
        total = part if total is None else trainer.state_dict_add(own, part, total)
    theirs.put(total or {})
    with torch.no_grad():
        logits = theirs.logits(world.tests)
    found = {f"shared {n}": v for n, v in theirs.get().items()}
    return found | {"logits": logits.expand(len(world.rows), *logits.shape)}
