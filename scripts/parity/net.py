"""A small network over the frozen image feature, for methods that run over any module.

Body and head compute what ``PEFT.VISUAL feature`` and ``PEFT.HEAD linear`` do: a residual
bottleneck, and rows of weights that are compared by their cosine.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedvlm.core.trees import Tree
from parity.authors import Theirs
from parity.figures import Values
from parity.world import DTYPE, Case, World

PEFT = {"PEFT.TEXT": "none", "PEFT.VISUAL": "feature", "PEFT.HEAD": "linear", "PEFT.WIDTH": 4}
NAMES = {"image.adapter.down": "base.down", "image.adapter.up": "base.up",
         "head.weight": "linear.weight"}
BODY, HEAD = ("image.adapter.down", "image.adapter.up"), ("head.weight",)
Pair = tuple[Tensor, Tensor]


def net_case(method: str, options: Mapping[str, Any] | None = None,
             keys: Mapping[str, Any] | None = None, **settings: Any) -> Case:
    """Return a case on the small network, with plain SGD and one batch per client and epoch."""
    rounds, epochs = settings.get("rounds", 3), settings.get("epochs", 2)
    return Case(method, options or {}, {
        **PEFT, "FED.ROUNDS": rounds, "FED.LOCAL_EPOCHS": epochs, **(keys or {}),
    }, **{"rate": 0.5, "momentum": 0.0, "decay": 0.0, "layers": 1, **settings})


class Bottleneck(nn.Module):
    """``z + up gelu(down z)``."""

    def __init__(self, width: int, embed: int) -> None:
        super().__init__()
        self.down = nn.Parameter(torch.zeros(width, embed, dtype=DTYPE))
        self.up = nn.Parameter(torch.zeros(embed, width, dtype=DTYPE))

    def forward(self, z: Tensor) -> Tensor:
        """Return features ``[B, d]``."""
        return z + F.gelu(z @ self.down.T) @ self.up.T


class Cosine(nn.Module):
    """Logits of normalised features and rows."""

    def __init__(self, classes: int, embed: int, scale: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(classes, embed, dtype=DTYPE))
        self.scale = scale

    def forward(self, z: Tensor) -> Tensor:
        """Return logits ``[B, C]``."""
        return self.scale * F.normalize(z, dim=-1) @ F.normalize(self.weight, dim=-1).T


class Net(nn.Module):
    """``base`` and ``linear``, which is also called ``head``, as others' code asks for it."""

    def __init__(self, world: World) -> None:
        super().__init__()
        width = int(world.case.keys["PEFT.WIDTH"])
        self.base = Bottleneck(width, world.case.embed)
        self.linear = Cosine(len(world.names), world.case.embed, float(world.weights["logit_scale"]
                                                                       .exp()))

    @property
    def head(self) -> nn.Module:
        """The classifier."""
        return self.linear

    def forward(self, z: Tensor) -> Tensor:
        """Return logits ``[B, C]`` of frozen features."""
        out: Tensor = self.linear(self.base(z))
        return out


def network(world: World, start: Tree | None = None) -> Net:
    """Return the network at the world's start, or at the given tensors."""
    net = Net(world)
    put(net, world.start if start is None else start)
    return net


def put(net: nn.Module, tree: Tree) -> None:
    """Set the network's tensors from ours."""
    own = dict(net.named_parameters())
    for name, value in tree.items():
        own[NAMES[name]].data = value.clone()


def tensors(net: nn.Module, names: Iterable[str] = NAMES) -> Tree:
    """Return the network's tensors under our names."""
    own = dict(net.named_parameters())
    return {name: own[NAMES[name]].detach().clone() for name in names}


def encode(world: World, images: Tensor) -> Tensor:
    """Return the frozen features ``[B, d]``."""
    with torch.no_grad():
        return world.backbone.encode_image(images)


def data(world: World) -> list[Pair]:
    """Return the features and labels of each client, one batch each."""
    z = encode(world, world.images)
    return [(z[rows], world.labels[rows]) for rows in world.rows]


def gradients(world: World) -> Values:
    """Return the cross-entropy and its gradients at the world's params."""
    net = network(world)
    own = dict(zip(NAMES, net.parameters(), strict=True))
    return Theirs.of(
        world, own, lambda x, y: F.cross_entropy(net(encode(world, x)), y), net).gradients()


def outcome(world: World, shared: Tree, clients: Sequence[nn.Module],
            own: Iterable[str] = ()) -> Values:
    """Return what is compared after the rounds.

    Args:
        shared: the server's tensors under our names.
        clients: the network that is evaluated for each client.
        own: the names of tensors that are a client's own.
    """
    z = encode(world, world.tests)
    found = {f"shared {n}": v.detach().clone() for n, v in shared.items()}
    for k, net in enumerate(clients):
        found |= {f"client{k} {n}": v for n, v in tensors(net, own).items()}
    with torch.no_grad():
        found["logits"] = torch.stack([copy.deepcopy(net).eval()(z) for net in clients])
    return found


def arguments(**values: Any) -> Any:
    """Return a namespace of a script's arguments."""
    return SimpleNamespace(**values)
