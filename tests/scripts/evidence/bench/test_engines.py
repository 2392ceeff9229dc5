"""``bench engines``: what is made of the runs that it measures."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from evidence.bench import engines
from evidence.commands import main
from fedvlm.core.errors import FedvlmError


def fake(
    words: tuple[str, ...], environ: dict[str, str], output: Path, beside: object = None
) -> dict[str, Any]:
    """A start of 5 s and rounds of 2 s; by workers 9 s and 2.2 s."""
    rounds, away = int(words[words.index("--rounds") + 1]), "--engine" in words
    return {
        "cpu": (9 if away else 5) + (2.2 if away else 2) * rounds, "wall": 1.0 + rounds,
        "memory": 3 << 20 if away else 1 << 20, "processes": 3 if away else 1,
        "bytes": rounds << 20 if away else 0,
    }


def test_starts_and_rounds_are_told_apart(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(engines, "measure", fake)
    record = engines.run("FedPer", clients=4, rounds=3, workers=2, repeats=2)
    workers = record["engines"]["workers"]
    assert (workers["cpu_start"], workers["cpu_round"]) == pytest.approx((9, 2.2))
    assert workers["bytes_round"] == 1 << 20 and record["ratio"] == pytest.approx(1.1)
    assert main(["bench", "engines", "FedPer", "--repeats", "1"]) == 0
    said = capsys.readouterr()
    assert "noise" not in said.out
    assert "1.10 times the CPU of a local one, within the aim of 1.2" in said.out
    order = [line for line in said.err.splitlines() if "median of" in line or "round(s)" in line]
    assert "local, median of 1: CPU s/round 2.000, wall s/round 1.000" in order[2]
    assert "workers, 1 round(s)" in order[3] and "workers, median of 1" in order[5]


def test_a_federation_is_there_for_its_runs_and_ended_after_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[tuple[str, ...]] = []

    def measure(words: tuple[str, ...], *more: Any) -> dict[str, Any]:
        seen.append(words)
        return fake(words, *more)

    monkeypatch.setattr(engines, "measure", measure)
    @contextlib.contextmanager
    def loopback(folder: Path, count: int, say: object) -> Iterator[object]:
        yield tuple
        seen.append(("down", str(count)))

    monkeypatch.setattr(engines, "loopback", loopback)
    monkeypatch.setattr(
        engines, "why_not_installed", lambda: "")
    assert main(["bench", "engines", "--engines", "loopback", "--repeats", "1"]) == 0
    assert "times the CPU" not in capsys.readouterr().out
    assert seen[-1] == ("down", "2") and "0-4,5-9" in seen[1]
    seen.clear()
    monkeypatch.setattr(engines, "why_not_installed", lambda: "Flower is not installed")
    assert main(["bench", "engines", "--engines", "local,loopback", "--repeats", "1"]) == 0
    assert "loopback is skipped: Flower is not installed" in capsys.readouterr().out
    assert len(seen) == 3  # features, a short run, a longer one
    assert main(["bench", "engines", "--engines", "loopback"]) == 2
    assert "error: Flower is not installed" in capsys.readouterr().err
    monkeypatch.setattr(engines, "why_not_installed", lambda: "")
    assert main(["bench", "engines", "--engines", "local,workers", "--repeats", "1"]) == 0
    said = capsys.readouterr().out
    assert "workers" in seen[-1] and "1.10" in said and "skipped" not in said
    assert main(["bench", "engines", "--engines", "local,loopbak"]) == 2
    assert "--engines has no 'loopbak'; did you mean 'loopback'?" in capsys.readouterr().err


def test_rounds_that_cannot_be_told_from_a_start_get_no_verdict() -> None:
    long_, short = ({"cpu_start": 9.0, "cpu_round": cpu, "wall_start": 9.0, "wall_round": 1.0,
                     "memory": 1, "processes": 1, "bytes_round": 0} for cpu in (2.0, 0.01))
    record = {"setting": {"trainer": "FedAvg", "clients": 4, "rounds": 2, "workers": 2,
                          "repeats": 1, "threads": 1}, "load": {"after": 1.0, "cores": 2},
              "ratio": 0.1, "aim": 1.2, "skipped": {}, "failed": {},
              "engines": {"local": long_, "workers": short}}
    said = "\n".join(engines.lines(record))
    assert "2 rounds of workers take less than 10% of a start" in said and "aim" not in said


def test_an_engine_that_fails_takes_no_other_row_with_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(words: tuple[str, ...], *more: Any) -> dict[str, Any]:
        if "workers" in words:
            raise FedvlmError("fedvlm run failed: no worker came")
        return fake(words, *more)

    monkeypatch.setattr(engines, "measure", measure)
    assert main(["bench", "engines", "--repeats", "2"]) == 1
    said = capsys.readouterr()
    assert "workers has no row: no worker came" in said.out and "2.000" in said.out
    assert said.err.count("workers, ") == 1


def test_what_is_not_read_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "engines", "FedPer", "FedAvg", "--fp64"]) == 2
    said = capsys.readouterr().err
    assert "engines takes one trainer ('FedAvg')" in said and "does not read --fp64" in said
    assert main(["bench", "engines", "--workers", "0"]) == 2
    assert "--workers 0: must be at least 1" in capsys.readouterr().err
