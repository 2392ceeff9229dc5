"""CoCoOp beside its authors' ``trainers/cocoop.py``."""

from __future__ import annotations

from pathlib import Path

from parity.authors import Theirs, check_start, repository, settings, their_clip
from parity.figures import AUTHORS, Source, Values
from parity.world import Case, World

SOURCE = Source(
    "CoCoOp", AUTHORS, "KaiyangZhou/CoOp", "ff61507c790454bce7c5052c3ac39e60772f1f89",
    ("trainers/cocoop.py", "clip/model.py"),
    differs="batches of several images (there of one); FedAvg around it, which the repository "
            "does not have",
)
CASES = {"a photo of a": Case("CoCoOp", epochs=1)}


def other(world: World, folder: Path) -> Values:
    """Return the numbers of the authors' ``CustomCLIP``."""
    with repository(folder) as load:
        clip = their_clip(world, load("clip.model"))
        node = {"N_CTX": 4, "CTX_INIT": "a photo of a", "PREC": "fp32"}
        cfg = settings(TRAINER={"COCOOP": node}, INPUT={"SIZE": (world.case.image,) * 2})
        net = load("trainers.cocoop").CustomCLIP(cfg, world.names, clip).double()
        learner = net.prompt_learner
        check_start(world, "text.ctx", learner.ctx)
        tensors = {"text.ctx": learner.ctx}
        for ours, layer in (("fc1", learner.meta_net.linear1), ("fc2", learner.meta_net.linear2)):
            tensors |= {f"text.net.{ours}.{n}": p for n, p in layer.named_parameters()}
        theirs = Theirs.of(world, tensors, lambda x, y: net.train()(x, y), lambda x: net.eval()(x))
        return theirs.gradients() | theirs.rounds(list(tensors))
