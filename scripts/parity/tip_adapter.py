"""Tip-Adapter beside its authors' ``main.py`` and ``utils.py``: cache, logits, trained keys."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor

from parity.authors import FrozenCLIP, repository
from parity.figures import AUTHORS, Source, Values
from parity.world import Case, World

SAME = ("features of our frozen towers on both sides, with one un-augmented view of an image (the "
        "mean of ten random crops there); our logit scale in place of 100; ALPHA and BETA are not "
        "searched for")
SOURCE = Source(
    "Tip-Adapter", AUTHORS, "gaopengcuhk/Tip-Adapter", "d0e2d6f8c5feb8b6ce937b757810761f7155d4d5",
    ("main.py", "utils.py"), equal="logits of each client's cache", differs=SAME,
)
CASES = {"their start": Case("Tip-Adapter", {"ALPHA": 3.0, "BETA": 1.0}, loss=False, rounds=1),
         "ImageNet's": Case("Tip-Adapter", {"ALPHA": 1.17, "BETA": 5.5}, loss=False, rounds=1,
                            templates=("itap of a {}.", "a bad photo of the {}."))}


class Seen:
    """What their functions computed last: logits where they count what is right, saved tensors."""

    def __init__(self) -> None:
        self.logits, self.saved = torch.zeros(0), torch.zeros(0)
        self.counts = 0

    def count(self, output: Tensor, *_: Any) -> float:
        """Keep the logits; each count is higher than the last, so that each epoch is saved."""
        self.logits, self.counts = output.detach().clone(), self.counts + 1
        return float(self.counts)

    def save(self, value: Tensor, *_: Any) -> None:
        """Keep a tensor."""
        self.saved = value.detach().clone()


@contextmanager
def opened(world: World, folder: Path, seen: Seen) -> Iterator[tuple[Any, Any, FrozenCLIP]]:
    """Give their ``main``, their ``utils`` and our towers; nothing is written to disk."""
    clip, double = FrozenCLIP(world), patch.object(Tensor, "half", lambda x: x.double())
    disk = patch.multiple(torch, save=seen.save, load=lambda *_: torch.nn.Parameter(seen.saved))
    with repository(folder, "torchvision", "torchvision.transforms", "tqdm") as load, double, disk:
        clip.install()
        readers = ("datasets", "datasets.utils")
        utils = load("utils")
        with patch.dict("sys.modules", {name: stub(name) for name in readers}):
            main = load("main")
        for module in (utils, main):
            module.__dict__.update(tqdm=iter, cls_acc=seen.count)
        yield main, utils, clip


def stub(name: str) -> Any:
    """Return a module whose functions are never called."""
    module: Any = type(torch)(name)
    module.build_dataset = module.build_data_loader = None
    return module


def texts(world: World, utils: Any, clip: FrozenCLIP) -> Tensor:
    """Return their class features ``[d, C]``, scaled so that their 100 is our scale."""
    weights: Tensor = utils.clip_classifier(world.names, world.case.templates, clip)
    return weights * clip.logit_scale.exp() / 100


def settings_of(world: World) -> dict[str, Any]:
    """Return their ``cfg``."""
    o = world.case.options
    return {"init_alpha": o["ALPHA"], "init_beta": o["BETA"], "load_cache": False,
            "augment_epoch": 1, "cache_dir": "", "shots": 0, "load_pre_feat": False,
            "lr": world.case.rate, "train_epoch": world.case.epochs}


def cache(world: World, utils: Any, clip: FrozenCLIP, rows: Any) -> tuple[Tensor, Tensor]:
    """Return their keys ``[d, n]`` and labels ``[n, C]`` of a client's images."""
    batch = [(world.images[rows], world.labels[rows])]
    keys, values = utils.build_cache_model(settings_of(world), clip, batch)
    return keys, F.pad(values, (0, len(world.names) - values.shape[1]))


def other(world: World, folder: Path) -> Values:
    """Return the logits of their ``run_tip_adapter`` for each client's cache."""
    seen, logits = Seen(), []
    cfg = settings_of(world)
    with opened(world, folder, seen) as (main, utils, clip):
        main.search_hp = lambda *_: (cfg["init_beta"], cfg["init_alpha"])
        weights = texts(world, utils, clip)
        none = torch.zeros(len(world.tests))
        features, _ = utils.pre_load_features(cfg, "test", clip, [(world.tests, none)])
        for rows in world.rows:
            keys, values = cache(world, utils, clip, rows)
            main.run_tip_adapter(cfg, keys, values, features, none, features, none, weights)
            logits.append(seen.logits)
    return {"logits": torch.stack(logits)}


