"""A federation's folder and its processes: known by their ids, ended to the last."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from fedvlm.core.errors import ConfigError, DataError, FedvlmError
from fedvlm.distributed.flower import commands, network, processes
from fedvlm.distributed.flower.place import Place, new_place, read_place, split_evenly

# A parent and a child that both wait; the child is what a killed parent leaves.
PARENT = (
    "import subprocess, sys, time\n"
    "subprocess.Popen([sys.executable, '-S', '-c', 'import time; time.sleep(60)'])\n"
    "print('here', flush=True)\ntime.sleep(60)"
)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return new_place(tmp_path / "f", tmp_path, [""] * 2)


def begun(place: Place, name: str, code: str = PARENT) -> int:
    pid = processes.begin(place, name, [sys.executable, "-S", "-c", code], os.environ,
                          place.folder, "this")
    until = time.monotonic() + 30
    while not processes.tail(place.log(name)) and time.monotonic() < until:
        time.sleep(0.01)
    return pid


def test_all_of_a_federation_ends_also_what_a_killed_parent_left(place: Place) -> None:
    pid = begun(place, "link")
    other = begun(place, "site0.node", "import time; print('here', flush=True); time.sleep(60)")
    assert processes.pid_of(place, "link") == pid and processes.about(place, "link") == "this"
    assert processes.names(place) == ["link", "site0.node"]
    os.kill(pid, signal.SIGKILL)
    while processes.pid_of(place, "link"):
        time.sleep(0.01)
    (left,) = processes.strays(place, ["link"])
    assert processes.process_part(left) == "link" and left != pid
    assert processes.end(place, ["link"]) == 1 and not processes.strays(place, ["link"])
    assert processes.pid_of(place, "site0.node") == other
    assert network.down(place) == 1 and not processes.strays(place)
    assert not processes.names(place)


def test_a_number_that_another_process_got_is_left_alone(place: Place) -> None:
    note = place.folder / "pids" / "link.json"
    note.write_text(json.dumps({"pid": os.getpid(), "began": "12", "about": ""}))
    assert processes.pid_of(place, "link") == 0
    assert processes.end(place, ["link"]) == 0 and not note.exists()
    note.write_text("[")
    assert processes.pid_of(place, "link") == 0


def test_a_command_that_is_not_there_is_said(place: Place) -> None:
    with pytest.raises(FedvlmError, match="'/no/where' cannot be started: No such file"):
        processes.begin(place, "x", ["/no/where"], {}, place.folder)


def test_a_folder_is_read_as_it_was_written_or_refused(place: Place, tmp_path: Path) -> None:
    assert read_place(place.folder) == place
    assert place.folder.stat().st_mode & 0o77 == 0
    with pytest.raises(ConfigError, match="is not a federation and not empty"):
        new_place(tmp_path, tmp_path, [""] * 2)
    with pytest.raises(ConfigError, match="federation up --loopback 2"):
        read_place(tmp_path / "other")
    (place.folder / "federation.json").write_text("{}")
    with pytest.raises(DataError, match="is damaged"):
        read_place(place.folder)


def test_flower_is_found_where_it_is_said_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(commands.VARIABLE, str(tmp_path))
    with pytest.raises(ConfigError, match=f"FEDVLM_FLOWER={tmp_path} has no flower-superlink.*pip"):
        commands.find_flower()
    (tmp_path / "bin").mkdir()
    for name in ("flwr", "flower-superlink", "flower-supernode"):
        (tmp_path / "bin" / name).touch()
    assert commands.find_flower() == tmp_path / "bin"
    assert commands.version_of(tmp_path / "bin") == ""
    (tmp_path / "lib/python3.11/site-packages/flwr-1.41.0.dist-info").mkdir(parents=True)
    assert commands.version_of(tmp_path / "bin") == "1.41.0"


def test_what_flower_says_is_read_and_told(place: Place, tmp_path: Path) -> None:
    flwr = tmp_path / "flwr"
    flwr.write_text('#!/bin/sh\necho "wait"; echo "{\\"run-id\\": 5}"; env > seen\n')
    flwr.chmod(0o700)
    assert commands.flwr(place, "run", "x") == {"run-id": 5}
    seen = (place.folder / "empty" / "seen").read_text()
    assert "FLWR_TELEMETRY_ENABLED=0" in seen and "FLWR_DISABLE_UPDATE_CHECK=1" in seen
    assert f"FLWR_HOME={place.home}" in seen and "PYTHONPATH" not in seen
    flwr.write_text('#!/bin/sh\necho "│ no    link │"; exit 1\n')
    with pytest.raises(FedvlmError, match="flwr run failed: no link"):
        commands.flwr(place, "run", "x")
    assert 'address = "127.0.0.1:' in commands.settings(place)


def test_clients_are_spread_evenly() -> None:
    ranges = [split_evenly(4, 2), split_evenly(5, 3), split_evenly(2, 2)]
    assert ranges == ["0-1,2-3", "0,1-2,3-4", "0,1"]
