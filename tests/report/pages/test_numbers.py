"""What a reader of a run's page has to know first."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fedvlm.report.collect import collect
from fedvlm.report.pages.numbers import caveats
from tests.report.page_runs import whole_run


def test_caveats_are_extra_data_subsets_dropped_clients_and_changed_code(tmp_path: Path):
    whole_run(tmp_path, extra_data="a proxy set", subsample="base")
    run = collect([tmp_path]).runs[0]
    records = [{"dropped": {"10": "nan", "9": "nan"}}, {"dropped": {}}]
    found = caveats(replace(run, info={"git": {"changed": True}}), records)
    assert [next(w for w in ("proxy", "base", "9, 10", "commit") if w in one) for one in found] == [
        "proxy", "base", "9, 10", "commit"]
    assert caveats(replace(run, info={}, protocol={"setting": "base2new"}), []) == []
