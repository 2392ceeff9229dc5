"""Every YAML loads with every trainer, and every trainer builds on the tiny CLIP."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedvlm.core.errors import fold
from fedvlm.core.rng import stream
from fedvlm.federation.cards import trainer_files
from fedvlm.federation.discovery import load_trainer
from fedvlm.federation.groups import resolve as resolve_groups
from fedvlm.job.build import make_plan
from fedvlm.job.flags import parse
from fedvlm.job.resolve import resolve
from fedvlm.models.load.backbones import load_backbone
from fedvlm.models.vlmodel import VLModel

CONFIGS = Path(__file__).resolve().parents[1] / "configs"
DATASETS = sorted(p.stem for p in (CONFIGS / "datasets").glob("*.yaml"))
TRAINERS = sorted(trainer_files())
YAMLS = sorted((CONFIGS / "trainers").glob("*.yaml"))


@pytest.fixture(scope="module")
def model() -> VLModel:
    return VLModel(load_backbone("tiny"), ["circle", "square"])


@pytest.mark.parametrize("trainer", TRAINERS)
@pytest.mark.parametrize("dataset", DATASETS)
def test_dataset_with_trainer(dataset: str, trainer: str) -> None:
    jobs = resolve(parse(["--root", ".", "--dataset", dataset, "--trainer", trainer])).jobs
    cfg = jobs[0].cfg
    assert cfg.DATASET.NAME
    assert "{}" in (cfg.DATASET.TEMPLATE or "{}")
    assert make_plan(cfg).rounds == cfg.FED.ROUNDS


@pytest.mark.parametrize("trainer", TRAINERS)
def test_trainer_builds_on_the_tiny_clip(trainer: str, model: VLModel) -> None:
    cfg = resolve(parse(["--demo", "--trainer", trainer])).jobs[0].cfg
    made = load_trainer(trainer)(cfg)
    tree = made.trainables(model, stream(1, "init"))
    assert all(v.dtype == torch.float32 for v in tree.values())
    groups = resolve_groups(tree, made.rules(list(tree)), trainer)
    assert set(groups.of) == set(tree)


@pytest.mark.parametrize("path", YAMLS, ids=lambda p: p.stem)
def test_trainer_yaml_belongs_to_a_trainer(path: Path) -> None:
    cfg = resolve(parse(["--demo", "--config-file", str(path)])).jobs[0].cfg
    assert fold(load_trainer(cfg.TRAINER.NAME).name) == fold(path.stem)


def test_the_readers_own_line_resolves_to_fedtv() -> None:
    line = "--root DATA/ --dataset-config-file configs/datasets/oxfordpets.yaml --num-users 10"
    cfg = resolve(parse(line.split())).jobs[0].cfg
    assert (cfg.TRAINER.NAME, cfg.DATASET.NAME, cfg.FED.CLIENTS) == ("FedTV", "OxfordPets", 10)
