"""Frames on sockets: who is let in, what is refused, what becomes of workers that go."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from fedvlm.core.errors import ConfigError
from fedvlm.distributed.sockets import lines, serving, sites, stream
from fedvlm.distributed.sockets.lines import exchange
from fedvlm.distributed.sockets.serving import converse, serve
from fedvlm.distributed.sockets.sites import SiteSockets
from fedvlm.distributed.sockets.stream import LENGTH, StreamError, connect, listen

TOKEN = b"0123456789abcdef"


@contextlib.contextmanager
def site(
    path: Path, answer: Callable[[bytes], bytes], said: list[str], token: bytes = b""
) -> Iterator[None]:
    door = listen(path)
    threading.Thread(target=_forever, args=(door, token, answer, said), daemon=True).start()
    try:
        yield
    finally:
        door.close()


def _forever(
    door: socket.socket, token: bytes, answer: Callable[[bytes], bytes], said: list[str]
) -> None:
    with contextlib.suppress(OSError):
        serve(door, token, answer, said.append)


def test_only_who_knows_the_token_is_answered(tmp_path: Path) -> None:
    path, asked, said = tmp_path / "private" / "s", list[bytes](), list[str]()

    def answer(frame: bytes) -> bytes:
        asked.append(frame)
        return frame[::-1]

    with site(path, answer, said, TOKEN):
        for wrong in (b"another secret", b""):
            with pytest.raises(StreamError, match="is the token the same"):
                connect(path, wrong)
        with connect(path, TOKEN) as line:
            stream.send(line, b"abc")
            assert stream.receive(line) == b"cba"
    assert asked == [b"abc"] and said[:2] == 2 * [
        "a connection ended: a caller does not know the token"]


def test_sites_of_this_machine_answer_their_own_user_at_their_sockets(tmp_path: Path) -> None:
    path, said = tmp_path / "private" / "s", list[str]()
    with site(path, lambda frame: frame[::-1], said):
        carrier = SiteSockets([path, Path("/nowhere/at/all")])
        carrier.open(0)
        assert carrier.sites() == ["site0"]
        (away,) = carrier.absent()
        assert away == "site1 (/nowhere/at/all) is away: no such file or directory"
        big = bytes(range(256)) * 20_000
        assert carrier.ask({"site0": big}, 10) == {"site0": big[::-1]}
        carrier.close()
        assert path.stat().st_mode & 0o777 == 0o600
        assert path.parent.stat().st_mode & 0o777 == 0o700


def test_a_process_of_another_user_is_neither_answered_nor_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system tells whose a process is; here this one is taken for another user's."""
    path, asked, said = tmp_path / "private" / "s", list[bytes](), list[str]()

    def answer(frame: bytes) -> bytes:
        asked.append(frame)
        return frame

    with site(path, answer, said):
        mine = os.getuid()
        monkeypatch.setattr(os, "getuid", lambda: mine + 1)
        with pytest.raises(StreamError, match="its process belongs to another user"):
            connect(path, b"")
        monkeypatch.setattr(stream, "check_peer", lambda sock: None)  # the caller's alone
        with pytest.raises(StreamError):
            connect(path, b"")
    assert not asked and said[0] == "a connection ended: its process belongs to another user"


def test_a_socket_lies_in_a_folder_of_its_owner_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o750)
    with pytest.raises(ConfigError, match="others may enter its folder; chmod 700"):
        listen(folder / "s")
    folder.chmod(0o700)
    mine = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: mine + 1)
    with pytest.raises(ConfigError, match="others may enter its folder"):
        listen(folder / "s")
    monkeypatch.undo()
    with pytest.raises(ConfigError, match="cannot listen at .*: af_unix path too long"):
        listen(folder / ("x" * 120))


def test_the_path_of_a_live_site_is_not_taken(tmp_path: Path) -> None:
    """That of one that is gone is."""
    path = tmp_path / "private" / "s"
    with listen(path):
        with pytest.raises(ConfigError, match="/s: another process does; end it, or take another"):
            listen(path)
        with socket.socket(socket.AF_UNIX) as caller:
            caller.connect(str(path))  # the first still has its path
    with listen(path):
        assert path.is_socket()


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
        with pytest.raises(StreamError, match="not a worker of this version"):
            stream.answer_hello(ours, TOKEN)


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


