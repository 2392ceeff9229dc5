"""Scores by hand, and lines that are cut or changed."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedvlm.sweep.tune.records import TrialRecords, TrialScore, join_scores, pool_scores
from fedvlm.sweep.worker import Outcome


def test_score_pools_images_and_its_error_has_clients_as_units() -> None:
    score = TrialScore(((6, 10), (2, 10)))
    assert (score.value, score.images) == (40.0, 20)
    # sum of squares of right - 0.4 n: 2^2 + (-2)^2 = 8; sqrt(2/1 * 8) / 20 = 0.2
    assert score.error == pytest.approx(20.0)
    assert math.isnan(TrialScore(((3, 4),)).error)
    lines: list[dict[str, Any]] = [{"clients": [[6, 10]]}, {"clients": [[2, 10]]}]
    parts = [pool_scores(lines[:1]), pool_scores(lines[1:])]
    assert pool_scores(lines) == join_scores(parts) == score


def test_a_gap_is_paired() -> None:
    """Two points alike up to one more right answer each: no error, however hard clients differ."""
    gap, error = TrialScore(((1, 10), (8, 10))).behind(TrialScore(((2, 10), (9, 10))))
    assert gap == pytest.approx(10.0) and error == pytest.approx(0.0)


def test_lines_are_read_again_and_damaged_ones_are_not(tmp_path: Path) -> None:
    def cell(i: int) -> Any:
        return SimpleNamespace(digest=f"d{i}", method="Toy", dataset="digits", seed=i)

    records = TrialRecords(tmp_path)
    for i in range(4):
        records.add(cell(i), i, Outcome(0, "", 1.0, None, {"clients": [(i, 9)], "steps": 2}))
    records.add(cell(4), 4, Outcome(-9, "killed", 1.0))  # not final: it is run again
    lines = records.path.read_text().splitlines()
    assert len(lines) == 4
    lines[1] = lines[1].replace("[1, 9]", "[9, 9]")
    records.path.write_text("\n".join(lines)[:-20])  # and the last was cut by a kill
    again = TrialRecords(tmp_path)
    assert again.damaged == 2 and set(again.lines) == {"d0", "d2"}
    assert again.lines["d2"] == records.lines["d2"]
    again.mend()
    again.add(cell(3), 3, Outcome(0, "", 1.0, None, {"clients": [(3, 9)], "steps": 2}))
    assert set(TrialRecords(tmp_path).lines) == {"d0", "d2", "d3"}  # on a line of its own
