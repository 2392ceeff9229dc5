"""Worker processes on socket pairs: what becomes of those that die, or cannot start."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from fedvlm.core.errors import ConfigError, FedvlmError
from fedvlm.job.workers.carrier import WorkerProcesses

# A worker without PyTorch: it says its number and what it was asked, and dies of "die".
WORKER = """
import hashlib, hmac, socket, struct, sys
s = socket.socket(fileno=int(sys.argv[1]))
def read(n):
    out = b""
    while len(out) < n:
        piece = s.recv(n - len(out))
        if not piece: sys.exit(0)
        out += piece
    return out
if sys.argv[2] == "broken":
    print("error: no such data set"); sys.exit(3)
nonce = bytes(32)
s.sendall(b"fedvlm-socket/1\\n" + nonce)
said = read(64)
s.sendall(hmac.new(b"", b"worker" + nonce + said[:32], hashlib.sha256).digest())
while True:
    words = read(struct.unpack("<Q", read(8))[0])
    if words == b"die": sys.exit(9)
    answer = sys.argv[2].encode() + b" " + words
    s.sendall(struct.pack("<Q", len(answer)) + answer)
"""


def begun(tmp_path: Path, count: int, word: str = "") -> WorkerProcesses:
    return WorkerProcesses(
        lambda slot, handle: (sys.executable, "-S", "-c", WORKER, str(handle), word or str(slot)),
        count, tmp_path,
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
