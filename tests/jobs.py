"""Runs the real main job, small, in this process or another, and reads what it left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from fedvlm.cli.main import main
from fedvlm.runs.records import RecordStore

REPOSITORY = Path(__file__).resolve().parents[1]
SMALL = ("--demo", "--partition", "disjoint", "--shots", "2", "--rounds", "2", "--num-users", "2",
         "--local-epochs", "1")


def argv(output: Path, *more: str) -> list[str]:
    return [*SMALL, "--output-dir", str(output), *more]


def run(output: Path, *more: str) -> int:
    return main(argv(output, *more))


def spawn(output: Path, *more: str, before: str = "", **env: str) -> subprocess.CompletedProcess:
    """Run the job in a new process; ``before`` is Python executed first."""
    code = (
        f"import sys; sys.path.insert(0, {str(REPOSITORY)!r})\n{before}\n"
        f"from fedvlm.cli.main import main\nsys.exit(main({argv(output, *more)!r}))"
    )
    return subprocess.run(
        [sys.executable, "-c", code], env=os.environ | env, capture_output=True, text=True,
        timeout=300, check=False,
    )


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
