"""ResNet18: a whole ResNet-18, or the adapters in a frozen one, under FedAvg or --method NAME.

Paper: He et al., Deep Residual Learning for Image Recognition, CVPR 2016. The settings are those of
    the recipes plato and heart_pfl.
Equations: those of the method (fedvlm list METHOD), over a module's parameters.
    Adapters (HEART-PFL's): a(h) = h + Conv1x1(Dropout(BN(h))), without bias, N(0, 1e-8), behind
    both convolutions of every block and before their norm; then these, the norms of the blocks and
    the stem, and the classifier are trained, the rest is frozen.
Shared: every trained parameter, or the body alone, as the method says
Personal: as the method says; the head is the classifier fc.*, the stages are the four layers.
Frozen: both towers of CLIP, which are not used; with ADAPTERS the convolutions.
Defaults: WEIGHTS empty (random), TRAINER.NETWORK.SIZE 32 pixels, MEAN and STD 0.5, NORM batch, no
    adapters.
Departures from the paper: statistics of BatchNorm stand still, so that no buffer leaks from one
    client to the next: an untrained network wants NORM group (groups of 16 channels).
Departures from the authors' code: none known.
Extra data: WEIGHTS imagenet was trained on ImageNet.
Cost: images are decoded at every step; clients one by one.
Command: python -m fedvlm reproduce plato --root DATA/
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.func import functional_call
from torchvision.models import ResNet18_Weights, resnet18

from fedvlm.config.option import Option
from fedvlm.core.errors import ConfigError, DataError
from fedvlm.federation.module_trainer import ModuleTrainer
from fedvlm.models.vlmodel import VLModel

IMAGENET = "imagenet"
CLASSIFIER = "fc."
CHANNELS = 16  # of a group of NORM group
DROPOUT = 0.3  # HEART-PFL's
ADAPTER_STD = 1e-4
TRAINED = re.compile(r"(.*\.)?(adapter[12]|bn1|bn2|fc)\..*")  # with adapters


class Adapter(nn.Module):
    """``h + Conv1x1(Dropout(BN(h)))`` over ``[B, C, H, W]``."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm, self.drop = nn.BatchNorm2d(channels), nn.Dropout(DROPOUT)
        self.conv = nn.Conv2d(channels, channels, 1, bias=False)
        nn.init.normal_(self.conv.weight, std=ADAPTER_STD)

    def forward(self, h: Tensor) -> Tensor:
        """Return what the adapter makes of a block's rows."""
        return h + self.conv(self.drop(self.norm(h)))


class Behind(nn.Module):
    """A norm with an adapter before it, in the norm's place; their names stay apart."""

    def __init__(self, adapter: Adapter, norm: nn.Module) -> None:
        super().__init__()
        self.adapter, self.norm = adapter, norm

    def forward(self, h: Tensor) -> Tensor:
        """Return the adapted, normalised rows."""
        return self.norm(self.adapter(h))


class Pictures(nn.Module):
    """A network behind the change from CLIP's pixels to its own size and statistics."""

    def __init__(
        self, net: nn.Module, size: int, clip: tuple[Tensor, Tensor], own: tuple[Tensor, Tensor]
    ) -> None:
        super().__init__()
        self.net, self.size = net, size
        (mean, std), (m, s) = clip, own
        self.scale = (std / s).view(-1, 1, 1)  # plain attributes: nothing trained, no buffer
        self.shift = ((mean - m) / s).view(-1, 1, 1)

    def stages(self) -> list[nn.Module]:
        """Return the network's four stages."""
        return [getattr(self.net, f"layer{i}") for i in (1, 2, 3, 4)]

    def forward(self, pixels: Tensor) -> Tensor:
        """Return logits ``[B, C]`` of ``pixels [B, 3, H, W]`` as CLIP's transform gives them."""
        if pixels.shape[-1] != self.size:
            pixels = F.interpolate(
                pixels, (self.size, self.size), mode="bilinear", antialias=True,
                align_corners=False,
            )
        return self.net(pixels * self.scale.to(pixels) + self.shift.to(pixels))


