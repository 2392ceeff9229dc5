"""References in a table: their rows, who lies below them, and rows that are one model."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fedvlm.report.collect import collect
from fedvlm.report.tables.facts import RunFacts
from fedvlm.report.tables.layout import cell_at
from fedvlm.report.tables.table import ReportTable, Spec, tables
from fedvlm.runs.bits import BITS, PLACES, encode_bits, encode_places
from fedvlm.runs.verify.beside import gain, hurt
from tests.report.table_runs import reference, rows, write_run

ALL = ("alone", "together", "bound")
REFERENCES = {"references": {
    "chance": reference("alone", 1, 1), "logreg": reference("alone", 6, 4),
    "afl": reference("together", 6, 6), "pooled": reference("bound", 9, 9),
}}


def table(root: Path, **spec: Any) -> ReportTable:
    (found,) = tables(collect([root]), Spec(**spec))
    return found


def write(
    root: Path, trainer: str, *correct: int, sent: int = 100, n: int = 10,
    last: Mapping[str, Any] | None = None, **more: Any
) -> Path:
    """Write a run whose clients have so many of ``n`` right."""
    clients = rows(*correct, n=n)
    personal = sum(row["accuracy"] for row in clients) / len(clients)
    totals = {"local_steps": 4, "bytes_up": sent, "bytes_down": sent}
    return write_run(root, trainer, last={"personal": personal, "clients": clients, **(last or {})},
                     info={"totals": totals}, **({"sections": REFERENCES} | more))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("rivals")
    write(root, "FedAvg", 6, 5)
    write(root, "FedProx", 6, 5)
    write(root, "Good", 8, 8)
    write(root, "LocalOnly", 5, 6, sent=0)
    return root


def test_references_stand_in_groups_below_the_methods(runs: Path) -> None:
    found = table(runs, reference=ALL)
    assert found.rows == (
        "FedAvg", "FedProx", "Good", "LocalOnly", "chance", "logistic regression",
        "federated ridge (AFL)", "logistic regression, pooled",
    )
    heads = ["each client alone"] * 2
    assert list(found.groups[4:6]) == heads and found.groups[0] == ""
    assert found.groups[6] != found.groups[5] and found.groups[7] == "all images in one place"
    assert [line[0].text for line in found.cells[4:]] == ["10.0", "50.0", "60.0", "90.0"]
    assert table(runs, reference=("alone",)).rows[-1] == "logistic regression"
    assert table(runs).rows == ("FedAvg", "FedProx", "Good", "LocalOnly")


def test_a_method_below_a_reference_of_its_kind_is_marked(runs: Path) -> None:
    """FedAvg, 55, beats what is alone and not AFL; LocalOnly, 55, is held against the former."""
    found = table(runs)
    assert [line[0].below for line in found.cells] == [True, True, False, False]
    assert found.cells[0][0].suffix == "↓"
    (note,) = [n for n in found.notes if n.startswith("↓")]
    assert "FedAvg: federated ridge (AFL) (Pets)" in note and "LocalOnly" not in note


def test_on_new_classes_the_reference_is_zero_shot(tmp_path: Path) -> None:
    """Only where it is the same zero-shot model: its personal is the reference's."""
    zero = {"personal": 45.0, "new": 45.5, "global": 3.0}
    held = {"references": {"zero_shot": {"kind": "alone", "personal": 45.0}}, "zero_shot": zero}
    for name, new in (("A", 39.0), ("B", 46.0)):
        last = {"personal": 50.0, "new": new}
        write_run(tmp_path / "same", name, last=last, sections=held)
        write_run(tmp_path / "other", name, last=last,
                  sections=held | {"zero_shot": zero | {"personal": 44.0}})
    found = table(tmp_path / "same", metrics=("new",), reference=ALL)
    assert [line[0].below for line in found.cells] == [True, False, False]
    assert found.rows[2] == "zero-shot" and found.cells[2][0].text == "45.5"
    assert any(n.startswith("↓") and "A: zero-shot (Pets)" in n for n in found.notes)
    assert not any(line[0].below for line in table(tmp_path / "other", metrics=("new",)).cells)


def test_a_note_counts_in_how_many_runs_federation_pays(tmp_path: Path) -> None:
    """Who sends nothing has no answer; a copy of a run is no second one."""
    write(tmp_path, "FedAvg", 6, 5)
    shutil.copytree(write(tmp_path, "Good", 8, 8), tmp_path / "copy")
    spent = {"spent": {"bytes_up": 0, "bytes_down": 0}}
    write(tmp_path, "LocalOnly", 5, 6, sent=0, sections=REFERENCES | spent)
    (note,) = [n for n in table(tmp_path).notes if "best alone" in n]
    assert note == (
        "whether federation pays, run by run against the best alone (95 % margin of the run's "
        "test images): FedAvg: federation pays in 0 of 1, is worse than alone in 0, test images "
        "cannot tell in 1; Good: federation pays in 1 "
        "of 1, is worse than alone in 0, test images cannot tell in 0")


def test_rows_that_are_one_model_are_named(runs: Path) -> None:
    (note,) = [n for n in table(runs).notes if n.startswith("equal predictions")]
    assert note.endswith("in all 1 run): FedAvg, FedProx")


