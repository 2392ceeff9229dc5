"""A party's own model, made at its site: the bits of the run that sees all images."""

from __future__ import annotations

import json
import shutil
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fedvlm.api.model import Model
from fedvlm.api.run import load
from fedvlm.cli.main import main
from fedvlm.cli.site import _export
from fedvlm.cli.site._export import model_of
from fedvlm.core.errors import DataError
from fedvlm.distributed.site_yaml import read_site_yaml
from fedvlm.distributed.wire import Frame, pack
from fedvlm.federation.server import Row
from fedvlm.job.sites import resident
from fedvlm.job.sites.received import (
    FILE,
    OWN,
    alone_words,
    keep_received,
    keep_rows,
    read_received,
    read_rows,
    row_lines,
)
from fedvlm.job.sites.resident import Resident
from tests import jobs
from tests.job.sites.places import NAMES, federated, make

SPLIT = "0-1,2"
TUNED = ("--trainer", "APFL", "--finetune-epochs", "1")
BARE = ("TEST.REFERENCES", "False")


@pytest.fixture(scope="module")
def place(few: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("parties"), SPLIT, 3)


@pytest.mark.parametrize("words", [("--trainer", "FedTV"), ("--trainer", "APFL"), TUNED])
def test_a_site_makes_the_model_of_the_run_that_sees_all(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...],
) -> None:
    """Tensors and predictions are equal; the coordinator names the command, which works."""
    here, whole = tmp_path / "sites", tmp_path / "whole"
    assert federated(place, here, monkeypatch, "--num-users", "3", *words)[0] == 0
    assert jobs.run(whole, "--num-users", "3", *words, "FED.SITES", SPLIT, *BARE) == 0
    theirs, run = load(jobs.folder(whole)), (jobs.folder(here) / "sites" / "run").read_text()
    rows = jobs.records(whole)[-1]["clients"]
    for client, name in enumerate((NAMES[0], *NAMES)):
        owner = read_site_yaml(place / name / "site.yaml")
        trained, said = model_of(owner, run[:8], client, {})
        model = theirs.client(client)
        assert trained.params.keys() == model.params.keys()
        assert all(torch.equal(v, model.params[n]) for n, v in trained.params.items())
        images = sorted((place / name / "images").rglob("*.png"))[:6]
        ours = Model(model.trainer, trained.model, trained.params, "").predict(images)
        assert torch.equal(ours.logits, model.predict(images).logits) and len(ours) == 6
        assert read_received(owner.states / run.strip()).values["tune"] == (words == TUNED)
        assert trained.facts.metrics == {"accuracy": rows[client]["accuracy"]}
        assert f"the model of client {client} after round 2 of 2; accuracy" in said
    monkeypatch.setattr(_export, "untested_model", lambda train, test: f"{train}, {test}")
    told = model_of(read_site_yaml(place / NAMES[0] / "site.yaml"), run[:8], 0, {})[0].facts
    roster = theirs._rebuilt.federation.roster
    assert told.untested == f"{roster.train[0]}, {roster.test[0]}"
    capsys.readouterr()
    assert main(["predict", str(jobs.folder(here)), str(place / "server"), "--client", "1"]) == 2
    command = f"fedvlm site export SITE.YAML {run[:12]} --client 1 --to FOLDER --format safetensors"
    assert command in capsys.readouterr().err
    filled = command.replace("SITE.YAML", str(place / NAMES[0] / "site.yaml")).split()[1:]
    filled[filled.index("FOLDER")] = str(tmp_path / "model")
    assert main(filled) == 0
    assert "read back, largest logit difference" in capsys.readouterr().out
    card = json.loads((tmp_path / "model" / "model.json").read_text())
    assert card and (tmp_path / "model" / "run.py").is_file()


