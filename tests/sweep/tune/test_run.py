"""A search at work: reproducible, resumable, extended by a larger budget, raced."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedvlm.core.errors import ConfigError
from fedvlm.sweep.cells import Cell
from fedvlm.sweep.tune import origin, run
from fedvlm.sweep.tune.records import TrialRecords
from fedvlm.sweep.tune.tuned import read_tuned
from fedvlm.sweep.worker import Outcome
from tests.sweep.tune.conftest import FakePool, formula, trials, tuned

BUDGET = 9  # beyond RANDOM: the sampler looks at scores
ONE = ("--trainers", "FedProx")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> run.Tuning:
    """An uninterrupted search for two methods."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "Scheduler", FakePool)
        return tuned(tmp_path_factory.mktemp("whole"), BUDGET)


@pytest.fixture(scope="module")
def prox(whole: run.Tuning) -> list[tuple[Any, ...]]:
    return trials(whole)["FedProx"]


def test_trials_follow_from_the_method_and_the_plan_alone(
    tmp_path: Path, fake: type[FakePool], whole: run.Tuning, prox: list[tuple[Any, ...]]
) -> None:
    points = [tuple(sorted(t[1].items())) for t in prox]
    assert points[0] == () and len(set(points)) == BUDGET  # the method's defaults, then others
    first, other = prox[1][1], trials(whole)["FedAvg"][1][1]
    assert other.keys() == {"OPTIM.NAME", "OPTIM.LR", "FED.LOCAL_EPOCHS"}
    assert first.keys() == {*other, "TRAINER.FEDPROX.MU"} and first["OPTIM.LR"] != other["OPTIM.LR"]
    assert trials(tuned(tmp_path, BUDGET, *ONE))["FedProx"] == prox  # nothing beside it


