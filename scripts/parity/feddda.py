"""FedDDA beside its authors' ``trainers/FEDDDA.py``."""

from __future__ import annotations

from pathlib import Path

import torch.nn.functional as F

from parity.authors import Names, Theirs, no_prompts, repository, settings, their_clip
from parity.figures import AUTHORS, Source, Values
from parity.world import Case, World

SOURCE = Source(
    "FedDDA", AUTHORS, "MoratalYang/FedDDA", "3c79f0afae88498f5fbbad9bbbda9312c4347c2f",
    ("trainers/FEDDDA.py", "clip/model.py"),
    differs="a fresh optimiser per client and round (there one goes through all clients)",
)
CASES = {"4 tokens": Case("FedDDA", {"N_CTX": 4}),
         "7 tokens": Case("FedDDA", {"N_CTX": 7}, rounds=0)}
SHARED = ("text.ctx.global", "image.shared_adapter.fc1.weight", "image.shared_adapter.fc2.weight")


def other(world: World, folder: Path) -> Values:
    """Return the numbers of the authors' ``CustomCLIP``."""
    with repository(folder) as load:
        clip = their_clip(world, load("clip.model"), no_prompts("FEDDDA"))
        node = {"N_CTX": world.case.options["N_CTX"], "CTX_INIT": False, "N": 2, "CSC": False,
                "CLASS_TOKEN_POSITION": "middle"}
        cfg = settings(TRAINER={"FEDDDA": node}, INPUT={"SIZE": (world.case.image,) * 2})
        net = load("trainers.FEDDDA").CustomCLIP(cfg, world.names, clip).double().train()
        ctx = net.prompt_learner.ctx
        names = Names({
            "text.ctx.global": (ctx, lambda t: t[0]), "text.ctx.local": (ctx, lambda t: t[1]),
            "gate.weight": net.gate.wg.weight,
        } | {
            f"image.{ours}.fc{n + 1}.weight": adapter.layer[2 * n].weight
            for ours, adapter in (("shared_adapter", net.shared_adapter),
                                  ("personal_adapter", net.specific_adapter)) for n in (0, 1)
        })
        theirs = Theirs(world, loss=lambda x, y: F.cross_entropy(net(x), y), logits=net,
                        **names.methods())
        found = theirs.gradients()
        return found | (theirs.rounds(SHARED) if world.case.rounds else {})
