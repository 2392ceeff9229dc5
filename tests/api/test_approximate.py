"""Approximate unlearning: the two methods' formulas in closed form, their scores, and refusals."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from fedvlm.api import approximate as room
from fedvlm.api.forget import Forgetting, carry_out, plan_forgetting
from fedvlm.cli.main import main
from fedvlm.core.errors import ConfigError
from fedvlm.core.trees import Tree
from fedvlm.runs.seal import seal_of
from fedvlm.runs.state import load_newest_state
from tests import jobs

WORDS = ("--trainer", "FedAvg", "--peft", "head", "--num-users", "3", "--partition", "dirichlet",
         "--shots", "8", "--rounds", "3", "--local-epochs", "2", "OPTIM.LR", "0.5",
         "TEST.REFERENCES", "False")
Scored = tuple[Forgetting, list[dict[str, Any]], list[Path]]


@pytest.fixture(scope="module")
def scored(tmp_path_factory: pytest.TempPathFactory) -> Scored:
    """A run of three clients, one of them forgotten in all three ways."""
    output = tmp_path_factory.mktemp("run")
    assert jobs.run(output, *WORDS) == 0
    plan = plan_forgetting(jobs.folder(output), client="1")
    return plan, *room.score_approximate(plan, carry_out(plan), room.METHODS)


def test_a_calibrated_update_has_the_old_length_and_the_new_direction() -> None:
    stored = {"a": torch.tensor([[3.0, 4.0], [0.0, 2.0]]), "b": torch.tensor([[6.0], [1.0]])}
    fresh = {"a": torch.tensor([[0.0, 0.1], [5.0, 0.0]]), "b": torch.tensor([[-2.0], [0.0]])}
    found = room.calibrated(stored, fresh)
    assert found["a"].tolist() == [[0.0, 5.0], [2.0, 0.0]]
    assert found["b"].tolist() == [[-6.0], [0.0]], "no direction: no move"


def test_the_mean_of_the_others_leaves_one_out() -> None:
    """Against numpy's average of the others."""
    models, sizes = np.random.default_rng(0).normal(size=(4, 5)), np.array([1, 2, 3, 4.0])
    both = {"w": torch.tensor(np.average(models, 0, sizes))}
    found = room.others_mean(both, {"w": torch.tensor(models[2])}, sizes[2] / sizes.sum())
    rest = [0, 1, 3]
    assert np.allclose(found["w"], np.average(models[rest], 0, sizes[rest]), atol=1e-12)


def test_a_model_outside_the_ball_goes_to_its_edge() -> None:
    centre = {"a": torch.tensor([1.0]), "b": torch.tensor([1.0])}
    far = {"a": torch.tensor([4.0]), "b": torch.tensor([5.0])}
    found = room.projected(far, centre, 2.5)
    assert (found["a"].item(), found["b"].item()) == (2.5, 3.0)
    assert room.projected(far, centre, 5.0) == far


