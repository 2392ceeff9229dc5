"""Data sets of several protocols: a table each, and an average over those that agree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedvlm.cli.main import main
from fedvlm.core.errors import ConfigError
from fedvlm.report.collect import collect
from fedvlm.report.tables.cells import AVERAGE
from fedvlm.report.tables.table import ReportTable, Spec, tables
from tests.report.table_runs import write_run


def made(root: Path, **spec: Any) -> list[ReportTable]:
    return tables(collect([root]), Spec(**spec))


def sweep(root: Path, **protocols: dict[str, Any]) -> None:
    """Two methods on each data set; its accuracy is 10, 20, ... and one more for B."""
    for at, (name, protocol) in enumerate(protocols.items(), 1):
        for more, method in enumerate("AB"):
            write_run(root, method, name, last={"personal": 10.0 * at + more}, **protocol)


def test_one_protocol_gives_one_table_with_its_average(tmp_path: Path) -> None:
    sweep(tmp_path, Pets={}, Digits={})
    (one,) = made(tmp_path)
    assert one.columns == ("Digits", "Pets", AVERAGE)
    assert not any("a table for each" in note for note in one.notes)


def test_other_protocols_give_a_table_per_data_set(tmp_path: Path) -> None:
    sweep(tmp_path, Pets={}, Digits={"rounds": 5})
    digits, pets = made(tmp_path)
    assert (digits.columns, pets.columns) == (("Digits",), ("Pets",))
    assert [[c.mean for c in line] for line in digits.cells] == [[20.0], [21.0]]
    assert digits.notes[0] == pets.notes[0]
    assert "a table for each data set, as they differ in rounds (5: Digits; 2: Pets)" in \
        digits.notes[0]
    assert "5 rounds" in digits.caption and "2 rounds" in pets.caption


def test_an_average_stands_over_the_data_sets_that_agree(tmp_path: Path) -> None:
    sweep(tmp_path, Pets={}, Digits={"rounds": 5}, Shapes={}, DTD={"shots": 4}, Cars={"shots": 4})
    *each, cars, pets = made(tmp_path)
    assert [one.columns for one in each] == [("Cars",), ("Digits",), ("DTD",), ("Pets",),
                                             ("Shapes",)]
    assert cars.columns == ("Cars", "DTD", AVERAGE) and pets.columns == ("Pets", "Shapes", AVERAGE)
    assert [line[-1].mean for line in pets.cells] == [20.0, 21.0]
    assert "these 2 of 5 data sets have one protocol" in pets.notes[0]


def test_what_a_data_set_mixes_itself_is_refused(tmp_path: Path) -> None:
    sweep(tmp_path, Pets={}, Digits={"rounds": 5})
    write_run(tmp_path, "C", "Pets", last={"personal": 1.0}, rounds=3)
    with pytest.raises(ConfigError, match="rounds is 2 in .*A_Pets_.* and 3 in .*C_Pets_"):
        made(tmp_path)
    with pytest.raises(ConfigError, match="dataset is "):
        made(tmp_path, cols=("shots",))
    (one,) = made(tmp_path, mixed=())  # asked for
    assert one.columns == ("Digits", "Pets", AVERAGE)


def test_the_verb_prints_them_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep(tmp_path, Pets={}, Digits={"rounds": 5})
    assert main(["table", str(tmp_path), "--format", "md"]) == 0
    out = capsys.readouterr().out
    assert "| trainer | Digits |" in out and "| trainer | Pets |" in out
    assert "a table for each data set" in out and AVERAGE not in out
