"""PromptFL beside CoOp's ``trainers/coop.py``, which it averages."""

from __future__ import annotations

from pathlib import Path

import torch.nn.functional as F

from parity.authors import Theirs, check_start, repository, settings, their_clip
from parity.figures import OTHERS, Source, Values
from parity.world import Case, World

SOURCE = Source(
    "PromptFL", OTHERS, "KaiyangZhou/CoOp", "ff61507c790454bce7c5052c3ac39e60772f1f89",
    ("trainers/coop.py", "clip/model.py"),
    differs="FedAvg around it, which the repository does not have",
)
WORDS = "a photo of a"
CASES = {WORDS: Case("PromptFL", keys={"PEFT.N_CTX": 4, "PEFT.CTX_INIT": WORDS}),
         "a context for each class": Case("PromptFL", keys={"PEFT.N_CTX": 4, "PEFT.CSC": True})}


def other(world: World, folder: Path) -> Values:
    """Return the numbers of CoOp's ``CustomCLIP``."""
    keys = world.case.keys
    with repository(folder) as load:
        clip = their_clip(world, load("clip.model"))
        node = {"N_CTX": 4, "CTX_INIT": keys.get("PEFT.CTX_INIT", ""), "CSC": "PEFT.CSC" in keys,
                "CLASS_TOKEN_POSITION": "end", "PREC": "fp32"}
        cfg = settings(TRAINER={"COOP": node}, INPUT={"SIZE": (world.case.image,) * 2})
        net = load("trainers.coop").CustomCLIP(cfg, world.names, clip).double()
        context = net.prompt_learner.ctx
        if "PEFT.CTX_INIT" in keys:
            check_start(world, "text.ctx", context)
        theirs = Theirs.of(
            world, {"text.ctx": context}, lambda x, y: F.cross_entropy(net(x), y), net
        )
        return theirs.gradients() | theirs.rounds(["text.ctx"])