def test_the_table_says_what_each_knows_and_cost(scored: Scored) -> None:
    _, rows, _ = scored
    run, exact, eraser, pga = rows
    assert [r["model"] for r in rows] == ["the run", "exact", "federaser", "pga"]
    assert run["auc"] > 0.5 and run["forgotten"] > exact["forgotten"]
    assert (run["rounds"], exact["rounds"]) == (3, 3) and exact["samples"] < run["samples"]
    # Rounds 1 and 3 are stored, the first is not calibrated, the third has half the epochs.
    assert (eraser["rounds"], eraser["samples"]) == (1, exact["samples"] // 6)
    assert eraser["regained"] == run["samples"], "all its rounds, as it kept no update"
    assert pga["rounds"] == room.RECOVERY and pga["regained"] == run["samples"] // 3
    assert "approximate: no guarantee" in room.score_lines(rows)[-1]


def test_its_record_claims_no_exactness(scored: Scored) -> None:
    _, rows, files = scored
    for file, row in zip(files, rows[2:], strict=True):
        told = json.loads(file.with_suffix(".json").read_text())
        assert told["exact"] is False and told["says"] == "approximate: no guarantee"
        assert told["scores"] == row and told["seal"] == seal_of(told)


def test_one_stored_round_is_the_others_mean(tmp_path: Path) -> None:
    """With one round FedEraser needs no calibration: it is the exact model."""
    assert jobs.run(tmp_path, *WORDS, "--rounds", "1", "FED.NONFINITE", "drop") == 0
    plan = plan_forgetting(jobs.folder(tmp_path), client="0")
    exact = carry_out(plan)
    _, (file,) = room.score_approximate(plan, exact, ["federaser"])
    told = json.loads((exact / "forgotten.json").read_text())
    saved, _ = load_newest_state(exact / "state", identity=told["without"])
    assert saved is not None
    for name, value in safetensors.torch.load_file(file).items():
        assert torch.allclose(value, saved.server["w"][name], atol=1e-6), name
        assert not torch.equal(value, torch.zeros_like(value))


def test_the_ascent_forgets_and_stays_in_its_ball(
    scored: Scored, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, rows, _ = scored
    monkeypatch.setattr(room, "RECOVERY", 0)
    seen: list[tuple[Tree, Tree, float]] = []
    true = room.projected

    def watched(model: Tree, centre: Tree, radius: float) -> Tree:
        seen.append((true(model, centre, radius), centre, radius))
        return seen[-1][0]

    monkeypatch.setattr(room, "projected", watched)
    exact = carry_out(plan)  # finished before: it is found
    found, _ = room.score_approximate(plan, exact, ["pga"])
    assert found[-1]["forgotten"] < rows[0]["forgotten"] - 5
    assert seen and all(room.distance(m, c) <= r * (1 + 1e-5) for m, c, r in seen)


def test_half_the_training_is_halved_or_said() -> None:
    def fed(epochs: int, steps: int, span: Any) -> Any:
        return SimpleNamespace(LOCAL_EPOCHS=epochs, LOCAL_STEPS=steps, EPOCHS_RANGE=span)

    fewer, note = room.halved_epochs(fed(4, 0, (2, 6)))
    assert (fewer["FED.LOCAL_EPOCHS"], fewer["FED.EPOCHS_RANGE"], note) == ("2", "1,3", "")
    assert room.halved_epochs(fed(1, 0, ()))[1] == "1 local epoch: not halved"
    assert room.halved_epochs(fed(4, 1, ()))[1] == "1 local step: not halved"


def test_a_client_that_missed_the_last_round_is_said(tmp_path: Path) -> None:
    """Its record says that the reference is no mean of the others."""
    away = ("FED.UNRELIABLE.AWAY", "1:2-2", "FED.NONFINITE", "drop")
    assert jobs.run(tmp_path, *WORDS, "--rounds", "2", *away) == 0
    plan = plan_forgetting(jobs.folder(tmp_path), client="1")
    rows, files = room.score_approximate(plan, carry_out(plan), room.METHODS)
    said = ["no round was calibrated",
            "the client was not in the last round: the reference is the model of all"]
    assert [json.loads(f.with_suffix(".json").read_text())["scores"]["note"] for f in files] == said
    assert {f"federaser: {said[0]}", f"pga: {said[1]}"} <= {*room.score_lines(rows)}


def test_a_later_forget_lists_the_approximate_models(scored: Scored) -> None:
    plan, _, files = scored
    places = [place for place, _ in plan_forgetting(plan.path, client="1").known]
    assert {*files} <= {*places}


def test_what_they_cannot_do_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--trainer", "FedPer", "--num-users", "2", "--rounds", "1", "TEST.REFERENCES", "False")
    assert jobs.run(tmp_path, *words) == 0
    run = jobs.folder(tmp_path)
    plan = plan_forgetting(run, client="1")
    with pytest.raises(ConfigError, match="plain mean of shared tensors"):
        room.check_methods(plan, ["pga"])
    with pytest.raises(ConfigError, match="did you mean 'federaser'"):
        room.check_methods(plan, ["federazer"])
    for word in (",", "pga,pga"):
        assert main(["forget", str(run), "--client", "1", "--approximate", word]) == 2
        assert "each once" in capsys.readouterr().err
    assert main(["forget", str(run), "--client", "1", "--approximate", "sgd"]) == 2
    assert "expected federaser or pga" in capsys.readouterr().err
    assert len([*tmp_path.rglob("manifest.json")]) == 1, "nothing was run"
