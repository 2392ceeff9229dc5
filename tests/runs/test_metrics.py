"""``metrics.jsonl``: strict JSON, whole lines, cut to fit the state."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from fedvlm.runs.metrics import append_metrics, read_metrics, truncate_metrics


def test_metrics_are_strict_json_and_tell_what_was_not_finite(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    append_metrics(path, {"round": 1, "loss": [math.nan, 1 / 3], "acc": np.float32(0.5),
                          "clients": {3: {"lr": -math.inf}}, "n": torch.tensor(4)})
    line = path.read_text()
    assert line.endswith("\n") and "NaN" not in line and "Infinity" not in line
    assert json.loads(line) == {
        "round": 1, "loss": [None, 1 / 3], "acc": 0.5, "clients": {"3": {"lr": None}}, "n": 4,
        "non_finite": {"loss.0": "nan", "clients.3.lr": "-inf"},
    }
    with pytest.raises(TypeError, match="'w' of type Tensor"):
        append_metrics(path, {"w": torch.zeros(3)})
    assert path.read_text() == line


def test_truncate_drops_later_rounds_and_the_cut_line(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    for r in range(4):
        append_metrics(path, {"round": r, "loss": 0.1 * r})
    whole = path.read_text()
    assert truncate_metrics(path, 3) == [] and path.read_text() == whole
    path.write_text(whole + '{"round": 4, "lo')
    records, notes = read_metrics(path)
    assert len(records) == 4 and "line (5) is cut" in notes[0]
    notes = truncate_metrics(path, 2)
    assert len(notes) == 2 and "1 lines after round 2" in notes[1]
    assert path.read_text() == "".join(whole.splitlines(keepends=True)[:3])
    path.write_text("garbage\n" + whole)
    assert "line 1 is damaged" in truncate_metrics(path, 9)[0] and path.read_text() == whole
    truncate_metrics(path, -1)
    assert path.read_text() == "" and truncate_metrics(tmp_path / "absent", 0) == []


def test_whole_last_line_without_newline_counts_as_cut(tmp_path: Path) -> None:
    """Its number might go on: ``1`` may be the start of ``12``, and an append would join it."""
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"round": 1}\n{"round": 2}')
    assert read_metrics(path)[0] == [{"round": 1}]
