"""The plan that says what a choice between two rules is worth: it resolves and leaves none out."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fedvlm.cli.run.sweep import plan_of
from fedvlm.cli.verbs import verbs
from fedvlm.core.errors import DataError
from fedvlm.federation.cards import trainer_files
from fedvlm.federation.discovery import load_trainer
from fedvlm.sweep.cells import cells_of
from fedvlm.sweep.plan import read_plan
from tests.jobs import REPOSITORY

sys.path.insert(0, str(REPOSITORY / "scripts"))

from parity.points import PLAN, rows  # noqa: E402

sys.path.pop(0)


def test_every_cell_of_the_plan_resolves(tmp_path: Path) -> None:
    """A key that no method has, or a value that it does not take, is refused here."""
    words = [str(PLAN), "--output-dir", str(tmp_path), "--seeds", "1"]
    cells = cells_of(plan_of(verbs()["sweep"].parser().parse_args(words)))
    assert len(cells) == len(read_plan(PLAN).trainers)
    assert len({cell.digest for cell in cells}) == len(cells)


def test_every_variant_is_in_the_plan() -> None:
    """Of each method with ``VARIANT``, the value that is not the default."""
    found = {(e.name, k, v) for e in read_plan(PLAN).trainers for k, v in e.settings.items()}
    for name in trainer_files():
        cls = load_trainer(name)
        option = cls.options.get("VARIANT")
        if option is not None:
            (other,) = {"published", "fixed"} - {option.default}
            assert (cls.name, f"TRAINER.{cls.name.upper()}.VARIANT", other) in found


def test_a_row_is_the_mean_of_the_pairs() -> None:
    """Seeds that only one side has do not count."""
    numbers = {(e.name, e.settings.get("TAG", "")): {1: 50.0, 2: 60.0, 3: 0.0}
               for e in read_plan(PLAN).trainers}
    numbers["AFL", "variant-published"] = {1: 53.0, 2: 65.0}
    table = rows(numbers)
    assert table[0] == "| AFL | `VARIANT published` | 55.0 | +4.0 ± 12.7 | 2 |"
    assert len(table) == sum("TAG" in e.settings for e in read_plan(PLAN).trainers)
    with pytest.raises(DataError, match="no runs of AFL with and without"):
        rows({})
