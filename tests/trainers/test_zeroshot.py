"""ZeroShot: the reference row's numbers, by way of a trainer without tensors."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedvlm.check.world import CheckWorld
from fedvlm.core.errors import ConfigError
from fedvlm.evaluation.evaluator import template_predictor
from fedvlm.federation.discovery import load_trainer
from tests import jobs


def test_logits_are_the_templates() -> None:
    world = CheckWorld()
    run = world.record(load_trainer("ZeroShot"))
    fed = run.fed
    assert fed.p0 == {} and run.states[-1].server == {"w": {}}
    assert run.events[-1].counters.get("steps", 0) == 0
    x = {"features": world.features[None, :5].expand(3, 5, -1)}
    state = fed.adopt(run.states[-1])
    for p in (fed.shared(state), *(p for _, p in fed.personal(state, [0, 1]))):
        ours = fed.trainer.predict(fed.model, p, x)
        assert torch.equal(ours, template_predictor(fed.model)(x))
        other = fed.model.with_classes(["hen", "wolf"])
        assert fed.trainer.predict(other, p, x).shape == (3, 5, 2)


def test_nothing_can_be_fine_tuned() -> None:
    with pytest.raises(ConfigError, match="ZeroShot would train nothing.*--finetune-epochs 0"):
        CheckWorld(["FED.FINETUNE_EPOCHS", "2"]).federation(load_trainer("ZeroShot"))


def test_command_equals_the_reference_row(tmp_path: Path) -> None:
    assert jobs.run(tmp_path, "--trainer", "ZeroShot") == 0
    found = jobs.results(tmp_path)
    names = ("personal", "personal_worst", "global", "base_all", "base_other", "new")
    assert [found["last"][n] for n in names] == [found["zero_shot"][n] for n in names]
