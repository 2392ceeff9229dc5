"""PromptFolio beside its authors' ``trainers/PromptFolio.py``."""

from __future__ import annotations

from pathlib import Path

import torch.nn.functional as F

from parity.authors import Names, Theirs, no_prompts, repository, settings, their_clip
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
        clip = their_clip(world, load("clip.model"), no_prompts("CoOp"))
        cfg = settings(
            TRAINER={"PLOT": {"N_CTX": 4, "CTX_INIT": "", "N": 2, "CLASS_TOKEN_POSITION": "end"},
                     "PROMPTFL": {"CSC": False, "FRAC": 0.4}},
            INPUT={"SIZE": (world.case.image,) * 2}, DATASET={"NAME": "toy"},
        )
        net = load("trainers.PromptFolio").CustomCLIP(cfg, world.names, clip).double().train()
        ctx = net.prompt_learner.ctx
        names = Names({PAIR[0]: (ctx, lambda t: t[0]), PAIR[1]: (ctx, lambda t: t[1])})
        theirs = Theirs(world, loss=lambda x, y: F.cross_entropy(net(x), y), logits=net,
                        **names.methods())
        return theirs.gradients() | theirs.rounds(PAIR[:1])