class ResNet18(ModuleTrainer):
    """FedAvg over the network; ``FED.PERSONAL`` says what stays with a client."""

    name = "ResNet18"
    foreign = {"TRAINER.NETWORK.SIZE": Option(32, "side of the images, pixels", low=8)}
    options = {
        "WEIGHTS": Option("", "'' is random; imagenet is torchvision's; or a file of tensors"),
        "ADAPTERS": Option(False, "train HEART-PFL's adapters, the norms and the classifier alone"),
        "NORM": Option("batch", "norm of the blocks", choices=("batch", "group")),
        "MEAN": Option((0.5, 0.5, 0.5), "of the images' channels, subtracted"),
        "STD": Option((0.5, 0.5, 0.5), "of the images' channels, divided by"),
    }

    def streams(self, model: VLModel) -> tuple[str, ...]:
        """Return pixels."""
        return ("pixels",)

    def build(self, model: VLModel) -> nn.Module:
        """Return the network for the run's classes.

        Raises:
            ConfigError: adapters and group norm together.
            DataError: weights that cannot be read.
        """
        c, look = self.cfg, model.backbone.transform_spec
        self.require(
            c.NORM == "batch" or not (c.ADAPTERS or c.WEIGHTS),
            f"TRAINER.{self.name.upper()}.NORM group has no weights to start from; drop WEIGHTS "
            "and ADAPTERS, or set NORM batch",
        )
        net = resnet18(
            num_classes=len(model.classnames),
            norm_layer=None if c.NORM == "batch" else lambda n: nn.GroupNorm(n // CHANNELS, n),
        )
        if c.WEIGHTS and not net.fc.weight.is_meta:  # meta: shapes alone are asked for
            _load(net, str(c.WEIGHTS))
        if c.ADAPTERS:
            _add_adapters(net)
        clip_mean, clip_std, mean, std = (
            torch.tensor(tuple(v), device="cpu") for v in (look.mean, look.std, c.MEAN, c.STD)
        )
        size = int(self.root.TRAINER.NETWORK.SIZE)
        return Pictures(net, size, (clip_mean, clip_std), (mean, std))

    def forward(self, module: nn.Module, params: Mapping[str, Tensor], x: dict[str, Tensor]
                ) -> Tensor:
        """Return logits ``[B, C]`` of one client's pixels."""
        out: Tensor = functional_call(module, dict(params), (x["pixels"],))
        return out


def _add_adapters(net: nn.Module) -> None:
    """Put two adapters into every block and freeze what HEART-PFL freezes."""
    for block in [m for m in net.modules() if hasattr(m, "conv2")]:
        for i in ("1", "2"):
            norm = getattr(block, f"bn{i}")
            setattr(block, f"bn{i}", Behind(Adapter(norm.num_features), norm))
    for name, tensor in net.named_parameters():
        tensor.requires_grad_(TRAINED.fullmatch(name) is not None)


def _load(net: nn.Module, weights: str) -> None:
    """Load all but the classifier.

    Raises:
        ConfigError, DataError: no such file, or other tensors in it.
    """
    file = Path(weights).expanduser()
    try:
        if weights == IMAGENET:
            state = ResNet18_Weights.IMAGENET1K_V1.get_state_dict(progress=False)
        elif not file.is_file():
            raise ConfigError(f"WEIGHTS '{weights}': no such file; give one, or {IMAGENET}")
        elif file.suffix == ".safetensors":
            state = load_file(file)
        else:
            state = torch.load(file, map_location="cpu", weights_only=True)
    except OSError as error:
        raise DataError(
            f"WEIGHTS {weights}: cannot be read or fetched ({error}); give the file of a "
            "ResNet-18's tensors instead"
        ) from None
    body = {n: v for n, v in state.items() if not n.startswith(CLASSIFIER)}
    lacking = [n for n in net.load_state_dict(body, strict=False).missing_keys
               if not n.startswith(CLASSIFIER)]
    if lacking:
        raise DataError(f"WEIGHTS {weights}: no ResNet-18, it lacks {lacking[0]}")
