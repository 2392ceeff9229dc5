"""Frames on sockets: who is let in, what is refused, what becomes of workers that go."""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from fedvlm.core.errors import ConfigError, FedvlmError
from fedvlm.distributed.sockets import carrier as carrier_module
from fedvlm.distributed.sockets import lines, stream
from fedvlm.distributed.sockets.carrier import Addressed, Begun
from fedvlm.distributed.sockets.lines import exchange
from fedvlm.distributed.sockets.serving import converse, serve
from fedvlm.distributed.sockets.stream import LENGTH, StreamError, connect, listen, read_token

TOKEN = b"0123456789abcdef"
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


@contextlib.contextmanager
def worker(address: str, answer: Callable[[bytes], bytes], said: list[str]) -> Iterator[None]:
    door = listen(address)
    threading.Thread(target=_forever, args=(door, answer, said), daemon=True).start()
    try:
        yield
    finally:
        door.close()


def _forever(door: socket.socket, answer: Callable[[bytes], bytes], said: list[str]) -> None:
    with contextlib.suppress(OSError):
        serve(door, TOKEN, answer, said.append)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as door:
        return int(door.getsockname()[1])


@pytest.mark.parametrize("kind", ["unix", "tcp"])
def test_only_who_knows_the_token_is_answered(tmp_path: Path, kind: str) -> None:
    address = f"unix:{tmp_path}/s" if kind == "unix" else f"127.0.0.1:{free_port()}"
    asked: list[bytes] = []
    said: list[str] = []

    def answer(frame: bytes) -> bytes:
        asked.append(frame)
        return frame[::-1]

    with worker(address, answer, said):
        with pytest.raises(StreamError, match="is the token the same"):
            connect(address, b"another secret")
        carrier = Addressed([address, "unix:/nowhere/at/all"], TOKEN)
        carrier.open(0)
        assert carrier.sites() == ["worker0"]
        (away,) = carrier.absent()
        assert away == "worker1 (unix:/nowhere/at/all) is away: no such file or directory"
        big = bytes(range(256)) * 20_000
        assert carrier.ask({"worker0": big}, 10) == {"worker0": big[::-1]}
        carrier.close()
    assert asked == [big] and said[0] == "a connection ended: a caller does not know the token"
    if kind == "unix":
        assert (tmp_path / "s").stat().st_mode & 0o777 == 0o600


def test_the_path_of_a_live_worker_is_not_taken(tmp_path: Path) -> None:
    """That of one that is gone is."""
    address = f"unix:{tmp_path}/s"
    with listen(address):
        with pytest.raises(ConfigError, match="/s: another worker does; end it, or take another"):
            listen(address)
        with socket.socket(socket.AF_UNIX) as caller:
            caller.connect(f"{tmp_path}/s")  # the first still has its path
    with listen(address):
        assert (tmp_path / "s").is_socket()


def test_a_length_above_the_limit_is_refused_before_memory_is_taken() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(LENGTH.pack(1 << 60))
        with pytest.raises(StreamError, match="above the limit"):
            stream.receive(ours)
        theirs.sendall(LENGTH.pack(1 << 60))
        assert "above the limit" in exchange({"a": ours}, {"a": b"x"}, 5)[1]["a"]


def test_a_caller_that_says_nothing_or_something_else_is_no_caller(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "PATIENCE", 0.05)
    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.raises(StreamError):
        converse(ours, TOKEN, lambda frame: frame)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b"HTTP/1.1 400 Bad Request\r\n" + bytes(100))
        with pytest.raises(StreamError, match="no worker of this version"):
            stream.present(ours, TOKEN)


def test_who_greets_byte_by_byte_has_no_more_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "PATIENCE", 0.2)
    ours, theirs = socket.socketpair()
    over = threading.Event()

    def drip() -> None:
        with contextlib.suppress(OSError):
            while not over.wait(0.02):
                theirs.sendall(b"f")

    with ours, theirs:
        slow = threading.Thread(target=drip)
        slow.start()
        began = time.monotonic()
        with pytest.raises(StreamError, match="timed out"):
            stream.greet(ours, TOKEN)
        took = time.monotonic() - began
        over.set()
        slow.join()
    assert took < 0.8  # 64 bytes at this pace would take 1.3 s


def test_a_caller_that_is_gone_before_it_is_let_in_ends_no_worker() -> None:
    """``accept`` may fail by itself; only a closed door ends the service."""
    class Door:
        calls = 0

        def accept(self) -> None:
            self.calls += 1
            raise ConnectionAbortedError("gone")

        def fileno(self) -> int:
            return -1 if self.calls == 2 else 3

    said: list[str] = []
    with pytest.raises(ConnectionAbortedError):
        serve(Door(), TOKEN, bytes, said.append)  # type: ignore[arg-type]
    assert said == ["a connection ended: gone"]


def test_a_site_that_is_late_has_a_line_that_is_used_no_more() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        answers, failures = exchange({"a": ours}, {"a": b"x"}, 0.05)
    assert answers == {} and failures == {"a": "no answer within 0.05 s"}


def test_a_site_that_says_a_byte_now_and_then_is_late_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The deadline is of the whole answer, not of the silence between two pieces of it."""
    monkeypatch.setattr(lines, "_PIECE", 1)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(LENGTH.pack(100) + bytes(100))
        answers, failures = exchange({"a": ours}, {"a": b"x"}, 0)
    assert answers == {} and failures == {"a": "no answer within 0 s"}


def begun(tmp_path: Path, count: int, word: str = "") -> Begun:
    return Begun(
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


def test_who_stays_away_is_tried_ever_less_often_and_in_haste(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    now, tries = [0.0], list[tuple[float, float]]()

    def connect(address: str, token: bytes, seconds: float) -> socket.socket:
        tries.append((now[0], seconds))
        raise StreamError("away")

    monkeypatch.setattr(carrier_module, "connect", connect)
    monkeypatch.setattr(carrier_module, "time", SimpleNamespace(
        monotonic=lambda: now[0], sleep=lambda seconds: now.__setitem__(0, now[0] + seconds)))
    carrier = Addressed(["a:1"], TOKEN)
    with pytest.raises(ConfigError, match="no worker can be reached: a:1: away"):
        carrier.open(11)
    assert tries == [(0, 10), (5, 10), (10, 10)]
    while now[0] < 1500:
        carrier.sites()
        now[0] += 1
    assert {seconds for _, seconds in tries[3:]} == {1}
    times = [at for at, _ in tries[2:]]
    assert [b - a for a, b in zip(times, times[1:], strict=False)] == [
        5, 5, 10, 20, 40, 80, 160, 300, 300, 300]


def test_a_token_is_long_and_its_owners_alone(tmp_path: Path) -> None:
    file = tmp_path / "token"
    with pytest.raises(ConfigError, match="cannot be read: no such file"):
        read_token(str(file))
    file.write_text("short\n")
    file.chmod(0o640)
    with pytest.raises(ConfigError, match="others may read .* chmod 600"):
        read_token(str(file))
    file.chmod(0o600)
    with pytest.raises(ConfigError, match="shorter than 16 characters: .* openssl rand"):
        read_token(str(file))
    file.write_bytes(TOKEN + b"\n")
    assert read_token(str(file)) == TOKEN


@pytest.mark.parametrize("word", ["nohost", ":7", "host:", "host:99999", "host:7x"])
def test_an_address_is_host_and_port(word: str) -> None:
    with pytest.raises(ConfigError, match="is no address: it is host:port, or unix:PATH"):
        stream.host_port(word)
