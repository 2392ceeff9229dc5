"""Tip-Adapter-F beside its authors' ``run_tip_adapter_F``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor

from parity.figures import Values
from parity.tip_adapter import SAME, Seen, cache, opened, settings_of, texts
from parity.tip_adapter import SOURCE as BASE
from parity.world import Case, World

SOURCE = replace(
    BASE, method="Tip-Adapter-F", equal="logits and trained keys of each client after three epochs",
    differs=f"{SAME}; a constant learning rate and the last epoch (cosine and the best on the test "
            "images there)",
)
ADAM = {"eps": 1e-4}
CASES = {"three epochs": Case(
    "Tip-Adapter-F", {"ALPHA": 3.0, "BETA": 1.0, "CAPACITY": 8}, loss=False, rounds=1, epochs=3,
    optimiser="adamw", rate=0.01, decay=0.01, details=ADAM,
)}


def other(world: World, folder: Path) -> Values:
    """Return keys, labels and logits of their function."""
    seen, found, logits = Seen(), Values(), []
    cfg, places = settings_of(world), world.case.options["CAPACITY"]
    constant = patch.object(torch.optim.lr_scheduler, "CosineAnnealingLR", _Constant)
    with opened(world, folder, seen) as (main, utils, clip), constant:
        main.search_hp = lambda *_, **__: (cfg["init_beta"], cfg["init_alpha"])
        weights = texts(world, utils, clip)
        none = torch.zeros(len(world.tests))
        features, _ = utils.pre_load_features(cfg, "test", clip, [(world.tests, none)])
        for client, rows in enumerate(world.rows):
            keys, values = cache(world, utils, clip, rows)
            main.run_tip_adapter_F(cfg, keys, values, features, none, features, none, weights, clip,
                                   [(world.images[rows], world.labels[rows])])
            room = (0, 0, 0, places - len(rows))
            found[f"client{client} tip.keys"] = F.pad(seen.saved, room)
            found[f"client{client} tip.values"] = F.pad(values, room)
            logits.append(seen.logits)
    return found | {"logits": torch.stack(logits)}


class _Constant:
    """A schedule that leaves the learning rate as it is."""

    def __init__(self, *_: Any) -> None:
        self.rate = 0.0

    def step(self) -> None:
        """Do nothing."""

    def get_last_lr(self) -> list[Tensor]:
        """Return what is printed."""
        return [torch.zeros(())]
