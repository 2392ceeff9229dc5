"""The network of the personalised-FL recipes: its pixels, what trains, what is shared."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fedvlm.core.errors import ConfigError
from fedvlm.federation.discovery import load_trainer
from fedvlm.job.flags import parse
from fedvlm.job.resolve import resolve
from fedvlm.recipes.counts import Counts, count
from tests import jobs

FILE = jobs.REPOSITORY / "configs/recipes/resnet18.py"


def network(cls: str, *words: str) -> Any:
    spec = f"{FILE}:{cls}"
    job = resolve(parse(["--dataset", "cifar100", "--trainer", spec, *words])).jobs[0]
    return load_trainer(spec)(job.cfg)


def test_pixels_become_the_networks_own() -> None:
    """CLIP's mean and deviation come off, the network's go on, the size is its own."""
    trainer = network("ResNet18", "TRAINER.NETWORK.SIZE", "16", "TRAINER.RESNET18.NORM", "group",
                      "TRAINER.RESNET18.MEAN", "0.1,0.2,0.3", "TRAINER.RESNET18.STD", "0.5,1,2")
    clip = SimpleNamespace(mean=(0.4, 0.5, 0.6), std=(0.25, 0.5, 0.75), size=32)
    module = trainer.build(SimpleNamespace(
        classnames=["x"] * 7, backbone=SimpleNamespace(transform_spec=clip)
    ))
    assert not list(module.buffers())
    seen: list[torch.Tensor] = []
    module.net.register_forward_pre_hook(lambda _, x: seen.append(x[0]))
    grey = torch.full((2, 3, 32, 32), 0.7)
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (clip.mean, clip.std))
    logits = module((grey - mean) / std)
    assert logits.shape == (2, 7) and seen[0].shape == (2, 3, 16, 16)
    own = (0.7 - torch.tensor([0.1, 0.2, 0.3])) / torch.tensor([0.5, 1.0, 2.0])
    assert torch.allclose(seen[0], own.view(3, 1, 1).expand(2, 3, 16, 16), atol=1e-6)


@pytest.mark.parametrize(
    ("cls", "trained", "sent"),
    [("ResNet18", 11_227_812, 11_227_812), ("ResNet18+FedPer", 11_227_812, 11_176_512),
     ("ResNet18+FedRep", 11_227_812, 11_176_512), ("ResNet18+FedBABU", 11_176_512, 11_176_512),
     ("ResNet18+LG-FedAvg", 11_227_812, 51_300), ("ResNet18+FedAS", 11_227_812, 11_176_512),
     ("ResNet18+Hermes", 11_227_812, 11_227_812), ("ResNet18+HEART-PFL", 11_227_812, 11_227_812)],
)  # fmt: skip
def test_methods_share_body_or_all(cls: str, trained: int, sent: int) -> None:
    assert count(network(cls), "RN50", 100) == Counts(trained, sent)


def test_group_norm_has_no_weights(tmp_path: Path) -> None:
    words = ("TRAINER.RESNET18.NORM", "group", "TRAINER.RESNET18.WEIGHTS", "x.pt")
    with pytest.raises(ConfigError, match="NORM group has no weights to start from"):
        count(network("ResNet18", *words), "RN50", 10)


@pytest.mark.slow
@pytest.mark.parametrize("cls", ["ResNet18+FedRep", "ResNet18+HEART-PFL", "ResNet18+Hermes"])
def test_a_run(tmp_path: Path, cls: str) -> None:
    node = f"TRAINER.RESNET18-{cls.removeprefix('ResNet18+').upper()}.NORM"
    assert jobs.run(tmp_path, "--trainer", f"{FILE}:{cls}", "--lr", "0.01", "--eval-every", "9",
                    "--local-epochs", "2", "--opts", node, "group") == 0
    assert jobs.results(tmp_path)["last"]["round"] == 2
