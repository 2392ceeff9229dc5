"""What an acceptance file has measured stays in it."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from fedvlm.core.errors import DataError
from fedvlm.recipes.acceptance import Acceptance
from fedvlm.recipes.kept import lines_of
from fedvlm.recipes.kept import merge_measurements as merged_within
from fedvlm.recipes.verdict import NOT_RUN, OFF, OTHER, UNPUBLISHED, WITHIN, Line, judge_again

GOOD = Line("pets", "FedTV", "personal", 90.0, None, "table 1", 89.0, 1.0, 3, -1.0, -1.0, WITHIN,
            weights="aaaa")
NONE = replace(GOOD, measured=None, std=None, n=0, points=None, deviations=None, verdict=NOT_RUN,
               why="no weights", weights="")
OTHERS = replace(GOOD, measured=50.0, points=-40.0, deviations=-40.0, verdict=OTHER,
                 why="FED.ROUNDS 2 for 10")
TOLERANCE = 2.0


def merged(now: list[Line], before: list[Line]) -> tuple[list[Line], list[Line], int]:
    return merged_within(now, before, TOLERANCE)


def test_a_cell_that_was_not_run_now_keeps_its_measurement() -> None:
    assert merged([NONE], [GOOD]) == ([GOOD], [], 1)
    assert merged([NONE], []) == ([NONE], [], 0)
    assert merged([NONE], [GOOD, OTHERS]) == ([GOOD], [OTHERS], 1)


def test_other_words_and_other_weights_stand_beside_each_other() -> None:
    assert merged([OTHERS], [GOOD]) == ([OTHERS], [GOOD], 0)
    strange = judge_again(replace(GOOD, weights="bbbb", measured=70.0), GOOD, TOLERANCE)
    assert merged([strange], [GOOD, OTHERS]) == ([strange], [GOOD, OTHERS], 0)
    assert merged([GOOD], [OTHERS, strange]) == ([GOOD], [OTHERS, strange], 0), "and back again"


def test_of_one_thing_more_seeds_stand_and_the_newer_of_as_many() -> None:
    fewer, again = replace(GOOD, n=1, measured=80.0), replace(GOOD, measured=88.0)
    assert merged([fewer], [GOOD]) == ([GOOD], [], 1)
    assert merged([again], [GOOD]) == ([again], [], 0)


def test_a_cell_that_the_recipe_dropped_is_kept() -> None:
    gone = replace(GOOD, dataset="dtd")
    assert merged([NONE], [gone]) == ([NONE], [gone], 0)


def test_what_a_recipe_prints_now_judges_what_was_measured_before() -> None:
    corrected = replace(NONE, published=93.0, published_std=0.5, remark="of their second version")
    (line,), _, _ = merged([corrected], [GOOD])
    assert (line.published, line.measured, line.points) == (93.0, 89.0, -4.0)
    assert line.deviations == pytest.approx(-4 / 1.25**0.5) and line.verdict == OFF
    assert line.remark == "of their second version"
    (line,), _, _ = merged_within([corrected], [GOOD], 4.0)
    assert line.verdict == WITHIN
    (line,), _, _ = merged([corrected], [OTHERS])
    assert (line.verdict, line.why, line.points) == (OTHER, OTHERS.why, -43.0)
    (line,), _, _ = merged([replace(NONE, published=None)], [GOOD])
    assert (line.verdict, line.points, line.deviations) == (UNPUBLISHED, None, None)
    _, (line,), _ = merged([replace(corrected, measured=1.0, weights="bbbb")], [GOOD])
    assert line.verdict == OFF, "what stands under earlier, too"


def test_a_kept_line_says_when_it_was_measured(tmp_path: Path) -> None:
    path = tmp_path / "acceptance.json"
    old = asdict(replace(GOOD, dataset="dtd", made="2025-01-01, fedvlm 0.1"))
    record = {"cells": [asdict(GOOD), old], "written": "2026-02-03T04:05:06Z", "fedvlm": "0.9"}
    path.write_text(json.dumps(record))
    assert [line.made for line in lines_of(path)] == [
        "2026-02-03, fedvlm 0.9", "2025-01-01, fedvlm 0.1"]
    path.write_text(json.dumps({"cells": [asdict(GOOD)]}))
    (line,) = lines_of(path)
    assert line.made == "an earlier file"
    now = replace(GOOD, dataset="dtd")

    def sources(*lines: Line) -> list[str]:
        rows = Acceptance(None, lines, ()).rows()  # type: ignore[arg-type]
        return [row.get("from", "") for row in rows]

    assert sources(line, now, NONE) == ["an earlier file", "now", "-"] and sources(now) == [""]


def test_a_file_is_read_whole_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "acceptance.json"
    assert lines_of(path) == []
    cells = [asdict(GOOD) | {"new_word": 1}, asdict(NONE)]
    path.write_text(json.dumps({"cells": cells, "earlier": [asdict(OTHERS)]}))
    assert [replace(line, made="") for line in lines_of(path)] == [GOOD, OTHERS]
    for text in ("{", "[]", '{"cells": [1]}', '{"cells": [{"measured": 1}]}'):
        path.write_text(text)
        with pytest.raises(DataError, match="its measured numbers would be lost: move it away"):
            lines_of(path)
