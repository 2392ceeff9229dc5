"""AFL beside its authors' ``afl.py``: clients, folding of the solutions, removal of the ridges."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from parity.authors import repository
from parity.figures import AUTHORS, Source, Values
from parity.world import DTYPE, Case, World

SOURCE = Source(
    "AFL", AUTHORS, "ZHUANGHP/Analytic-federated-learning",
    "1e7c2d9978430c6cde0708268dd03128f0bb6c1c", ("afl.py",),
    equal="classifier and logits after one round, with the ridges removed and kept",
    differs="VARIANT published (fixed is the default); features of our frozen tower on both sides, "
            "in float64",
)
SMALL = Case("AFL", embed=8, sizes=(12, 9, 6), rounds=1, loss=False)
CASES = {
    "ridges removed": replace(SMALL, options={"VARIANT": "published", "GAMMA": 2.0}),
    "ridges kept": replace(SMALL, options={"VARIANT": "published", "GAMMA": 2.0, "KEEP": 6.0}),
}


def other(world: World, folder: Path) -> Values:
    """Return the numbers of their ``local_update``, ``aggregation``, ``clean_regularization``."""
    case, count = world.case, len(world.rows)
    args = SimpleNamespace(feat_size=case.embed, num_classes=len(world.names), gpu=None,
                           rg=case.options["GAMMA"], num_clients=count)
    double = patch.object(Tensor, "float", lambda x: x.double())
    matrix = patch.object(np, "mat", np.asmatrix, create=True)  # NumPy 2 has it no more
    kind = torch.get_default_dtype()
    with repository(folder) as load, double, matrix:
        torch.set_default_dtype(DTYPE)
        try:
            module = load("afl")
            sent = [module.local_update(
                [(world.images[rows], world.labels[rows])], world.backbone.encode_image,
                lambda x: (x, None), args) for rows in world.rows]
            weight, _, gram = module.aggregation(*(list(part) for part in zip(*sent, strict=True)),
                                                 args)
            if "KEEP" not in case.options:
                weight = module.clean_regularization(weight, gram, args)
        finally:
            torch.set_default_dtype(kind)
    logits = world.backbone.encode_image(world.tests) @ weight
    return {"shared head.weight": weight.T, "logits": logits.detach().expand(count, -1, -1)}
