"""From runs to the numbers of figures: seeds, places, shots, bytes."""

from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path
from typing import Any

import pytest

from fedvlm.report.collect import Run
from fedvlm.report.figures import series as figures_cells
from fedvlm.report.figures import series as figures_series
from fedvlm.report.figures import style
from fedvlm.report.figures.lines import rows_of


def make(
    tmp_path: Path, method: str, seed: int, values: list[float | None], *, shots: int = 16,
    dataset: str = "Set", zero: float = 30.0, mb: float = 1.0, folder: str = "",
    config: dict[str, Any] | None = None,
) -> Run:
    """Return a run whose ``personal`` after round r is ``values[r]``; each round sends ``mb``."""
    path = tmp_path / f"{dataset}-{method}-{shots}-{seed}{folder}"
    path.mkdir()
    lines = [
        {"round": r, "personal": v,
         "bytes_up": {"0": mb * 0.75e6} if r else {}, "bytes_down": {"0": mb * 0.25e6} if r else {}}
        for r, v in enumerate(values)
    ]
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    identity = {"config": {"SEED": seed, "DATA_SEED": seed, "OPTIM.LR": 0.1} | (config or {})}
    (path / "manifest.json").write_text(json.dumps({"identity": identity}))
    protocol = {
        "dataset": dataset, "setting": "personal", "shots": shots, "partition": "iid-K2-f1",
        "backbone": "tiny", "trainer": method, "seed": seed, "data_seed": seed,
    }
    results = {"last": lines[-1], "zero_shot": {"personal": zero}}
    return Run(path, protocol, results, {})


def test_seeds_are_averaged_and_rounds_that_one_lacks_left_out(tmp_path: Path) -> None:
    runs = [make(tmp_path, "A", 1, [10, None, 30]), make(tmp_path, "A", 2, [20, 25, 50])]
    cells, problems = figures_cells.cells(runs)
    assert problems == []
    (panel,) = figures_series.convergence(cells, "personal")
    (line,) = panel.lines
    assert (panel.title, line.label) == ("Set", "A")
    assert line.x == [0.0, 2.0] and line.mean == [15, 40] and line.n == [2, 2]
    assert line.std == pytest.approx([math.sqrt(50), math.sqrt(200)])


def test_one_seed_has_no_spread(tmp_path: Path) -> None:
    cells, _ = figures_cells.cells([make(tmp_path, "A", 1, [10, 30])])
    assert figures_series.convergence(cells, "personal")[0].lines[0].std == [None, None]


def test_another_learning_rate_is_another_line_and_says_so(tmp_path: Path) -> None:
    runs = [
        make(tmp_path, "A", 1, [10, 20]),
        make(tmp_path, "A", 2, [10, 40], config={"OPTIM.LR": 0.5}),
        make(tmp_path, "B", 1, [10, 30]),
    ]
    cells, _ = figures_cells.cells(runs)
    assert [c.label for c in cells] == ["A, LR 0.1", "A, LR 0.5", "B"]
    assert all(len(c.runs) == 1 for c in cells)


def test_the_same_run_twice_is_left_out_and_named(tmp_path: Path) -> None:
    runs = [make(tmp_path, "A", 1, [10, 20]), make(tmp_path, "A", 1, [10, 90], folder="again")]
    cells, problems = figures_cells.cells(runs)
    assert figures_series.convergence(cells, "personal")[0].lines[0].mean == [10, 20]
    assert len(problems) == 1 and "again" in problems[0]


def test_traffic_adds_up_both_ways_in_megabytes(tmp_path: Path) -> None:
    cells, _ = figures_cells.cells([make(tmp_path, "A", 1, [10, 20, 30], mb=4.0)])
    assert figures_series.traffic(cells, "personal")[0].lines[0].x == [0.0, 4.0, 8.0]


def test_few_shot_averages_what_all_places_have(tmp_path: Path) -> None:
    runs = [
        make(tmp_path, "A", seed, [0, base + shots + seed], shots=shots, dataset=name, zero=zero)
        for name, base, zero in (("One", 10, 20.0), ("Two", 30, 40.0))
        for shots in ((1, 2, 4) if name == "One" else (2, 4)) for seed in (1, 2)
    ]
    cells, _ = figures_cells.cells(runs)
    one, two, average = figures_series.few_shot(cells, "personal")
    assert [p.title for p in (one, two, average)] == ["One", "Two", "average of 2"]
    assert one.lines[0].x == [1, 2, 4] and one.lines[0].mean == [12.5, 13.5, 15.5]
    assert [p.zero_shot for p in (one, two, average)] == [20, 40, 30]
    line = average.lines[0]
    assert line.x == [2, 4] and line.mean == [23.5, 25.5]
    assert line.std == pytest.approx([math.sqrt(0.5)] * 2)  # seeds 1 and 2 differ by 1


def test_few_shot_needs_two_numbers_of_shots(tmp_path: Path) -> None:
    cells, _ = figures_cells.cells([make(tmp_path, "A", 1, [0, 5])])
    assert figures_series.few_shot(cells, "personal") == []


def test_titles_name_what_differs(tmp_path: Path) -> None:
    runs = [make(tmp_path, "A", 1, [0, 5], shots=s) for s in (1, 4)]
    cells, _ = figures_cells.cells(runs)
    panels = figures_series.convergence(cells, "personal")
    assert [p.title for p in panels] == ["Set, 1 shot", "Set, 4 shots"]


def test_the_csv_holds_the_very_numbers(tmp_path: Path) -> None:
    name = 'A, "quoted" & 100 %'
    cells, _ = figures_cells.cells([make(tmp_path, "A", 1, [10, 1 / 3], config={"X": name})])
    panels = figures_series.convergence(cells, "personal")
    rows = list(csv.DictReader(io.StringIO(style.csv_text(rows_of(panels, "round", "personal")))))
    assert [float(r["mean"]) for r in rows] == [10, 1 / 3]
    assert [r["std"] for r in rows] == ["", ""] and rows[0]["seeds"] == "1"
