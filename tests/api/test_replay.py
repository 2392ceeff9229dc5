"""Rounds run again: equal bit for bit, and a run that was edited and sealed again is found out."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedvlm.api.replay import replay
from fedvlm.cli.main import main
from fedvlm.core.errors import ConfigError, DataError
from fedvlm.runs import manifest
from fedvlm.runs.verify.check import inspect
from tests import jobs
from tests.attacks.forge import copy, forge, unfinish


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two rounds that is fine-tuned at the end; the states of rounds 1 and 2 are kept."""
    output = tmp_path_factory.mktemp("run")
    assert jobs.run(output, "--trainer", "FedAvg", "--finetune-epochs", "1") == 0
    return jobs.folder(output)


def test_the_last_round_is_equal_bit_for_bit(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {p: p.read_bytes() for p in run.rglob("*") if p.is_file()}
    assert main(["verify", "--replay", "1", str(run)]) == 0
    told = capsys.readouterr().out
    assert "replayed round 2 from the state of round 1" in told and "rounds before 2" in told
    assert "equal bit for bit" in told and "of personal models" in told
    assert {p: p.read_bytes() for p in run.rglob("*") if p.is_file()} == before


def test_a_forged_and_resealed_run_is_caught(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Seals cannot tell, running it again can; without states from the start."""
    folder = copy(run, tmp_path / "run")
    forge(folder)
    assert inspect(folder).word == "ok"
    assert main(["verify", "--replay", "5", str(folder)]) == 3
    told = capsys.readouterr().out
    assert "replayed rounds 1 to 2 from the untrained start" in told
    assert "NOT EQUAL, round 2: personal: recorded 100.0, replayed " in told


def test_elsewhere_a_tolerance_is_allowed_and_said(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other versions: what differs by bits only passes, and a forged number does not."""
    from fedvlm.api import replay as module

    real = module._leaves
    calls: list[float] = []

    def moved(*args: object) -> dict[str, object]:
        out = real(*args)  # type: ignore[arg-type]
        calls.append(1.0)
        off = 0.5 if len(calls) % 2 == 0 else 0.0
        return {k: v + off if k == "round 2: personal" else v for k, v in out.items()}

    monkeypatch.setattr(module, "_leaves", moved)
    assert not replay(run).equal  # here every bit counts
    monkeypatch.setattr(manifest, "versions", lambda: {"torch": "9.9"})
    seen = replay(run)
    assert seen.equal and seen.points == 1.0
    assert "equal within 1 points of accuracy" in " ".join(seen.lines())
    assert "versions.torch" in " ".join(seen.lines())
    assert not replay(run, points=0.1).equal


def test_what_cannot_be_replayed_says_so(run: Path, tmp_path: Path) -> None:
    folder = copy(run, tmp_path / "run")
    with pytest.raises(ConfigError, match="at least one round"):
        replay(folder, 0)
    with pytest.raises(ConfigError, match=r"OPTIM\.LR: 0\.005 -> 0\.5"):
        replay(folder, changes={"OPTIM.LR": "0.5"})
    unfinish(folder)
    with pytest.raises(DataError, match="is not finished"):
        replay(folder)
    (folder / "metrics.jsonl").write_text("x\n")
    with pytest.raises(DataError, match="cannot be replayed"):
        replay(folder)
