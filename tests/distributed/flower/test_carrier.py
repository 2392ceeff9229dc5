"""The carrier over Flower, from a driver's frame to a worker and back, without Flower.

A grid in this process stands for SuperLink and SuperNodes; both ends of the relay are the real
ones.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedvlm.core.errors import ConfigError, FedvlmError
from fedvlm.distributed.flower import carrier as carrier_module
from fedvlm.distributed.flower import commands, conversation, processes
from fedvlm.distributed.flower.carrier import Flower, Lost, write_app
from fedvlm.distributed.flower.place import Place, new_place
from fedvlm.distributed.flower.relay import client, frames, server
from fedvlm.distributed.sockets.serving import serve
from fedvlm.distributed.sockets.stream import StreamError, greet, listen
from fedvlm.job.sites import parties

TOKEN = b"0123456789abcdef"
SOCKETS = Path(tempfile.gettempdir()) / f"fedvlm-test-{os.getpid()}"  # short paths


class Reply(SimpleNamespace):
    """A message as far as the relay reads it."""

    def has_error(self) -> bool:
        return hasattr(self, "error")


class Grid:
    """Two sites, the second of which may be away or fail; each asks its worker at once."""

    def __init__(self) -> None:
        self.away, self.code, self.silent = False, 0, False
        self.replies: dict[str, Reply] = {}

    def get_nodes(self) -> list[SimpleNamespace]:
        return [
            SimpleNamespace(name="site0", node_id=7, status="online"),
            SimpleNamespace(name="", node_id=9, status="online"),
            SimpleNamespace(name="site1", node_id=8, status="offline" if self.away else "online"),
            SimpleNamespace(name="site0", node_id=10, status="online"),  # of another key
            SimpleNamespace(name="site1", node_id=11, status="online"),
        ]

    def push_messages(self, messages: list[Any]) -> list[str]:
        for m in messages:
            site = {7: "site0", 8: "site1"}[m.dst_node_id]
            settings = {"worker": str(SOCKETS / site), "token": str(SOCKETS / "token")}
            said = client.call(settings, frames.frame_of(m.content["frame"]), m.ttl)
            content = ({"frame": frames.as_record(said)} if isinstance(said, bytes)
                       else {"why": {"text": said}})
            metadata = SimpleNamespace(reply_to_message_id=site)
            self.replies[site] = Reply(content=content, metadata=metadata)
        if self.code:
            self.replies["site1"].error = SimpleNamespace(code=self.code)
        return [{7: "site0", 8: "site1"}[m.dst_node_id] for m in messages]

    def pull_messages(self, ids: list[str]) -> list[Reply]:
        return [] if self.silent else [self.replies.pop(i) for i in ids if i in self.replies]


class Array:
    def __init__(self, values: np.ndarray) -> None:
        self.numpy = lambda: values


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    app = ModuleType("flwr.app")
    app.Array, app.ArrayRecord = Array, dict  # type: ignore[attr-defined]
    app.ConfigRecord, app.RecordDict = dict, dict  # type: ignore[attr-defined]
    app.Message = lambda content, **more: SimpleNamespace(  # type: ignore[attr-defined]
        content=content, **more)
    monkeypatch.setitem(sys.modules, "flwr", ModuleType("flwr"))
    monkeypatch.setitem(sys.modules, "flwr.app", app)
    monkeypatch.setattr(processes, "pid_of", lambda place, name: 1)
    monkeypatch.setattr(server, "EVERY", 0.01)
    made = new_place(tmp_path / "federation", tmp_path, [""] * 2)
    doors = []
    SOCKETS.mkdir(mode=0o700, exist_ok=True)
    (SOCKETS / "token").write_bytes(TOKEN + b"\n")
    for site in made.sites:
        made.registered(site.name).write_text({"site0": "7\n", "site1": "8\n"}[site.name])
        doors.append(listen(SOCKETS / site.name))
        threading.Thread(target=_serve, args=(doors[-1], site.name.encode()), daemon=True).start()
    yield made
    for door in doors:
        door.close()
    shutil.rmtree(SOCKETS)


def _serve(door: socket.socket, name: bytes) -> None:
    try:
        serve(door, TOKEN, lambda frame: name + b" " + frame[::-1], lambda words: None)
    except OSError:
        return


def relay(grid: Any, words: tuple[str, ...]) -> None:
    """Be the ServerApp that a driver submitted."""
    told = dict(word.split("=", 1) for word in words[-1].split())
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(told["driver"].strip('"'))
        try:
            greet(sock, Path(told["token"].strip('"')).read_bytes())
            server.converse(grid, sock)
        except (StreamError, RuntimeError):
            return


@pytest.fixture
def begin(place: Place, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Any], Flower]]:
    """A carrier whose relays see a grid."""
    carriers = []

    def begin(grid: Any) -> Flower:
        def flwr(place: Place, *words: str, seconds: float = 0) -> dict[str, Any]:
            if words[0] == "run":
                threading.Thread(target=relay, args=(grid, words), daemon=True).start()
            return {"run-id": 1, "runs": [{"status": "finished:failed"}]}

        monkeypatch.setattr(commands, "flwr", flwr)
        carriers.append(Flower(place))
        return carriers[-1]

    yield begin
    for carrier in carriers:
        carrier.close()


def test_frames_come_to_the_workers_of_who_is_there_and_answers_back(
    place: Place, begin: Callable[[Any], Flower]
) -> None:
    grid = Grid()
    carrier = begin(grid)
    carrier.open(5)
    assert carrier.sites() == ["site0", "site1"]
    frames = {"site0": b"abc", "site1": bytes(200_000), "other": b"x"}
    assert carrier.ask(frames, 5) == {
        "site0": b"site0 cba", "site1": b"site1 " + bytes(200_000), "other": server.OFFLINE}
    grid.code = 5
    assert carrier.ask({"site1": b"x"}, 5) == {
        "site1": "its SuperNode has ended (Flower's code 5)"}
    grid.code, grid.silent = 0, True
    assert carrier.ask({"site0": b"x"}, 0.05) == {"site0": "no answer within 0.05 s"}
    grid.silent, grid.away = False, True
    assert carrier.sites() == ["site0"]
    (SOCKETS / "token").write_bytes(b"another token of 32 letters")
    assert carrier.ask({"site0": b"x"}, 5) == {"site0": (
        "its worker does not answer: it closed the connection: is the token the same?")}
    (SOCKETS / "site0").unlink()
    assert carrier.ask({"site0": b"x"}, 5) == {
        "site0": "its worker does not answer: no such file or directory"}
    assert carrier.submissions == 1


def test_a_small_frame_is_one_object_of_flowers_and_a_large_one_an_array(place: Place) -> None:
    for size, kind in ((0, bytes), (frames.SMALL, bytes), (frames.SMALL + 1, Array)):
        data = os.urandom(size)
        record = frames.as_record(data)
        assert type(record["f"]) is kind and frames.frame_of(record) == data
    with pytest.raises(KeyError):
        frames.frame_of({})


def test_an_answer_that_is_too_long_costs_its_own_site_only(
    place: Place, begin: Callable[[Any], Flower]
) -> None:
    carrier = begin(Grid())
    carrier.open(5)
    carrier.most = 100
    for _ in range(2):
        assert carrier.ask({"site0": bytes(200_000), "site1": b"x"}, 5) == {
            "site0": "a frame of 200006 bytes is above the limit of 100", "site1": b"site1 x"}
    assert carrier.submissions == 1  # the same relay


def test_a_node_of_another_key_gets_nothing_under_the_name_of_a_site(
    place: Place, begin: Callable[[Any], Flower]
) -> None:
    grid = Grid()  # which tells strangers last, by the names of both sites
    grid.away = True
    carrier = begin(grid)
    assert carrier.sites() == ["site0"] and carrier.nodes == {"site0": 7, "site1": 8}
    assert carrier.ask({"site0": b"a", "site1": b"b"}, 5) == {
        "site0": b"site0 a", "site1": server.OFFLINE}
    place.registered("site0").write_text("")
    assert begin(grid).sites() == []


def test_who_is_away_is_waited_for_and_named_and_the_others_are_enough(
    place: Place, begin: Callable[[Any], Flower], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parties, "_FIRST", 0.0)
    grid, said = Grid(), list[str]()
    grid.away = True
    carrier = begin(grid)
    parties.await_sites(carrier, said.append, 0.0)
    away = f"site1 is not connected to the SuperLink at {place.address}: fedvlm federation status"
    assert [words.startswith(away) for words in said] == [True, True]
    assert said[0].endswith("; waiting for up to 0 s (FED.ASK.REACH)")
    assert carrier.sites() == ["site0"]
    monkeypatch.setattr(carrier_module.time, "sleep", lambda s: setattr(grid, "away", False))
    said.clear()
    parties.await_sites(carrier, said.append, 5.0)
    assert len(said) == 1 and carrier.absent() == []
    grid.get_nodes = list  # type: ignore[method-assign]
    with pytest.raises(ConfigError, match=r"site0 is not connected .* site1 is not connected"):
        parties.await_sites(carrier, said.append, 0.0)
    monkeypatch.setattr(processes, "pid_of", lambda place, name: 0)
    carrier._drop()
    said.clear()
    with pytest.raises(ConfigError, match="the SuperLink is not running"):
        parties.await_sites(carrier, said.append, 0.0)
    assert len(said) == 1 and "fedvlm federation up --federation" in said[0]


def test_a_relay_that_is_gone_is_said_and_submitted_again(
    place: Place, begin: Callable[[Any], Flower], monkeypatch: pytest.MonkeyPatch
) -> None:
    grid = Grid()
    carrier = begin(grid)
    assert carrier.ask({"site0": b"x"}, 5) == {"site0": b"site0 x"}
    monkeypatch.setattr(grid, "pull_messages", _fail)
    said = carrier.ask({"site0": b"x", "site1": b"y"}, 5)
    assert set(said.values()) == {"Flower's relay has ended (it closed the connection)"}
    monkeypatch.undo()


def _fail(ids: object) -> None:
    raise RuntimeError("the SuperLink is gone")


def test_three_relays_that_end_at_once_stop_the_run_with_the_end_of_the_log(
    place: Place, begin: Callable[[Any], Flower]
) -> None:
    place.log("link").write_text("--- begun\nit is full\nno space left\n")
    carrier = begin(SimpleNamespace(get_nodes=lambda: _fail(None)))
    with pytest.raises(ConfigError, match="relay has ended"):
        carrier.open(0)
    assert carrier.sites() == []
    with pytest.raises(FedvlmError, match="3 relays in a row .* ends: it is full . no space left"):
        carrier.open(60)


def test_a_relay_that_never_comes_is_told_of_flowers_word(
    place: Place, begin: Callable[[Any], Flower], monkeypatch: pytest.MonkeyPatch
) -> None:
    carrier = begin(Grid())
    monkeypatch.setattr(carrier_module, "LOOK", 0.01)
    monkeypatch.setattr(commands, "flwr", lambda place, *words, **more: {
        "run-id": 3, "runs": [{"status": "finished:failed"}]})
    with pytest.raises(Lost, match="ended before it was ready"):
        carrier._online()
    monkeypatch.setattr(processes, "pid_of", lambda place, name: 0)
    with pytest.raises(ConfigError, match="the SuperLink is not running"):
        carrier.open(60)
    assert carrier.ask({"site0": b"x"}, 5)["site0"] == (
        "the SuperLink is not running: start it with fedvlm federation up --federation "
        f"{place.folder}")


def test_a_superlink_that_ends_is_noticed_before_the_deadline(
    place: Place, begin: Callable[[Any], Flower], monkeypatch: pytest.MonkeyPatch
) -> None:
    grid = Grid()
    carrier = begin(grid)
    assert carrier.sites()
    grid.silent = True
    monkeypatch.setattr(conversation, "LOOK", 0.01)
    monkeypatch.setattr(processes, "pid_of", lambda place, name: 0)
    assert carrier.ask({"site0": b"x"}, 60)["site0"] == (
        "Flower's relay has ended (the process at the other end has ended), and the SuperLink "
        f"is not running: start it with fedvlm federation up --federation {place.folder}")


def test_who_does_not_know_the_token_is_not_taken_for_the_relay(
    place: Place, begin: Callable[[Any], Flower]
) -> None:
    carrier = begin(Grid())
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.connect(str(carrier._folder / "driver.sock"))
        stranger.sendall(b"fedvlm-socket/1\n" + bytes(64))
        assert carrier.sites() == ["site0", "site1"]
        stranger.settimeout(5)
        assert len(stranger.recv(4096)) <= 64 and carrier.submissions == 1
    assert carrier._folder.stat().st_mode & 0o77 == 0


def test_a_relay_ends_with_its_driver(place: Place) -> None:
    grid = Grid()
    grid.silent = True
    ours, theirs = socket.socketpair()
    with theirs:
        ours.close()
        assert server.ask(grid, {"site0": 7}, {"site0": b"x"}, 60, theirs) is None


def test_the_relay_is_an_app_that_reads_no_pytorch_and_needs_no_fedvlm(tmp_path: Path) -> None:
    write_app(tmp_path)
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); sys.modules['torch'] = None\n"
        "from fedvlm.distributed.flower.relay import client, server\n"
        "print(client.__file__)"
    )
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True)
    assert done.stdout.startswith(str(tmp_path)), done.stderr
    assert "flwr" in (tmp_path / "pyproject.toml").read_text()
    assert sum(p.stat().st_size for p in tmp_path.rglob("*.py")) < 60_000


def test_a_site_that_says_good_bye_while_it_is_asked_is_waited_for_no_more(
    place: Place, begin: Callable[[Any], Flower], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "LOOK", 0.02)
    grid = Grid()
    carrier = begin(grid)
    carrier.open(5)
    grid.silent = True
    leaves = threading.Timer(0.2, lambda: setattr(grid, "away", True))
    leaves.start()
    assert carrier.ask({"site1": b"x"}, 60) == {"site1": server.GONE}
    leaves.join()
