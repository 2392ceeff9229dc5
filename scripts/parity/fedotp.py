"""FedOTP beside its authors' ``trainers/GLP_OT.py``."""

from __future__ import annotations

from pathlib import Path

import torch.nn.functional as F

from parity.authors import Names, Theirs, no_prompts, repository, settings, their_clip
from parity.figures import AUTHORS, Source, Values
from parity.world import Case, World

SOURCE = Source(
    "FedOTP", AUTHORS, "HongxiaLee/FedOTP", "9948611a2325adc5543e9185cf0aa92ff84a2936",
    ("trainers/GLP_OT.py", "clip/model.py"),
    differs="their rule that ends the iterations where the batch's mean change is below 1e-3 is "
            "switched off (with it 2e-6 off after three rounds), since images would mix; a fresh "
            "optimiser per client and round",
)
CASES = {"eps 0.1": Case("FedOTP", {"N_CTX": 4, "ITERS": 60}),
         "eps 0.01": Case("FedOTP", {"N_CTX": 4, "ITERS": 60, "EPS": 0.01, "GAMMA": 0.6},
                          rounds=0)}
PAIR = ("text.ctx.global", "text.ctx.local")


def other(world: World, folder: Path) -> Values:
    """Return the numbers of the authors' ``CustomCLIP``."""
    o = world.trainer.cfg
    with repository(folder) as load:
        clip = their_clip(world, load("clip.model"), no_prompts("GLP_OT"))
        node = {"N_CTX": o.N_CTX, "CTX_INIT": "", "N": 2, "CSC": False, "OT": "COT",
                "CLASS_TOKEN_POSITION": "end", "EPS": o.EPS, "THRESH": 1e-30,
                "TOP_PERCENT": o.GAMMA, "MAX_ITER": o.ITERS}
        cfg = settings(TRAINER={"GLP_OT": node}, INPUT={"SIZE": (world.case.image,) * 2},
                       DATASET={"NAME": "toy"})
        net = load("trainers.GLP_OT").CustomCLIP(cfg, world.names, clip).double().train()
        ctx = net.prompt_learner.ctx
        names = Names({PAIR[0]: (ctx, lambda t: t[0]), PAIR[1]: (ctx, lambda t: t[1])})
        theirs = Theirs(world, loss=lambda x, y: F.cross_entropy(net(x), y), logits=net,
                        **names.methods())
        return theirs.gradients() | (theirs.rounds(PAIR[:1]) if world.case.rounds else {})
