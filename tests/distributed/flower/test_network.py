"""A federation's SuperLink and sites, with a program that stands for Flower's."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

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
