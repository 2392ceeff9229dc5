"""The audit on runs with known answers: a memorising head, an untrained model, a private run."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedvlm.api import audit as room
from fedvlm.api.auditing import inversion
from fedvlm.cli.main import main
from fedvlm.core.errors import ConfigError, DataError
from fedvlm.report.pages.audit import audit_page, exceeds_claim
from fedvlm.runs.finished import find_finished
from fedvlm.runs.verify.check import inspect
from tests import jobs

HEAD = ("--peft", "head", "--partition", "iid", "--shots", "8", "TEST.REFERENCES", "False")
SHADOWS = 8


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Heads that learn their images by heart, each client alone; the shared one is untrained."""
    output = tmp_path_factory.mktemp("run")
    words = ("--trainer", "LocalOnly", *HEAD, "--local-epochs", "60", "OPTIM.LR", "0.5")
    assert jobs.run(output, *words) == 0
    return jobs.folder(output)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A round of a head that all clients share."""
    output = tmp_path_factory.mktemp("shared")
    assert jobs.run(output, "--trainer", "FedAvg", *HEAD, "--rounds", "1") == 0
    return jobs.folder(output)


@pytest.fixture(scope="module")
def record(run: Path) -> dict[str, Any]:
    """Its audit."""
    return room.carry_out_audit(room.plan_audit(run, shadows=SHADOWS))


def row(record: dict[str, Any], model: str, attack: str) -> dict[str, Any]:
    (found,) = [r for r in record["membership"]
                if r["model"] == model and r["attack"].startswith(attack)]
    return dict(found)


def test_a_head_that_learnt_by_heart_is_found_out(record: dict[str, Any]) -> None:
    """And by shadow runs more than by the loss alone."""
    plain, ratio = (row(record, "personal", word) for word in ("threshold", "likelihood"))
    assert record["images"] == {"members": 160, "others": 160}
    assert ratio["auc"] > 0.7 and ratio["low"] > 0.62
    assert ratio["auc"] > plain["auc"] + 0.05 and plain["auc"] > 0.55
    assert ratio["rates"][1]["hits"] / ratio["rates"][1]["members"] > 0.1, "twice a coin's"


def test_an_untrained_model_gives_nothing_away(record: dict[str, Any]) -> None:
    for attack in ("threshold", "likelihood"):
        found = row(record, "global", attack)
        assert found["low"] <= 0.5 <= found["high"] and found["epsilon"] == 0


def test_the_same_seed_gives_the_same_numbers(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inversion, "FIRST", 2)
    monkeypatch.setattr(inversion, "ITERATIONS", 3)
    plan = room.plan_audit(shared, shadows=4)
    one, two = (json.dumps(room.carry_out_audit(plan)) for _ in range(2))
    other = room.carry_out_audit(room.plan_audit(shared, shadows=4, seed=2))
    assert one == two and json.dumps(other["membership"]) != json.dumps(
        json.loads(one)["membership"])


def test_page_numbers_and_exit_code(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", str(run), "--shadows", "0", "--fail-above", "0.99"]) == 0
    told = capsys.readouterr()
    assert "no shadow runs: --shadows 0" in told.err
    assert len(told.out.splitlines()) <= 10 and "threshold on the loss: AUC" in told.out
    assert "epsilon of an image: at least" in told.out and "the run claims none" in told.out
    assert main(["audit", str(run), "--shadows", "0", "--fail-above", "0.51"]) == 1
    assert "above --fail-above 0.51" in capsys.readouterr().err
    kept = json.loads((run / "audit.json").read_text())
    page = (run / "audit.html").read_text()
    assert f"{kept['membership'][0]['auc']:.3f}" in page and "http" not in page.split("<body")[1]
    assert not inspect(run).damage, "the run's seal does not cover it, nor break"


def test_a_step_of_a_shared_head_gives_its_feature_away(shared: Path) -> None:
    found = room.carry_out_audit(room.plan_audit(shared, shadows=0))
    assert found["step"]["cosine"] > 0.9999 and 0 <= found["step"]["label_error"] <= 1
    assert "cosine to the true one 1.0000" in "\n".join(room.audit_lines(found))
    assert list(found["released"]["shared"]) == ["head.weight"]
    for error, worse in ((0.2, False), (0.56, True)):
        found["step"] |= {"label_error": error, "guess_error": 0.31}
        told = ("\n".join(room.audit_lines(found)), audit_page(find_finished(shared), found))
        assert all(("no better than a guess" in one) is worse for one in told)


def test_a_step_in_a_secure_sum_is_not_read(shared: Path) -> None:
    """The same head as above: its server would see no single step."""
    plan = room.plan_audit(shared, shadows=0, changes={"FED.SECURE_SUM": "True"})
    found = room.carry_out_audit(plan)
    assert list(found["step"]) == ["why"] and "FED.SECURE_SUM" in found["step"]["why"]
    assert "one step: not read: FED.SECURE_SUM: the server" in "\n".join(room.audit_lines(found))


def test_a_private_run_has_its_claim_beside_the_bound(tmp_path: Path) -> None:
    words = ("--trainer", "DP-FPL", "--rounds", "1", "TRAINER.DP-FPL.SIGMA", "20",
             "TEST.REFERENCES", "False")
    assert jobs.run(tmp_path, *words) == 0
    found = room.carry_out_audit(room.plan_audit(jobs.folder(tmp_path), shadows=4))
    assert found["claimed"]["epsilon"] > 0 and "noised" in found["step"]["why"]
    assert max(r["epsilon"] for r in found["membership"]) <= found["claimed"]["epsilon"]
    assert f"(claimed {found['claimed']['epsilon']:.3g})" in "\n".join(room.audit_lines(found))


def test_a_claim_of_clients_stands_beside_the_models_that_it_covers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ditto's own models get no noise; hiding a client hides an image with twice the epsilon."""
    words = ("--trainer", "Ditto", *HEAD, "--rounds", "1", "--num-users", "4",
             "FED.DP.CLIP", "0.1", "FED.DP.NOISE", "9", "FED.DP.DELTA", "1e-5")
    assert jobs.run(tmp_path, *words) == 0
    found = room.carry_out_audit(room.plan_audit(jobs.folder(tmp_path), shadows=0))
    claimed = found["claimed"]
    assert claimed["image_epsilon"] == 2 * claimed["epsilon"] and claimed["unit"] == "client"
    assert claimed["image_delta"] == pytest.approx(1e-5 * (1 + math.exp(claimed["epsilon"])))
    assert [r["covered"] for r in found["membership"]] == [False, True]
    for row in found["membership"]:
        row["epsilon"] = 9.0 if row["model"] == "personal" else 0.1
    lines = "\n".join(room.audit_lines(found))
    assert "at least 0.10 by the attacks on the global model (claimed" in lines
    assert "at least 9.00 by the attacks on personal models, which the claim does not" in lines
    assert not exceeds_claim(found) and "WARNING" not in lines
    found["membership"][1]["epsilon"] = 9.5
    assert "WARNING: an attack shows a larger" in "\n".join(room.audit_lines(found))
    monkeypatch.setattr(room, "carry_out_audit", lambda plan: found)
    command = ["audit", str(jobs.folder(tmp_path)), "--shadows", "0"]
    assert main(command) == 0 and "WARNING" in capsys.readouterr().out
    assert "WARNING" in (jobs.folder(tmp_path) / "audit.html").read_text()
    assert main([*command, "--fail-above", "1"]) == 1
    assert "a larger epsilon than the run claims" in capsys.readouterr().err


