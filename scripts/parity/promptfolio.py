"""PromptFolio beside its authors' ``trainers/PromptFolio.py``."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from fedvlm.core.trees import Tree
from parity.authors import Theirs, repository, settings, their_clip
from parity.figures import AUTHORS, Source, Values
from parity.world import Case, World

SOURCE = Source(
    "PromptFolio", AUTHORS, "PanBikang/PromptFolio", "8f729aab78b27ad78ad441b75deebb0e51d5b26c",
    ("trainers/PromptFolio.py", "clip/model.py"),
    differs="a fresh optimiser per client and round; their script keeps none either",
)
CASES = {"4 tokens": Case("PromptFolio", {"N_CTX": 4})}
PAIR = ("text.ctx.global", "text.ctx.local")


def other(world: World, folder: Path) -> Values:
    """Return the numbers of the authors' ``CustomCLIP``."""
    with repository(folder) as load:
        design = {"trainer": "CoOp", "vision_depth": 0, "language_depth": 0, "vision_ctx": 0,
                  "language_ctx": 0}
        clip = their_clip(world, load("clip.model"), design)
        cfg = settings(
            TRAINER={"PLOT": {"N_CTX": 4, "CTX_INIT": "", "N": 2, "CLASS_TOKEN_POSITION": "end"},
                     "PROMPTFL": {"CSC": False, "FRAC": 0.4}},
            INPUT={"SIZE": (world.case.image,) * 2}, DATASET={"NAME": "toy"},
        )
        net = load("trainers.PromptFolio").CustomCLIP(cfg, world.names, clip).double().train()
        learner = net.prompt_learner

        def put(tree: Tree) -> None:
            learner.ctx.data = torch.stack([tree[name] for name in PAIR])

        def pair(value: Tensor) -> Tree:
            return dict(zip(PAIR, value, strict=True))

        theirs = Theirs(
            world, put=put, get=lambda: pair(learner.ctx.data), logits=net,
            loss=lambda x, y: F.cross_entropy(net(x), y), leaves=lambda: [learner.ctx],
            grads=lambda: pair(learner.ctx.grad),
        )
        return theirs.gradients() | theirs.rounds(PAIR[:1])
