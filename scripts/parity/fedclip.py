"""FedCLIP beside its authors' ``fedclip/methods/fed_at_clip.py``: their steps and their server."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from fedvlm.core.trees import Tree
from parity.authors import FrozenCLIP, Names, repository
from parity.figures import AUTHORS, Source, Values
from parity.world import DTYPE, Case, World

SOURCE = Source(
    "FedCLIP", AUTHORS, "microsoft/PersonalizedFL", "441670edb5744d23af46867cce9a5fbec0f8ead3",
    ("fedclip/methods/fed_at_clip.py", "fedclip/nets/models.py", "fedclip/utils/clip_util.py"),
    differs="features of our frozen towers on both sides (they import OpenAI's clip package); "
            "float64 in place of float32",
)
CASES = {"their Adam": Case(
    "FedCLIP", optimiser="adam", rate=0.01, decay=0.2,
    details={"betas": (0.9, 0.98), "eps": 1e-6},
)}
LAYERS = {"image.adapter.fc1": 0, "image.adapter.fc2": 2}


class Step:
    """An optimiser that keeps the gradients of one step and takes none."""

    def __init__(self, names: Names) -> None:
        self.names, self.grads = names, dict[str, Tensor]()

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for leaf in self.names.leaves():
            leaf.grad = None

    def step(self) -> None:
        """Keep them."""
        self.grads = {n: g.clone() for n, g in self.names.grads().items()}


def other(world: World, folder: Path) -> Values:
    """Return the numbers of their ``train``, ``communication`` and ``get_text_features_list``."""
    case, clip = world.case, FrozenCLIP(world)
    double = patch.object(Tensor, "float", lambda self: self)
    with repository(folder / "fedclip") as load, double:
        clip.install()
        readers = "utils.prepare_data_dg_clip"
        sys.modules[readers] = ModuleType(readers)
        module, util = load("methods.fed_at_clip"), load("utils.clip_util")
        clients = [client(load("nets.models").ClipModelat, clip, world) for _ in range(4)]
        server, *models = clients
        texts = clip.backbone.tokenize([f"a picture of a {name}" for name in world.names])
        tables = [Names({f"{name}.{kind}": getattr(model.img_adap[at], kind)
                         for name, at in LAYERS.items() for kind in ("weight", "bias")})
                  for model in clients]

        def fit(model: Any, rows: Tensor, optimiser: Any) -> None:
            y = world.labels[rows]
            module.train(None, model, [(world.images[rows], texts[y], y)], optimiser, "cpu")

        found = gradients(world, fit, tables[1], models[0])
        for table in tables:
            table.put(world.start)
        args = SimpleNamespace(test_envs=[])
        for _ in range(case.rounds):
            for model, rows in zip(models, world.rows, strict=True):
                optimiser = torch.optim.Adam(model.img_adap.parameters(), case.rate,
                                             weight_decay=case.decay, **case.details)
                for _ in range(case.epochs):
                    fit(model, torch.from_numpy(rows), optimiser)
            with patch.object(torch, "float32", DTYPE):  # their sum is made in it
                module.communication(args, server, models, [1 / len(models)] * len(models))
        found |= {f"shared {n}": v.clone() for n, v in tables[0].get().items()}
        with torch.no_grad():
            names = [f"a picture of a {name}" for name in world.names]
            t = util.get_text_features_list(names, clip, "cpu")
            z = clip.encode_image(world.tests)
            z = z * server.img_adap(z)
            z, t = (x / x.norm(dim=-1, keepdim=True) for x in (z, t))
            found["logits"] = (clip.logit_scale.exp() * z @ t.T).expand(len(models), -1, -1)
        return found


def client(kind: Any, clip: FrozenCLIP, world: World) -> Any:
    """Return their model over our towers, with an adapter as they make it."""
    model = kind.__new__(kind)
    model.model, model.device, model.preprocess = clip, "cpu", None
    model.freezepy, model.imgadpy = False, True
    model.initdgatal([(world.tests, None, world.labels)])
    model.img_adap.double()
    return model


def gradients(world: World, fit: Any, table: Names, model: Any) -> Tree:
    """Return the gradients of one step of the probed clients."""
    params, batch = world.params(), min(world.case.sizes[:2])
    grads = []
    for at, rows in enumerate(world.rows[:2]):
        table.put({n: v[at] for n, v in params.items()})
        step = Step(table)
        fit(model, torch.from_numpy(rows[:batch]), step)
        grads.append(step.grads)
    return {f"grad {n}": torch.stack([g[n] for g in grads]) for n in grads[0]}
