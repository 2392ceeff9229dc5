"""A run that goes on: types, a state without its metrics, another trainer under the same name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from fedvlm.core.errors import ConfigError
from fedvlm.job import run as cli_run
from tests import jobs


def test_restored_state_keeps_its_types(tmp_path: Path, monkeypatch: Any) -> None:
    class Folder:
        metrics_path = tmp_path / "metrics.jsonl"
        notes: list[str] = []

        def restore(self) -> Any:
            w = {"w": {"a": torch.ones(1, dtype=torch.float64), "n": torch.ones(1).long()}}
            return type("Saved", (), {"round": 0, "server": w, "clients": {0: w}})

    Folder.metrics_path.write_text('{"round": 0}\n')
    model = type("Model", (), {"dtype": torch.float32, "device": torch.device("cpu")})
    found = cli_run.restore(type("Built", (), {"model": model}), Folder())  # type: ignore[arg-type]
    assert found is not None and found.clients[0]["w"]["a"].dtype is torch.float64
    assert found.server["w"]["n"].dtype is torch.int64


def test_a_state_without_its_metrics_is_no_beginning(tmp_path: Path) -> None:
    whole, broken = tmp_path / "a", tmp_path / "b"
    assert jobs.run(whole) == 0 and jobs.run(broken) == 0
    (jobs.folder(broken) / "results.json").unlink()
    (jobs.folder(broken) / "metrics.jsonl").unlink()
    assert jobs.run(broken) == 0
    jobs.same(whole, broken)
    assert [r["round"] for r in jobs.records(broken)] == [0, 1, 2]


def test_identity_knows_the_trainers_file(tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "mine.py"
    code = (
        "from fedvlm.federation.discovery import load_trainer\n"
        "class Mine(load_trainer('FedTV')):\n    name = 'FedTV'\n"
    )
    file.write_text(code)
    spec = ("--trainer", f"{file}:Mine", "--rounds", "1")
    assert jobs.run(tmp_path / "out", *spec) == 0
    manifest = json.loads((jobs.folder(tmp_path / "out") / "manifest.json").read_text())
    assert len(manifest["identity"]["images"]) == 64
    file.write_text(code + "    batched = False\n")
    assert jobs.run(tmp_path / "out", *spec) == ConfigError.exit_code
    assert "trainer" in capsys.readouterr().err
