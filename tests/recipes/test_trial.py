"""A recipe on this machine: what is missing, what has run, averages, budgets."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedvlm.cli.main import main
from fedvlm.core.errors import ConfigError
from fedvlm.core.stats import harmonic_mean, mean
from fedvlm.recipes.recipe import read_recipe
from fedvlm.recipes.trial import FREE, Measured, Row, Trial, trial_of
from fedvlm.runs.finished import FinishedRun
from fedvlm.sweep.state import DONE, CellState
from tests.sweep import in_process as workers

SMALL = """
paper: A paper, 2026
said: table 9
tolerance: 100.0
harmonic: {harmonic}
protocol: [two clients]
plan:
  common: {{backbone: tiny, num-users: 2, rounds: 1, local-epochs: 1, shots: 1}}
  datasets: [shapes, {{name: caltech101, label: Elsewhere}}]
  trainers: [ZeroShot, {{name: PromptFL, label: Learnt}}]
  seeds: [1, 2]
absent: {{Unknown: no code}}
numbers: {{Learnt: {{trained: 8192, sent: 8192}}}}
published:
  - {{where: table 9, dataset: shapes, cells: {{ZeroShot: 60.0 +- 0.5, Unknown: 50}}}}
  - {{where: table 9, dataset: average, metrics: [personal, hm2, cm],
      cells: {{ZeroShot: [1, 2, 3]}}}}
"""


def recipe_file(folder: Path, harmonic: str = "mean of H") -> str:
    path = folder / "small.yaml"
    path.write_text(SMALL.format(harmonic=harmonic))
    return str(path)


@pytest.fixture(scope="module", autouse=True)
def in_process() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedvlm.sweep.run.Processes", workers.processes)
        yield


@pytest.mark.usefixtures("few_images")
def test_from_words_to_the_acceptance_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["reproduce", recipe_file(tmp_path), "--output-dir", str(tmp_path / "out"),
             "--root", str(tmp_path)]

    def record(
        *more: str, code: int = 0
    ) -> tuple[dict[str, Any], dict[tuple[str, str], dict[str, Any]]]:
        assert main([*words, *more]) == code
        whole = json.loads((tmp_path / "out/small/acceptance.json").read_text())
        return whole, {(c["dataset"], c["method"]): c for c in whole["cells"]
                       if c["metric"] == "personal"}

    assert main([*words, "--dry-run"]) == 0
    assert "not run: this dry run starts nothing; without" in capsys.readouterr().out
    assert not (tmp_path / "out").exists()

    whole, cells = record("--budget", "1e-9", "--seeds", "1", code=2)  # nothing was run
    assert "budget of 1e-09 hours is too short for any run" in cells["shapes", "ZeroShot"]["why"]
    assert not list(tmp_path.glob("out/small/*/*/shots_1/ZeroShot"))
    assert "does not exist" in cells["Elsewhere", "Learnt"]["why"]
    assert "Elsewhere of 2: " in cells["average", "ZeroShot"]["why"] or (
        "shapes and 1 more of 2" in cells["average", "ZeroShot"]["why"])
    assert cells["shapes", "Unknown"]["why"] == "no code"

    assert main([*words, "--seeds", "1", "--weights", "x.pt"]) == 2
    told = capsys.readouterr()
    assert "has its own weights: drop --weights" in told.out and "acceptance: " in told.out
    assert "no row of 1 recipe(s) can run here: " in told.err
    whole, cells = record("--seeds", "1")
    zero = cells["shapes", "ZeroShot"]
    assert zero["verdict"] == "another protocol" and zero["n"] == 1
    assert "not comparable with papers" in zero["why"]
    assert zero["points"] == pytest.approx(zero["measured"] - 60)
    assert zero["deviations"] == pytest.approx(zero["points"] / 0.5)
    assert cells["shapes", "Learnt"]["published"] is None
    assert whole["numbers"][0]["verdict"] == "not counted"  # tiny has no published shapes
    page = (tmp_path / "out/small/acceptance.md").read_text()
    assert "| shapes | ZeroShot | personal | 60.00 +- 0.50 |" in page and "## Protocol" in page

    whole, cells = record("--seeds", "2", "--budget", "1e-9", "--rounds", "2")  # runs nothing
    kept = cells["shapes", "ZeroShot"]
    assert kept == zero | {"made": kept["made"]} and zero["weights"], "what was measured stays"
    assert ", fedvlm " in kept["made"]
    page = (tmp_path / "out/small/acceptance.md").read_text()
    assert f"| table 9 | {kept['made']} |" in page and "those of the current recipe" in page
    assert "keeps the numbers of earlier commands" in capsys.readouterr().out
    (tmp_path / "out/small/acceptance.json").write_bytes(b"{")
    assert main([*words, "--seeds", "1"]) == 3
    (tmp_path / "out/small/acceptance.json").unlink()

    monkeypatch.setattr("fedvlm.recipes.trial.TOY", "no run says this")
    capsys.readouterr()
    whole, cells = record("--seeds", "1")  # nothing is run again; the tolerance is wide
    assert cells["shapes", "ZeroShot"]["verdict"] == "within"
    assert cells["shapes", "Learnt"]["verdict"] == "nothing published"
    assert whole["numbers"][0]["sent"] == 16 * 128  # tokens, the tiny text width
    assert "cells done" not in capsys.readouterr().out


@pytest.mark.usefixtures("few_images")
def test_words_that_change_the_protocol_are_named(tmp_path: Path) -> None:
    recipe = read_recipe(recipe_file(tmp_path))
    trial = trial_of(recipe, {"FED.ROUNDS": "2", "DEVICE": "cpu"}, tmp_path / "out", (1,))
    assert {row.changed for row in trial.rows} == {"FED.ROUNDS 2 for 1"}
    same = trial_of(recipe, {"DEVICE": "cpu"}, tmp_path / "out", (3,))
    assert {row.changed for row in same.rows} == {""} and same.cells[0].seed == 3


@pytest.mark.parametrize("harmonic", ["mean of H", "H of averages"])
def test_averages_by_the_papers_rule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harmonic: str
) -> None:
    """Two data sets, two seeds; a third seed that one set lacks counts for nothing."""
    recipe = read_recipe(recipe_file(tmp_path, harmonic))
    trial = Trial(recipe, recipe.plan, [Row("shapes", "ZeroShot"), Row("Elsewhere", "ZeroShot")])
    numbers = {"shapes": {1: (90.0, 40.0, 80.0), 2: (92.0, 42.0, 82.0)},
               "Elsewhere": {1: (70.0, 80.0, 20.0)}}

    def runs(self: Measured, row: Row) -> list[FinishedRun]:
        return [
            FinishedRun(tmp_path, {"seed": seed}, {"last": {
                "personal": p, "base_all": b, "new": n, "hm2": harmonic_mean(b, n),
                "cm": (p + (harmonic_mean(b, n) or 0)) / 2,
            }}, {}) for seed, (p, b, n) in numbers[row.dataset].items()
        ]

    monkeypatch.setattr(Measured, "_runs", runs)
    monkeypatch.setattr(Trial, "cells", [])
    lines = {x.metric: x for x in trial.lines(Measured(trial, "")) if x.dataset == "average"}
    each = mean([harmonic_mean(40.0, 80.0), harmonic_mean(80.0, 20.0)])
    h = each if harmonic == "mean of H" else harmonic_mean(60.0, 50.0)
    assert h is not None and lines["personal"].measured == pytest.approx(80.0)
    assert lines["hm2"].measured == pytest.approx(h) and lines["hm2"].n == 1
    assert lines["cm"].measured == pytest.approx((80.0 + h) / 2)


@pytest.mark.usefixtures("few_images")
def test_a_run_counts_for_its_own_config_alone(tmp_path: Path) -> None:
    """A finished folder is read where the cell's state is done: that compares identities."""
    recipe = read_recipe(recipe_file(tmp_path))
    trial = trial_of(recipe, {}, tmp_path / "out", (1,))
    measured = Measured(trial, "later")
    cell = trial.cells[0]
    measured.runs = {cell.folder.resolve(): FinishedRun(cell.folder, {"seed": 1}, {"last": {}}, {})}
    assert measured._runs(trial.rows[0]) == []
    measured.states = {cell.number: CellState(DONE)}
    assert len(measured._runs(trial.rows[0])) == 1


