"""``fedvlm compare --over-seeds``: runs paired by seed, intervals over seeds."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fedvlm.cli.main import main

from .compare_runs import record, write

Capture = pytest.CaptureFixture[str]


def group(root: Path, values: Sequence[float], trainer: str, **more: Any) -> Path:
    for seed, value in enumerate(values, start=1):
        config = {"OPTIM.LR": 0.01 * seed} if more.get("vary") else {}
        data = f"{seed}{more.get('data', '')}" * 32
        write(root / f"seed{seed}", [record(0, [value])], trainer, seed=seed, config=config,
              data=data)
    return root


def compared(a: Path, b: Path, capsys: Capture) -> dict[str, Any]:
    assert main(["compare", str(a), str(b), "--over-seeds", "--format", "json"]) == 0
    return dict(json.loads(capsys.readouterr().out))


def test_interval_over_seeds(tmp_path: Path, capsys: Capture) -> None:
    a = group(tmp_path / "a", [50.0, 60.0, 70.0], "FedAvg")
    b = group(tmp_path / "b", [51.0, 62.0, 73.0], "Ditto")
    data = compared(a, b, capsys)
    spread = data["metrics"]["personal"]
    half = 4.302652729911275 / math.sqrt(3)  # t(0.975, 2), standard deviation 1
    assert (spread["n"], spread["difference"]) == (3, 2.0)
    assert spread["t"] == pytest.approx([2 - half, 2 + half])
    assert data["settings"]["numbers"] == ['TRAINER.NAME: "FedAvg" -> "Ditto"']
    assert main(["compare", "--over-seeds", str(a), str(b)]) == 0
    text = capsys.readouterr().out
    assert "3 pairs of runs, each with the same data and partition on both sides" in text
    assert "B is better for 3, equal for 0, worse for 0" in text


def test_seeds_without_partner_and_other_data_are_said(tmp_path: Path, capsys: Capture) -> None:
    a = group(tmp_path / "a", [50.0, 60.0, 70.0], "FedAvg")
    b = group(tmp_path / "b", [51.0, 62.0], "Ditto", data="x", vary=True)
    write(b / "later", [record(0, [1.0])], "Ditto", seed=9, finished=False)
    data = compared(a, b, capsys)
    notes = "\n".join(data["notes"])
    assert data["pairs"] == [[1, 1], [2, 2]]
    assert "only A has 3/3: left out" in notes
    assert "the partitions differ in 1/1, 2/2" in notes
    assert "differs otherwise from seed to seed: OPTIM.LR\n" in notes
    assert "later is unfinished and left out" in notes


def test_refuses_what_does_not_pair(tmp_path: Path, capsys: Capture) -> None:
    a = group(tmp_path / "a", [50.0], "FedAvg")
    write(tmp_path / "b" / "x", [record(0, [1.0])], seed=7)
    assert main(["compare", "--over-seeds", str(a), str(tmp_path / "b")]) == 2
    assert "no seeds in common (A: 1/1; B: 7/7)" in capsys.readouterr().err
    write(a / "again", [record(0, [2.0])], "Ditto")
    assert main(["compare", "--over-seeds", str(a), str(tmp_path / "b")]) == 2
    assert "A holds two runs of seed 1, data seed 1" in capsys.readouterr().err
    write(tmp_path / "c" / "x", [record(0, [1.0])], finished=False)
    assert main(["compare", "--over-seeds", str(a), str(tmp_path / "c")]) == 3
    assert "1 unfinished" in capsys.readouterr().err
