"""Runs of the same images, clients and seeds know the same baselines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from evidence.results import plans
from evidence.results.lanes import CASE, NOT_TUNED, Lane, case_rows, share_baselines
from evidence.results.plans import read_lanes
from fedvlm.report.collect import Collected
from fedvlm.runs.bits import BITS
from fedvlm.runs.cells import ENDING
from fedvlm.runs.finished import FinishedRun


def reference(personal: float) -> dict[str, Any]:
    return {"personal": personal, "kind": "alone", "clients": []}


def run(personal: float, found: dict[str, float], **protocol: Any) -> FinishedRun:
    alone = {name: reference(value) for name, value in found.items()}
    best = max(found, key=found.__getitem__, default="")
    gain = {"points": personal - found[best], "reference": best} if best else None
    return FinishedRun(
        Path("run"), {"dataset": "D", "seed": 1, "data_digest": "images", **protocol},
        {"last": {"personal": personal}, "references": alone, "gain": gain, "answer": {},
         "spent": {"bytes_up": 1, "bytes_down": 1}}, {})


def test_a_gain_is_measured_from_the_best_baseline_that_any_run_of_the_images_knows() -> None:
    old = run(60.0, {"logreg": 50.0})
    new = run(40.0, {"logreg": 50.0, "logreg_names": 55.0})
    (first,), (second,) = share_baselines([[old], [new]])
    assert second.section("references") == new.section("references")
    assert first.section("references").keys() == {"logreg", "logreg_names"}
    assert first.section("gain")["reference"] == "logreg_names"
    assert first.section("gain")["points"] == first.section("answer")["points"] == 5.0
    assert old.section("gain")["points"] == 10.0  # the cell itself stays


def test_of_equal_baselines_those_with_a_bit_per_image_count() -> None:
    """Else a run with bits would be compared by counts, and its interval be too wide."""
    old, new = run(60.0, {"logreg": 50.0}), run(40.0, {"logreg": 50.0})
    bits = {"personal": {"0": "1:gA=="}}
    new.results["references"]["logreg"][BITS] = bits
    for first, second in ((old, new), (new, old)):
        (both,) = share_baselines([[first, second]])
        assert [one.section("references")["logreg"][BITS] for one in both] == [bits, bits]


@pytest.mark.parametrize("other", [{"data_digest": "other"}, {"seed": 2}, {"dataset": "E"},
                                   {"cohort": 3}], ids=lambda one: next(iter(one)))
def test_runs_of_other_images_clients_or_seeds_keep_theirs(other: dict[str, Any]) -> None:
    old = run(60.0, {"logreg": 50.0})
    new = run(40.0, {"logreg": 50.0, "logreg_names": 55.0}, **other)
    ((first, _),) = share_baselines([[old, new]])
    assert first.section("references").keys() == {"logreg"}
    assert first.section("gain")["points"] == 10.0


def test_a_run_without_baselines_gets_none() -> None:
    bare = run(60.0, {})
    ((first, _),) = share_baselines([[bare, run(40.0, {"logreg": 50.0})]])
    assert first == bare


def test_the_published_lanes_share_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = {"a": run(60.0, {"logreg": 50.0}),
             "b": run(40.0, {"logreg": 50.0, "logreg_names": 55.0})}
    monkeypatch.setattr(plans, "collect", lambda packs: Collected(
        [found[path.name.removesuffix(ENDING)] for path in packs]))
    first, second = read_lanes([tmp_path / f"{name}{ENDING}" for name in found], tmp_path)
    assert (first.name, second.name) == ("a", "b")
    assert first.runs[0].section("gain")["reference"] == "logreg_names"


def test_every_case_is_a_mean_over_seeds_by_hand() -> None:
    """By what is trained and whether it is tuned; what a run lacks is empty."""
    def made(personal: float, seed: int, digest: str = "", method: str = "FedAvg") -> FinishedRun:
        one = run(personal, {"logreg": 50.0}, seed=seed, data_seed=seed, trainer=method,
                  peft="head", dataset="EuroSAT", shots=4, subsample="all")
        one.results["answer"] |= {"points": personal - 50, "alone": {"personal": 50.0}}
        one.results["last"] |= {"personal_balanced": 30.0}
        return FinishedRun(one.path, one.protocol, one.results, {
            "seconds_this_session": 2.0, "totals": {"bytes_up": 3_000_000}}, digest)

    runs = [made(60.0, 1), made(70.0, 2), made(40.0, 1, "plain", "Ditto")]
    rows = case_rows(Lane("disjoint", Collected(runs)), lambda name: "", {"plain"})
    assert [list(row) for row in rows] == [list(CASE)] * 2
    first, second = rows
    assert first | {"sd": "7.07", "new": "", "pooled": "", "worst": ""} == first == {
        "setting": "disjoint", "set": "EuroSAT", "classes": "all", "shots": 4,
        "trained": "linear head", "tuned": "yes", "method": "FedAvg", "seeds": 2,
        "personal": "65.00", "sd": "7.07", "gain": "15.00", "alone": "50.00", "pooled": "",
        "balanced": "30.00", "worst": "", "new": "", "MB": "3.00", "seconds": "2.00"}
    assert (second["tuned"], second["sd"], second["personal"]) == ("no", "", "40.00")
    assert NOT_TUNED not in second["trained"]
