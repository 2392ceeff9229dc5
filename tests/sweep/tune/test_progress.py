"""What a tuning spent and how sure it is, by hand; and the report of a search."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from fedvlm.cli.main import main
from fedvlm.sweep.tune import curves
from fedvlm.sweep.tune.progress import SearchProgress, progress_of, repeat_error, seed_error
from fedvlm.sweep.tune.tuned import write_tuned
from tests.sweep.tune.conftest import FakePool, tuned


def line(trial: int, seed: int, right: int, **more: Any) -> dict[str, Any]:
    return {"config": f"{trial} {seed}", "method": "Other", "trial": 7, "seed": seed,
            "steps": 10, "cpu": 0.5, "seconds": 1.0, "clients": [[right, 100]]} | more


def search() -> SearchProgress:
    """Three trials with both seeds, one dropped after a seed, one that diverged."""
    lines = [
        line(0, 1, 50), line(0, 2, 54), line(1, 1, 60), line(1, 2, 70), line(2, 1, 20),
        line(4, 1, 58), line(4, 2, 68),
    ]
    bad = line(3, 1, 0)
    del bad["clients"], bad["steps"], bad["cpu"]
    trials: list[dict[str, Any]] = [
        {"score": 52.0, "error": 3.0, "behind": 13.0, "behind_error": 2.0},
        {"score": 65.0, "error": 2.0, "behind": 0.0, "behind_error": 0.0},
        {"why": "dropped 40.0 behind trial 1"}, {"why": "loss is not finite"},
        {"score": 63.0, "error": 2.0, "behind": 2.0, "behind_error": 1.5},
    ]
    for number, trial in enumerate(trials):
        trial["cells"] = [f"{number} {seed}" for seed in (1, 2)]  # lines' own labels do not count
    (got,) = progress_of({"entries": [
        {"label": "Toy", "trainer": "FedAvg", "trial": 1, "error": 2.0, "trials": trials},
    ]}, [*lines, bad])
    return got


def test_every_run_is_spent_and_the_best_so_far_never_falls() -> None:
    got = search()
    assert [p.best for p in got.points] == [52.0, 65.0, 65.0, 65.0, 65.0]
    assert [p.steps for p in got.points] == [20, 40, 50, 50, 70]
    assert [p.cpu for p in got.points] == [1.0, 2.0, 2.5, 2.5, 3.5]
    assert [p.seconds for p in got.points] == [2.0, 4.0, 5.0, 6.0, 8.0]
    assert got.counts == (3, 1, 1) and got.runs == 8
    assert (got.first, got.gain, got.noise.alike) == (52.0, (13.0, 2.0), 2)
    assert got.family == "one shared model"


def test_noise_by_hand() -> None:
    noise = search().noise
    assert noise.seeds == pytest.approx(5.0)  # 60 and 70
    # trials differ between seeds by 4, 10, 10: what is left of each half of (4, 10, 10) - 8 is
    # 2, 1 and 1, twice each: 2 * 6 / ((3 - 1)(2 - 1)) = 6, over two seeds 3.
    assert noise.repeat == pytest.approx(3.0**0.5)
    assert repeat_error([{1: 3.0, 2: 9.0}, {1: 5.0, 2: 11.0}]) == pytest.approx(0.0)
    assert repeat_error([{1: 3.0, 2: 9.0}]) is None and seed_error({1: 3.0}) is None


def test_stairs_rise_where_a_trial_has_been_spent() -> None:
    line = curves.stairs("best_by_steps", search())
    assert (line.x, line.mean) == ([20, 40, 40, 50, 50, 70], [52, 52, 65, 65, 65, 65])


def test_the_report_of_a_search_is_a_table_csv_and_figures(
    tmp_path: Path, fake: type[FakePool], capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = "best_by_steps"  # the others are drawn alike
    monkeypatch.setattr(curves, "AXES", {one: curves.AXES[one]})
    tuning = tuned(tmp_path, 2, "--trainers", "FedAvg")
    capsys.readouterr()
    words = ["tune", "--report", str(tuning.tuned)]
    assert main(words) == 0
    told = capsys.readouterr().out
    assert told.startswith("method  trials") and "FedAvg  " in told and "gain over" in told
    folder = tuning.folder / "report"
    kinds = {f"{one}.{kind}" for kind in ("png", "pdf", "svg", "csv")}
    assert {p.name for p in folder.iterdir()} == {*kinds, "methods.csv"}
    (row,) = csv.DictReader((folder / "methods.csv").open())
    assert row["method"] == "FedAvg" and int(row["steps"]) == 8 * int(row["runs"])
    assert len(list(csv.DictReader((folder / f"{one}.csv").open()))) == 2
    write_tuned(tuning.tuned, {"plan": {}, "entries": []})
    assert main(words) == 0
    assert "no method was tuned" in capsys.readouterr().err
    assert main([*words, "--trainers", "FedAvg"]) == 2
    assert "--report FILE runs nothing" in capsys.readouterr().err
