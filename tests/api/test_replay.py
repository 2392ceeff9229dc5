"""Rounds run again: equal bit for bit, and a run that was edited and sealed again is found out."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from fedvlm.api import replay as module
from fedvlm.api.replay import replay
from fedvlm.cli.main import main
from fedvlm.core.errors import ConfigError, DataError
from fedvlm.runs import manifest
from fedvlm.runs.bits import BITS, PLACES
from fedvlm.runs.verify.beside import hurt
from fedvlm.runs.verify.check import inspect
from tests import jobs
from tests.attacks.forge import copy, edit, forge


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three rounds, fine-tuned at the end, that keeps the states of all."""
    output = tmp_path_factory.mktemp("run")
    words = ("--trainer", "FedAvg", "--finetune-epochs", "1", "--rounds", "3")
    assert jobs.run(output, *words, "TRAIN.KEEP_STATES", "all") == 0
    return jobs.folder(output)


def test_the_last_rounds_are_equal_bit_for_bit(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {p: p.read_bytes() for p in run.rglob("*") if p.is_file()}
    assert [p.stem for p in sorted(run.glob("state/round_*.json"))] == [
        "round_0000", "round_0001", "round_0002", "round_0003",
    ]
    assert main(["verify", "--replay", "2", str(run)]) == 0
    told = capsys.readouterr().out
    assert "replayed rounds 2 to 3 from the state of round 1" in told and "rounds before 2" in told
    assert "equal bit for bit" in told and "of personal models" in told
    assert {p: p.read_bytes() for p in run.rglob("*") if p.is_file()} == before


def test_a_run_from_before_baselines_kept_bits_is_equal(tmp_path: Path) -> None:
    """Nor did it say of which images bits are, and it counted whom it hurts from ``logreg``.

    Its advice had other words.
    """
    assert jobs.run(tmp_path, "--trainer", "FedAvg", "TEST.PER_IMAGE", "True") == 0

    def older(record: dict[str, Any]) -> None:
        results = record["results"]
        del results[PLACES]
        results["next"] = {"reason": "train otherwise", "flags": ["--rounds", "9"]}
        for name in ("majority", "pooled"):
            del results["references"][name][BITS]
        found = results["references"]
        results["hurt"] = hurt(results["last"]["clients"], found, "logreg")
        assert results["answer"]["alone"]["reference"] != "logreg"

    edit(jobs.folder(tmp_path) / "results.json", older)
    assert main(["verify", "--replay", "1", str(jobs.folder(tmp_path))]) == 0


def test_a_forged_and_resealed_run_is_caught(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Seals cannot tell, running it again can; where no state is kept, from the start."""
    folder = copy(run, tmp_path / "run")
    forge(folder)
    shutil.rmtree(folder / "state")
    assert inspect(folder).word == "ok"
    assert main(["verify", "--replay", "1", str(folder)]) == 3
    told = capsys.readouterr().out
    assert "replayed rounds 1 to 3 from the untrained start" in told
    assert "no state of round 2 is kept; TRAIN.KEEP_STATES keeps more" in told
    assert "NOT EQUAL, round 3: personal: recorded 100.0, replayed " in told


def test_elsewhere_the_recorded_tensors_are_evaluated_again(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where bits differ and other versions are claimed, the verdict counts images."""
    monkeypatch.setattr(manifest, "versions", lambda: {"torch": "9.9"})
    monkeypatch.setattr(module, "_differences", lambda *_: iter(["round 3: loss: a last bit"]))
    seen = module.replay(run)
    assert seen.equal and seen.tensors and seen.tally is not None
    assert seen.tally.differ == 0 and seen.tally.images > 0
    told = " ".join(seen.lines())
    assert "claimed to be made elsewhere: versions." in told and "versions.torch" in told
    assert "the recorded tensors were evaluated here; 0 of" in told and "bit for bit" in told


def test_what_differs_bit_by_bit_and_by_how_much_of_a_norm() -> None:
    a = {"round 3: personal": 50.0, "round 3: clients.0.accuracy": 20.0, "round 3: note": "x",
         "server state: global/w": torch.ones(4), "model of client 0: w": torch.ones(4)}
    near = a | {"round 3: personal": 50.5, "round 3: clients.0.accuracy": 40.0,
                "server state: global/w": torch.ones(4) * 1.001}
    assert list(module._differences(a, dict(a))) == []
    assert len(list(module._differences(a, near))) == 3
    assert list(module._far_tensors(a, near)) == []
    far = a | {"server state: global/w": torch.ones(4) * 2}
    (clause,) = module._far_tensors(a, far)
    assert clause == "server state: global/w: the tensors differ by 1 of their norm"
    thin = {k: v for k, v in a.items() if "model" not in k}  # models/ was deleted
    assert list(module._differences(thin, a)) == []
    (clause,) = module._differences(a, thin)
    assert clause == "model of client 0: w: exists only in the run"


def test_weights_may_lie_elsewhere_if_they_are_the_same() -> None:
    told = {"backbone": "b", "config": {"SEED": 1, "MODEL.INIT_WEIGHTS": "/there/w.pt"}}
    here = {"backbone": "b", "config": {"SEED": 1, "MODEL.INIT_WEIGHTS": "w.pt"}}
    other = here | {"backbone": "c"}
    assert module.same_backbone(here, told) and here == told
    assert not module.same_backbone(here, told)
    assert not module.same_backbone(other, told)
    assert other["config"] == {"SEED": 1, "MODEL.INIT_WEIGHTS": "w.pt"}


def test_a_replay_with_weights_elsewhere_is_the_run(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their place is in identity and protocol; the digest says that they are the run's."""
    real = module.build_run

    def moved(*args: Any) -> Any:
        built = real(*args)
        built.identity["config"]["MODEL.INIT_WEIGHTS"] = "/elsewhere/w.pt"
        monkeypatch.setattr(built.backbone, "weights", "/elsewhere/w.pt")
        return built

    monkeypatch.setattr(module, "build_run", moved)
    seen = replay(run)
    assert seen.equal and seen.tally is None


def test_what_cannot_be_replayed_says_so(run: Path, tmp_path: Path) -> None:
    folder = copy(run, tmp_path / "run")
    with pytest.raises(ConfigError, match="rounds expects a whole number from 1 on, got '0'"):
        replay(folder, 0)
    with pytest.raises(ConfigError, match=r"OPTIM\.LR: 0\.005 -> 0\.5"):
        replay(folder, changes={"OPTIM.LR": "0.5"})
    (folder / "results.json").unlink()
    with pytest.raises(DataError, match="is not finished"):
        replay(folder)
    (folder / "metrics.jsonl").write_text("x\n")
    with pytest.raises(DataError, match="cannot be replayed"):
        replay(folder)
