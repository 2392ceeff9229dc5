"""Tables of a page over many runs: mixed protocols, one data set, every number."""

from __future__ import annotations

import re
from pathlib import Path

from fedvlm.report.collect import collect
from fedvlm.report.pages.numbers import all_numbers, headline_content
from fedvlm.report.pages.tables import of_group
from tests.report.page_runs import cells_below
from tests.report.table_runs import write_run


def test_mixed_protocols_are_shown_with_a_warning(tmp_path: Path):
    write_run(tmp_path, "FedAvg", last={"personal": 70.0})
    write_run(tmp_path, "FedProx", last={"personal": 80.0}, rounds=50)
    page = str(of_group(collect([tmp_path]).runs, ""))
    warning = re.search(r'<p class="caveats">(.*?)</p>', page)
    assert warning and "rounds is 2 in" in warning[1] and "50" in warning[1]
    assert cells_below(page, "<h4>personal</h4>") == [["FedProx", "80.0"], ["FedAvg", "70.0"]]


def test_data_sets_may_have_partitions_of_their_own_and_variants_their_fine_tuning(tmp_path: Path):
    write_run(tmp_path, "FedAvg", "Pets", last={"personal": 70.0}, shots=8)
    write_run(tmp_path, "FedAvg", "Cars", last={"personal": 60.0}, partition="dirichlet")
    write_run(tmp_path, "FedAvg", "Cars", last={"personal": 65.0}, partition="dirichlet", tag="ft",
              config={"FED.FINETUNE_EPOCHS": 5})
    page = of_group(collect([tmp_path]).runs, "")
    assert "caveats" not in page
    assert "Mixed on request" in page and "partition" in page, "the caption says so"


def test_one_data_set_has_one_table_of_all_numbers(tmp_path: Path):
    write_run(tmp_path, "FedAvg", last={"personal": 70.0, "new": 20.0},
              sections={"zero_shot": {"personal": 30.0, "new": 40.0}})
    page = of_group(collect([tmp_path]).runs, "")
    assert cells_below(page, "Accuracy (%)") == [["FedAvg", "70.0", "20.0"],
                                           ["zero-shot", "30.0", "40.0"]]


def test_a_number_before_fine_tuning_is_shown_where_there_was_one(tmp_path: Path):
    last = {"personal": 50.0, "personal_before_ft": 50.0}
    write_run(tmp_path, "A", last=last)
    runs = collect([tmp_path]).runs
    assert "personal_before_ft" not in str(of_group(runs, ""))
    assert "personal_before_ft" not in str(headline_content(runs[0])) + str(all_numbers(runs[0]))
    write_run(tmp_path, "A", last=last | {"personal": 60.0, "finetune": {"epochs": 5}}, tag="ft",
              config={"FED.FINETUNE_EPOCHS": 5})
    runs = collect([tmp_path]).runs
    assert "personal_before_ft" in str(of_group(runs, ""))
    assert "personal_before_ft" in "".join(str(headline_content(run)) for run in runs)


def test_a_page_shows_every_number_of_its_setting(tmp_path: Path):
    last = {"personal": 50.0, "base_all": 40.0, "base_other": 30.0, "targets": 10.0,
            "target.Cars": 10.0}
    write_run(tmp_path, "A", last=last)
    page = str(of_group(collect([tmp_path]).runs, ""))
    for name in ("base_all", "base_other", "target.Cars"):
        assert f">{name}" in page