def asked(
    round_: int, clients: dict[int, float], tune: bool = False, like: str = "ab" * 8
) -> Frame:
    """A question for personal models; each client receives a tensor of one number."""
    refs = {str(c): str(i) for i, c in enumerate(clients)}
    measure = dict.fromkeys(("finetuned", "cross", "away", "calibration", "confusion",
                             "keep_logits"), False) | {"split": "test"}
    return Frame("evaluate", {
        "run": "cd" * 32, "like": like, "nonce": "ef" * 8, "round": round_, "down": refs,
        "accepted": dict.fromkeys(refs, round_), "tune": tune, "model": "personal",
        "measure": measure,
    }, {f"down/{ref}": {"w": torch.tensor([clients[int(c)]])} for c, ref in refs.items()})


def held(folder: Path) -> tuple[int, bool, dict[str, float]]:
    """Round, whether tuned, and what each client received, of the question that is kept."""
    frame = read_received(folder)
    values = frame.values
    return values["round"], values["tune"], {
        c: float(frame.trees[f"down/{ref}"]["w"]) for c, ref in sorted(values["down"].items())}


def test_questions_of_one_round_are_kept_together_and_a_damaged_one_is_replaced(
    tmp_path: Path
) -> None:
    """Clients that are asked for apart, or once more before the final fine-tuning."""
    keep_received(tmp_path, asked(1, {0: 1.0, 4: 1.0}))
    keep_received(tmp_path, asked(2, {0: 2.0, 1: 3.0}, tune=True))
    assert held(tmp_path) == (2, True, {"0": 2.0, "1": 3.0})
    keep_received(tmp_path, asked(2, {1: 5.0, 7: 6.0, 8: 6.5}))
    assert held(tmp_path) == (2, True, {"0": 2.0, "1": 5.0, "7": 6.0, "8": 6.5})
    keep_received(tmp_path, asked(2, {3: 4.0}, like="12" * 8))
    assert held(tmp_path) == (2, False, {"3": 4.0})
    data = bytearray((tmp_path / FILE).read_bytes())
    data[-1] ^= 1
    (tmp_path / FILE).write_bytes(data)
    with pytest.raises(DataError, match="is damaged .its checksum does not fit."):
        read_received(tmp_path)
    keep_received(tmp_path, asked(2, {3: 7.0}))
    assert held(tmp_path) == (2, False, {"3": 7.0})


def test_a_site_keeps_what_its_clients_reach_alone_and_with_the_newest_model(
    tmp_path: Path
) -> None:
    """Test images only; of one round the numbers after the final fine-tuning; damage is said."""
    def keep(round_: int, right: int, tune: bool = False, **more: Any) -> None:
        frame = Frame("evaluate", {**asked(round_, {4: 1.0}, tune).values, **more})
        row: Row = {"client": 4, "n": 15, "correct": right, "accuracy": right / 0.15}
        keep_rows(tmp_path / "run", frame, [row, {"client": 5, "n": 0, "accuracy": None}])

    def said(allowed: bool = True) -> list[str]:
        return row_lines(read_rows(tmp_path / "run"), allowed)

    keep(1, 3, measure={"split": "val"})
    keep(1, 3, model="template")
    assert not (tmp_path / "run").exists() and said() == []
    keep(1, 9)
    end = "this model 60.0 % (after round 1) on its own 15 test images"
    assert said(False) == [f"client 4, alone not known (rule 'baselines' of site.yaml: none are "
                           f"computed), {end}"]
    assert "the coordinator asked for no baselines in this run" in said()[0]
    keep(0, 12, model="alone", measure={"split": "val"})
    assert said(False) == said() == [
        f"client 4, alone (its own logistic regression) 80.0 %, {end}"]
    keep(0, 3, model="names")
    keep(0, 12, model="baseline")  # asked for once more, with sums
    assert said() == ["client 4, alone (its own logistic regression) 80.0 %, or 20.0 % from the "
                      f"class names, {end}"]
    keep(2, 6, tune=True)
    keep(2, 15)
    assert "this model 40.0 % (after round 2)" in said()[0]
    keep(1, 3)  # the run went back
    assert "this model 20.0 % (after round 1)" in said()[0]
    assert "alone not known" in alone_words(read_rows(tmp_path / "run"), 5, True)
    (tmp_path / "run" / OWN).write_text('{"alone": 3}')
    with pytest.raises(DataError, match="is damaged: delete it"):
        said()


