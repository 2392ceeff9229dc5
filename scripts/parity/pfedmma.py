"""pFedMMA beside its authors' ``trainers/pFedMMA.py`` and their changed ``clip/model.py``."""

from __future__ import annotations

from pathlib import Path

import torch.nn.functional as F
from torch import Tensor

from parity.authors import Names, Theirs, repository, settings, their_clip
from parity.figures import AUTHORS, Source, Values
from parity.world import Case, World

SOURCE = Source(
    "pFedMMA", AUTHORS, "sajjad-ucsb/pFedMMA", "84197bb89b6ded3fb8e9b96e1cdd9f8ebc4a5fd2",
    ("trainers/pFedMMA.py", "clip/model.py", "clip/gsl.py"),
    differs="a fresh optimiser per client and round (there one goes through all clients)",
)
CASES = {
    "two-blocks": Case("pFedMMA", {"BLOCKS": 2, "HIDDEN": 8, "SCALE": 0.1}, vision_width=192),
    "last block": Case("pFedMMA", {"BLOCKS": 1, "HIDDEN": 4, "SCALE": 0.001}, rounds=0),
}
SIDES = {"image": "visual_adapter", "text": "text_adapter"}


def other(world: World, folder: Path) -> Values:
    """Return the numbers of the authors' ``CustomCLIP``."""
    case, o = world.case, world.case.options
    with repository(folder) as load:
        clip = their_clip(world, load("clip.model"))
        node = {"TEXT_CTX_INIT": "a photo of a", "ADAPTER_START": case.layers - o["BLOCKS"] + 1,
                "ADAPTER_END": case.layers, "ADAPTER_DIM": o["HIDDEN"], "ADAPTER_SCALE": o["SCALE"]}
        cfg = settings(TRAINER={"MMADAPTER": node}, INPUT={"SIZE": (case.image,) * 2})
        net = load("trainers.pFedMMA").CustomCLIP(cfg, world.names, clip).double()
        learner, table = net.adapter_learner, dict[str, Tensor]()
        for i in range(o["BLOCKS"]):
            layers = {f"both.mm_adapter.{i}": learner.shared_adapter[case.layers - i][0]}
            for tower, kind in SIDES.items():
                adapter = getattr(learner, kind)[case.layers - i]
                layers |= {f"{tower}.mm_adapter.{i}.down": adapter.down[0],
                           f"{tower}.mm_adapter.{i}.up": adapter.up}
            table |= {f"{name}.{part}": getattr(layer, part) for name, layer in layers.items()
                      for part in ("weight", "bias")}

        def logits(x: Tensor) -> Tensor:
            net.eval().text_features_for_inference = None  # of the client before
            found: Tensor = net(x)
            return found

        side = Theirs(world, loss=lambda x, y: F.cross_entropy(net.train()(x), y), logits=logits,
                      **Names(table).methods())
        found = side.gradients()
        shared = [name for name in table if name.startswith("both.")]
        return found | (side.rounds(shared) if case.rounds else {})
