"""``check`` runs cached streams against pixels (G13), with the method's own YAML."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedvlm.check.compare import Broken
from fedvlm.check.invariants import INVARIANTS, run
from fedvlm.check.world import CheckWorld, Setup
from fedvlm.cli.verbs import verbs
from fedvlm.core.errors import ConfigError
from fedvlm.federation.trainer import Trainer
from fedvlm.models.features.sources import FeatureSource

from ..block_prompts import (
    AllStreams,
    BlockPrompts,
    FirstClients,
    HalfFeatures,
    LastPatches,
    LateLora,
    Patches,
    TwoStreams,
)

ENTER = "TRAINER.BLOCKPROMPTS.ENTER"


def test_the_right_block_passes() -> None:
    assert {v.name: v.detail for v in run(BlockPrompts) if v.state != "ok"} == {}


@pytest.mark.parametrize(("enter", "stream"), [("1", "tokens.1"), ("-1", "tokens.2")])
def test_a_wrong_block_is_broken(enter: str, stream: str) -> None:
    said = rf"{stream} gives other numbers than pixels: .*'image\.prompt\..*at or before block 0"
    with pytest.raises(Broken, match=said):
        INVARIANTS["G13"](CheckWorld([ENTER, enter]), BlockPrompts)


def test_late_lora_and_mixed_clients_are_broken() -> None:
    opts = ["PEFT.TEXT", "none", "PEFT.VISUAL", "lora", "TRAINER.LATELORA.ENTER", "1"]
    with pytest.raises(Broken, match=r"'image\.lora\.0"):
        INVARIANTS["G13"](CheckWorld(opts), LateLora)
    with pytest.raises(Broken, match="tokens.0 gives other numbers"):
        INVARIANTS["G13"](CheckWorld(), FirstClients)


@pytest.mark.parametrize("trainer", [TwoStreams, Patches, AllStreams])
def test_several_streams_and_patches_pass(trainer: type[Trainer]) -> None:
    assert {v.name: v.detail for v in run(trainer) if v.state != "ok"} == {}


@pytest.mark.parametrize(
    ("trainer", "stream"), [(HalfFeatures, "features"), (LastPatches, "patches")]
)
def test_a_wrong_second_stream_and_wrong_patches_are_broken(
    trainer: type[Trainer], stream: str
) -> None:
    with pytest.raises(Broken, match=f"stream {stream} gives other numbers than pixels"):
        INVARIANTS["G13"](CheckWorld(), trainer)


def test_the_world_has_a_real_bank() -> None:
    """A method inside the tower trains on activations, not on pixels."""
    world = CheckWorld()
    source = world.federation(BlockPrompts).batcher.source  # type: ignore[attr-defined]
    assert isinstance(source, FeatureSource) and source.stream == "tokens.0"
    pixels = world.federation(BlockPrompts, Setup(pixels=True)).batcher
    assert not isinstance(pixels.source, FeatureSource)  # type: ignore[attr-defined]


MINE = """
import torch
from fedvlm.method import Option, Trainer

class Mine(Trainer):
    name = "Mine"
    options = {"SHIFT": Option(0.0, "added to the loss of nobody")}

    def trainables(self, model, generator):
        return {"text.ctx": torch.randn(4, model.text_width, generator=generator) * 0.02}

    def loss(self, model, params, batch):
        if self.cfg.SHIFT:
            return params["text.shift"]
        return super().loss(model, params, batch)
"""


def test_the_methods_yaml_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    some = {name: INVARIANTS[name] for name in ("G1", "G10", "G13")}
    monkeypatch.setattr("fedvlm.check.invariants.INVARIANTS", some)
    code, yaml = tmp_path / "mine.py", tmp_path / "mine.yaml"
    code.write_text(MINE)
    yaml.write_text("TRAINER:\n  MINE:\n    SHIFT: 1.0\n")
    check = verbs()["check"].run
    assert check([f"{code}:Mine"]) == 0
    assert check([f"{code}:Mine", "--trainer-config-file", str(yaml)]) == 1
    assert check([f"{code}:Mine", "TRAINER.MINE.SHIFT", "0",
                  "--trainer-config-file", str(yaml)]) == 0
    lines = capsys.readouterr().out.splitlines()
    (g1,) = [line for line in lines if line.startswith("G1   broken")]
    assert "there is no 'text.shift'" in g1 and g1.endswith("(mine.py, line 14, in loss)")
    (g13,) = [line for line in lines if line.startswith("G13  broken")]
    assert "there is no 'text.shift'" in g13
    assert not any("KeyError: '" in line for line in lines)


def test_mistakes_of_the_yaml_are_told(tmp_path: Path) -> None:
    code, yaml = tmp_path / "mine.py", tmp_path / "mine.yaml"
    code.write_text(MINE)
    yaml.write_text("TRAINER:\n  MINE:\n    SHIFTS: 1.0\n")
    check = verbs()["check"].run
    with pytest.raises(ConfigError, match=r"mine\.yaml:3: .*SHIFTS"):
        check([f"{code}:Mine", "--trainer-config-file", str(yaml)])
    with pytest.raises(ConfigError, match="no config 'nope.yaml'"):
        check([f"{code}:Mine", "--trainer-config-file", "nope.yaml"])
