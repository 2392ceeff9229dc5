"""Small networks for methods over any leaf tree, and what makes their runs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedvlm.check.world import CheckWorld, Setup, Trajectory
from fedvlm.federation.discovery import load_trainer
from fedvlm.federation.module_trainer import ModuleTrainer
from fedvlm.federation.toolbox.networks import OverNetwork, over
from fedvlm.models.vlmodel import VLModel

METHODS = (
    "FedAvg", "FedPer", "FedRep", "FedBABU", "LG-FedAvg", "APFL", "Ditto", "Per-FedAvg", "Hermes",
    "FedAS", "MOON", "FedProto", "FedProx", "SCAFFOLD", "FedDyn", "pFedMe", "FedALA", "FedFomo",
    "FedBN", "HEART-PFL", "Thorki", "LocalOnly",
)
OPTIONS = {  # shorter loops, and what a method demands of the optimiser
    "FedALA": ("TRAINER.NET-FEDALA.MAX_EPOCHS", "4"),
    "Thorki": ("TRAINER.NET-THORKI.FUSION_STEPS", "10"),
    "HEART-PFL": ("TRAINER.NET-HEART-PFL.AKT_STEPS", "3"),
    "pFedMe": ("TRAINER.NET-PFEDME.STEPS", "2"),
    "SCAFFOLD": ("OPTIM.MOMENTUM", "0"),
}


class TwoStages(nn.Module):
    """Two convolutional stages, one with a norm, a hidden layer and a classifier."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.one = nn.Sequential(nn.Conv2d(3, 6, 3, 2, 1), nn.GroupNorm(2, 6), nn.ReLU())
        self.two = nn.Sequential(nn.Conv2d(6, 8, 3, 2, 1), nn.ReLU())
        self.pool, self.flat = nn.AdaptiveAvgPool2d(2), nn.Flatten()
        self.hidden = nn.Linear(32, 10)
        self.out = nn.Linear(10, classes)

    def stages(self) -> list[nn.Module]:
        """Return both."""
        return [self.one, self.two]

    def body(self, pixels: Tensor) -> Tensor:
        """Return what the classifier reads, ``[B, 10]``."""
        return torch.relu(self.hidden(self.flat(self.pool(self.two(self.one(pixels))))))

    def forward(self, pixels: Tensor) -> Tensor:
        """Return logits."""
        return self.out(self.body(pixels))


class Net(ModuleTrainer):
    """The network as a user writes it."""

    name = "Net"

    def streams(self, model: VLModel) -> tuple[str, ...]:
        """Return pixels."""
        return ("pixels",)

    def build(self, model: VLModel) -> nn.Module:
        """Return the network."""
        return TwoStages(len(model.classnames))

    def forward(self, module: nn.Module, params: Mapping[str, Tensor], x: dict[str, Tensor]
                ) -> Any:
        """Return logits of pixels."""
        return functional_call(module, dict(params), (x["pixels"],))


HEAD = ("out.weight", "out.bias")
NORM = ("one.1.weight", "one.1.bias")


def method(name: str, net: type[ModuleTrainer] = Net) -> type[OverNetwork]:
    """Return a method over a network."""
    return over(net, load_trainer(name))


@cache
def world(name: str) -> CheckWorld:
    """Return a world with the options of a method."""
    return CheckWorld(OPTIONS.get(name, ()))


@cache
def two_rounds(name: str) -> Trajectory:
    """Return a run of two rounds of a method over the network."""
    return world(name).record(method(name), Setup(rounds=2, pixels=True))
