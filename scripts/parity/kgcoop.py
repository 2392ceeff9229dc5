"""KgCoOp beside its authors' ``trainers/kgcoop.py``."""

from __future__ import annotations

from pathlib import Path

import torch.nn.functional as F
from torch import Tensor

from parity.authors import Theirs, check_start, repository, settings, their_clip
from parity.figures import AUTHORS, Source, Values
from parity.world import Case, World

SOURCE = Source(
    "KgCoOp", AUTHORS, "htyao89/KgCoOp", "c43ccc32c8739f64b165cfa205fcc6c0f5bb5b17",
    ("KgCoOp/trainers/kgcoop.py", "KgCoOp/clip/model.py"),
    differs="FedAvg around it, which the repository does not have",
)
CASES = {"a photo of a": Case("KgCoOp")}


def other(world: World, folder: Path) -> Values:
    """Return the numbers of the authors' ``CustomCLIP``."""
    c, o = world.case, world.trainer.cfg
    with repository(folder / "KgCoOp") as load:
        module = load("trainers.kgcoop")
        module.CUSTOM_TEMPLATES = {"toy": c.templates[0]}
        clip = their_clip(world, load("clip.model"))
        module.load_clip_to_cpu = lambda _: clip
        coop = {"N_CTX": 4, "CTX_INIT": True, "CSC": False, "CLASS_TOKEN_POSITION": "end"}
        cfg = settings(TRAINER={"COOP": coop, "COCOOP": {"PREC": "fp32"}},
                       INPUT={"SIZE": (c.image,) * 2}, DATASET={"NAME": "toy"})
        net = module.CustomCLIP(cfg, world.names, clip).double()
        context = net.prompt_learner.ctx
        check_start(world, "text.ctx", context)

        def loss(x: Tensor, y: Tensor) -> Tensor:  # as their forward_backward, which steps too
            logits, gap = net(x)
            return F.cross_entropy(logits, y) + o.W * gap

        theirs = Theirs.of(world, {"text.ctx": context}, loss, lambda x: net(x)[0])
        return theirs.gradients() | theirs.rounds(["text.ctx"])
