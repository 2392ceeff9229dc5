"""FedPGP beside its authors' ``trainers/fedpgp.py``."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parity.authors import Theirs, no_prompts, repository, settings, their_clip
from parity.figures import AUTHORS, Source, Values
from parity.world import Case, World

SOURCE = Source(
    "FedPGP", AUTHORS, "TianyuCuiOvO/FedPGP", "d43045b33f42beb192e8ac7b2da0222bf6cec3e6",
    ("trainers/fedpgp.py", "clip/model.py"),
    differs="one prompt set (of two their code makes 2 C logits for C classes; ours averages); a "
            "fresh optimiser per client and round",
)
CASES = {"rank 2": Case("FedPGP", {"N_CTX": 4, "RANK": 2}),
         "rank 3": Case("FedPGP", {"N_CTX": 4, "RANK": 3, "MU": 2, "TEMP": 0.2}, rounds=0)}
NAMES = {"text.sigma": "sigma", "text.U": "U", "text.V": "V"}


def other(world: World, folder: Path) -> Values:
    """Return the numbers of the authors' ``CustomCLIP``."""
    o = world.trainer.cfg
    with repository(folder) as load:
        clip = their_clip(world, load("clip.model"), no_prompts("CoOp"))
        node = {"N_CTX": o.N_CTX, "CTX_INIT": "", "N": 1, "CSC": False, "BOTTLENECK": o.RANK,
                "CLASS_TOKEN_POSITION": "end"}
        cfg = settings(TRAINER={"FEDPGP": node}, INPUT={"SIZE": (world.case.image,) * 2})
        net = load("trainers.fedpgp").CustomCLIP(cfg, world.names, clip).double()
        leaves = {name: getattr(net.prompt_learner, their) for name, their in NAMES.items()}
        cosine = nn.CosineSimilarity(dim=-1)

        def loss(x: Tensor, y: Tensor) -> Tensor:  # as their forward_backward, which steps too
            zero, general, _, own, logits = net.train()(x)
            near, far = cosine(zero, general), cosine(general, own)
            scores = torch.stack([near, far], 1) / o.TEMP
            contrast = F.cross_entropy(scores, torch.zeros(len(scores), dtype=torch.int64))
            return F.cross_entropy(logits, y) + o.MU * contrast

        theirs = Theirs.of(world, leaves, loss, lambda x: net.eval()(x))
        return theirs.gradients() | (theirs.rounds(["text.sigma"]) if world.case.rounds else {})
