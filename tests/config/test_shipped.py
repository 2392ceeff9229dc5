"""Every YAML of the repository: it resolves, and says nothing that is declared elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedvlm.config.keys import default_schema
from fedvlm.config.option import declare, nodes
from fedvlm.config.read import read_yaml
from fedvlm.core.errors import fold
from fedvlm.federation.cards import trainer_files
from fedvlm.federation.discovery import load_trainer
from fedvlm.job.build import make_plan
from fedvlm.job.flags import parse
from fedvlm.job.resolve import resolve

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
YAMLS = sorted((CONFIGS / "trainers").glob("*.yaml"))


@pytest.mark.parametrize("dataset", sorted(p.stem for p in (CONFIGS / "datasets").glob("*.yaml")))
def test_data_set_resolves(dataset: str) -> None:
    cfg = resolve(parse(["--root", ".", "--dataset", dataset])).jobs[0].cfg
    assert cfg.DATASET.NAME
    assert "{}" in (cfg.DATASET.TEMPLATE or "{}")


def test_every_trainer_resolves_on_a_data_set_and_belongs_to_its_yaml() -> None:
    assert [p.stem for p in YAMLS] == sorted(trainer_files())
    for path in YAMLS:
        words = ["--root", ".", "--dataset", "eurosat", "--trainer", path.stem]
        cfg = resolve(parse(words)).jobs[0].cfg
        assert cfg.DATASET.NAME == "EuroSAT" and make_plan(cfg).rounds == cfg.FED.ROUNDS
        named = resolve(parse(["--demo", "--config-file", str(path)])).jobs[0].cfg
        assert fold(load_trainer(named.TRAINER.NAME).name) == fold(path.stem)


def test_a_trainers_yaml_repeats_no_declared_default() -> None:
    """But for TRAINER.NAME, which says whose file it is."""
    for path in YAMLS:
        trainer = load_trainer(path.stem)
        schema = declare(default_schema(), f"TRAINER.{trainer.name.upper()}", trainer.options)
        assignments, mistakes = read_yaml(path, nodes(schema))
        assert mistakes == [] and path.read_text().startswith("# "), path
        assert assignments[0].key == "TRAINER.NAME", path
        for line in assignments[1:]:
            option = schema[line.key]
            assert option.parse(line.value) != option.default, f"{line.where}: {line.key}"


def test_the_readers_own_line_resolves_to_fedtv() -> None:
    line = "--root DATA/ --dataset-config-file configs/datasets/oxfordpets.yaml --num-users 10"
    cfg = resolve(parse(line.split())).jobs[0].cfg
    assert (cfg.TRAINER.NAME, cfg.DATASET.NAME, cfg.FED.CLIENTS) == ("FedTV", "OxfordPets", 10)
