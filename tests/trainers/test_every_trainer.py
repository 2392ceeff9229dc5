"""What holds for every trainer of the repository beside the invariants."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
import torch
from yacs.config import CfgNode

from fedvlm.cli.main import main
from fedvlm.core.rng import stream
from fedvlm.federation.cards import card, trainer_files
from fedvlm.federation.discovery import load_trainer
from fedvlm.federation.groups import resolve_groups
from fedvlm.job.flags import parse
from fedvlm.job.resolve import resolve
from fedvlm.models.load.backbones import load_backbone
from fedvlm.models.vlmodel import VLModel

TRAINERS = sorted(trainer_files())
NUMBER = r"\b([A-Z][A-Z0-9_]+) (-?\d+(?:\.\d+)?(?:e-?\d+)?)\b"


@pytest.fixture(scope="module")
def model() -> VLModel:
    return VLModel(load_backbone("tiny"), ["circle", "square"])


@cache
def demo_config(trainer: str) -> CfgNode:
    """Return the config of a method's demo: with its YAML, and otherwise the defaults."""
    cfg: CfgNode = resolve(parse(["--demo", "--trainer", trainer])).jobs[0].cfg
    return cfg


@pytest.mark.parametrize("trainer", TRAINERS)
def test_trainer_builds_on_the_tiny_clip(trainer: str, model: VLModel) -> None:
    cfg = demo_config(trainer)
    made = load_trainer(trainer)(cfg)
    tree = made.trainables(model, stream(1, "init"))
    assert all(v.dtype == torch.float32 for v in tree.values())
    groups = resolve_groups(tree, made.rules(list(tree)), trainer)
    assert set(groups.of) == set(tree)


@pytest.mark.parametrize("trainer", [
    name if name == "fedmedclip" else pytest.param(name, marks=pytest.mark.slow)
    for name in TRAINERS
])
def test_the_command_of_a_card_runs(trainer: str, tmp_path: Path) -> None:
    """Its first round, on few clients; FedMedCLIP enlarges roundings before it."""
    text = card(trainer_files()[trainer])
    (words,) = re.findall(r"^Command: python federated_main.py (.*)", text, flags=re.MULTILINE)
    few = ("--rounds", "1", "--num-users", "3", "--output-dir", str(tmp_path))
    words = words.replace("--root DATA/", "--demo --trainer FedTV")  # its card shows one's own data
    assert main([*words.split(), *few, "TEST.REFERENCES", "False"]) == 0


def test_the_defaults_that_a_card_names_are_the_declared_ones() -> None:
    """Each ``KEY number`` of the card's ``Defaults:``, by the options or by the method's YAML."""
    for name, path in trainer_files().items():
        trainer = load_trainer(name)
        field = re.search(r"^Defaults: (.*(?:\n[ \t]+.*)*)", card(path), flags=re.MULTILINE)
        assert field and field.group(1).strip(), name
        cfg = demo_config(name)
        for key, value in re.findall(NUMBER, field.group(1).split("As published:")[0]):
            option = trainer.options.get(key)
            if option is not None:
                defaults = {float(option.default), float(cfg.TRAINER[trainer.name.upper()][key])}
                assert float(value) in defaults, f"{name}: {key} {value}"
