"""Worker processes on socket pairs: what becomes of those that die, or cannot start."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from fedvlm.core.errors import ConfigError, FedvlmError
from fedvlm.core.repository import PACKAGE
from fedvlm.job.workers.carrier import WorkerProcesses

# A worker without PyTorch: it says its number and what it was asked, and dies of "die". Until its
# file "go" is there it is being built; signs of life come from the package's own thread.
WORKER = f"""
import hashlib, hmac, os, pathlib, socket, struct, sys, time
sys.path.insert(0, {str(PACKAGE.parent)!r})
from fedvlm.distributed.sockets import serving
s = socket.socket(fileno=int(sys.argv[1]))
serving._LOOK = 50
serving.end_with(s, socket.socket(fileno=os.dup(0)))
def spin(seconds):  # work that takes a tenth of the processor, ten times what is a sign of life
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        worked = time.process_time() + 1e-3
        while time.process_time() < worked: pass
        time.sleep(0.01)
def read(n):
    out = b""
    while len(out) < n:
        piece = s.recv(n - len(out))
        if not piece: sys.exit(0)
        out += piece
    return out
if sys.argv[2] == "broken":
    print("error: no such data set"); sys.exit(3)
while len(sys.argv) > 3 and not pathlib.Path(sys.argv[3]).exists(): spin(0.01)
nonce = bytes(32)
s.sendall(b"fedvlm-socket/1\\n" + nonce)
said = read(64)
s.sendall(hmac.new(b"", b"worker" + nonce + said[:32], hashlib.sha256).digest())
while True:
    words = read(struct.unpack("<Q", read(8))[0])
    if words == b"die": sys.exit(9)
    if words == b"hang": time.sleep(15)
    if words == b"work": spin(1.5)
    answer = sys.argv[2].encode() + b" " + words
    s.sendall(struct.pack("<Q", len(answer)) + answer)
"""


def begun(
    tmp_path: Path, count: int, word: str = "", *more: str, said: list[str] | None = None
) -> WorkerProcesses:
    return WorkerProcesses(
        lambda slot, handle: (sys.executable, "-S", "-c", WORKER, str(handle), word or str(slot),
                              *more),
        count, tmp_path, say=(said if said is not None else []).append, silence=1.0,
    )


def test_a_process_that_dies_is_told_and_another_takes_its_place(tmp_path: Path) -> None:
    carrier = begun(tmp_path, 2)
    try:
        carrier.open(30)
        assert sorted(carrier.sites()) == ["worker0", "worker1"]  # as they come
        out = carrier.ask({"worker0": b"die", "worker1": b"hello"}, 30)
        assert out["worker1"] == b"1 hello"
        assert "exit code 9" in str(out["worker0"]) and "worker0.log" in str(out["worker0"])
        until = time.monotonic() + 30
        while sorted(carrier.sites()) != ["worker1", "worker2"] and time.monotonic() < until:
            time.sleep(0.02)
        assert carrier.ask({"worker2": b"you"}, 30) == {"worker2": b"0 you"}
    finally:
        carrier.close()
    assert all(p.poll() is not None for p in carrier.processes.values())


def test_processes_that_die_over_and_over_are_given_up(tmp_path: Path) -> None:
    carrier = begun(tmp_path, 1)
    try:
        with pytest.raises(FedvlmError, match="no worker is left: worker3 exit code 9"):
            while True:
                carrier.ask({carrier.sites()[0]: b"die"}, 30)
    finally:
        carrier.close()


def test_a_process_that_cannot_start_says_why(tmp_path: Path) -> None:
    carrier = begun(tmp_path, 1, "broken")
    try:
        with pytest.raises(ConfigError, match="worker0 did not start: exit code 3; error: no such"):
            carrier.open(30)
    finally:
        carrier.close()


@pytest.mark.parametrize("how", ["hang", "stop"])
def test_a_worker_that_shows_no_sign_of_life_is_ended_and_replaced(
    tmp_path: Path, how: str
) -> None:
    """In time, whether it waits for ever or is stopped; who works for longer is left alone."""
    carrier = begun(tmp_path, 2)
    try:
        carrier.open(30)
        if how == "stop":
            os.kill(carrier.processes["worker0"].pid, signal.SIGSTOP)
        began = time.monotonic()
        out = carrier.ask({"worker0": how.encode(), "worker1": b"work"}, 1.0)
        assert time.monotonic() - began < 6  # of which the answer takes 1.5
        assert out["worker1"] == b"1 work" and str(out["worker0"]).startswith(
            "no sign of life for 1 s (killed by SIGKILL; ")
        until = time.monotonic() + 30
        while "worker2" not in carrier.sites() and time.monotonic() < until:
            time.sleep(0.02)
        assert carrier.ask({"worker2": b"you"}, 5) == {"worker2": b"0 you"}
    finally:
        carrier.close()


@pytest.mark.parametrize(("event", "why"), [
    (signal.SIGKILL, "it ended"), (signal.SIGSTOP, "no sign of life for 1 s"),
])  # fmt: skip
def test_a_worker_lost_while_it_builds_is_replaced(
    tmp_path: Path, event: signal.Signals, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedvlm.distributed.sockets.lines.GRACE", 3.0)
    said, go = list[str](), tmp_path / "go"
    carrier = begun(tmp_path, 1, "", str(go), said=said)
    try:
        os.kill(carrier.processes["worker0"].pid, event)
        threading.Timer(4.5, go.touch).start()
        carrier.open(30)
        assert carrier.sites() == ["worker1"]
        assert said and said[0].startswith(
            f"worker0, as it built the run: {why} (killed by SIGKILL; ")
    finally:
        carrier.close()


def test_a_busy_driver_kills_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks for longer than a worker may be silent, at its start and over a question."""
    monkeypatch.setattr("fedvlm.distributed.sockets.lines.LOOK", 0.1)
    carrier = begun(tmp_path, 1)
    try:
        time.sleep(1.5)
        carrier.open(30)
        time.sleep(1.5)
        assert carrier.ask({"worker0": b"hello"}, 0.3) == {"worker0": b"0 hello"}
        assert set(carrier.processes) == {"worker0"}
    finally:
        carrier.close()
