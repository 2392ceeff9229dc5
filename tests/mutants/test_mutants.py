"""The mutants of this folder still fit the code: patches apply, the tests they name exist."""

from __future__ import annotations

import pytest

from .run import ROOT, Mutant, every, refusal

MUTANTS = every()


def test_there_are_mutants() -> None:
    assert len(MUTANTS) >= 83
    assert len({mutant.what for mutant in MUTANTS}) == len(MUTANTS)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_it_applies_and_names_tests_that_exist(mutant: Mutant) -> None:
    assert refusal(mutant, ROOT, "--check") == ""
    for test in mutant.tests:
        file, _, case = test.partition("::")
        function = case.partition("[")[0]
        text = (ROOT / file).read_text()
        assert not function or f"def {function}(" in text, f"{file} has no {function}"
