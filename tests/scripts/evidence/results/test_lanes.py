"""Runs of the same images, clients and seeds know the same baselines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from evidence.results.lanes import Lane, share_baselines
from fedvlm.report.collect import Collected
from fedvlm.runs.finished import FinishedRun


def reference(personal: float) -> dict[str, Any]:
    return {"personal": personal, "kind": "alone", "clients": []}


def run(personal: float, found: dict[str, float], **protocol: Any) -> FinishedRun:
    alone = {name: reference(value) for name, value in found.items()}
    best = max(found, key=found.__getitem__, default="")
    gain = {"points": personal - found[best], "reference": best} if best else None
    return FinishedRun(
        Path("run"), {"dataset": "D", "seed": 1, "data_digest": "images", **protocol},
        {"last": {"personal": personal}, "references": alone, "gain": gain}, {})


def test_a_gain_is_measured_from_the_best_baseline_that_any_run_of_the_images_knows() -> None:
    old = run(60.0, {"logreg": 50.0})
    new = run(40.0, {"logreg": 50.0, "logreg_names": 55.0})
    first, second = share_baselines(
        [Lane("a", Collected([old])), Lane("b", Collected([new]), title="B")])
    assert second.runs[0].section("references") == new.section("references")
    assert (first.name, second.title) == ("a", "B")
    assert first.runs[0].section("references").keys() == {"logreg", "logreg_names"}
    assert first.runs[0].section("gain")["reference"] == "logreg_names"
    assert first.runs[0].section("gain")["points"] == 5.0
    assert old.section("gain")["points"] == 10.0  # the cell itself stays


@pytest.mark.parametrize("other", [{"data_digest": "other"}, {"seed": 2}, {"dataset": "E"},
                                   {"cohort": 3}], ids=lambda one: next(iter(one)))
def test_runs_of_other_images_clients_or_seeds_keep_theirs(other: dict[str, Any]) -> None:
    old = run(60.0, {"logreg": 50.0})
    new = run(40.0, {"logreg": 50.0, "logreg_names": 55.0}, **other)
    (lane,) = share_baselines([Lane("a", Collected([old, new]))])
    assert lane.runs[0].section("references").keys() == {"logreg"}
    assert lane.runs[0].section("gain")["points"] == 10.0


def test_a_run_without_baselines_gets_none() -> None:
    bare = run(60.0, {})
    (lane,) = share_baselines([Lane("a", Collected([bare, run(40.0, {"logreg": 50.0})]))])
    assert lane.runs[0] == bare
