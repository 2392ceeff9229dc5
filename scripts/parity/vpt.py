"""VPT beside the ``trainers/vpt.py`` of MaPLe's authors, who brought it to CLIP."""

from __future__ import annotations

from pathlib import Path

from parity.authors import Theirs, repository, settings, their_clip
from parity.figures import OTHERS, Source, Values
from parity.world import Case, World

SOURCE = Source(
    "VPT", OTHERS, "muzairkhattak/multimodal-prompt-learning",
    "69bce21ae8eda80ad6187534b2dce09cf6c59e17", ("trainers/vpt.py", "clip/model.py"),
    differs="the template is theirs, \"a photo of a\", for every data set (ours takes the data "
            "set's); FedAvg around it, which the repository does not have",
)
CASES = {"deep": Case("VPT", {"TOKENS": 3, "DEPTH": 2}, layers=3),
         "shallow": Case("VPT", {"TOKENS": 2, "DEPTH": 1}, rounds=0)}


def other(world: World, folder: Path) -> Values:
    """Return the numbers of their ``CustomCLIP``."""
    c, o = world.case, world.trainer.cfg
    with repository(folder) as load:
        design = {"trainer": "VPT", "vision_depth": o.DEPTH, "vision_ctx": o.TOKENS,
                  "language_depth": 0, "language_ctx": 0}
        clip = their_clip(world, load("clip.model"), design)
        node = {"N_CTX_VISION": o.TOKENS, "PROMPT_DEPTH_VISION": o.DEPTH}
        cfg = settings(TRAINER={"VPT": node}, INPUT={"SIZE": (c.image,) * 2})
        net = load("trainers.vpt").CustomCLIP(cfg, world.names, clip)
        blocks = clip.visual.transformer.resblocks
        tensors = {"image.prompt.0": clip.visual.VPT}
        tensors |= {f"image.prompt.{b}": blocks[b].VPT_shallow for b in range(1, o.DEPTH)}
        theirs = Theirs.of(world, tensors, lambda x, y: net(x, y, training=True), net)
        return theirs.gradients() | (theirs.rounds(list(tensors)) if c.rounds else {})
