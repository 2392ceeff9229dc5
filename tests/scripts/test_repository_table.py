"""The table of repositories: its rows are commands, and a row written again is the same line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import repository_table as table

from fedvlm.job.flags import parse


def test_rows_are_commands_and_come_back_as_they_were() -> None:
    page = table.PAGE.read_text(encoding="utf-8")
    rows = list(table.rows_of(page))
    assert len(rows) == 29 and table.write(page, rows) == page
    for row in rows:
        run, *words = row.words(Path("/checkouts"))
        args = parse(words)
        assert run == "run" and words.count("--backbone") == 1
        assert args.trainer == f"/checkouts/{row.folder}/{row.file}:{row.name}"
        assert row.outcome == "runs" or row.outcome.startswith("refused: ")
    other = replace(rows[0], outcome="refused: why", remark="")
    assert next(table.rows_of(table.write(page, [other, *rows[1:]]))) == other
    runs = sum(row.outcome == "runs" for row in rows)
    assert f"{runs} run, {len(rows) - runs} are refused" in page
