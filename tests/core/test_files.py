"""What killed processes left goes when the same file is written again; the living keep theirs."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedvlm.core import files


@pytest.fixture
def dead() -> int:
    """The number of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def leftover(path: Path, number: int, machine: str = "") -> Path:
    own = files.temporary_path(path)
    return own.with_name(own.name.replace(f"-{os.getpid()}.", f"-{number}.").replace(
        own.name.split(".")[-2].partition("-")[0], machine or own.name.split(".")[-2].partition(
            "-")[0]))


def test_leftovers_of_the_dead_go_and_those_of_others_stay(tmp_path: Path, dead: int) -> None:
    path = tmp_path / "x.json"
    gone, living = leftover(path, dead), leftover(path, os.getppid())
    away, old = leftover(path, dead, "elsewhere"), leftover(path, dead, "elsewhere2")
    future, other = leftover(path, dead, "elsewhere3"), leftover(tmp_path / "y.json", dead)
    for one in (gone, living, away, old, future, other):
        one.write_bytes(b"half")
    os.utime(old, (time.time() - 60,) * 2)
    os.utime(future, (time.time() + 3600,) * 2)  # the clock was put back
    files.write_bytes(path, b"whole")
    assert {p.name for p in tmp_path.iterdir()} == {p.name for p in (path, living, away, other)}
    assert path.read_bytes() == b"whole"


def test_a_temporary_folder_goes_with_what_the_killed_left(tmp_path: Path, dead: int) -> None:
    target = tmp_path / "models"
    (leftover(target, dead) / "deep").mkdir(parents=True)
    with files.temporary_folder(target) as place:
        (place / "file").write_text("1")
        assert list(tmp_path.iterdir()) == [place]
        os.rename(place, target)
    assert [p.name for p in tmp_path.rglob("*")] == ["models", "file"]
