"""Similarity of uploads: closed forms, what is left out, and what a run records."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fedvlm.federation.aggregation.updates import Updates, join_updates
from fedvlm.job import similarity as job_similarity
from tests import jobs


def event(updates: Updates | None, round_: int = 1, total: int = 5) -> Any:
    return SimpleNamespace(round=round_, total_rounds=total, updates=updates)


def sent(rows: dict[int, dict[str, list[float]]], received: dict[str, list[float]]) -> Updates:
    """Return updates by client -> tensor -> values, all from the same download."""
    parts = [
        Updates(
            (client,), {n: torch.tensor([v]) for n, v in values.items()},
            torch.ones(1, dtype=torch.float64),
            received={n: torch.tensor([received[n]]) for n in values},
        )
        for client, values in rows.items()
    ]
    return join_updates(parts)


def test_closed_form() -> None:
    updates = sent({3: {"a": [1.0, -2.0]}, 1: {"a": [1.0, 1.0]}}, {"a": [1.0, 0.0]})
    found = job_similarity.upload_similarity(event(updates))
    assert found is not None and found["clients"] == [1, 3]
    assert found["update"] == [[1.0, -1.0], [-1.0, 1.0]]  # (0, 1) and (0, -2)
    between = round(-1 / 10**0.5, 6)  # (1, 1) and (1, -2)
    assert found["tensors"] == {"a": [[1.0, between], [between, 1.0]]}
    assert found["to_global"] == {"a": [round(2**-0.5, 6), round(5**-0.5, 6)]}


def test_the_update_is_one_vector_over_all_tensors() -> None:
    rows = {0: {"a": [1.0, 0.0], "b": [1.0]}, 1: {"a": [1.0, 0.0], "b": [-1.0]}}
    updates = sent(rows, {"a": [0.0, 0.0], "b": [0.0]})
    found = job_similarity.upload_similarity(event(updates))
    assert found is not None and found["update"][0][1] == 0.0
    assert found["tensors"]["b"][0][1] == -1.0
    assert found["to_global"]["a"] == [0.0, 0.0]  # a zero vector has cosine 0


def test_a_method_that_shares_nothing_has_none() -> None:
    assert job_similarity.upload_similarity(event(sent({0: {}}, {}))) is None


def test_first_and_last_round_only() -> None:
    one = sent({0: {"a": [1.0]}}, {"a": [0.0]})
    wanted = [r for r in range(6) if job_similarity.has_similarity(event(one if r else None, r))]
    assert wanted == [1, 5]


def test_a_line_stays_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_similarity, "MOST_CLIENTS", 3)
    monkeypatch.setattr(job_similarity, "MOST_VALUES", 8)
    updates = sent({c: {"a": [1.0, float(c)]} for c in range(5)}, {"a": [0.0, 0.0]})
    found = job_similarity.upload_similarity(event(updates))
    assert found is not None and found["clients"] == [0, 1, 2] and found["left_out"] == 2
    assert "tensors" not in found and len(found["update"]) == 3


def test_a_run_records_it_also_when_it_was_cut(quick_run: Path, tmp_path: Path) -> None:
    """The last round is done again from the saved state: the same numbers come out."""
    shutil.copytree(quick_run, tmp_path, dirs_exist_ok=True)
    records = {r["round"]: r for r in jobs.records(tmp_path)}
    assert ["similarity" in records[r] for r in (0, 1, 2)] == [False, True, True]
    assert records[2]["similarity"]["clients"] == [0, 1]
    assert not any("personal" in n for n in records[2]["similarity"]["tensors"])
    folder = jobs.folder(tmp_path)
    results = json.loads((folder / "results.json").read_text())
    assert "similarity" not in results["results"]["last"]
    (folder / "results.json").unlink()
    for state in folder.glob("state/*0002*"):
        state.unlink()
    picture = (folder / "partition.svg").stat().st_mtime_ns
    assert jobs.run(tmp_path) == 0
    assert {r["round"]: r for r in jobs.records(tmp_path)} == records
    assert (folder / "partition.svg").stat().st_mtime_ns == picture  # drawn once


def test_a_picture_that_fails_ends_no_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from fedvlm.job.show import draw_partition

    draw_partition(tmp_path, "no CSV here")
    assert "partition figure not written: cannot read" in capsys.readouterr().err