def test_only_answered_questions_for_personal_models_are_kept_and_a_full_disk_stops_no_answer(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = replace(read_site_yaml(place / "site0" / "site.yaml"), states=tmp_path)
    logs: list[str] = []
    site, folder = Resident(owner, say=logs.append), make_run(tmp_path)
    question, back = asked(2, {0: 2.0}), {"nonce": "ef" * 8}
    evaluated = pack(Frame("evaluated", back | {"round": 2, "rows": [], "seconds": {}}))
    failed = pack(Frame("failed", back | {"kind": "failed", "text": "no"}))
    said = [failed]
    stub = SimpleNamespace(answer=lambda data: said[0], rows=[])
    monkeypatch.setattr(site, "_site_of", lambda frame: (stub, None))
    monkeypatch.setattr(resident, "threads_of", lambda cfg: nullcontext())
    assert site._reply(pack(question)) == failed and not (folder / FILE).exists()
    said[0] = evaluated
    template = Frame("evaluate", dict(question.values) | {"model": "template"}, question.trees)
    assert site._reply(pack(template)) == evaluated and not (folder / FILE).exists()
    (folder / FILE).mkdir()  # nothing can be written there
    assert site._reply(pack(question)) == evaluated and "cannot use" in logs[-1]
    (folder / FILE).rmdir()
    assert site._reply(pack(question)) == evaluated and held(folder)[2] == {"0": 2.0}


@pytest.mark.parametrize(("more", "said"), [
    ("--client 0 --to m", "export needs --format NAME: fedvlm site export FILE [RUN] --client K"),
    ("--to m --format peft", "export needs --client K"),
    ("--client global --to m --format peft", "--client global: export takes one number"),
    ("--client 0 photos --to m --format peft", "--client 0 photos: export takes one number"),
    ("--client 0 --to m --format peft --days 3", "export does not read --days"),
    ("--client 0 --to m --format peft --rounds 3", "export does not read --rounds"),
    ("--client 0 --to m --format pft", "'pft'"),
    ("--client 2 --to m --format peft", "--client 2: this site has the clients 0, 1"),
    ("abc --client 0 --to m --format peft", "'abc' begins no run that this site keeps: "),
    ("--client 0 --to m --format peft FED.ROUNDS 3", "export does not read FED.ROUNDS"),
])
def test_bad_words_are_refused(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str], more: str, said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(place / "site0", tmp_path / "site0", ignore=lambda *_: ["states", "images"])
    keep_received(make_run(tmp_path / "site0" / "states"), asked(2, {0: 2.0}))
    assert main(["site", "export", "site0/site.yaml", *more.split()]) == 2
    assert said in capsys.readouterr().err and not (tmp_path / "m").exists()


def test_what_is_not_there_is_said(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """No model yet, a run that was never evaluated here, several runs, and lost words of one."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(place / "site0", tmp_path / "site0", ignore=lambda *_: ["states", "images"])
    states = tmp_path / "site0" / "states"

    def told(*run: str) -> str:
        words = ("--client", "0", "--to", "m", "--format", "peft")
        assert main(["site", "export", "site0/site.yaml", *run, *words]) == 2
        return " ".join(capsys.readouterr().err.split())

    assert "has no model of a run: none was evaluated here yet" in told()
    first = make_run(states)
    assert "run cdcdcdcdcdcd: no evaluation of personal models" in told("cdcd")
    keep_received(first, asked(2, {0: 2.0}))
    assert "run cdcdcdcdcdcd: this site does not know that run" in told()
    keep_received(make_run(states, "ef" * 32), asked(2, {0: 2.0}))
    assert "models of 2 runs, cdcdcdcdcdcd, efefefefefef: name one" in told()


def make_run(states: Path, name: str = "cd" * 32) -> Path:
    """Make a run's folder among a site's states."""
    (states / name).mkdir(parents=True)
    return states / name
