"""CNN4: the four-layer network of PFLlib and FedAS, under FedAvg or --method NAME.

Paper: McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data,
    AISTATS 2017 (its CIFAR network, without response normalisation). The settings are those of
    the recipe fedas.
Equations: two 5x5 convolutions without padding, 32 and 64 channels, ReLU and 2x2 max pooling behind
    each; a layer of 512 with ReLU; the classifier. The method's own (fedvlm list METHOD).
Shared: every parameter, or the body alone, as the method says
Personal: as the method says; the head is the classifier fc.*, the stages are the convolutions.
Frozen: both towers of CLIP, which are not used.
Defaults: TRAINER.NETWORK.SIZE 32 pixels, MEAN and STD 0.5.
Departures from the paper: see the recipe.
Departures from the authors' code: none known.
Extra data: none.
Cost: images are decoded at every step; clients one by one.
Command: python -m fedvlm reproduce fedas --root DATA/
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from fedvlm.config.option import Option
from fedvlm.federation.module_trainer import ModuleTrainer
from fedvlm.models.vlmodel import VLModel

CHANNELS, KERNEL, HIDDEN = (32, 64), 5, 512


class Network(nn.Module):
    """Four layers over ``[B, 3, S, S]``, which come with CLIP's statistics and have their own."""

    def __init__(
        self, classes: int, size: int, clip: tuple[Tensor, Tensor], own: tuple[Tensor, Tensor]
    ) -> None:
        super().__init__()
        first, second = CHANNELS
        places = ((size - KERNEL + 1) // 2 - KERNEL + 1) // 2
        self.size = size
        (mean, std), (m, s) = clip, own
        self.scale, self.shift = (std / s).view(-1, 1, 1), ((mean - m) / s).view(-1, 1, 1)
        self.conv1 = nn.Sequential(nn.Conv2d(3, first, KERNEL), nn.ReLU(), nn.MaxPool2d(2))
        self.conv2 = nn.Sequential(nn.Conv2d(first, second, KERNEL), nn.ReLU(), nn.MaxPool2d(2))
        self.fc1 = nn.Sequential(nn.Flatten(), nn.Linear(second * places**2, HIDDEN), nn.ReLU())
        self.fc = nn.Linear(HIDDEN, classes)

    def stages(self) -> list[nn.Module]:
        """Return both convolutions."""
        return [self.conv1, self.conv2]

    def forward(self, pixels: Tensor) -> Tensor:
        """Return logits ``[B, C]``."""
        x = F.interpolate(
            pixels, (self.size, self.size), mode="bilinear", antialias=True, align_corners=False
        )
        x = x * self.scale.to(x) + self.shift.to(x)
        return self.fc(self.fc1(self.conv2(self.conv1(x))))


class CNN4(ModuleTrainer):
    """FedAvg over the network."""

    name = "CNN4"
    foreign = {"TRAINER.NETWORK.SIZE": Option(32, "side of the images, pixels", low=16)}
    options = {
        "MEAN": Option((0.5, 0.5, 0.5), "of the images' channels, subtracted"),
        "STD": Option((0.5, 0.5, 0.5), "of the images' channels, divided by"),
    }

    def streams(self, model: VLModel) -> tuple[str, ...]:
        """Return pixels."""
        return ("pixels",)

    def build(self, model: VLModel) -> nn.Module:
        """Return the network for the run's classes."""
        c, look = self.cfg, model.backbone.transform_spec
        clip_mean, clip_std, mean, std = (
            torch.tensor(tuple(v), device="cpu") for v in (look.mean, look.std, c.MEAN, c.STD)
        )
        size = int(self.root.TRAINER.NETWORK.SIZE)
        return Network(len(model.classnames), size, (clip_mean, clip_std), (mean, std))

    def forward(self, module: nn.Module, params: Mapping[str, Tensor], x: dict[str, Tensor]
                ) -> Tensor:
        """Return logits ``[B, C]`` of one client's pixels."""
        out: Tensor = functional_call(module, dict(params), (x["pixels"],))
        return out
