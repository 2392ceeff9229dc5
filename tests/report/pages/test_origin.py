"""Where a run's numbers come from: config with origins."""

from __future__ import annotations

from pathlib import Path

from fedvlm.report.collect import collect
from fedvlm.report.pages.origin import config_table, read_settings
from fedvlm.runs.identity import config_text
from tests.report.page_runs import Reader, whole_run


def test_config_has_values_and_origins_what_was_set_first(tmp_path: Path):
    path = whole_run(tmp_path)
    found = read_settings(path / "config.yaml")
    assert found == {
        "FED.CLIENTS": ("3", "flag --num-users"), "FED.ROUNDS": ("4", "default"),
        "OPTIM.LR": ("0.01", "configs/trainers/<x>.yaml"), "WORDS": ("'a # b: c'", "flag --tag"),
        "NAMES": ("[a, b]", "default"), "EMPTY": ("{}", "default"),
    }
    shown = Reader(config_table(collect([tmp_path]).runs[0])).text("config-table")
    order = [shown.index(k) for k in ("FED.CLIENTS", "OPTIM.LR", "WORDS", "EMPTY", "FED.ROUNDS")]
    assert order == sorted(order)


def test_the_config_of_a_real_run_is_read_whole(tmp_path: Path):
    values = {"A.B": "x # y", "A.C": [1.5, "two"], "D": "", "E": "line\nbreak", "F": "it's: {x}"}
    file = tmp_path / "config.yaml"
    file.write_text(config_text(values, {k: f"origin # of {k}" for k in values}))
    found = read_settings(file)
    assert {k: origin for k, (_, origin) in found.items()} == {
        k: f"origin # of {k}" for k in values}
    assert found["A.C"][0] == "[1.5, two]"
