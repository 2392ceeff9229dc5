"""FedTV beside its authors' ``trainers/fedtv.py`` and ``fed_utils.py``."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from parity.authors import Theirs, no_prompts, repository, settings, their_clip
from parity.figures import AUTHORS, Source, Values
from parity.pfllib import quiet
from parity.world import Case, World

SOURCE = Source(
    "FedTV", AUTHORS, "wingslyz/FedTV", "c764c3e6131b3874b0cd092eb94d118c3bdeff12",
    ("trainers/fedtv.py", "fed_utils.py", "clip/model.py"),
    differs="a fresh optimiser per client and round, fusion biases that stay with their client; "
    "the bias of the fusion's key is left out, since its gradient is rounding on both sides",
)
CASES = {"published": Case("FedTV", {"N_CTX": 4, "RANK": 2}, layers=1)}
NAMES = {
    "text.sigma": "prompt_learner.sigma", "text.U": "prompt_learner.B",
    "text.S": "prompt_learner.S", "text.V": "prompt_learner.A",
    **{f"image.{ours}_adapter.fc{i}.weight": f"{their}_adapter.layer.{2 * i - 2}.weight"
       for ours, their in (("shared", "glo"), ("personal", "loc")) for i in (1, 2)},
    **{f"image.fusion.{ours}.{kind}": f"visual_fusion.w_{ours}.{kind}"
       for ours in ("query", "key") for kind in ("weight", "bias")},
}
SHARED = ("text.sigma", "image.shared_adapter.fc1.weight", "image.shared_adapter.fc2.weight")
ROUNDING = "image.fusion.key.bias"


def other(world: World, folder: Path) -> Values:
    """Return the numbers of the authors' model, loss and server rule."""
    o, sizes = world.trainer.cfg, dict(enumerate(world.case.sizes))
    users, kept = list(sizes), torch.linalg.svd
    with repository(folder, "pandas", "pandas.core", "pandas.core.nanops", "prettytable") as load:
        clip = their_clip(world, load("clip.model"), no_prompts("FedTV"))
        node = {"N_CTX": o.N_CTX, "CTX_INIT": "", "N": 1, "CSC": False, "BOTTLENECK": o.RANK,
                "PREC": "fp32", "CLASS_TOKEN_POSITION": "end"}
        cfg = settings(TRAINER={"FEDTV": node, "FEDPGP": node},
                       INPUT={"SIZE": (world.case.image,) * 2})
        file, utils = load("trainers.fedtv"), load("fed_utils")
        torch.linalg.svd = lambda value, **how: kept(value.double(), **how)
        try:
            with quiet():
                net = file.CustomCLIP(cfg, world.names, clip).double()
        finally:
            torch.linalg.svd = kept
        file.compute_accuracy = lambda *_: [torch.zeros(())]
        own = dict(net.named_parameters())
        leaves = {name: own[their] for name, their in NAMES.items()}
        self: Any = SimpleNamespace(
            cfg=cfg, model=net, temp=o.TEMP, device="cpu", batch_idx=0, num_batches=0,
            parse_batch_train=lambda batch: batch,
        )

        def loss(x: Tensor, y: Tensor) -> Tensor:
            found: list[Tensor] = []
            self.model_backward_and_update = found.append
            net.train()
            file.FedTV.forward_backward(self, (x, y))
            return found[0]

        def server(round_: int, sent: list[Tensor], last: Tensor) -> Tensor:
            given = dict(enumerate(value.clone() for value in sent))
            rule = (utils.average_weights if not round_ else
                    lambda w, *rest, **how: utils.similarity_weighted_aggregation(w, last, *rest,
                                                                                  **how))
            with quiet():
                new: Tensor = rule(given, users, sizes, islist=True)
            return new

        theirs = Theirs.of(world, leaves, loss, lambda x: net.eval()(x))
        found = theirs.gradients() | theirs.rounds(SHARED, server=server)
        return {name: value for name, value in found.items() if not name.endswith(ROUNDING)}
