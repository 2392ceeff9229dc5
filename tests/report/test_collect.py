"""Run folders as plain data: what lies below a folder, and what a run says of itself."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from fedvlm.core.errors import DataError
from fedvlm.report.collect import as_float, collect
from fedvlm.runs.finished import FinishedRun
from fedvlm.runs.names import read_partition

from .table_runs import write_run


def test_each_run_is_read_once_and_the_rest_is_named(tmp_path: Path) -> None:
    a = write_run(tmp_path, "A", last={"personal": 1.0})
    b = write_run(tmp_path, "B", last={"personal": 2.0})
    (a / "state").mkdir()
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "manifest.json").write_text("{}")
    (b / "results.json").write_text("{")
    found = collect([tmp_path, a])
    assert [run.path for run in found.runs] == [a]
    assert found.unfinished == [tmp_path / "half"]
    assert len(found.problems) == 1 and str(b) in found.problems[0]
    with pytest.raises(DataError, match="not a folder with runs"):
        collect([tmp_path / "none"])


def test_a_number_of_a_run(tmp_path: Path) -> None:
    run = FinishedRun(tmp_path, {"trainer": "A", "peft": "prompt", "tag": "x"},
              {"last": {"personal": 1, "target.Cars": 3.0}, "zero_shot": {"personal": 2.0}},
              {"totals": {"seconds": 4.0}, "notes": "no list"})
    assert run.method == "A [prompt] (x)"
    assert [run.value(n) for n in ("personal", "zero_shot.personal", "target.Cars", "x", "y.z")] \
        == [1.0, 2.0, 3.0, None, None]
    assert run.section("zero_shot") == {"personal": 2.0} and run.section("selected") == {}
    assert run.totals() == {"seconds": 4.0} and run.notes() == []


def test_a_manifest_without_config(tmp_path: Path) -> None:
    run = collect([write_run(tmp_path, "A", last={})]).runs[0]
    assert run.identity_config()["OPTIM.LR"] == 0.01
    for text, why in (("{", "cannot read"), ("{}", "names no config"), ("[1]", "names no config")):
        (run.path / "manifest.json").write_text(text)
        with pytest.raises(DataError, match=why):
            run.identity_config()


def test_finite() -> None:
    assert as_float(3) == 3.0 and as_float(0.5) == 0.5
    assert [as_float(x) for x in (None, "1", True, math.nan, math.inf, [1])] == [None] * 6


def test_a_partition_with_other_columns_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot read .*partition\.csv"):
        read_partition(tmp_path)
    (tmp_path / "partition.csv").write_text("client,images\n0,1\n")
    with pytest.raises(DataError, match="lacks the columns class, domain, part"):
        read_partition(tmp_path)
