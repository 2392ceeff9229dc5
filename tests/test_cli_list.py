"""``list``, ``show``, ``config``, and the process as a whole."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedvlm.cli import list as cli_list
from fedvlm.cli import main as cli

REPOSITORY = Path(__file__).resolve().parents[1]


def test_card_and_year_are_read_without_running_the_file(tmp_path: Path):
    path = tmp_path / "m.py"
    text = "M: one line.\n\nPaper: A\n    title (X 2024)\nCost: 1999\n"
    path.write_text(f'"""{text}"""\nraise OSError\n')
    text = cli_list.card(path)
    assert text.startswith("M: one line.") and cli_list.year(text) == "2024"
    assert cli_list.year("M: 1999\n\nCost: 1999") == ""


def test_list_prints_names_years_and_a_card(capsys: pytest.CaptureFixture[str]):
    if not list((REPOSITORY / "trainers").glob("[!_]*.py")):
        pytest.skip("no trainers/ in this checkout")
    assert cli.main(["list"]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert rows[0].split() == ["name", "year", "method"] and "FedTV" in "\n".join(rows)
    assert cli.main(["list", "fed-tv"]) == 0
    assert "Paper:" in capsys.readouterr().out
    assert cli.main(["list", "fedtx"]) == 2
    assert "did you mean 'fedtv'" in capsys.readouterr().err


def test_show_prints_results_or_says_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert cli.main(["show", str(tmp_path)]) == 3
    assert "is the run finished?" in capsys.readouterr().err
    (tmp_path / "results.json").write_text("{")
    assert cli.main(["show", str(tmp_path)]) == 3
    (tmp_path / "results.json").write_text(json.dumps({"personal": {"accuracy": 81.2, "all": [1]}}))
    assert cli.main(["show", str(tmp_path)]) == 0
    assert "personal.accuracy 81.2" in capsys.readouterr().out


def _process(*words: str, **more: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"OMP_NUM_THREADS": "1"} | more
    return subprocess.run(
        [sys.executable, *words], cwd=REPOSITORY, env=env, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip


def test_the_main_script_as_a_process():
    found = _process("federated_main.py", "--num-usres", "3", LANG="C", LC_ALL="C")
    assert found.returncode == 2 and found.stdout == ""
    assert found.stderr == "error: unknown flag '--num-usres'; did you mean '--num-users'?\n"
    found = _process("-m", "fedvlm", "--help")
    assert found.returncode == 0 and "--dataset-config-file" in found.stdout and not found.stderr


def test_closed_stdout_ends_quietly():
    line = f"{sys.executable} -m fedvlm config | true; echo ${{PIPESTATUS[0]}}"
    found = subprocess.run(
        ["bash", "-c", line], cwd=REPOSITORY, capture_output=True, text=True, timeout=120,
        check=True,
    )  # fmt: skip
    assert found.stdout == "0\n" and found.stderr == ""
    line = f"{sys.executable} -m fedvlm config >&-"
    found = subprocess.run(
        ["bash", "-c", line], cwd=REPOSITORY, capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip
    assert (found.returncode, found.stderr) == (0, "")


def test_the_command_line_does_not_import_torch_for_a_mistake():
    code = "import sys; from fedvlm.cli.main import main; "
    code += "print(main(['--x']), 'torch' in sys.modules)"
    assert _process("-c", code).stdout == "2 False\n"


def test_verb_of_a_later_issue_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setitem(cli.VERBS, "doctor", "fedvlm.no_such_room:main")
    assert cli.main(["doctor"]) == 2
    assert "not part of this installation" in capsys.readouterr().err
