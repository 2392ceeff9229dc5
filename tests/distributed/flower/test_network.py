"""A federation's SuperLink and sites, with a program that stands for Flower's."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fedvlm.core.errors import ConfigError
from fedvlm.distributed.flower import network, processes
from fedvlm.distributed.flower.network import errand, refuse_busy_federation, run_of
from fedvlm.distributed.flower.place import Place, new_place
from fedvlm.runs import lock

LISTENS = (  # stands for flower-superlink
    f"#!{sys.executable} -S\nimport socket, sys, time\n"
    "door = socket.create_server(('127.0.0.1', int(sys.argv[4])))\ntime.sleep(60)\n"
)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = new_place(tmp_path / "f", tmp_path, [""] * 2)
    link = tmp_path / "flower-superlink"
    link.write_text(LISTENS)
    link.chmod(0o700)
    yield made
    network.down(made)


def test_whoever_begins_a_superlink_reads_once_who_else_can_use_it(place: Place) -> None:
    said: list[str] = []
    network._link(place, said.append)
    network._link(place, said.append)
    assert said == [
        f"the SuperLink is running: process {processes.pid_of(place, 'link')}, TLS at "
        f"{place.address}", network.SHARED]
    assert "only on a machine of your own" in network.SHARED


def test_a_port_that_another_program_has_taken_is_refused(place: Place) -> None:
    with (
        socket.create_server(("127.0.0.1", place.port)),
        pytest.raises(ConfigError, match=f"another program listens at {place.address}"),
    ):
        network._link(place, print)
    assert not processes.names(place)


def test_workers_of_a_run_under_way_are_left_to_it(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "a run #1"
    run.mkdir()
    about = errand(run, "0123456789abcdef")
    assert run_of(about) == str(run) and run_of("site.yaml") == "" == run_of(str(run))
    assert errand(run, "another run there") != about
    waits = [sys.executable, "-S", "-c", "import time; time.sleep(60)"]
    processes.begin(place, "site1", waits, os.environ, tmp_path, about)
    refuse_busy_federation(place)
    held = lock.acquire(run)
    try:
        refuse_busy_federation(place)  # it is this process's own
        monkeypatch.setattr(os, "getpid", lambda: 1)
        with pytest.raises(ConfigError, match="work for the run in '.*a run #1' .process"):
            refuse_busy_federation(place)
    finally:
        monkeypatch.undo()
        held.release()
    refuse_busy_federation(place)


def test_a_certificate_that_is_made_anew_ends_who_has_the_old_one(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = [sys.executable, "-S", "-c", "import time; time.sleep(60)"]
    for word, left in (("", 2), ("link", 1), ("ca", 0)):
        for name in ("link", "site0"):
            if not processes.pid_of(place, name):
                processes.begin(place, name, waits, os.environ, place.folder)
        monkeypatch.setattr(network.commands, "make_keys",
                            lambda *args, word=word: (word, "it ended on 2026-01-01"))
        said: list[str] = []
        network._renew(place, said.append)
        until = time.monotonic() + 20  # a busy machine shows and buries processes late
        while len(processes.strays(place)) != left and time.monotonic() < until:
            time.sleep(0.05)
        assert len(processes.strays(place)) == left
        told = "a new certificate of the SuperLink was made: it ended on 2026-01-01"
        assert said == ([told] if word else [])


def test_the_door_listens_where_it_is_told_or_says_why_not(tmp_path: Path) -> None:
    made = new_place(tmp_path / "d", tmp_path, [], "127.0.0.1:0", "host.example:7400")
    assert made.hosts == ["localhost", "127.0.0.1", "host.example"] and not made.here
    (tmp_path / "python").write_text("#!/bin/sh\necho 'no such address'\n")
    (tmp_path / "python").chmod(0o700)
    with pytest.raises(ConfigError, match="the door cannot listen at 127.0.0.1:0: no such address"):
        network._door(made, print)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"another program listens at 127.0.0.1:{port}"):
            network._door(replace(made, listen=f"127.0.0.1:{port}"), print)
    network.down(made)
