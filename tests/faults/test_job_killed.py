"""The real main job, stopped anywhere and started again, ends with the same bits."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedvlm.core import files
from fedvlm.job import run as cli_run
from tests import jobs

pytestmark = pytest.mark.usefixtures("pictures")  # every write point is counted


class Stop(BaseException):
    """As sudden as a kill: nothing catches it."""


@pytest.fixture(autouse=True)
def no_hook_left() -> Iterator[None]:
    yield
    files.on_write_point = None


@pytest.fixture(scope="module")
def whole(quick_run: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """An uninterrupted run and the number of its write points, the features being there already.

    ``quick_run`` fills the cache, which has write points of its own.
    """
    output, seen = tmp_path_factory.mktemp("whole"), []
    files.on_write_point = seen.append
    assert jobs.run(output) == 0
    files.on_write_point = None
    return output, len(seen)


def test_two_runs_are_equal_bit_for_bit(whole: tuple[Path, int], tmp_path: Path) -> None:
    assert jobs.run(tmp_path) == 0
    jobs.same(whole[0], tmp_path)


def stop_at(point: int) -> None:
    left = [point]

    def hook(_name: str) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise Stop

    files.on_write_point = hook


@pytest.mark.parametrize("share", [
    i / 12 if i % 2 else pytest.param(i / 12, marks=pytest.mark.slow) for i in range(12)
])
def test_stopped_at_a_write_point_and_resumed(
    whole: tuple[Path, int], tmp_path: Path, share: float
) -> None:
    stop_at(int(share * whole[1]))
    with pytest.raises(Stop):
        jobs.run(tmp_path)
    files.on_write_point = None
    assert jobs.run(tmp_path) == 0
    jobs.same(whole[0], tmp_path)


LONGER = (  # clients keep a body, the server keeps for each whether it was served
    "--trainer", "LG-FedAvg", "--rounds", "5", "--num-users", "4",
    "TRAINER.LG-FEDAVG.WARMUP_ROUNDS", "1", "FED.FRAC", "0.5",
)
WAYS = {
    "every third": ("TRAIN.CHECKPOINT_FREQ", "3"), "on disk": ("FED.STORE", "disk"),
    "both": ("TRAIN.CHECKPOINT_FREQ", "3", "FED.STORE", "disk"),
}


@pytest.fixture(scope="module")
def longer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run of five rounds in which half of the clients work."""
    output = tmp_path_factory.mktemp("longer")
    assert jobs.run(output, *LONGER, "FED.STORE", "memory") == 0
    kinds = {name.partition("|")[0] for name in jobs.state(output)}
    assert kinds == {"server", "clients", "held"}
    return output


def points_of(output: Path, *words: str) -> int:
    seen: list[str] = []
    files.on_write_point = seen.append
    assert jobs.run(output, *words) == 0
    files.on_write_point = None
    return len(seen)


def stopped_and_resumed(longer: Path, output: Path, point: int, *words: str) -> None:
    stop_at(point)
    with pytest.raises(Stop):
        jobs.run(output, *words)
    files.on_write_point = None
    assert jobs.run(output, *words) == 0
    jobs.same(longer, output)


@pytest.mark.parametrize("way", [
    way if way == "both" else pytest.param(way, marks=pytest.mark.slow) for way in WAYS
])
def test_where_rows_lie_and_how_often_they_are_saved_moves_no_bit(
    longer: Path, tmp_path: Path, way: str
) -> None:
    """Neither in one go nor with stops on the way; the way may change on the way."""
    words = (*LONGER, *WAYS[way])
    count = points_of(tmp_path / "whole", *words)
    jobs.same(longer, tmp_path / "whole")
    for point in (count // 2, count * 3 // 4):
        stopped_and_resumed(longer, tmp_path / str(point), point, *words)
    stop_at(count * 3 // 4)
    with pytest.raises(Stop):
        jobs.run(tmp_path / "changed", *words)
    files.on_write_point = None
    assert jobs.run(tmp_path / "changed", *LONGER) == 0
    jobs.same(longer, tmp_path / "changed")


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_stopped_at_every_write_point_each_way(longer: Path, tmp_path: Path, way: str) -> None:
    words = (*LONGER, *WAYS[way])
    for point in range(points_of(tmp_path / "whole", *words)):
        stopped_and_resumed(longer, tmp_path / str(point), point, *words)


@pytest.mark.slow
def test_stopped_at_every_write_point(whole: tuple[Path, int], tmp_path: Path) -> None:
    for point in range(points_of(tmp_path / "warm")):  # the first run of all filled the cache, too
        output = tmp_path / str(point)
        stop_at(point)
        with pytest.raises(Stop):
            jobs.run(output)
        files.on_write_point = None
        assert jobs.run(output) == 0
        jobs.same(whole[0], output)


@pytest.mark.parametrize("point", [9, pytest.param(24, marks=pytest.mark.slow)])
def test_really_killed(whole: tuple[Path, int], tmp_path: Path, point: int) -> None:
    hook = (
        f"import os, signal\nfrom fedvlm.core import files\nleft = [{point}]\n"
        "def hook(name):\n"
        "    left[0] -= 1\n"
        "    if left[0] < 0: os.kill(os.getpid(), signal.SIGKILL)\n"
        "files.on_write_point = hook"
    )
    assert jobs.spawn(tmp_path, before=hook).returncode == -signal.SIGKILL
    assert jobs.run(tmp_path) == 0
    jobs.same(whole[0], tmp_path)


def test_ctrl_c_keeps_whole_rounds_and_exits_130(tmp_path: Path, whole: tuple[Path, int]) -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(jobs.REPOSITORY)!r})\n"
        "from fedvlm.cli.main import main\n"
        f"sys.exit(main({jobs.argv(tmp_path, '--rounds', '100000')!r}))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], env=dict(os.environ), stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )
    deadline = time.monotonic() + 120
    while len(list(tmp_path.rglob("state/round_*.json"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "the same command resumes there" in told
    assert "Traceback" not in told
    assert len(jobs.records(tmp_path)) >= 2


def test_finished_run_is_shown_and_not_repeated(
    whole: tuple[Path, int], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli_run, "_train", None)
    assert jobs.run(whole[0]) == 0
    assert "already finished" in capsys.readouterr().out


def test_other_settings_are_refused_with_the_difference(
    whole: tuple[Path, int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert jobs.run(whole[0], "--lr", "0.5") == 2
    told = capsys.readouterr().err
    assert "OPTIM.LR" in told
    assert "0.5" in told