def test_only_time_in_which_somebody_looks_is_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(lines, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(lines, "GRACE", 0.0)
    ours, theirs = socket.socketpair()
    with theirs:
        pulses = lines.Pulses()
        pulses.watch("a", ours)

        def silent(passed: float) -> list[str]:
            now[0] += passed
            return pulses.silent(5.0)

        assert silent(1000) == []  # of a driver that was stopped, or busy
        assert [silent(1) for _ in range(4)] == [[], [], [], ["a"]]
        theirs.send(b".")
        assert silent(1000) == [] and silent(4) == []
        pulses.drop("a")


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


def test_who_stays_away_is_tried_ever_less_often_and_in_haste(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    now, tries = [0.0], list[tuple[float, float]]()

    def connect(path: Path, token: bytes, seconds: float) -> socket.socket:
        tries.append((now[0], seconds))
        raise StreamError("away")

    monkeypatch.setattr(sites, "connect", connect)
    monkeypatch.setattr(sites, "time", SimpleNamespace(
        monotonic=lambda: now[0], sleep=lambda seconds: now.__setitem__(0, now[0] + seconds)))
    carrier = SiteSockets([Path("a")])
    with pytest.raises(ConfigError, match="no site can be reached: a: away"):
        carrier.open(11)
    assert tries == [(0, 10), (5, 10), (10, 10)]
    while now[0] < 1500:
        carrier.sites()
        now[0] += 1
    assert {seconds for _, seconds in tries[3:]} == {1}
    times = [at for at, _ in tries[2:]]
    assert [b - a for a, b in zip(times, times[1:], strict=False)] == [
        5, 5, 10, 20, 40, 80, 160, 300, 300, 300]


def test_twenty_silent_and_slow_callers_delay_nobody(tmp_path: Path) -> None:
    """Some never greet, some greet and say nothing, some stop within a frame."""
    path, said = tmp_path / "private" / "s", list[str]()
    with site(path, lambda frame: frame[::-1], said), contextlib.ExitStack() as there:
        for at in range(20):
            if at % 3:
                line = there.enter_context(connect(path, b""))
                line.sendall((LENGTH.pack(1000) + b"x")[: 9 * (at % 3 - 1)])
            else:
                there.enter_context(socket.socket(socket.AF_UNIX)).connect(str(path))
        began = time.monotonic()
        with connect(path, b"") as line:
            stream.send(line, b"abc")
            assert stream.receive(line) == b"cba"
        assert time.monotonic() - began < 2


def test_where_callers_are_too_many_the_longest_silent_one_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "CALLERS", 3)
    path, said = tmp_path / "private" / "s", list[str]()
    with site(path, lambda frame: frame[::-1], said), contextlib.ExitStack() as there:
        lines_ = [there.enter_context(connect(path, b"")) for _ in range(4)]
        for line in lines_[1:]:
            stream.send(line, b"abc")
            assert stream.receive(line) == b"cba"
        assert stream.receive(lines_[0]) is None


def test_a_frame_above_the_owners_rule_is_refused_at_its_length(tmp_path: Path) -> None:
    """Unread: what it says of the rule comes while the frame is still on its way."""
    path, asked = tmp_path / "private" / "s", list[bytes]()
    door = listen(path)

    def run() -> None:
        with contextlib.suppress(OSError):
            serve(door, b"", lambda frame: asked.append(frame) or frame,  # type: ignore[func-returns-value]
                  lambda words: None, 1000, lambda size: b"at most 1000, not %d" % size)

    threading.Thread(target=run, daemon=True).start()
    with connect(path, b"") as line:
        answers, failures = exchange({"a": line}, {"a": bytes(1 << 24)}, 10)
    assert answers == {"a": b"at most 1000, not 16777216"} and not failures and not asked
    door.close()


def test_an_answer_above_what_was_asked_for_is_refused_at_its_length(tmp_path: Path) -> None:
    path = tmp_path / "private" / "s"
    with site(path, lambda frame: bytes(5000), []):
        carrier = SiteSockets([path])
        carrier.open(0)
        carrier.most = 4000
        said = carrier.ask({"site0": b"abc"}, 10)["site0"]
        assert said == "a frame of 5000 bytes is above the limit of 4000"
        carrier.most = 5000
        assert carrier.ask({"site0": b"abc"}, 10) == {"site0": bytes(5000)}
        carrier.close()
