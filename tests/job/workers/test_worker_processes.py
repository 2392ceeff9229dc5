"""Real worker processes: killed while they work, ended with their driver."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests import jobs
from tests.job.engines.test_workers import rows
from tests.listeners import tcp_listeners

pytestmark = pytest.mark.slow
WORDS = (
    "--demo", "--shots", "2", "--rounds", "6", "--num-users", "6", "--local-epochs", "1",
    "--trainer", "APFL", "--opts", "FED.CHUNK", "2",
)
SECONDS = 300


def started(verb: str, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "fedvlm", *verb.split(), *words], cwd=jobs.REPOSITORY, text=True,
        env=os.environ | {"PYTHONPATH": str(jobs.REPOSITORY), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )


def workers(output: Path) -> list[int]:
    """The processes whose words name a folder below ``output``."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            words = (place / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        mine = any(w.startswith(str(output).encode()) for w in words)
        if b"fedvlm.job.workers" in words and mine:
            found.append(int(place.name))
    return sorted(found)


def until(true: Callable[[], object]) -> None:
    end = time.monotonic() + SECONDS
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)


def after(output: Path, round_: int) -> Callable[[], bool]:
    def is_done() -> bool:
        return any(len(p.read_text().splitlines()) > round_ for p in output.rglob("metrics.jsonl"))

    return is_done


def same(away: Path, local: Path) -> None:
    assert jobs.records(away) == jobs.records(local)
    left, right = jobs.state(away) | rows(away), jobs.state(local)
    assert left.keys() == right.keys() and all(torch.equal(left[n], right[n]) for n in right)


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("local")
    run = started("run", *WORDS, "--output-dir", str(output))
    assert "results:" in run.communicate(timeout=SECONDS)[0] and run.returncode == 0
    return output


def test_kill_9_and_ctrl_c_move_no_bit_and_leave_no_process(local: Path, tmp_path: Path) -> None:
    words = (*WORDS, "--output-dir", str(tmp_path), "--engine", "workers", "--workers", "2")
    run = started("run", *words)
    until(after(tmp_path, 1))
    assert not tcp_listeners([run.pid, *workers(tmp_path)])
    os.kill(workers(tmp_path)[0], signal.SIGKILL)
    until(after(tmp_path, 3))
    run.send_signal(signal.SIGINT)
    said = run.communicate(timeout=SECONDS)[0]
    assert run.returncode == 130 and "killed by SIGKILL" in said and not workers(tmp_path)
    run = started("run", *words)
    until(after(tmp_path, 4))
    run.kill()
    run.communicate()
    until(lambda: not workers(tmp_path))
    run = started("run", *words[:-1], "1")
    assert "results:" in run.communicate(timeout=SECONDS)[0] and run.returncode == 0
    same(tmp_path, local)
    assert not workers(tmp_path)
    again = started("verify", str(jobs.folder(tmp_path)), "--replay", "6")
    said = again.communicate(timeout=SECONDS)[0]
    assert again.returncode == 0 and "equal bit for bit" in said and "of clients' rows" in said
