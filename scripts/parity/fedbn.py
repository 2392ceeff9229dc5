"""FedBN beside its authors' ``fed_digits.py``."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from fedvlm.core.trees import Tree
from fedvlm.models.load.openclip import build_model
from parity.authors import Theirs, in_double, repository
from parity.figures import AUTHORS, Source, Values
from parity.net import Bottleneck, Cosine, arguments, net_case
from parity.pfllib import quiet
from parity.world import World

SOURCE = Source(
    "FedBN", AUTHORS, "med-air/FedBN", "2fa38adf627a8c8ba71c5fb515b1f2ba00aa8812",
    ("federated/fed_digits.py",),
    differs="LayerNorms of open_clip's image tower in the place of BatchNorms, a feature adapter "
    "and a linear head; their file computes in float64 (its words float32 and float() are "
    "replaced); their loop over rounds is repeated here",
)
CASES = {"layer norms": net_case("FedBN", keys={"PEFT.LN": True}, layers=2, rate=0.1)}
BLOCK, PLACES = "visual.transformer.resblocks", ("weight", "bias")


class Tower(nn.Module):
    """open_clip's image tower with trained norms, called ``bn``, under adapter and head."""

    def __init__(self, world: World) -> None:
        super().__init__()
        c = world.case
        whole, _ = build_model(c.architecture, 0)
        whole.double().load_state_dict(world.weights, strict=False)
        self.frozen = [whole.eval().requires_grad_(False)]  # a list: no part of the state
        self.places = {
            f"image.ln.{block}.{norm}.{kind}": f"{BLOCK}.{block}.ln_{norm}.{kind}"
            for block in range(c.layers) for norm in (1, 2) for kind in PLACES
        }
        self.bn = nn.ParameterDict({
            name.replace(".", "_"): nn.Parameter(torch.zeros_like(world.weights[at]))
            for name, at in self.places.items()
        })
        self.base = Bottleneck(int(c.keys["PEFT.WIDTH"]), c.embed)
        self.linear = Cosine(len(world.names), c.embed, float(world.weights["logit_scale"].exp()))

    def forward(self, x: Tensor) -> Tensor:
        """Return logits of pixels."""
        visual: nn.Module = getattr(self.frozen[0], "visual")  # noqa: B009
        old = dict(visual.named_parameters())
        new = {at.removeprefix("visual."): old[at.removeprefix("visual.")]
               + self.bn[name.replace(".", "_")] for name, at in self.places.items()}
        out: Tensor = self.linear(self.base(functional_call(visual, new, (x,))))
        return out

    def named(self) -> dict[str, nn.Parameter]:
        """Return the trained tensors under our names."""
        norms = {name: self.bn[name.replace(".", "_")] for name in self.places}
        return norms | {"image.adapter.down": self.base.down, "image.adapter.up": self.base.up,
                        "head.weight": self.linear.weight}

    def put(self, tree: Tree) -> None:
        """Set tensors from ours."""
        for name, own in self.named().items():
            own.data = tree[name].clone()


def other(world: World, folder: Path) -> Values:
    """Return the numbers of their training and communication."""
    c, net = world.case, Tower(world)
    found = Theirs.of(world, net.named(), lambda x, y: F.cross_entropy(net(x), y), net).gradients()
    net.put(world.start)
    loaders = [torch.utils.data.DataLoader(torch.utils.data.TensorDataset(
        world.images[rows], world.labels[rows]), len(rows)) for rows in world.rows]
    models: list[Any] = [copy.deepcopy(net) for _ in loaders]
    weights = [1 / len(models)] * len(models)
    with repository(folder, "nets", "nets.models", "utils", "utils.data_utils"), quiet():
        file = in_double(folder / "federated", "fed_digits")
        run = vars(file)
        run["client_num"] = len(models)
        for _ in range(c.rounds):
            rules = [torch.optim.SGD(model.parameters(), lr=c.rate) for model in models]
            for _ in range(c.epochs):
                for k, model in enumerate(models):
                    run["train"](model, loaders[k], rules[k], nn.CrossEntropyLoss(), k, "cpu")
            net, models = run["communication"](arguments(mode="fedbn"), net, models, weights)
    norms = set(net.places)
    found |= {f"shared {n}": v.detach() for n, v in net.named().items() if n not in norms}
    for k, model in enumerate(models):
        found |= {f"client{k} {n}": model.named()[n].detach() for n in norms}
    with torch.no_grad():
        return found | {"logits": torch.stack([model(world.tests) for model in models])}