@pytest.mark.usefixtures("few_images")
def test_two_rows_in_one_folder_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "twin.yaml"
    path.write_text(SMALL.format(harmonic="mean of H").replace(
        "label: Learnt}", "label: Learnt}, {name: PromptFL, label: Again, lr: 0.1}"))
    with pytest.raises(ConfigError, match="Again and Learnt on shapes have the same run folder"):
        trial_of(read_recipe(str(path)), {}, tmp_path / "out", (1,))


def test_wrong_words_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = recipe_file(tmp_path)
    for words, sentence in (
        ([path, "--trainer", "FedAvg"], "the recipe sets this: drop --trainer"),
        ([path, "--model", "fedavg"], "the recipe sets this: drop --model"),
        ([path, "--no-train"], "--no-train does not work with a recipe: use --dry-run"),
        ([path, "--print-config"], "does not work with a recipe: use fedvlm config"),
        ([path, "--all"], "--all already means every recipe"),
        ([path, "--tag", "x"], "a recipe chooses the folders of its runs: drop --tag"),
        (["fedmgpp"], "no config 'fedmgpp'; did you mean 'fedmgp'?"),
        ([path, "FED.ROUNDZ", "3"], "FED.ROUNDZ"),
    ):
        assert main(["reproduce", *words]) == 2
        assert sentence in capsys.readouterr().err, words


@pytest.mark.parametrize("key", [
    "FED.INDEX_FILE", "DATASET.FEWSHOT_FILE", "FED.UNRELIABLE.QUORUM", "BANK.PREC",
])
def test_who_has_which_images_and_when_a_run_ends_are_protocol(key: str) -> None:
    assert key not in FREE and "OUTPUT_DIR" in FREE
