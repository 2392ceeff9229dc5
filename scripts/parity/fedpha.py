"""FedPHA beside its authors' ``trainers/GL_SVDMSE.py``."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from parity.authors import Names, Theirs, no_prompts, repository, settings, their_clip
from parity.figures import AUTHORS, Source, Values
from parity.world import Case, World

SOURCE = Source(
    "FedPHA", AUTHORS, "CYFang6/FedPHA", "1ab33df395204efd811218b6d135f3469654db6e",
    ("trainers/GL_SVDMSE.py", "clip/model.py"),
    differs="the decomposition in float64 on both sides (float32 there); a fresh optimiser per "
            "client and round; contexts of one length",
)
CASES = {"5 tokens": Case("FedPHA", {"N_CTX": 5, "ALPHA": 1.5}),
         "8 tokens": Case("FedPHA", {"N_CTX": 8, "RATIO": 0.7, "ALPHA": 0.9}, rounds=0)}

_to = Tensor.to


def kept_double(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Return ``self.to(...)``, itself where float32 is asked."""
    return self if args == (torch.float32,) else _to(self, *args, **kwargs)


def other(world: World, folder: Path) -> Values:
    """Return the numbers of the authors' ``CustomCLIP`` with the loss of ``forward_backward``."""
    o = world.case.options
    with repository(folder) as load, patch.object(Tensor, "to", kept_double):
        clip = their_clip(world, load("clip.model"), no_prompts("GL_SVDMSE"))
        node = {"N_CTX": o["N_CTX"], "CTX_INIT": False, "N": 1, "CSC": False,
                "CLASS_TOKEN_POSITION": "end", "ratio": o.get("RATIO", 0.8)}
        cfg = settings(TRAINER={"GL_SVDMSE": node}, INPUT={"SIZE": (world.case.image,) * 2})
        module = load("trainers.GL_SVDMSE")
        net = module.CustomCLIP(cfg, world.names, clip).double()
        solver = module.GL_SVDMSE.__new__(module.GL_SVDMSE)
        solver.cfg, solver.model, solver.alpha = settings(
            TRAINER={"GL_SVDMSE": {"PREC": "fp32"}}), net, o["ALPHA"]
        solver.batch_idx, solver.num_batches = 0, 2
        solver.parse_batch_train = lambda batch: batch
        kept: list[Tensor] = []
        solver.model_backward_and_update = kept.append
        module.__dict__["compute_accuracy"] = lambda *_: [torch.zeros(())]

        def loss(x: Tensor, y: Tensor) -> Tensor:
            net.train()
            kept.clear()
            solver.forward_backward(0, (x, y))
            return kept[0]

        names = Names({
            f"text.ctx.{part}": (getattr(net.prompt_learner, f"ctx_{part}"), lambda t: t[0])
            for part in ("global", "local")
        })
        theirs = Theirs(world, loss=loss, logits=lambda x: net.eval()(x),
                        **names.methods())
        found = theirs.gradients()
        return found | (theirs.rounds(["text.ctx.global"]) if world.case.rounds else {})
