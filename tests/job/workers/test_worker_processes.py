"""Real worker processes: killed while they work, ended with their driver, reached by a token."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from tests import jobs
from tests.job.engines.test_workers import rows

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
        if b"serve" in words and any(w.startswith(str(output).encode()) for w in words):
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


@pytest.fixture
def address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as door:
        return f"127.0.0.1:{door.getsockname()[1]}"


@pytest.fixture
def resident(tmp_path: Path, address: str) -> Iterator[list[str]]:
    """Two workers that somebody else began; the flags that reach them."""
    token = tmp_path / "token"
    token.write_text("a secret of our own")
    token.chmod(0o600)
    addresses, pids = [address, f"unix:{tmp_path}/w"], []
    for where in addresses:
        words = ("--listen", where, "--token-file", str(token), "--states", str(tmp_path / "st"))
        pids.append(started("site serve", *words, *WORDS))
    yield ["--workers-at", ",".join(addresses), "--token-file", str(token)]
    for process in pids:
        process.terminate()
        process.communicate(timeout=SECONDS)


def test_workers_at_addresses_serve_one_run_after_the_other(
    local: Path, tmp_path: Path, resident: list[str]
) -> None:
    for name in ("one", "two"):
        words = (*WORDS, "--output-dir", str(tmp_path / name), "--engine", "workers", *resident)
        run = started("run", *words)
        assert "results:" in run.communicate(timeout=SECONDS)[0] and run.returncode == 0
        assert jobs.records(tmp_path / name) == jobs.records(local)
    run = started("run", *WORDS, "--engine", "workers", *resident, "OPTIM.LR", "0.5",
                  "--output-dir", str(tmp_path / "other"))
    said = run.communicate(timeout=SECONDS)[0]
    assert run.returncode == 2 and "the config differs in OPTIM.LR (" in said
