"""ZeroShot beside CoOp's ``trainers/zsclip.py``: one template, and the mean of several."""

from __future__ import annotations

from pathlib import Path

import torch

from parity.authors import repository, settings, their_clip
from parity.figures import OTHERS, Source, Values
from parity.world import Case, World

SOURCE = Source(
    "ZeroShot", OTHERS, "KaiyangZhou/CoOp", "ff61507c790454bce7c5052c3ac39e60772f1f89",
    ("trainers/zsclip.py", "clip/model.py"), equal="logits",
)
SEVERAL = ("itap of a {}.", "a bad photo of the {}.", "a photo of a {}.")
CASES = {"one template": Case("ZeroShot", rounds=1, loss=False),
         "three templates": Case("ZeroShot", rounds=1, loss=False, templates=SEVERAL)}


def other(world: World, folder: Path) -> Values:
    """Return the logits of their ``ZeroshotCLIP``, of several templates those of the second."""
    with repository(folder) as load, torch.no_grad():
        clip, module = their_clip(world, load("clip.model")), load("trainers.zsclip")
        module.load_clip_to_cpu, module.CUSTOM_TEMPLATES = lambda _: clip, {
            "toy": world.case.templates[-1]}
        several = len(world.case.templates) > 1
        theirs = (module.ZeroshotCLIP2 if several else module.ZeroshotCLIP)()
        if several:
            theirs.templates = list(world.case.templates[:-1])
        theirs.cfg = settings(DATASET={"NAME": "toy"}, MODEL={"BACKBONE": {"NAME": ""}})
        theirs.dm = settings(dataset={"classnames": world.names})
        theirs.device = "cpu"
        theirs.build_model()
        logits = theirs.model_inference(world.tests)
    return {"logits": logits.expand(len(world.rows), -1, -1)}
