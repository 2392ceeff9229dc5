"""``fedvlm table`` as a command: what it prints and writes, and how it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedvlm.cli.main import main
from tests.report.table_runs import write_run, write_seeds


def test_prints_markdown_of_what_can_be_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    write_seeds(tmp_path, "A", [80.0, 82.0])
    for name in ("unfinished", "damaged", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "manifest.json").write_text("{}")
    (tmp_path / "damaged" / "results.json").write_text('{"format": 1, "results"')
    (tmp_path / "other" / "results.json").write_text("[]")
    assert main(["table", str(tmp_path), "--format", "md"]) == 0
    out = capsys.readouterr().out.replace("\\", "")
    assert "| A | 81.0 ± 1.4 |" in out
    assert "1 unfinished run(s) left out" in out and "damaged or of another version" in out
    assert f"Made by: fedvlm table {tmp_path}" in out


def test_a_screen_gets_plain_text_and_a_markdown_file_escapes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    write_seeds(tmp_path / "runs", "A_1", [80.0, 82.0], peft="prompt+feature")
    assert main(["table", str(tmp_path / "runs")]) == 0
    out = capsys.readouterr().out
    assert "A_1 [prompt+feature]  81.0 ± 1.4" in out and "\\" not in out and "|" not in out
    assert main(["table", str(tmp_path / "runs"), "--out", str(tmp_path / "t.md")]) == 0
    assert "| A\\_1 \\[prompt+feature\\] |" in (tmp_path / "t.md").read_text("utf-8")


def test_writes_a_file_whose_ending_names_the_format(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    write_seeds(tmp_path / "runs", "A", [80.0])
    signs = {"md": "| A |", "tex": r"\toprule", "html": "<table", "csv": "row,"}
    for ending, sign in signs.items():
        out = tmp_path / f"t.{ending}"
        assert main(["table", str(tmp_path / "runs"), "--out", str(out)]) == 0
        assert sign in out.read_text("utf-8")
    assert "note: personal: each client" in capsys.readouterr().err  # CSV has no caption
    assert "Made by: fedvlm table" in (tmp_path / "t.notes.txt").read_text("utf-8")


def test_latex_with_paper_names_comes_with_its_citations(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    for trainer in ("MOON", "LocalOnly"):
        write_seeds(tmp_path / "runs", trainer, [80.0, 81.0], "Cifar100", peft="prompt")
    words = ["--names", "paper", "--order", "best", "--label", "tab:main", "--versus", "LocalOnly"]
    assert main(["table", str(tmp_path / "runs"), *words, "--out", str(tmp_path / "m.tex")]) == 0
    text, bib = ((tmp_path / f"m.{end}").read_text("utf-8") for end in ("tex", "bib"))
    assert r"MOON~\cite{li2021model}" in text and "CIFAR-100" in text and "[prompt]" not in text
    assert r"\label{tab:main}" in text and "@inproceedings{li2021model," in bib
    assert "citations:" in capsys.readouterr().out


def test_base_to_new_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    names = ["personal", "base_all", "new", "hm2", "hm3", "cm"]
    last = dict(zip(names, (90.0, 70.0, 60.0, 64.6, 71.5, 77.3), strict=True))
    write_run(tmp_path, "A", last=last, setting="base2new", subsample="base")
    words = ["--cols", "metric", "--metric", *names]
    assert main(["table", str(tmp_path), *words, "--format", "md"]) == 0
    out = capsys.readouterr().out.replace("\\", "")
    assert "| trainer | personal | base_all | new | hm2 | hm3 | cm |" in out
    assert "| A | 90.0 | 70.0 | 60.0 | 64.6 | 71.5 | 77.3 |" in out
    assert "base classes" in out and "setting base2new" in out.lower()


def test_the_gain_of_personal_accuracy_stands_beside_no_other_metric(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    write_run(tmp_path, "A", last={"personal": 60.0, "new": 40.0}, sections={"gain": {"points": 1}})
    assert main(["table", str(tmp_path)]) == 0 and "gain (points)" in capsys.readouterr().out
    assert main(["table", str(tmp_path), "--metric", "new"]) == 0
    assert "gain (points)" not in capsys.readouterr().out
    assert main(["table", str(tmp_path), "--metric", "new", "--columns", "gain"]) == 0
    assert "gain (points)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ([], 2, "needs a folder with runs"),
        (["RUNS", "--formt", "md"], 2, "unknown flag '--formt'; did you mean '--format'"),
        (["RUNS", "--format", "htm"], 2, "did you mean 'html'"),
        (["RUNS", "--where", "shots"], 2, "expected KEY=VALUE"),
        (["RUNS", "--reference", "zeroshot"], 2, "did you mean 'zero-shot'"),
        (["RUNS", "--standalone"], 2, "--standalone works with tex and html"),
        (["RUNS", "--digits", "9"], 2, "from 0 to 6"),
        (["RUNS", "--out", "no/such/t.md"], 2, "folder no/such does not exist"),
        (["RUNS", "--out", "t.xlsx"], 2, "no table ends in .xlsx; use .md, .csv, .tex, .html"),
        (["RUNS", "--test-log"], 2, "--test-log needs --logs"),
        (["RUNS", "--logs", "RUNS"], 2, "drop"),
        (["--logs", "RUNS"], 3, "no log.txt with a result"),
        (["nowhere"], 3, "is not a folder that contains runs"),
        (["EMPTY"], 3, "no finished run below"),
    ],
)
def test_refuses_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], code: int, said: str
):
    write_seeds(tmp_path / "runs", "A", [80.0])
    (tmp_path / "empty" / "half").mkdir(parents=True)
    (tmp_path / "empty" / "half" / "manifest.json").write_text("{}")
    places = {"RUNS": str(tmp_path / "runs"), "EMPTY": str(tmp_path / "empty")}
    assert main(["table", *(places.get(word, word) for word in words)]) == code
    err = capsys.readouterr().err
    assert err.startswith("error: ") and said in err and err.count("\n") == 1


def test_logs_of_a_tree(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "seed1").mkdir()
    (tmp_path / "seed1" / "log.txt").write_text("Finish training\n* accuracy: 81.3%\n")
    assert main(["table", "--logs", str(tmp_path), "--format", "md"]) == 0
    assert "| 81.3 |" in capsys.readouterr().out


def test_help_lists_the_flags(capsys: pytest.CaptureFixture[str]):
    assert main(["table", "--help"]) == 0
    assert "--exclude KEY=VALUE" in capsys.readouterr().out
