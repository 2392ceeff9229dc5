"""The carrier over Flower's simulation, without Flower: both ends of the relay are the real ones.

A package of the same names stands for Flower: its nodes are functions, its grid asks them at once.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedvlm.core.errors import ConfigError, FedvlmError
from fedvlm.distributed.flower import commands, simulation
from fedvlm.job.workers.simulation import RELAY, RayCarrier
from tests import jobs

FLOWER = {
    "__init__": "",
    "app": """
class Metadata:
    def __init__(self, **more): self.__dict__.update(more)
class Message:
    def __init__(self, content, dst_node_id=0, message_type="", ttl=9.0, reply_to=None):
        self.content, self.metadata = content, Metadata(
            dst_node_id=dst_node_id, message_type=message_type, ttl=ttl, src_node_id=0,
            reply_to_message_id="")
    def has_error(self): return False
class Array:
    def __init__(self, values): self.numpy = lambda: values
RecordDict = ArrayRecord = ConfigRecord = lambda told={}: told
""",
    "clientapp": """
class ClientApp(dict):
    def query(self, action="default"): return lambda f: self.setdefault("query." + action, f)
""",
    "serverapp": """
class ServerApp:
    def main(self): return lambda f: setattr(self, "run", f)
""",
    "simulation": """
import os, threading
from types import SimpleNamespace
class Grid:
    def __init__(self, client, count):
        self.client, self.nodes, self.replies = client, list(range(900, 900 + count))[::-1], {}
    def get_node_ids(self): return self.nodes
    def get_nodes(self): return [SimpleNamespace(node_id=n, status="online") for n in self.nodes]
    def send_and_receive(self, messages, timeout):
        return self.pull_messages(self.push_messages(messages))
    def push_messages(self, messages):
        for m in messages:
            node = m.metadata.dst_node_id
            kind = m.metadata.message_type
            context = SimpleNamespace(node_config={"partition-id": self.nodes.index(node)})
            reply = self.client[kind if "." in kind else kind + ".default"](m, context)
            reply.metadata.src_node_id, reply.metadata.reply_to_message_id = node, str(node)
            self.replies[str(node)] = reply
        return [str(m.metadata.dst_node_id) for m in messages]
    def pull_messages(self, ids): return [self.replies.pop(i) for i in ids if i in self.replies]
def broken():  # as Ray is on a busy machine: its own reason is the innermost, and a thread waits
    threading.Thread(target=threading.Event().wait).start()
    try: raise ValueError("ray is broken")
    except ValueError as error: raise RuntimeError("Ending simulation.") from error
def run_simulation(server, client, num_supernodes, backend_config):
    assert backend_config["init_args"]["num_cpus"] == num_supernodes
    if os.environ.get("BROKEN"): broken()
    server.run(Grid(client, num_supernodes), None)
""",
}
WORKER = """
import os, socket, sys
sys.path.insert(0, sys.argv[1])
from fedvlm.distributed.sockets.serving import end_with, serve
from fedvlm.distributed.sockets.stream import listen, read_token
slot, (_, address, _, file, _, handle) = sys.argv[2], sys.argv[3:]
line = socket.socket(fileno=int(handle))
end_with(line)
door = listen(address)
print("worker: ready at", address, flush=True)
serve(door, read_token(file), lambda frame: slot.encode() + b" " + frame, print)
"""


@pytest.fixture
def carrier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RayCarrier]:
    """Two workers behind it, not begun to be met."""
    commands_ = tmp_path / "venv" / "bin"
    commands_.mkdir(parents=True)
    (tmp_path / "venv/lib/python3/site-packages/ray-2.dist-info").mkdir(parents=True)
    for name in ("flwr", "flower-superlink", "flower-supernode"):
        (commands_ / name).touch()
    stub = tmp_path / "stub" / "flwr"
    stub.mkdir(parents=True)
    for name, text in FLOWER.items():
        (stub / f"{name}.py").write_text(text)
    python = commands_ / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={stub.parent} exec {sys.executable} "$@"\n')
    python.chmod(0o700)
    monkeypatch.setenv(commands.VARIABLE, str(commands_.parent))
    monkeypatch.setattr(simulation, "EVERY", 0.02)
    numbers = iter(range(9))
    made = RayCarrier(lambda words: (
        sys.executable, "-S", "-c", WORKER, str(jobs.REPOSITORY), str(next(numbers)), *words,
    ), 2, tmp_path)
    yield made
    made.close()
    assert all(p.poll() is not None for p in made.processes.values()) and not made._place.exists()


def test_frames_come_to_the_workers_and_a_dead_one_is_named(carrier: RayCarrier) -> None:
    carrier.open(60)
    assert carrier.sites() == ["worker0", "worker1"] and carrier.absent() == []
    frames = {"worker1": b"abc", "worker0": bytes(200_000)}
    assert carrier.ask(frames, 30) == {"worker0": b"0 " + bytes(200_000), "worker1": b"1 abc"}
    os.kill(carrier.processes["worker0"].pid, signal.SIGKILL)
    carrier.processes["worker0"].wait()
    assert carrier.sites() == ["worker1"]
    said = carrier.ask({"worker0": b"x", "worker1": b"y"}, 30)
    assert said["worker1"] == b"1 y" and "(killed by SIGKILL; " in str(said["worker0"])
    carrier.processes["worker1"].kill()
    carrier.processes["worker1"].wait()
    with pytest.raises(FedvlmError, match="no worker is left: worker1 killed by SIGKILL"):
        carrier.sites()
    carrier.processes[RELAY].kill()
    with pytest.raises(FedvlmError, match=r"simulation is gone .*; .*flower.log\); what was saved"):
        carrier.ask({"worker1": b"y"}, 30)


def test_what_does_not_begin_is_said_with_its_last_line(
    carrier: RayCarrier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROKEN", "1")
    with pytest.raises(ConfigError, match="did not start: exit code 1; .*: ray is broken; log"):
        carrier.open(60)


def test_workers_end_with_their_driver(carrier: RayCarrier) -> None:
    carrier.open(60)
    for line in carrier._lines.values():  # as the system does with those of a process that is gone
        line.close()
    until = time.monotonic() + 30
    while any(carrier.processes[n].poll() is None for n in carrier._nodes):
        assert time.monotonic() < until
        time.sleep(0.02)


def test_flower_without_ray_is_refused_before_anything_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("flwr", "flower-superlink", "flower-supernode"):
        (tmp_path / name).touch()
    monkeypatch.setenv(commands.VARIABLE, str(tmp_path))
    with pytest.raises(ConfigError, match="has no Ray, on which it simulates: .* -m pip install"):
        commands.find_ray()