def test_of_a_run_without_references_nothing_is_said(tmp_path: Path) -> None:
    write(tmp_path, "FedAvg", 1, 1, sections={})
    found = table(tmp_path, reference=ALL, columns=("gain", "hurt", "balanced"))
    assert found.rows == ("FedAvg",) and found.groups == ()
    assert [c.text for c in found.cells[0]] == ["10.0", "-", "-", "-"]


def test_hurt_gain_and_quartiles(tmp_path: Path) -> None:
    """Below the best alone, 60 and 40: the first of two clients."""
    write(tmp_path, "A", 5, 9)
    refs = REFERENCES["references"]
    write(tmp_path, "B", 5, 10, sections=REFERENCES | {
        "gain": gain(75.0, refs), "hurt": hurt(rows(5, 10), refs)})
    names = ("gain", "hurt", "personal_q1", "personal_median")
    found = table(tmp_path, cols=("metric",), metrics=names)
    assert [c.text for c in found.cells[0]] == ["-", "50.0", "60.0", "70.0"]
    assert [c.text for c in found.cells[1]] == ["25.0", "50.0", "62.5", "75.0"]


def test_references_that_disagree_are_told(tmp_path: Path) -> None:
    write(tmp_path, "A", 5, 9)
    other = {"references": REFERENCES["references"] | {"chance": reference("alone", 3, 3)}}
    write(tmp_path, "B", 5, 8, sections=other)
    said = " ".join(table(tmp_path, reference=ALL).notes)
    assert "baselines disagree: personal of chance is 10.00 in" in said and "30.00 in" in said


def test_methods_as_columns_leave_references_without_marks(tmp_path: Path) -> None:
    for seed in (1, 2, 3):
        write(tmp_path, "A", 2, 1 + seed // 3, seed=seed)
        if seed != 2:
            write(tmp_path, "B", 9, seed + 6, seed=seed)
    write(tmp_path, "B", 9, 9, seed=4)
    found = table(tmp_path, rows=("dataset",), cols=("trainer",), reference=ALL)
    assert found.rows == ("Pets",) and found.groups == ()
    assert found.columns[:3] == ("A", "B", "chance")
    assert [cell.rank for cell in found.cells[0]] == [0, 1, 0, 0, 0, 0]
    assert not any(cell.fewer for cell in table(tmp_path, reference=ALL).cells[0])


def test_a_method_is_held_against_the_references_of_its_own_run(tmp_path: Path) -> None:
    """At 4 shots AFL has 40, at 16 it has 80: no row is held against the other's number."""
    for shots, afl in ((4, 4), (16, 8)):
        held = {"references": {"afl": reference("together", afl, afl)}}
        write(tmp_path, "A", 6, 6, shots=shots, sections=held)
        write(tmp_path, "B", 6, 6, shots=shots, sections={}, backbone_digest="c" * 64,
              backbone="other")
    found = table(tmp_path, rows=("trainer", "shots", "backbone"), reference=ALL)
    below = dict(zip(found.rows, (line[0].below for line in found.cells), strict=True))
    assert [row for row, mark in below.items() if mark] == ["A / shots 16 / tiny"]
    assert not any("baselines disagree" in note for note in found.notes)


def test_rounding_is_not_below_a_reference(tmp_path: Path) -> None:
    close = {"kind": "together", "personal": 60 + 1e-12}
    write(tmp_path, "A", 6, 6, sections={"references": {"afl": close}})
    assert not table(tmp_path).cells[0][0].below


@pytest.mark.parametrize("axis", ["trainer", "dataset"])
def test_averages_and_methods_as_columns_are_marked_too(tmp_path: Path, axis: str) -> None:
    """A is below AFL in DTD by 20 and above it in Pets by 10; B lacks a reference in Pets."""
    for dataset, afl in (("DTD", 7), ("Pets", 4)):
        held = {"references": {"afl": reference("together", afl, afl)}}
        write(tmp_path, "A", 5, 5, dataset=dataset, sections=held)
    write(tmp_path, "B", 1, 1, dataset="DTD", data_digest="x")
    write(tmp_path, "B", 9, 9, dataset="Pets", sections={}, data_digest="x")
    cols = "dataset" if axis == "trainer" else "trainer"
    found = table(tmp_path, rows=(axis,), cols=(cols,), mixed=())
    below = [[cell.below for cell in line] for line in found.cells]
    by_method = below if axis == "trainer" else [list(x) for x in zip(*below, strict=True)]
    assert by_method == [[True, False, True], [True, False, False]]


def test_images_are_named_in_cells_of_methods_and_references(tmp_path: Path) -> None:
    """By ``test_images``; so both sides of a difference are compared image by image over seeds."""
    bits = {BITS: {"personal": {"0": encode_bits([True, False])}}}
    for seed in (1, 2):
        own = {"kind": "alone", "personal": 50.0, "clients": rows(1, n=2)}
        write(tmp_path, "A", 1, n=2, seed=seed, last=bits, sections={
            "references": {"logreg": own | bits},
            PLACES: {"of": "list", "clients": {"0": encode_places([seed, 0])}}})
    for name, kind in (("", ""), ("logreg", "alone")):
        runs = [RunFacts(run, reference=name, kind=kind) for run in collect([tmp_path]).runs]
        (found,) = cell_at(runs, "personal", False, 1).answers
        assert {seeds[1]: one["0"].names for seeds, one in found.items()} == {1: (1, 0), 2: (2, 0)}
        assert {one["0"].listed for one in found.values()} == {"list"}
