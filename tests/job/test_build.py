"""What a build refuses before it encodes an image, and where validation samples come from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fedvlm.core.errors import ConfigError
from tests import jobs

LATE = [
    (["TEST.SELECT", "val", "DATASET.VAL_SHOTS", "0"], "no validation images"),
    (["TRAINER.FEDTV.RANK", "99"], "TRAINER.FEDTV.RANK 99"),
    (["MODEL.BACKBONE.PRETRAINED", "False"], "has its own"),
    (["FED.EARLY_STOP", "1", "DATASET.VAL_SHOTS", "0"], "FED.EARLY_STOP 1: client 0 and"),
    (["FED.EPOCHS_RANGE", "1,x"], "FED.EPOCHS_RANGE ('1', 'x'): expects two whole numbers"),
    (["FED.EPOCHS_RANGE", "(1, 99)"], "FED.LOCAL_EPOCHS, which is"),
    (["FED.LOCAL_STEPS", "3", "FED.EARLY_STOP", "1"], "set only one of the two"),
    (["OPTIM.KEEP_STATE", "True", "OPTIM.MOMENTUM", "0"], "has no state to keep"),
]


@pytest.mark.parametrize(("opts", "said"), LATE)
def test_mistakes_are_told_before_images_are_encoded(
    opts: list[str], said: str, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    def no(*_: Any, **__: Any) -> None:
        raise AssertionError("encoded images first")

    monkeypatch.setattr("fedvlm.job.build.image_sources", no)
    assert jobs.run(tmp_path, "--opts", *opts) == ConfigError.exit_code
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(("words", "said"), [
    (["--trainer", "PromptSRC", "--backbone", "RN50"], "that of RN50 is a ResNet without blocks"),
    (["--trainer", "FedAvg", "--peft", "prompt", "--dry-run", "PEFT.RANKS", "2,4"],
     "PEFT.RANKS 2,4: FedAvg trains no LoRA here"),
    (["--trainer", "FedPHA", "--dry-run", "TRAINER.FEDPHA.LOCAL_LENGTHS", "4,32"],
     "LOCAL_LENGTHS holds '32'"),
])
def test_mistakes_are_told_before_weights_are_fetched(
    words: list[str], said: str, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    def no(*_: Any, **__: Any) -> None:
        raise AssertionError("fetched weights first")

    monkeypatch.setattr("fedvlm.job.inputs.load_backbone", no)
    assert jobs.run(tmp_path, *words) == ConfigError.exit_code
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("more", [(), ("--plain",)])
def test_validation_samples_come_unaugmented(more: tuple[str, ...], tmp_path: Path) -> None:
    from fedvlm.job.build import build_run
    from fedvlm.job.flags import parse
    from fedvlm.job.resolve import resolve

    words = [*jobs.argv(tmp_path, *more), "--opts", "INPUT.VIEWS", "2"]
    built = build_run(resolve(parse(words)).jobs[0].cfg)
    batch = built.federation.batcher.whole([0], "val")
    assert batch is not None
    (stream, values), = batch.x.items()
    own = torch.from_numpy(built.data.clients[0].val.copy())
    assert torch.equal(values[0], built.test.fetch(own, 0)[stream])


def test_keys_of_the_local_training_reach_the_plan(tmp_path: Path) -> None:
    from fedvlm.federation.optim import RoleSpec
    from fedvlm.job.build import make_budget, make_plan
    from fedvlm.job.flags import parse
    from fedvlm.job.resolve import resolve

    def plan_of(*opts: str) -> Any:
        cfg = resolve(parse([*jobs.argv(tmp_path), "--opts", *opts])).jobs[0].cfg
        return cfg, make_plan(cfg)

    _, plan = plan_of(
        "OPTIM.LORA.LR", "0.1", "OPTIM.HEAD.NAME", "adam", "OPTIM.HEAD.WEIGHT_DECAY", "0",
        "OPTIM.CLIP", "2", "OPTIM.KEEP_STATE", "True", "FED.EPOCHS_RANGE", "1,2",
    )
    assert plan.optim.roles == {"lora": RoleSpec(lr=0.1), "head": RoleSpec("adam", 0.0, 0.0)}
    assert (plan.optim.clip, plan.optim.keep, plan.epochs_range) == (2.0, True, (1, 2))
    _, bare = plan_of("OPTIM.LR", "0.005")
    assert (bare.optim.roles, bare.optim.clip, bare.optim.keep) == ({}, 0.0, False)
    assert (bare.local_steps, bare.epochs_range, bare.early_stop) == (0, (), 0)
    cfg, steps = plan_of("FED.LOCAL_STEPS", "7", "FED.BUDGET", "steps")

    class Sizes:
        batch_size = 4

        def sizes(self, clients: Any) -> list[int]:
            return [5] * len(clients)

        def lengths(self, clients: Any, epochs: int) -> list[int]:
            return [2 * epochs] * len(clients)

    assert make_budget(cfg, steps, Sizes()).plain == (7 * steps.clients,) * steps.rounds  # type: ignore[arg-type]


@pytest.mark.parametrize(("role", "said"), [("LORA", True), ("CONTEXT", False)])
def test_a_role_that_no_tensor_has_is_noted(role: str, said: bool, tmp_path: Path) -> None:
    from fedvlm.job.build import build_run
    from fedvlm.job.flags import parse
    from fedvlm.job.resolve import resolve

    words = [*jobs.argv(tmp_path), "--opts", f"OPTIM.{role}.LR", "0.2"]
    notes = build_run(resolve(parse(words)).jobs[0].cfg, pixels=True).notes
    assert any(f"OPTIM.{role} is set, but no tensor is of this role" in n for n in notes) is said
