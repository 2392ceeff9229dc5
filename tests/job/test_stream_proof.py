"""A run proves its cached stream before round 1, once, and is the same run with or without."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from fedvlm.core.errors import ConfigError
from fedvlm.federation.local.streams import prove_method
from fedvlm.federation.trainer import Trainer
from fedvlm.job.build import build_run
from fedvlm.job.flags import parse
from fedvlm.job.resolve import resolve
from tests import jobs

pytestmark = pytest.mark.usefixtures("fewest_images")

METHODS = Path(__file__).resolve().parents[1] / "block_prompts.py"


def built(folder: Path, trainer: str, *opts: str) -> Any:
    line = [*jobs.argv(folder), "--shots", "1", "--trainer", trainer, "--opts",
            "CACHE_DIR", str(folder / "cache"), *opts]
    return build_run(resolve(parse(line)).jobs[0].cfg)


def proofs(folder: Path) -> list[Path]:
    return sorted((folder / "cache" / "proofs").glob("*.json"))


@pytest.fixture
def fewest_images(few_images: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many built-in images of a class as the shots need, and one for tests."""
    monkeypatch.setattr("fedvlm.data.builtin.sets._PER_CLASS", (2, 2, 1))


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the trainers whose streams are compared, as it happens."""
    names: list[str] = []
    def count(trainer: Trainer, *args: Any) -> Any:
        names.append(trainer.name)
        return prove_method(trainer, *args)

    monkeypatch.setattr("fedvlm.job.sources.prove_method", count)
    return names


def test_the_right_block_runs_and_wrong_ones_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec, key = f"{METHODS}:BlockPrompts", "TRAINER.BLOCKPROMPTS.ENTER"
    built(tmp_path, spec)
    assert len(proofs(tmp_path)) == 1
    for enter, stream in (("1", "tokens.1"), ("-1", "tokens.6")):
        said = rf"{stream} gives other numbers than pixels: .*'image\.prompt\..*before block 0"
        with pytest.raises(ConfigError, match=said):
            built(tmp_path, spec, key, enter)
    assert len(proofs(tmp_path)) == 1
    line = ["--trainer", spec, "--opts", key, "1"]
    assert jobs.run(tmp_path / "out", *line) == ConfigError.exit_code
    assert "trainer BlockPrompts: stream tokens.1 gives other" in capsys.readouterr().err
    assert not list((tmp_path / "out").rglob("metrics.jsonl"))


def test_several_streams_run_and_wrong_ones_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = built(tmp_path, f"{METHODS}:TwoStreams").federation.batcher.source
    assert source.streams == ("tokens.0", "features")
    assert built(tmp_path, f"{METHODS}:AllStreams").test.streams == (
        "pixels", "tokens.0", "patches", "features"
    )
    assert len(proofs(tmp_path)) == 2
    for name, said in (
        ("HalfFeatures", "stream features gives other"), ("LastPatches", "stream patches gives"),
    ):
        with pytest.raises(ConfigError, match=f"trainer {name}: {said}"):
            built(tmp_path, f"{METHODS}:{name}")
    with pytest.raises(ConfigError, match=r"stream tokens\.1 gives .*at or before block 0"):
        built(tmp_path, f"{METHODS}:TwoStreams", "TRAINER.TWOSTREAMS.ENTER", "1")
    cache = ("--opts", "CACHE_DIR", str(tmp_path / "cache"))
    assert jobs.run(tmp_path / "out", "--trainer", f"{METHODS}:Patches", *cache) == 0
    out = capsys.readouterr().out
    assert "patch features: " in out and out.count("note: patch features take") == 1
    assert out.index("patch features take") < out.index("method  ")  # before any is computed


def test_without_room_pixels_take_the_place_of_activations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedvlm.job.sources.has_room", lambda *_: False)
    small = built(tmp_path, f"{METHODS}:TwoStreams")
    assert small.federation.batcher.source.streams == ("tokens.0", "features")
    assert any("not cached: not enough space" in note for note in small.notes)
    monkeypatch.setattr("fedvlm.job.sources.IN_MEMORY", 0)
    run = built(tmp_path, f"{METHODS}:TwoStreams")
    assert run.federation.batcher.source.streams == ("pixels", "features")
    assert any("do not fit into" in note for note in run.notes)
    assert len(proofs(tmp_path)) == 2


def test_zero_lora_hides_no_wrong_block(tmp_path: Path) -> None:
    opts = ("PEFT.TEXT", "none", "PEFT.VISUAL", "lora", "TRAINER.LATELORA.ENTER")
    built(tmp_path, f"{METHODS}:LateLora", *opts, "0")
    with pytest.raises(ConfigError, match=r"gives other numbers than pixels: .*'image\.lora\."):
        built(tmp_path, f"{METHODS}:LateLora", *opts, "1")


@pytest.mark.parametrize("prec", ["fp64", "bf16"])
def test_other_types_hold(tmp_path: Path, prec: str) -> None:
    built(tmp_path, "FedAvg", "MODEL.PREC", prec, "PEFT.VISUAL", "lora")
    (proof,) = [json.loads(p.read_text()) for p in proofs(tmp_path)]
    assert proof["tolerance"] == {"fp64": 1e-9, "bf16": 5e-2}[prec]


def test_a_proof_is_made_once_per_method_code_and_options(
    tmp_path: Path, made: list[str]
) -> None:
    built(tmp_path, "FedAvg")
    built(tmp_path, "FedAvg", "OPTIM.LR", "0.1", "SEED", "3")
    assert made == ["FedAvg"]
    (path,) = proofs(tmp_path)
    whole = path.read_text()
    path.write_text(whole[:40])  # damaged: made again, and written
    built(tmp_path, "FedAvg")
    assert made == ["FedAvg"] * 2 and path.read_text() == whole
    built(tmp_path, "FedAvg", "PEFT.N_CTX", "2")
    built(tmp_path, "FedProx")
    assert made == [*["FedAvg"] * 3, "FedProx"] and len(proofs(tmp_path)) == 3


CODE = """
from fedvlm.method import PeftTrainer
import own_scale as other

