"""Numbers of runs as DataFrames, equal to the files' own."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import fedvlm
from fedvlm.api.model import Predictions
from fedvlm.core.errors import ConfigError, DataError
from tests import jobs


def test_metrics_and_results_are_the_files_own(quick_run: Path) -> None:
    pytest.importorskip("pandas")
    run = fedvlm.load(jobs.folder(quick_run))
    lines = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    assert list(run.metrics["round"]) == [0, 1, 2]
    assert list(run.metrics["personal"]) == [line["personal"] for line in lines]
    assert "counters.steps" in run.metrics and "train.0.loss" not in run.metrics
    rows = run.client_metrics.query("round == 2")
    told = {row["client"]: row["accuracy"] for row in lines[-1]["clients"]}
    assert dict(zip(rows["client"], rows["accuracy"], strict=True)) == told
    table = fedvlm.results(quick_run)
    assert len(table) == 1 and table.attrs["problems"] == []
    assert table["personal"][0] == lines[-1]["personal"] and table["seed"][0] == 1
    assert table["run"][0] == str(run.path) and table["method"][0] == "FedTV"


def test_predictions_as_a_table_and_by_name() -> None:
    pytest.importorskip("pandas")
    said = Predictions(("cat", "dog"), torch.tensor([[0.0, 2.0], [1.0, 0.0]]), ("a.png", ""))
    assert said.classes == ["dog", "cat"] and list(said.labels) == [1, 0]
    assert np.allclose(said.probabilities.sum(1), 1) and len(said) == 2
    (best, other), _ = said.top(2)
    assert (best[0], other[0]) == ("dog", "cat") and best[1] == pytest.approx(0.880797, abs=1e-6)
    table = said.to_pandas()
    assert list(table) == ["image", "class", "probability", "cat", "dog"]
    assert list(table["class"]) == ["dog", "cat"]
    assert table["probability"][0] == table["dog"][0] == best[1]
    assert "dog (0.881)" in repr(said)


def test_no_runs_and_no_pandas_are_said(
    tmp_path: Path, quick_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DataError, match="no finished run below"):
        fedvlm.results(tmp_path)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ConfigError, match=r"pip install 'fedvlm\[pandas\]'"):
        fedvlm.results(quick_run)
