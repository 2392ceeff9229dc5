"""CLIP-Adapter beside its authors' ``clip_adapter.py``."""

from __future__ import annotations

from pathlib import Path

import torch.nn.functional as F

from parity.authors import FrozenCLIP, Names, Theirs, repository, settings
from parity.figures import AUTHORS, Source, Values
from parity.world import Case, World

SOURCE = Source(
    "CLIP-Adapter", AUTHORS, "gaopengcuhk/CLIP-Adapter", "08d07f8b2ecafc6f1479fe636b26d464d7a5574e",
    ("clip_adapter.py",), equal="loss, gradients, logits, two rounds of each client alone",
    differs="features of our frozen towers on both sides, 1024 wide as theirs; a fresh optimiser "
            "in each round",
)
CASES = {"pets": Case("CLIP-Adapter", templates=("a photo of a {}, a type of pet.",), rate=0.5,
                      rounds=2, embed=1024)}


def other(world: World, folder: Path) -> Values:
    """Return the numbers of the authors' ``CustomCLIP``."""
    with repository(folder) as load:
        clip = FrozenCLIP(world)
        clip.install()
        module = load("clip_adapter")
        net = module.CustomCLIP(settings(DATASET={"NAME": "OxfordPets"}), world.names, clip)
        layers = net.adapter.double().fc
        names = Names({f"image.adapter.fc{n + 1}.weight": layers[2 * n].weight for n in (0, 1)})
        theirs = Theirs(world, loss=lambda x, y: F.cross_entropy(net(x), y), logits=net,
                        **names.methods())
        return theirs.gradients() | theirs.rounds([])
