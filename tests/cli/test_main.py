"""The command as a whole: verbs, exit codes, one message per error, nothing slow at the start."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import Mock

import pytest

from fedvlm.cli import main as cli
from fedvlm.console import guard
from fedvlm.core.errors import ConfigError, DataError, DivergedError, MethodError, own_line
from fedvlm.job.request import Request
from fedvlm.job.resolve import Job
from tests.job.house import FakeTrainer, words
from tests.jobs import REPOSITORY


@pytest.fixture
def job_that(house: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that replaces the real main job by one that raises or returns."""
    monkeypatch.setattr("fedvlm.job.resolve._load", lambda spec: FakeTrainer)

    def put(outcome: Any) -> list[Any]:
        seen: list[Any] = []

        def run_job(job: Job, request: Request) -> tuple[dict[str, Any], Path]:
            seen.append(job.cfg.SEED)
            if isinstance(outcome, BaseException):
                raise outcome
            return {"seed": job.cfg.SEED}, Path()

        # the double stands for code of ours, not for a method's file
        monkeypatch.setattr(guard, "own_line", lambda error: "")
        module: Any = ModuleType("fedvlm.job.run")
        module.run_job = run_job
        module.report_seeds = seen.append
        monkeypatch.setitem(sys.modules, "fedvlm.job.run", module)
        return seen

    return put


@pytest.mark.parametrize("outcome, code", [
    (0, 0), (ConfigError("c"), 2), (DataError("d"), 3), (DivergedError("n"), 4),
    (KeyboardInterrupt(), 130), (ZeroDivisionError("z\nz"), 1), (BrokenPipeError(), 0),
])  # fmt: skip
def test_exit_codes(job_that: Any, capsys: pytest.CaptureFixture[str], outcome: Any, code: int,
                    monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(guard, "_reader_is_gone", lambda: 0)  # the real one rewires fd 1
    job_that(outcome)
    assert cli.main(["--dataset", "oxford_pets"]) == code
    err = capsys.readouterr().err
    assert "Traceback" not in err
    if isinstance(outcome, Exception) and code:
        (line,) = err.splitlines()
        assert line.startswith("error: ")


def test_a_bug_leaves_its_traceback_in_a_file(job_that: Any, capsys: pytest.CaptureFixture[str]):
    job_that(ZeroDivisionError("here"))
    assert cli.main(["--dataset", "oxford_pets"]) == 1
    path = capsys.readouterr().err.partition("traceback in ")[2].partition(",")[0]
    assert "ZeroDivisionError: here" in Path(path).read_text()
    Path(path).unlink()
    assert cli.main(["--dataset", "oxford_pets", "--debug"]) == 1
    assert "error: Traceback" in capsys.readouterr().err


def test_a_full_disk_and_a_lost_folder_are_no_bugs_of_ours(
    job_that: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    job_that(OSError(errno.ENOSPC, "No space left on device"))
    assert cli.main(["--dataset", "oxford_pets"]) == 3
    assert capsys.readouterr().err.startswith("error: the disk is full: free some space")
    job_that(FileNotFoundError(errno.ENOENT, "No such file or directory"))
    assert cli.main(["--dataset", "oxford_pets", "--debug"]) == 1  # the folder is there
    monkeypatch.setattr(os, "getcwd", Mock(side_effect=FileNotFoundError))
    capsys.readouterr()
    assert cli.main(["--dataset", "oxford_pets"]) == 3
    assert capsys.readouterr().err.startswith("error: the working folder was deleted")


def test_what_a_methods_file_raises_is_no_bug_of_ours(
    job_that: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    job_that(AttributeError("NCTX"))
    monkeypatch.setattr(guard, "own_line", own_line)
    assert cli.main(["--dataset", "oxford_pets"]) == 2
    said = capsys.readouterr().err
    assert "unexpected AttributeError: NCTX (test_main.py, line " in said and "a bug" not in said
    Path(said.partition("traceback in ")[2].partition(",")[0]).unlink()


@pytest.mark.parametrize(("text", "said"), [
    ("import sys\nsys.exit(0)\n", r"the method's own file ends the program \(mine.py, line 2, in"),
    ("import dassl\nexit()\n", r"the method's own file ends the program \(mine.py, line 2, in"),
    ("x = 1\n\0", "mine.py: is not valid Python"),
])
def test_a_methods_file_that_ends_the_program_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
):
    file = tmp_path / "mine.py"
    file.write_text(text)
    assert cli.main(["config", "--demo", "--trainer", f"{file}:Mine"]) == 2
    assert re.search(said, capsys.readouterr().err)


def test_debug_shows_what_a_sentence_came_from(job_that: Any, capsys: pytest.CaptureFixture[str]):
    failure = MethodError("Mine.aggregate failed")
    failure.__cause__ = KeyError("text.ctx")
    job_that(failure)
    assert cli.main(["--dataset", "oxford_pets"]) == 2
    assert capsys.readouterr().err == "error: Mine.aggregate failed\n"
    assert cli.main(["--dataset", "oxford_pets", "--debug"]) == 2
    assert "KeyError: 'text.ctx'" in capsys.readouterr().err


def test_seeds_run_in_turn_then_the_table(job_that: Any):
    seen = job_that(0)
    assert cli.main(words("run --dataset oxford_pets --seeds 4 5")) == 0
    assert seen == [4, 5, [{"seed": 4}, {"seed": 5}]]
    seen = job_that(DivergedError("n"))
    assert cli.main(words("--dataset oxford_pets --seeds 4 5")) == 4
    assert seen == [4]


def test_verbs(job_that: Any, capsys: pytest.CaptureFixture[str]):
    job_that(0)
    assert cli.main(["lits"]) == 2
    assert "did you mean 'list'?" in capsys.readouterr().err
    assert cli.main(["--dataset", "oxford_pets", "--rounds", "0", "OPTIM.LR", "0"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 2
    assert cli.main(["config", "--dataset", "oxford_pets"]) == 0
    assert "FED.ROUNDS 10" in capsys.readouterr().out


def _process(*words: str, **more: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"OMP_NUM_THREADS": "1"} | more
    return subprocess.run(
        [sys.executable, *words], cwd=REPOSITORY, env=env, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip


def test_a_flag_is_no_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["-data", "Cifar10", "-list"]) == 2
    said = capsys.readouterr().err
    assert "flag -data" in said and "unknown command" not in said


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


def test_verb_of_a_missing_room_is_a_sentence(toy, capsys: pytest.CaptureFixture[str]):
    toy('"""A verb."""\nimport fedvlm.no_such_room\n')
    assert cli.main(["toy-verb"]) == 2
    assert "not part of this installation" in capsys.readouterr().err