class Mine(PeftTrainer):
    name = "Mine"

    def image_features(self, model, params, x):
        return other.SCALE * super().image_features(model, params, x)
"""


def test_a_changed_file_makes_a_new_one(
    tmp_path: Path, made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file of the method, and a file beside it that it imports."""
    for n, (code, scale) in enumerate([("", "2.0"), ("# other\n", "2.0"), ("", "3.0")]):
        folder = tmp_path / str(n)  # a module is loaded once: another path is another module
        folder.mkdir()
        monkeypatch.syspath_prepend(str(folder))
        (folder / "own_scale.py").write_text(f"SCALE = {scale}\n")
        (folder / "mine.py").write_text(CODE + code)
        monkeypatch.delitem(sys.modules, "own_scale", raising=False)
        built(tmp_path, f"{folder / 'mine.py'}:Mine")
        assert made == ["Mine"] * (n + 1)
        built(tmp_path, f"{folder / 'mine.py'}:Mine")
        assert made == ["Mine"] * (n + 1)
    assert len(proofs(tmp_path)) == 3


def test_no_proof_on_the_plain_path_nor_of_pixels(tmp_path: Path, made: list[str]) -> None:
    built(tmp_path, "FedAvg", "FED.PLAIN", "True")
    line = [*jobs.argv(tmp_path), "--trainer", "FedAvg"]
    build_run(resolve(parse(line)).jobs[0].cfg, pixels=True)
    assert made == []


@pytest.mark.parametrize("trainer", [
    "FedTV", pytest.param(f"{METHODS}:BlockPrompts", marks=pytest.mark.slow)
])
def test_the_run_is_the_same_with_and_without(
    trainer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def line(name: str) -> tuple[str, ...]:
        return ("--trainer", trainer, "--opts", "CACHE_DIR", str(tmp_path / f"cache-{name}"))

    assert jobs.run(tmp_path / "with", *line("with")) == 0
    monkeypatch.setattr("fedvlm.job.build.refuse_unequal_streams", lambda *_: None)
    assert jobs.run(tmp_path / "without", *line("without")) == 0
    assert len(list((tmp_path / "cache-with").rglob("proofs/*.json"))) == 1
    assert not list((tmp_path / "cache-without").rglob("proofs"))
    jobs.same(tmp_path / "with", tmp_path / "without")
    counters = [
        [json.loads(line)["counters"] for line in
         (jobs.folder(tmp_path / name) / "metrics.jsonl").read_text().splitlines()]
        for name in ("with", "without")
    ]
    assert counters[0] == counters[1]


# ---- activations are kept ----------------------------------------------------------------------
def test_activations_are_computed_once_and_within_the_budget(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec, tight = f"{METHODS}:Patches", ("BANK.GB", "0.00001")
    with pytest.raises(ConfigError, match=r"patch features take .*above BANK\.GB 1e-05: .*bf16"):
        built(tmp_path, spec, *tight)
    assert not any(p.stat().st_size for p in (tmp_path / "cache").glob("*.rows"))
    first, second = built(tmp_path, spec), built(tmp_path, spec, "SEED", "2", *tight)
    for run, said in ((first, " encoded in "), (second, "patch features: all ")):
        assert any(note.startswith("patch features: ") and said in note for note in run.notes)
    one, two = (run.federation.batcher.source.features[0] for run in (first, second))
    assert torch.equal(one, two)
    assert "BANK.GB" not in second.identity["config"]
    size = f"{one[0].numel() * 4 / 1e3:.0f} kB an image"
    assert any(f"patch features take {size}, " in note for note in second.notes)
    dry = ["--trainer", spec, "--shots", "1", "--dry-run", *tight, "CACHE_DIR"]
    assert jobs.run(tmp_path / "out", *dry, str(tmp_path / "cache")) == 0
    assert f"patch features take {size}" in " ".join(capsys.readouterr().out.split())
    assert jobs.run(tmp_path / "out", *dry, str(tmp_path / "none")) == 2, "before, it said nothing"
    assert "above BANK.GB 1e-05" in capsys.readouterr().err
    assert not list((tmp_path / "none").rglob("*.rows")), "and makes no store"


def test_bfloat16_activations_are_proved_and_named(tmp_path: Path) -> None:
    spec = f"{METHODS}:TwoStreams"
    low = built(tmp_path, spec, "BANK.PREC", "bf16")
    assert len(proofs(tmp_path)) == 1
    stream = low.federation.batcher.source.fetch(torch.tensor([0]), 0)
    assert stream["tokens.0"].dtype is torch.bfloat16
    assert stream["features"].dtype is torch.float32
    assert any("kept in bf16 (BANK.PREC)" in note for note in low.notes)
    assert low.identity["config"]["BANK.PREC"] == "bf16"
    with pytest.raises(ConfigError, match=r"tokens\.1 gives other"):
        built(tmp_path, spec, "BANK.PREC", "bf16", "TRAINER.TWOSTREAMS.ENTER", "1")
