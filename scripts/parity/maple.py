"""MaPLe beside its authors' ``trainers/maple.py``."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from parity.authors import Theirs, check_start, no_prompts, repository, settings, their_clip
from parity.figures import AUTHORS, Source, Values
from parity.world import Case, World

SOURCE = Source(
    "MaPLe", AUTHORS, "muzairkhattak/PromptSRC", "bb95c77b634d63488f2cad81ff4a72d53bdd06d5",
    ("trainers/maple.py", "clip/model.py"),
    differs="their widths 512 and 768 are those of our small CLIP; FedAvg around it, which the "
            "repository does not have",
)
CASES = {
    "2 of 4 words": Case("MaPLe", {"DEPTH": 3}, layers=4),
    "random start": Case("MaPLe", {"DEPTH": 2, "CTX_INIT": "", "N_CTX": 3}, rounds=0),
}
COUPLE, TEXT = "image.couple", "text.prompt"


def other(world: World, folder: Path) -> Values:
    """Return the numbers of the authors' ``CustomCLIP``."""
    c, chosen = world.case, world.trainer.cfg
    width, depth = (c.width, c.vision_width), int(chosen.DEPTH)
    with repository(folder) as load:
        design = no_prompts("MaPLe") | {"maple_length": chosen.N_CTX}
        clip = their_clip(world, load("clip.model"), design)
        cfg = settings(
            TRAINER={"MAPLE": {"N_CTX": chosen.N_CTX, "CTX_INIT": chosen.CTX_INIT,
                               "PROMPT_DEPTH": depth}}, INPUT={"SIZE": (c.image,) * 2},
        )
        net = load("trainers.maple").CustomCLIP(cfg, world.names, clip).double()
        learner = net.prompt_learner
        if chosen.CTX_INIT:
            check_start(world, "text.ctx", learner.ctx)
        learner.proj = nn.Linear(*width).double()
        couples = nn.ModuleList(nn.Linear(*width).double() for _ in range(depth - 1))
        learner.compound_prompt_projections = couples

        tensors = {"text.ctx": learner.ctx}
        tensors |= {f"{TEXT}.{b}": p for b, p in enumerate(learner.compound_prompts_text, 1)}
        for block, layer in enumerate([learner.proj, *couples]):
            tensors |= {f"{COUPLE}.{block}.{n}": p for n, p in layer.named_parameters()}
        theirs = Theirs.of(world, tensors, lambda x, y: net.train()(x, y), lambda x: net.eval()(x))
        return theirs.gradients() | (theirs.rounds(world.start) if c.rounds else {})