def test_what_cannot_be_audited_says_so(run: Path, tmp_path: Path) -> None:
    for number in (3, 2, 17):
        with pytest.raises(ConfigError, match=f"--shadows {number}: they come in pairs"):
            room.plan_audit(run, shadows=number)
    with pytest.raises(ConfigError, match="at their sites"):
        room.plan_audit(run, changes={"FED.ENGINE": "sites"})
    with pytest.raises(DataError, match="not a run folder"):
        room.plan_audit(tmp_path)


def test_shadows_that_are_dear_are_asked_for(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert room.plan_audit(run).shadows == 16
    monkeypatch.setattr(room, "DEAR", 0.01)
    plan = room.plan_audit(run)
    assert plan.shadows == 0 and "--shadows 16 makes them all the same" in plan.cost()
    assert room.plan_audit(run, shadows=16).shadows == 16


def test_a_claims_delta_counts_for_the_models_that_it_covers_only() -> None:
    """A delta of 1 says nothing of an image, so no attack can be above the claim."""
    signal, member = np.arange(400.0), np.arange(400) >= 200
    deltas = {"global": 1.0}
    found = {model: room._row(model, "loss", signal, member, among=2, deltas=deltas)["epsilon"]
             for model in ("personal", "global")}
    assert found["personal"] > 1 and found["global"] == 0
