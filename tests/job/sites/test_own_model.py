"""A party's own model, made at its site: the bits of the run that sees all images."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from fedvlm.api.model import Model
from fedvlm.api.run import load
from fedvlm.cli.main import main
from fedvlm.cli.site._export import model_of
from fedvlm.distributed.site_yaml import read_site_yaml
from tests import jobs
from tests.job.sites.places import NAMES, federated, make

TUNED = ("--trainer", "APFL", "--finetune-epochs", "1", "TEST.CALIBRATE", "True")


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Eight built-in images of a class for training and for tests, in a cache of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedvlm.data.builtin.sets._PER_CLASS", (8, 2, 8))
        patch.setenv("FEDVLM_CACHE", str(tmp_path_factory.mktemp("few")))
        yield


@pytest.fixture(scope="module")
def place(few: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("parties"))


@pytest.mark.parametrize("words", [("--trainer", "FedTV"), ("--trainer", "APFL"), TUNED])
def test_a_site_makes_the_model_of_the_run_that_sees_all(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...],
) -> None:
    """Tensors and predictions are equal; the coordinator names the command, which works."""
    here, whole = tmp_path / "sites", tmp_path / "whole"
    assert federated(place, here, monkeypatch, *words)[0] == 0
    assert jobs.run(whole, *words, "FED.SITES", "0,1") == 0
    theirs, run = load(jobs.folder(whole)), (jobs.folder(here) / "sites" / "run").read_text()
    rows = jobs.records(whole)[-1]["clients"]
    for client, name in enumerate(NAMES):
        owner = read_site_yaml(place / name / "site.yaml")
        trained, said = model_of(owner, run[:8], client, {})
        model = theirs.client(client)
        assert trained.params.keys() == model.params.keys()
        assert all(torch.equal(v, model.params[n]) for n, v in trained.params.items())
        images = sorted((place / name / "images").rglob("*.png"))[:6]
        ours = Model(model.trainer, trained.model, trained.params, "").predict(images)
        assert torch.equal(ours.logits, model.predict(images).logits) and len(ours) == 6
        assert trained.facts.temperature == model.facts.temperature
        assert (trained.facts.temperature != 1) == (words == TUNED)
        assert trained.facts.metrics == {"accuracy": rows[client]["accuracy"]}
        assert f"the model of client {client} after round 2 of 2; accuracy" in said
    capsys.readouterr()
    assert main(["predict", str(jobs.folder(here)), str(place / "server"), "--client", "1"]) == 2
    command = f"fedvlm site export SITE.YAML {run[:12]} --client 1 --to FOLDER --format safetensors"
    assert command in capsys.readouterr().err
    filled = command.replace("SITE.YAML", str(place / NAMES[1] / "site.yaml")).split()[1:]
    filled[filled.index("FOLDER")] = str(tmp_path / "model")
    assert main(filled) == 0
    assert "read back, largest logit difference" in capsys.readouterr().out
    card = json.loads((tmp_path / "model" / "model.json").read_text())
    assert card and (tmp_path / "model" / "run.py").is_file()
