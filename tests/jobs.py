"""Runs the real main job, small, in this process or another, and reads what it left."""

from __future__ import annotations

import atexit
import json
import os
import subprocess
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import safetensors.torch
import torch

from fedvlm.cli.main import main
from fedvlm.runs.records import RecordStore
from tests.faults.children import Children

REPOSITORY = Path(__file__).resolve().parents[1]
SMALL = ("--demo", "--partition", "disjoint", "--shots", "2", "--rounds", "2", "--num-users", "2",
         "--local-epochs", "1")


def argv(output: Path, *more: str) -> list[str]:
    return [*SMALL, "--output-dir", str(output), *more]


def run(output: Path, *more: str) -> int:
    return main(argv(output, *more))


@cache
def _children() -> Children:
    leave = ExitStack()
    atexit.register(leave.close)
    place = leave.enter_context(TemporaryDirectory())
    return leave.enter_context(Children(Path(place), "fedvlm.job.run", "tests.jobs"))


def spawn(output: Path, *more: str, before: str = "", **env: str) -> subprocess.CompletedProcess:
    """Run the job in a process of its own; ``before`` is Python executed first.

    It is forked where PyTorch is loaded and nothing else has happened.
    """
    words = argv(output, *more)
    ended = _children().run("tests.jobs:alone", words, before, root=output, **os.environ | env)
    return subprocess.CompletedProcess(words, ended.code, ended.said, "")


def alone(words: list[str], before: str) -> int:
    """What ``spawn`` runs there."""
    exec(before, {})
    return main(words)


def folder(output: Path) -> Path:
    (found,) = [p.parent for p in output.rglob("manifest.json")]
    return found


def state(output: Path) -> dict[str, torch.Tensor]:
    """The newest state: the server's tensors, and every client's with its version."""
    newest = sorted(folder(output).glob("state/round_*.safetensors"))[-1]
    found = safetensors.torch.load_file(newest)
    told = json.loads(newest.with_suffix(".json").read_text())
    for kind, named in told["records"].items():
        log = RecordStore(newest.parent / kind, told["identity"])
        log.load(named)
        for version, ids, rows in log.live():
            for k, client in enumerate(ids):
                found |= {f"{kind}|{client}|{version}|{slot}|{name}": v[k]
                          for slot, tree in rows.items() for name, v in tree.items()}
    return found


def records(output: Path) -> list[dict[str, Any]]:
    lines = (folder(output) / "metrics.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    for record in found:
        del record["seconds"], record["seal"]  # the seal is over the seconds, too
    return found


def results(output: Path) -> dict[str, Any]:
    return json.loads((folder(output) / "results.json").read_text())["results"]


def same(a: Path, b: Path) -> None:
    """Two finished runs have the same bits in states and metrics."""
    left, right = state(a), state(b)
    assert left.keys() == right.keys()
    for name in left:
        assert torch.equal(left[name], right[name]), name
    assert records(a) == records(b)
    assert results(a)["table"] == results(b)["table"]
