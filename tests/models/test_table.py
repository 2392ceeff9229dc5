"""The tables of docs/towers.md are what is so today."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from tests.models.table import (
    DOORS,
    DOORS_NOTE,
    HEADS,
    ROWS,
    SETS,
    backbone,
    cell,
    counts,
    door,
    part,
)

PAGE = Path(__file__).resolve().parents[2] / "docs" / "towers.md"


@cache
def page(name: str) -> str:
    return part(PAGE.read_text(encoding="utf-8"), name)


@pytest.mark.slow
def test_open_clip_s_builds() -> None:
    assert counts() == page("builds")


@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS)
def test_a_row_of_towers(row: str) -> None:  # without onnx, which takes ten times as long
    sets = SETS if backbone(ROWS[row]).has_text else HEADS
    (line,) = [x for x in page("towers").splitlines() if x.startswith(f"| {row} |")]
    notes = dict(re.findall(r"^(\d+)\. (.*)$", page("towers"), re.M))
    cells = line.split("|")[2:-1]
    if sets is HEADS:
        cells, doors = cells[: len(HEADS)], cells[len(HEADS) :]
        assert [one.strip() for one in doors] == [door(ROWS[row])] * len(DOORS)
        assert notes["4"] == DOORS_NOTE
    for (trainer, words), told in zip(sets.values(), cells, strict=True):
        text, why = cell(ROWS[row], trainer, words, "sop")
        mark = re.fullmatch(r" refused \((\d+)\) ", told)
        if mark:
            assert why == notes[mark[1]]
        else:
            assert text == told.replace("x", "").strip(), why
