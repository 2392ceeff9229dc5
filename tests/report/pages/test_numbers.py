"""What a reader of a run's page has to know first."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from fedvlm.data.federated import alike_words, duplicate_notes
from fedvlm.report.collect import collect
from fedvlm.report.pages.numbers import caveats, introduction
from tests.report.page_runs import whole_run


def test_caveats_are_extra_data_subsets_dropped_clients_and_changed_code(tmp_path: Path):
    whole_run(tmp_path, extra_data="a proxy set", subsample="base")
    run = collect([tmp_path]).runs[0]
    records = [{"dropped": {"10": "nan", "9": "nan"}}, {"dropped": {}}]
    found = caveats(replace(run, info={"git": {"changed": True}}), records)
    assert [next(w for w in ("proxy", "base", "9, 10", "commit") if w in one) for one in found] == [
        "proxy", "base", "9, 10", "commit"]
    assert caveats(replace(run, info={}, protocol={"setting": "base2new"}), []) == []


def test_the_rounds_of_a_run_that_validation_ended_are_those_it_had(tmp_path: Path):
    for flat, words in ((5, "auto, 4 x 1"), (0, "100 x 1")):
        path = whole_run(tmp_path / str(flat), rounds=4, config={"FED.PATIENCE": flat})
        run = collect([path]).runs[0]
        run = replace(run, protocol={**run.protocol, "rounds": 100})
        assert words in str(introduction(run))
    (path / "manifest.json").unlink()
    assert "100 x 1" in str(introduction(run))


def test_notes_without_which_the_numbers_mislead_are_caveats(tmp_path: Path) -> None:
    """Of the data and of the features, in the words that they have there."""
    samples = [SimpleNamespace(key=f"{at}.png", array=None) for at in range(4)]
    records = SimpleNamespace(content_key=lambda one: {"3.png": "0.png"}.get(one.key, one.key))
    (copies,) = duplicate_notes(
        [np.array([0, 1])], [np.array([2, 3])], cast(Any, samples), cast(Any, records))
    alike = alike_words([np.arange(4), np.arange(4)])
    info = {"notes": [copies, alike, "training views per image: 1"]}
    whole_run(tmp_path)
    run = replace(collect([tmp_path]).runs[0], info=info, protocol={"setting": "base2new"})
    assert alike and caveats(run, []) == [copies, alike]
