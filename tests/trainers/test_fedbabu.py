"""FedBABU on the split toy, and its fixed head on a CLIP."""

from __future__ import annotations

import pytest
import torch

from fedvlm.check.world import CheckWorld
from fedvlm.federation.discovery import load_trainer
from tests.trainers.toys import G, L, drive, own, personal, shared

FIRST = {"FT_EPOCHS": 1, "FT_PART": "head"}


def test_rounds_are_fedavg_of_the_body_under_a_still_head() -> None:
    fed, state = drive("FedBABU", 100, split=True, options=FIRST)
    assert shared(state, G) == pytest.approx(3.0, abs=1e-8)
    assert own(state, L) == [0.0, 0.0]
    _, five = drive("FedBABU", 30, split=True, epochs=5)
    assert shared(five, G) == pytest.approx(2.680532285, abs=1e-8)
    # one head step from the aggregate
    assert personal(fed, state, L) == pytest.approx([-0.3, 0.3], abs=1e-8)
    assert personal(fed, state, G) == pytest.approx([3.0, 3.0], abs=1e-8)
    assert own(state, L) == [0.0, 0.0]


@pytest.mark.parametrize(
    ("part", "body", "head"),
    [("head", [3.0, 3.0], [-0.3, 0.3]), ("body", [2.7, 3.3], [0.0, 0.0]),
     ("full", [2.7, 3.3], [-0.3, 0.3])],
)
def test_parts(part: str, body: list[float], head: list[float]) -> None:
    fed, state = drive("FedBABU", 100, split=True, options=FIRST | {"FT_PART": part})
    assert personal(fed, state, G) == pytest.approx(body, abs=1e-8)
    assert personal(fed, state, L) == pytest.approx(head, abs=1e-8)


def test_fine_tuning_starts_from_the_aggregate() -> None:
    """PFLlib starts from the client's last local body, since the last aggregate is never sent."""
    fed, state = drive("FedBABU", 1, split=True, options=FIRST)
    assert own(state, G) == pytest.approx([0.0, 1.2], abs=1e-12)
    assert personal(fed, state, G) == pytest.approx([0.6, 0.6], abs=1e-12)
    assert personal(fed, state, L) == pytest.approx([-0.06, 1.02], abs=1e-12)


def test_uniform_mean_and_own_rate() -> None:
    fed, state = drive("FedBABU", 1, split=True, sizes=(3, 1), options=FIRST | {"FT_LR": 0.01})
    assert shared(state, G) == pytest.approx(0.6, abs=1e-12)
    assert personal(fed, state, L) == pytest.approx([-0.006, 0.102], abs=1e-12)
    _, state = drive("FedBABU", 1, split=True, sizes=(3, 1), options={"WEIGHTING": "samples"})
    assert shared(state, G) == pytest.approx(0.3, abs=1e-12)


@pytest.mark.parametrize("head", ["text", "linear"])
def test_the_fixed_head_is_clips_own(head: str) -> None:
    """The words "a photo of a", a class name and a full stop are the template."""
    text = "prompt" if head == "text" else "none"
    world = CheckWorld(["PEFT.VISUAL", "feature", "PEFT.TEXT", text, "PEFT.HEAD", head])
    run = world.record(load_trainer("FedBABU"))
    fed, state = run.fed, run.states[-1]
    (name,) = [n for n, group in fed.groups.of.items() if group == "frozen"]
    for client in state.clients.values():
        assert torch.equal(client["w"][name], fed.p0[name])
    found = fed.trainer.text_features(fed.model, {n: v[None] for n, v in fed.p0.items()})[0]
    expected = fed.model.anchor("template", 0)
    assert found.shape == expected.shape
    assert torch.allclose(found, expected, atol=1e-9)
