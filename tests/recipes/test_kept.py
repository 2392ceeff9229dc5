"""What an acceptance file has measured stays in it."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from fedvlm.core.errors import DataError
from fedvlm.recipes.kept import lines_of, merged
from fedvlm.recipes.verdict import NOT_RUN, OTHER, WITHIN, Line

GOOD = Line("pets", "FedTV", "personal", 90.0, None, "table 1", 89.0, 1.0, 3, -1.0, -1.0, WITHIN,
            weights="aaaa")
NONE = replace(GOOD, measured=None, std=None, n=0, points=None, deviations=None, verdict=NOT_RUN,
               why="no weights", weights="")
OTHERS = replace(GOOD, measured=50.0, verdict=OTHER, why="FED.ROUNDS 2 for 10")


def test_a_cell_that_was_not_run_now_keeps_its_measurement() -> None:
    assert merged([NONE], [GOOD]) == ([GOOD], [], 1)
    assert merged([NONE], []) == ([NONE], [], 0)
    assert merged([NONE], [GOOD, OTHERS]) == ([GOOD], [OTHERS], 1)


def test_other_words_and_other_weights_stand_beside_each_other() -> None:
    assert merged([OTHERS], [GOOD]) == ([OTHERS], [GOOD], 0)
    strange = replace(GOOD, weights="bbbb", measured=70.0)
    assert merged([strange], [GOOD, OTHERS]) == ([strange], [GOOD, OTHERS], 0)
    assert merged([GOOD], [OTHERS, strange]) == ([GOOD], [OTHERS, strange], 0), "and back again"


def test_of_one_thing_more_seeds_stand_and_the_newer_of_as_many() -> None:
    fewer, again = replace(GOOD, n=1, measured=80.0), replace(GOOD, measured=88.0)
    assert merged([fewer], [GOOD]) == ([GOOD], [], 1)
    assert merged([again], [GOOD]) == ([again], [], 0)


def test_a_cell_that_the_recipe_dropped_is_kept() -> None:
    gone = replace(GOOD, dataset="dtd")
    assert merged([NONE], [gone]) == ([NONE], [gone], 0)


def test_a_file_is_read_whole_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "acceptance.json"
    assert lines_of(path) == []
    cells = [asdict(GOOD) | {"new_word": 1}, asdict(NONE)]
    path.write_text(json.dumps({"cells": cells, "earlier": [asdict(OTHERS)]}))
    assert lines_of(path) == [GOOD, OTHERS]
    for text in ("{", "[]", '{"cells": [1]}', '{"cells": [{"measured": 1}]}'):
        path.write_text(text)
        with pytest.raises(DataError, match="what it measured would be lost: move it away"):
            lines_of(path)
