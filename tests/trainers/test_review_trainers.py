"""What a review of the trainers found and mended; and the choice of the proxy images."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedvlm.check.world import Setup, World
from fedvlm.core.errors import ConfigError
from fedvlm.federation.discovery import load_trainer
from fedvlm.federation.toolbox.adaptation import client_split, held_out_indices
from tests.trainers.toys import drive
from tests.trainers.toys_e import Recorded, federation

LORA = {"PEFT.TEXT": "none", "PEFT.VISUAL": "lora", "PEFT.RANK": "2"}
ADAPTER = {"PEFT.TEXT": "none", "PEFT.VISUAL": "adapter", "PEFT.WIDTH": "4"}
EQUAL = {"AKT": True, "AKT_PROXY": "train", "AKT_SHARE": 0.4, "AKT_STEPS": 1, "AKT_BATCH": 4,
         "AKT_ATTACK_STEPS": 0, "AKT_ROUNDS": 1.0}


# ---- LoRA factors of another basis ---------------------------------------------------------------
@pytest.mark.parametrize("name", ["FedALA", "HEART-PFL"])
def test_factors_of_two_rounds_are_not_compared_under_product_svd(name: str) -> None:
    """FedALA blends them number by number, HEART-PFL pulls v to w: both need one basis."""
    words = [w for key, value in LORA.items() for w in (key, value)]
    with pytest.raises(ConfigError, match="LORA_AVG.*factors or freeze_a"):
        World([*words, "PEFT.LORA_AVG", "product_svd"]).federation(load_trainer(name))
    World([*words, "PEFT.LORA_AVG", "factors"]).federation(load_trainer(name))


# ---- HEART-PFL -----------------------------------------------------------------------------------
def test_heart_distils_with_a_fixed_factor() -> None:
    """Uploads lack LoRA's A under freeze_a; the server's models must have it nevertheless."""
    keys = LORA | {"PEFT.LORA_AVG": "freeze_a"}
    options = {"AKT": True, "AKT_STEPS": 2, "AKT_BATCH": 4, "AKT_ATTACK_STEPS": 1,
               "AKT_ROUNDS": 1.0, "AKT_GATE": "none", "AKT_LR": 0.01}
    fed = federation("HEART-PFL", options, keys, rounds=1)
    plain = federation("HEART-PFL", options | {"AKT": False}, keys, rounds=1)
    state, without = fed.run(), plain.run()
    assert all(name.endswith(".B") for name in state.server["w"])
    assert all(name.endswith(".A") for name in state.server["fixed"])
    assert "fixed" not in without.server
    moved = [not torch.equal(v, without.server["w"][n]) for n, v in state.server["w"].items()]
    assert any(moved)


def test_heart_fine_tunes_without_the_proxys_share() -> None:
    """AKT_PROXY train promises that clients do not train on it; that holds at the end too."""
    fed = federation("HEART-PFL", EQUAL, ADAPTER | {"FED.FINETUNE_EPOCHS": 2}, rounds=1)
    state = fed.run()
    source = fed.batcher.source
    assert isinstance(source, Recorded)
    source.seen.clear()
    tuned = {c: p for ids, p in fed.personal(state, [0, 1, 2], chunk=1) for c in ids}
    aside = set(held_out_indices(fed.batcher, 0.4, 1))
    assert aside and source.seen and not source.seen & aside
    before = dict(fed.personal(state, [0], chunk=1, finetune=False).__next__()[1])
    assert any(not torch.equal(v, before[n]) for n, v in tuned[0].items())


def test_set_aside_is_validation_or_a_share_of_training() -> None:
    batcher = federation("HEART-PFL", {}, ADAPTER).batcher
    assert held_out_indices(batcher, None, 1) == sorted(
        int(i) for s in batcher.splits for i in s.val
    )
    parts = [client_split(batcher, k, 0.4, 1).val for k in range(3)]
    assert held_out_indices(batcher, 0.4, 1) == sorted(np.concatenate(parts).tolist())


# ---- Hermes --------------------------------------------------------------------------------------
def test_hermes_goes_on_where_a_round_draws_only_clients_without_validation_images() -> None:
    """It used to end a long run in the round that happened to draw such clients alone."""
    world = World(["PEFT.TEXT", "prompt", "PEFT.VISUAL", "feature"])
    hermes = load_trainer("Hermes")
    blind = [replace(s, val=np.zeros(0, np.int64)) for s in world.splits[1:]]
    fed = world.federation(hermes, Setup(splits=[world.splits[0], *blind]))
    state = fed.start()
    drawn = type("Drawn", (type(fed.plan),), {"sample": lambda self, round_: [1]})
    fed.plan = drawn(**vars(fed.plan))
    after = fed.round(state, 1)
    assert fed.trainer.report["without_validation"] == [1] and after.round == 1


def test_hermes_says_what_it_uses_beside_training_images() -> None:
    world = World(["PEFT.TEXT", "prompt", "PEFT.VISUAL", "feature"])
    assert "validation" in world.federation(load_trainer("Hermes")).trainer.extra_data


# ---- Per-FedAvg ----------------------------------------------------------------------------------
def test_per_fedavg_gives_no_weight_to_a_client_without_samples() -> None:
    one = drive("Per-FedAvg", 1, sizes=(2, 2))[1]
    fed, state = drive("Per-FedAvg", 1, sizes=(0, 2))
    alone = float(fed.p0["image.w"])
    moved = float(state.server["w"]["image.w"])
    # client 0 has its optimum at the start: with two samples it stays there and halves the move
    assert moved == pytest.approx(2 * float(one.server["w"]["image.w"])) and moved != alone
