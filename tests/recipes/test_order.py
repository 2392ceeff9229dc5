"""In which order runs are made, and which of them begin within a budget."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedvlm.cli.main import main
from fedvlm.core.errors import DataError
from fedvlm.job.inputs import Inputs
from fedvlm.recipes import order
from fedvlm.recipes.order import PlannedRun, begin_within, by_worth
from fedvlm.recipes.recipe import read_recipe
from fedvlm.recipes.trial import Row, Trial
from tests.recipes.test_trial import recipe_file
from tests.sweep import in_process as workers


@pytest.fixture(autouse=True)
def in_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("fedvlm.sweep.run.Processes", workers.processes)
    return


def test_recipes_that_cannot_run_come_last() -> None:
    """Also behind those that confirm no published number."""
    recipe, plan = read_recipe("promptfolio"), read_recipe("promptfolio").plan
    cells: Any = (None,)
    missing, idle, best = (Trial(recipe, plan, [Row("x", "y", cells=cells, why=why)])
                           for why in ("no weights", "", ""))
    assert by_worth([missing, idle, best], {id(best.rows[0]): 1.0}) == [best, idle, missing]


def turn(hours: float | None, judged: bool = False) -> PlannedRun:
    return PlannedRun(None, None, None, hours, judged)  # type: ignore[arg-type]


@pytest.mark.parametrize(("turns", "jobs", "begins"), [
    ([turn(0.6), turn(0.6), turn(0.6)], 1, [True, True, False]),  # what has begun is finished
    ([turn(0.6), turn(0.6), turn(0.6)], 2, [True, True, True]),
    ([turn(0.6), turn(0.6, True), turn(0.3, True)], 1, [True, False, True]),  # as similar runs say
    ([turn(None), turn(None)], 1, [True, True]),
])
def test_which_runs_begin_within_an_hour(
    turns: list[PlannedRun], jobs: int, begins: list[bool],
) -> None:
    assert begin_within(turns, 1.0, jobs) == begins
    assert not any(begin_within(turns, 0.0, jobs))


@pytest.mark.usefixtures("few_images")
def test_a_dry_run_lists_runs_in_their_order_and_where_the_budget_ends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:
    """PromptFL confirms more in an hour than ZeroShot here; it comes first, seed by seed."""
    recipe_file(tmp_path)
    text = (tmp_path / "small.yaml").read_text()
    for name in ("first", "second"):
        (tmp_path / f"{name}.yaml").write_text(text)
    worth = {("second", "Learnt"): 5.0, ("second", "ZeroShot"): 1.0, ("first", "ZeroShot"): 2.0}
    monkeypatch.setattr("fedvlm.recipes.order.worths", lambda trials: {
        id(row): worth.get((trial.recipe.name, row.method), 0.0)
        for trial in trials for row in trial.rows})
    monkeypatch.setattr(order, "_hours", lambda row: 0.4)
    words = ["reproduce", *(str(tmp_path / f"{n}.yaml") for n in ("first", "second")), "--dry-run",
             "--output-dir", str(tmp_path / "out"), "--root", str(tmp_path)]
    assert main(words) == 0
    told = capsys.readouterr().out
    begin = told.splitlines().index(
        "the runs in their order, what confirms most published numbers in an hour first:")
    assert [line.split(None, 4) for line in told.splitlines()[begin + 1:begin + 6]] == [
        ["recipe", "seed", "runs", "hours", "which"],
        ["second", "1", "2", "0.8", "Learnt on shapes, ZeroShot on shapes"],
        ["first", "1", "2", "0.8", "ZeroShot on shapes, Learnt on shapes"],
        ["second", "2", "2", "0.8", "Learnt on shapes, ZeroShot on shapes"],
        ["first", "2", "2", "0.8", "ZeroShot on shapes, Learnt on shapes"]]
    assert told.index("recipe second: A paper") < told.index("recipe first: A paper")
    assert "begins" not in told and "should end before it" not in told

    assert main([*words, "--budget", "1"]) == 0
    told = capsys.readouterr().out
    lines = [line.split(None, 5) for line in told.splitlines() if " on shapes" in line]
    assert [(line[0], line[2], line[4]) for line in lines] == [
        ("second", "2", "yes"), ("first", "1", "yes"), ("first", "1", "no"),
        ("second", "2", "no"), ("first", "2", "no")]
    assert ("the budget of 1 hour: 3 of 8 runs should begin, for 5 published numbers; what has "
            "begun is finished, after about 1.2 hours") in told
    first = told[told.index("recipe first: A paper"):]  # its ZeroShot begins
    assert "the budget of 1 hour should end before it\n" in first
    assert "not run: this dry run starts nothing; without --dry-run it runs" in first


@pytest.mark.usefixtures("few_images")
def test_a_budget_that_is_too_short_is_said_so_and_no_sweep_begins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["reproduce", recipe_file(tmp_path), "--output-dir", str(tmp_path / "out"), "--root",
             str(tmp_path)]
    assert main([*words, "--budget", "1e-9"]) == 2
    told = capsys.readouterr()
    assert "the budget of 1e-09 hours is too short for any run" in told.err + told.out
    assert "used by other runs" not in told.out and "sweep" not in told.out


@pytest.mark.usefixtures("few_images")
@pytest.mark.parametrize("online", [False, True])
def test_only_runs_with_weights_are_foreseen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    online: bool,
) -> None:
    """Learnt has another backbone, whose weights are not here; a run could fetch them online."""
    path = Path(recipe_file(tmp_path))
    path.write_text(path.read_text().replace("label: Learnt}", "label: Learnt, "
                                             "MODEL.PREC: bf16}"))
    whole = Inputs.backbone

    def backbone(self: Inputs, cfg: object, device: object) -> object:
        if cfg.MODEL.PREC == "bf16":  # type: ignore[attr-defined]
            raise DataError("there is no file Learnt.safetensors")
        return whole(self, cfg, device)  # type: ignore[arg-type]

    monkeypatch.setattr(Inputs, "backbone", backbone)
    monkeypatch.setattr("fedvlm.models.load.weights.hub_is_open", lambda: online)
    words = ["reproduce", str(path), "--output-dir", str(tmp_path / "out"), "--root",
             str(tmp_path), "--seeds", "1"]
    assert main([*words, "--dry-run"]) == 0
    told = capsys.readouterr().out
    assert told.startswith(f"recipe small: {1 + online} runs, ")
    assert ("not run: there is no file Learnt.safetensors" in told) != online
    assert main([*words, "--budget", "0"]) == 2
    told = capsys.readouterr().out
    assert told.startswith("recipe small: 1 runs, ")
    assert "cannot run here: 1 row: there is no file Learnt.safetensors\n" in told
