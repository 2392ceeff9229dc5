"""ProGrad beside its authors' ``trainers/prograd.py`` and the step of their ``dassl``."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from parity.authors import Theirs, load_file, repository, settings, their_clip
from parity.figures import AUTHORS, Source, Values
from parity.world import Case, World

SOURCE = Source(
    "ProGrad", AUTHORS, "BeierZhu/Prompt-align", "1b762036cbe97ecf504e17bb94d89191679e4e6e",
    ("ProGrad.public/trainers/prograd.py", "ProGrad.public/clip/model.py",
     "Dassl.ProGrad.pytorch/dassl/engine/trainer.py"),
    differs="FedAvg around it, which the repository does not have",
)
CASES = {
    "lambda 1": Case("ProGrad", {"N_CTX": 4}),
    "lambda 0.6, temperature 2": Case("ProGrad", {"N_CTX": 4, "LAMBDA": 0.6, "TEMP": 2.0}),
}
ENGINE = "Dassl.ProGrad.pytorch/dassl/engine/trainer.py"


class Aligned(Theirs):
    """Steps by their ``prograd_backward_and_update``."""

    both: Any  # images, labels -> cross-entropy and divergence, as their criterion has them
    step: Any
    share: float

    def fit(self, rows: Tensor) -> None:
        """Train one client for the case's local epochs."""
        w, c = self.world, self.world.case
        (context,) = self.leaves()
        context.requires_grad_(True)
        optimiser = torch.optim.SGD([context], c.rate, c.momentum, weight_decay=c.decay)
        module = SimpleNamespace(parameters=lambda: iter([context]))
        whole = SimpleNamespace(
            model_zero_grad=lambda names: optimiser.zero_grad(), detect_anomaly=lambda loss: None,
            get_model_names=lambda names: ["ctx"], _models={"ctx": module},
            _optims={"ctx": optimiser},
        )
        for _ in range(c.epochs):
            self.step(whole, *self.both(w.images[rows], w.labels[rows]), self.share)


def other(world: World, folder: Path) -> Values:
    """Return the numbers of the authors' ``CustomCLIP``, criterion and step."""
    c, o = world.case, world.trainer.cfg
    with repository(folder / "ProGrad.public", "tqdm", "torch.utils.tensorboard") as load:
        module = load("trainers.prograd")
        module.CUSTOM_TEMPLATES = {"toy": c.templates[0]}
        clip = their_clip(world, load("clip.model"))
        module.load_clip_to_cpu = lambda _: clip
        coop = {"N_CTX": o.N_CTX, "CTX_INIT": "", "CSC": False, "CLASS_TOKEN_POSITION": "end"}
        cfg = settings(
            TRAINER={"COOP": coop}, INPUT={"SIZE": (c.image,) * 2}, DATASET={"NAME": "toy"},
            MODEL={"BACKBONE": {"NAME": "toy"}},
        )
        net = module.CustomCLIP(cfg, world.names, clip).double()
        guide, criterion = module.CLIP(cfg, world.names), module.ProGradLoss(o.TEMP)
        theirs = Aligned.of(
            world, {"text.ctx": net.prompt_learner.ctx},
            lambda x, y: F.cross_entropy(net(x), y), net,
        )
        theirs.both = lambda x, y: criterion(net(x), guide(x).detach(), y)
        theirs.step = load_file(folder / ENGINE).TrainerBase.prograd_backward_and_update
        theirs.share = o.LAMBDA
        return theirs.gradients() | theirs.rounds(["text.ctx"])
