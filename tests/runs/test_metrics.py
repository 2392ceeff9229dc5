"""``metrics.jsonl``: strict JSON, whole lines, cut to fit the state."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from fedvlm.runs.metrics import append_metrics, read_chain, read_metrics, truncate_metrics


def test_metrics_are_strict_json_and_tell_what_was_not_finite(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    append_metrics(path, {"round": 1, "loss": [math.nan, 1 / 3], "acc": np.float32(0.5),
                          "clients": {3: {"lr": -math.inf}}, "n": torch.tensor(4)})
    line = path.read_text()
    assert line.endswith("\n") and "NaN" not in line and "Infinity" not in line
    record = json.loads(line)
    assert len(record.pop("seal")) == 64
    assert record == {
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
    assert len(records) == 4 and "line (5) is truncated" in notes[0]
    notes = truncate_metrics(path, 2)
    assert len(notes) == 2 and "1 lines after round 2" in notes[1]
    assert path.read_text() == "".join(whole.splitlines(keepends=True)[:3])
    truncate_metrics(path, -1)
    assert path.read_text() == "" and truncate_metrics(tmp_path / "absent", 0) == []


def test_lines_of_before_are_read_and_what_is_added_seals_them(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('garbage\n{"round": 0}\n{"round": 1}\n')
    assert "line 1 is damaged" in truncate_metrics(path, 9)[0]
    assert path.read_text() == '{"round": 0}\n{"round": 1}\n'
    append_metrics(path, {"round": 2})
    chain = read_chain(path)
    assert (chain.bare, len(chain.seals), chain.broken) == (2, 3, "")
    path.write_text(path.read_text().replace('"round": 1', '"round": 7'))
    records, notes = read_metrics(path)
    assert records == [{"round": 0}, {"round": 7}] and "line 3 is damaged" in notes[0]
    assert len(truncate_metrics(path, 9)) == 1 and read_chain(path).broken == ""


def test_no_change_of_a_sealed_file_goes_unseen(tmp_path: Path) -> None:
    """Any bit, any lost, doubled or moved line: what is read is a true beginning of what was."""
    path = tmp_path / "metrics.jsonl"
    wrote = [{"round": r, "personal": 10.5 * r} for r in range(4)]
    before = ""
    for record in wrote:
        before = append_metrics(path, record, before)
    whole = path.read_bytes()
    assert read_metrics(path) == (wrote, []) and read_chain(path).last == before
    lines = whole.splitlines(keepends=True)
    others = [b"".join(lines[i] for i in order)
              for order in ([0, 2, 3], [1, 2, 3], [0, 1, 1, 2, 3], [0, 2, 1, 3], [0, 1, 2])]
    for at in range(len(whole)):
        others.append(whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :])
    for data in others:
        path.write_bytes(data)
        records = [{k: r[k] for k in ("round", "personal")} for r in read_metrics(path)[0]]
        assert records == wrote[: len(records)] and read_chain(path).last != before


def test_whole_last_line_without_newline_counts_as_cut(tmp_path: Path) -> None:
    """Its number might go on: ``1`` may be the start of ``12``, and an append would join it."""
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"round": 1}\n{"round": 2}')
    assert read_metrics(path)[0] == [{"round": 1}]
