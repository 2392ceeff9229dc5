"""Dassl's logs, CoOp's trees, and ours: the last result after the closing line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fedvlm.console.log import Headline, LogFile
from fedvlm.core.errors import DataError
from fedvlm.report.tables.logs import logs_table, parse_log, read_logs

DASSL = """\
epoch [1/50] batch [5/20] time 0.1 (0.1) loss 1.0 (1.0) acc 50.0 (50.0) lr 2.0000e-03 eta 0:01:00
=> result
* total: 3,669
* accuracy: 11.1%
{end}
Deploy the last-epoch model
Evaluate on the *test* set
=> result
* total: 3,669
* correct: 2,979
* accuracy: {accuracy}%
* error: 18.8%
* macro_f1: 80.9%
Elapsed: 0:03:21
"""


def write(folder: Path, accuracy: float, end: str = "Finish training") -> None:
    folder.mkdir(parents=True)
    (folder / "log.txt").write_text(DASSL.format(accuracy=accuracy, end=end))


@pytest.mark.parametrize("end", ["Finish training", "Finished training", "Finish training: 3 user"])
def test_a_closing_line_arms_and_the_last_result_wins(end: str):
    found = parse_log(DASSL.format(accuracy=81.2, end=end).splitlines())
    assert found == {"accuracy": 81.2, "error": 18.8, "macro_f1": 80.9}
    twice = DASSL.format(accuracy=81.2, end=end) + "* accuracy: 82.0%\n"
    assert parse_log(twice.splitlines())["accuracy"] == 82.0


def test_an_unfinished_log_has_no_result_unless_asked():
    cut = DASSL.partition("{end}")[0].splitlines()
    assert parse_log(cut) == {}
    assert parse_log(cut, test_log=True) == {"accuracy": 11.1}
    assert parse_log(["said Finish training", "* accuracy: 50.0%"]) == {}
    assert parse_log(["Finish training", "* accuracy: nan%", "* accuracy: 1.2.3%"]) == {}


def test_one_experiment_gives_the_scripts_figures_and_ours(tmp_path: Path):
    for seed, accuracy in {1: 81.2, 2: 82.0, 3: 80.5}.items():
        write(tmp_path / "pets" / f"seed{seed}", accuracy)
    found = logs_table(tmp_path / "pets", ci=True)
    one = found.cells[0][0]
    assert (found.rows, found.columns) == (("pets",), ("accuracy", "error", "macro_f1"))
    assert (one.n, one.text, one.spread(ci=False), one.spread(ci=True)) == (3, "81.2", "0.8", "1.9")
    # what CoOp's parse_test_res.py prints for these three seeds
    assert any("prints accuracy: 81.23% +- 0.61%" in note for note in found.notes)


def test_several_experiments_and_what_is_left_out(tmp_path: Path):
    write(tmp_path / "dtd" / "seed1", 60.0)
    write(tmp_path / "pets" / "seed1", 80.0)
    write(tmp_path / "pets" / "seed2", 90.0)
    write(tmp_path / "pets" / "seed3", 99.0, end="stopped")
    (tmp_path / "pets" / "notes").mkdir()  # the script stumbles over it
    (tmp_path / "pets" / "seed1" / "log.txt-2026-01-01").write_text("newer")
    found = logs_table(tmp_path)
    assert found.rows == ("dtd", "pets", "average")
    assert [line[0].text for line in found.cells] == ["60.0", "85.0", "72.5"]
    assert found.cells[0][0].fewer and found.n == 2
    notes = "\n".join(found.notes)
    assert "seed3/log.txt has no result" in notes and "--test-log" in notes
    assert "log.txt-2026-01-01" in notes


def test_nothing_to_read(tmp_path: Path):
    with pytest.raises(DataError, match="not a folder"):
        read_logs(tmp_path / "none")
    with pytest.raises(DataError, match="no log.txt with a result"):
        read_logs(tmp_path)


def test_our_own_log_is_read_by_us_and_by_a_script_like_coops(tmp_path: Path):
    folder = tmp_path / "seed1"
    folder.mkdir()
    log = LogFile(folder / "log.txt", 2)
    log.header({"method": "A"}, ["OPTIM.LR: 0.1"])
    log.notes(["* accuracy: 1.0%", "Finish training"])  # free text is no result
    log.finish(Headline(400, 352, 81.25, 80.0))
    text = (folder / "log.txt").read_text()
    assert parse_log(text.splitlines())["accuracy"] == 81.2
    armed, last = False, ""
    for line in text.splitlines():  # the rule of CoOp's parse_test_res.py
        armed = armed or line.strip() == "Finish training"
        match = re.search(r"\* accuracy: ([.\deE+-]+)%", line)
        last = match.group(1) if armed and match else last
    assert last == "81.2"
    assert logs_table(tmp_path).cells[0][0].text == "81.2"
