"""A federation's SuperLink and sites, with a program that stands for Flower's."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedvlm.core.errors import ConfigError, DataError
from fedvlm.distributed.flower import network, processes
from fedvlm.distributed.flower.place import Place, new_place

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
        f"the SuperLink is there: process {processes.pid_of(place, 'link')}, TLS at "
        f"{place.address}", network.SHARED]
    assert "only on a machine of your own" in network.SHARED


def test_a_port_that_another_program_has_taken_is_refused(place: Place) -> None:
    with (
        socket.create_server(("127.0.0.1", place.port)),
        pytest.raises(ConfigError, match=f"another program listens at {place.address}"),
    ):
        network._link(place, print)
    assert not processes.names(place)


def test_a_folder_of_sockets_that_others_can_enter_is_refused(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.sockets.rmdir()
    place.make_sockets()
    assert place.sockets.stat().st_mode & 0o777 == 0o700
    place.sockets.chmod(0o701)
    with pytest.raises(DataError, match="is not a folder of yours alone"):
        network.up(place.folder, [], print)
    place.sockets.chmod(0o700)
    monkeypatch.setattr(os, "getuid", lambda: place.sockets.stat().st_uid + 1)
    with pytest.raises(DataError, match="is not a folder of yours alone"):
        place.make_sockets()
    monkeypatch.undo()
    place.sockets.rmdir()
    place.sockets.symlink_to(place.folder)
    with pytest.raises(DataError, match="is not a folder of yours alone"):
        place.make_sockets()
    place.sockets.unlink()