def test_a_killed_search_goes_on_to_the_same_trials(
    tmp_path: Path, fake: type[FakePool], prox: list[tuple[Any, ...]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The kill cut one line, and somebody changed another: both are run again."""
    fake.limit = 5
    stopped = tuned(tmp_path, BUDGET, *ONE)
    path = stopped.folder / "runs.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    assert len(lines) == 5 and not stopped.tuned.exists()
    lines[1] = lines[1].replace(b", 125]]", b", 225]]")
    path.write_bytes(b"".join(lines[:-1]) + lines[-1][:40])
    before = path.read_bytes()
    assert TrialRecords(stopped.folder).damaged == 2 and path.read_bytes() == before  # looks only
    fake.limit = 10**6
    resumed = tuned(tmp_path, BUDGET, *ONE)
    assert trials(resumed)["FedProx"] == prox
    assert "2 damaged lines are ignored" in capsys.readouterr().err
    assert resumed.ran == len(resumed.records.lines) - 3


def test_scores_of_other_images_weights_or_source_are_not_taken(
    tmp_path: Path, fake: type[FakePool], monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The same plan again runs nothing; a method with another source runs again, and says so."""
    now = dict.fromkeys(origin.WORDS, "1")
    monkeypatch.setattr(origin.Origins, "of", lambda self, cfg: now | {
        "trainer": now["trainer"] + cfg.TRAINER.NAME})
    fake.answer = staticmethod(lambda cell: formula(cell) | {
        "origin": now | {"trainer": now["trainer"] + cell.config["TRAINER.NAME"]}})
    first = tuned(tmp_path, 2)
    assert tuned(tmp_path, 2).ran == 0
    assert "note" not in capsys.readouterr().err
    now["trainer"] = "2"
    with pytest.MonkeyPatch.context() as patch:  # of one method alone
        patch.setattr(origin.Origins, "of", lambda self, cfg: now | {
            "trainer": ("2" if cfg.TRAINER.NAME == "FedProx" else "1") + cfg.TRAINER.NAME})
        again = tuned(tmp_path, 2)
    mine = sum(line["method"] == "FedProx" for line in first.records.lines.values())
    assert again.ran == mine and trials(again) == trials(first)
    said = capsys.readouterr().err
    assert said.count("were made with other source of the method than now: they are repeated") == 1
    assert "note: FedProx: runs of " in said and "FedAvg" not in said


def test_older_lines_are_taken_with_one_note(
    tmp_path: Path, fake: type[FakePool], capsys: pytest.CaptureFixture[str],
) -> None:
    count = tuned(tmp_path, 2, *ONE).ran
    capsys.readouterr()
    assert tuned(tmp_path, 2, *ONE).ran == 0
    assert capsys.readouterr().err.count(f"{count} runs do not record their images") == 1


def test_a_card_in_other_words_is_the_same_source(tmp_path: Path) -> None:
    text = '"""A card."""\nX = 1\n'
    assert origin._without_docstring(text) == origin._without_docstring(
        '"""Another,\nlonger."""\nX = 1\n') == "X = 1"
    assert origin._without_docstring("X = 1\n") == "X = 1\n"
    assert origin.source_digest("FedProx") != origin.source_digest("FedAvg")


def test_a_larger_budget_extends_a_smaller_one(
    tmp_path: Path, fake: type[FakePool], prox: list[tuple[Any, ...]]
) -> None:
    small = tuned(tmp_path, 4, *ONE)
    assert trials(small)["FedProx"] == prox[:4]
    large = tuned(tmp_path, BUDGET, *ONE)
    assert trials(large)["FedProx"] == prox
    assert small.ran + large.ran == len(large.records.lines)


def test_the_best_is_chosen_and_written_with_its_trials(whole: run.Tuning) -> None:
    record = read_tuned(whole.tuned)
    assert [e["label"] for e in record["entries"]] == ["FedProx", "FedAvg"]
    assert not record["failed"] and record["budget"] == BUDGET
    for entry in record["entries"]:
        scores = [t.get("score", -1.0) for t in entry["trials"]]
        assert len(scores) == BUDGET and entry["score"] == max(scores)
        assert entry["trial"] == scores.index(max(scores)) > 0
        assert entry["values"] == entry["trials"][entry["trial"]]["settings"]
        assert entry["images"] == 1000


def test_the_values_of_a_method_that_was_best_as_it_came_are_named(
    tmp_path: Path, fake: type[FakePool]
) -> None:
    """Its file may change later; and every trial names its runs."""
    tuning = tuned(tmp_path, 1, "--trainers", "FedProx")
    (entry,) = read_tuned(tuning.tuned)["entries"]
    (cell, _) = tuning.studies[0].trials[0].cells
    assert entry["trial"] == 0 and "TRAINER.FEDPROX.MU" in entry["values"]
    assert entry["values"] == {key: str(cell.config[key]) for key in entry["values"]}
    assert entry["trials"][0]["cells"] == [c.digest for c in tuning.studies[0].trials[0].cells]


def test_racing_drops_what_is_clearly_behind_after_its_first_seed(whole: run.Tuning) -> None:
    """What is within two standard errors of the best runs to its end."""
    every = [(study, trial) for study in whole.studies for trial in study.trials]
    assert {bool(trial.why) for _, trial in every} == {False, True}
    for study, trial in every:
        seeds = [cell.seed for cell in trial.cells if cell.digest in whole.records.lines]
        assert seeds == ([101] if trial.why else [101, 102])
        if trial.why:
            before = [t.score.value for t in study.trials[:trial.number] if t.score]
            assert trial.score is None and "behind trial" in trial.why
            assert trial.guess is not None and trial.guess < max(before)
    assert len([t for _, t in every if t.score]) > 4  # not only each new best


def test_a_run_that_diverges_costs_its_trial_and_one_that_fails_its_method(
    tmp_path: Path, fake: type[FakePool], capsys: pytest.CaptureFixture[str]
) -> None:
    def some(cell: Cell) -> dict[str, Any] | None:
        if cell.config["OPTIM.NAME"] == "adamw":
            return {"roles": ["head"], "trained": 10, "diverged": "loss is not finite"}
        return None if cell.config["TRAINER.NAME"] == "FedAvg" else formula(cell)

    fake.answer = staticmethod(some)
    tuning = tuned(tmp_path, 5)
    proximal, average = tuning.studies
    assert {t.why for t in proximal.trials if t.settings.get("OPTIM.NAME") == "adamw"} == {
        "loss is not finite",
    }
    assert proximal.best is not None and average.failure == "no luck"
    assert json.loads(tuning.tuned.read_text())["failed"] == {"FedAvg": "no luck"}
    assert "FedAvg: no luck" in capsys.readouterr().err


def test_a_kill_costs_its_trial_and_is_tried_again_by_the_next_tuning(
    tmp_path: Path, fake: type[FakePool]
) -> None:
    def some(cell: Cell) -> dict[str, Any] | None:
        return None if cell.config["OPTIM.NAME"] == "adamw" else formula(cell)

    fake.answer = staticmethod(some)
    fake.failure = Outcome(-9, "it took longer and was killed", 0.1)
    (study,) = tuned(tmp_path, 5, *ONE).studies
    killed = [t for t in study.trials if t.settings.get("OPTIM.NAME") == "adamw"]
    assert killed and {t.why for t in killed} == {"it took longer and was killed"}
    assert study.best is not None and not study.failure
    lines = TrialRecords(tmp_path / "tuning" / "toy").lines.values()
    assert {line["code"] for line in lines} == {0}


def test_mistakes_of_the_plan_are_told_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="tuning toy: FedProx: .*OPTIM.LR"):
        tuned(tmp_path, 2, "OPTIM.LR", "-1")
    assert not list(tmp_path.iterdir())
