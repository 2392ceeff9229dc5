"""FedDPA: two adapters mixed image by image, trained in turn (T) or one after the other (F)."""

from __future__ import annotations

import sys
from functools import cache

import pytest
import torch
import torch.nn.functional as F

from fedvlm.check.world import CheckWorld, Setup
from fedvlm.config.build import build_config
from fedvlm.config.keys import default_schema
from fedvlm.config.option import declare
from fedvlm.config.sections import read_keys
from fedvlm.core.errors import ConfigError
from fedvlm.core.trees import Tree
from fedvlm.federation.discovery import load_trainer
from fedvlm.federation.trainer import Trainer
from fedvlm.models.towers.adapters import LORA, PRIVATE_LORA, TreeEdits, mix_peft
from tests.trainers.small_world import batch, model, tree

FedDPA = load_trainer("FedDPA")
feddpa = sys.modules[FedDPA.__module__]
OPTS = ["PEFT.RANK", "2", "PEFT.BLOCKS", "1"]


@cache
def world() -> CheckWorld:
    return CheckWorld(OPTS)


def made(**options: object) -> Trainer:
    return FedDPA(world().config(FedDPA, dict(options)))


def alone(p: Tree) -> tuple[Tree, Tree]:
    """Return the factors of the shared and of the own adapter under the same names."""
    own = {n.replace(PRIVATE_LORA, LORA): v for n, v in p.items() if PRIVATE_LORA in n}
    return {n: p[n] for n in own}, own


def test_each_image_has_its_own_share_of_both_products() -> None:
    trainer, b = made(), batch(names=("pixels",))
    p = tree(trainer)
    shared, own = alone(p)
    share = torch.rand(2, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    got = trainer.features(model(), p, b.x, share)
    for i in range(4):  # mixed products of one image at a time, exactly, as one LoRA of both ranks
        one = TreeEdits("image", mix_peft(share[:, i], own, shared), trainer.spec.scale)
        x = {"pixels": b.x["pixels"][:, i : i + 1]}
        want = model().adapted_image(x, one)[0][:, 0]
        assert torch.allclose(got[:, i], want, 0, 1e-10)
    zero = trainer.features(model(), p, b.x, torch.zeros(2, 1, dtype=torch.float64))
    assert torch.allclose(zero, trainer.features(model(), p, b.x), 0, 1e-12)


def test_the_share_is_lambda_times_the_mean_cosine() -> None:
    trainer, b = made(LAMBDA=0.7), batch(names=("pixels",))
    p = tree(trainer)
    own = alone(p)[1]
    z = model().adapted_image(b.x, TreeEdits("image", own, trainer.spec.scale))[0]
    refs = torch.randn(2, 3, z.shape[-1], dtype=torch.float64,
                       generator=torch.Generator().manual_seed(4))
    refs = F.normalize(refs, dim=-1)
    weight = torch.tensor([[1 / 3] * 3, [0.5, 0.5, 0.0]], dtype=torch.float64)
    assert trainer.share(model(), p, b.x) is None
    got = trainer.share(model(), p | {feddpa.REFERENCE: refs, feddpa.SHARE: weight}, b.x)
    for k, count in enumerate((3, 2)):
        cos = torch.stack([F.cosine_similarity(z[k], refs[k, s], -1) for s in range(count)])
        assert torch.allclose(got[k], 0.7 * cos.mean(0), 0, 1e-12)


def test_t_trains_both_and_sends_one() -> None:
    run = world().record(FedDPA, Setup(rounds=1, opts={"VARIANT": "fixed"}))
    names = run.fed.groups.personal
    assert names and all(PRIVATE_LORA in n for n in names)
    updates = run.events[0].updates
    assert updates is not None and not set(names) & set(updates.params)
    assert all(run.states[1].clients[c]["w"][n].any() for c in range(4) for n in names)
    plain = world().federation(FedDPA, Setup(rounds=1, opts={
        "WEIGHT": 0.0, "MODE": "F", "VARIANT": "fixed"})).run()
    for n, v in run.states[1].server["w"].items():  # the shared one trains alone
        assert torch.equal(v, plain.server["w"][n]), n


def test_references_are_training_images_and_newcomers_have_no_share() -> None:
    fed = world().federation(FedDPA, Setup(
        rounds=1, chunk=4, opts={"INSTANCES": 3, "VARIANT": "fixed"}))
    start = fed.start()
    found = {c: {n: v[k] for n, v in p.items()}
             for ids, p in fed.personal(start, range(4)) for k, c in enumerate(ids)}
    assert all(not p[feddpa.SHARE].any() for p in found.values())
    state = fed.run()
    for ids, p in fed.personal(state, range(4)):
        z = fed.trainer.own_features(
            fed.model, p, world().streams(fed, torch.stack([
                torch.as_tensor(world().splits[c].train[:1]) for c in ids])))
        assert z.shape[:2] == (len(ids), 1)
        for k, c in enumerate(ids):
            n = min(3, len(world().splits[c].train))
            assert p[feddpa.SHARE][k].tolist() == [1 / n] * n + [0.0] * (3 - n)
            own = {name: v[k : k + 1] for name, v in p.items()}
            x = world().streams(fed, torch.as_tensor(world().splits[c].train)[None])
            images = fed.trainer.own_features(fed.model, own, x)[0]
            near = p[feddpa.REFERENCE][k, :n] @ images.mT
            assert torch.allclose(near.max(1).values, torch.ones(n, dtype=torch.float64))


def test_f_begins_as_the_shared_adapter_after_the_last_round() -> None:
    fed = world().federation(FedDPA, Setup(rounds=1, chunk=4, opts={"MODE": "F"}))
    assert fed.finetuning.epochs == 1 and all("private" in n for n in fed.finetuning.train)
    state = fed.run()
    for ids, p in fed.personal(state, range(4)):
        assert feddpa.SHARE in p
        shared, own = alone(p)
        assert all(torch.equal(v[k], state.server["w"][n]) for n, v in shared.items()
                   for k in range(len(ids)))
        moved = sum(float((own[n] - shared[n]).abs().max()) for n in own)
        assert 0 < moved < 1  # one epoch away from the shared one; another start would be far


@pytest.mark.parametrize(("words", "said"), [
    (("PEFT.VISUAL", "feature"), "PEFT.VISUAL must be lora"),
    (("PEFT.TEXT", "lora"), "PEFT.TEXT must be none or prompt"),
])
def test_other_parts_are_refused(words: tuple[str, ...], said: str) -> None:
    there = CheckWorld([*OPTS, *words])
    with pytest.raises(ConfigError, match=said):
        FedDPA(there.config(FedDPA))


@pytest.mark.parametrize(("key", "value", "said"), [
    ("FINETUNE_TRAIN", "shared", "must be own or personal, not shared"),
    ("FINETUNE_TRAIN", "all", "must be own or personal, not all"),
    ("FINETUNE_EPOCHS", "0", "FINETUNE_EPOCHS 0 is FedAvg with LoRA"),
])
def test_f_trains_the_own_adapter_alone_or_not_at_all(key: str, value: str, said: str) -> None:
    there = CheckWorld([*OPTS, f"FED.{key}", value])
    with pytest.raises(ConfigError, match=said):
        FedDPA(there.config(FedDPA, {"MODE": "F"}))
    FedDPA(there.config(FedDPA))  # T takes it


def test_published_own_adapters_wait_a_round_and_old_words_are_read() -> None:
    run = world().record(FedDPA, Setup(rounds=2))
    own = run.fed.groups.personal
    begun, first, second = (run.states[r].clients for r in (0, 1, 2))
    assert run.fed.trainer.weighting == "uniform"
    assert all(torch.equal(first[c]["w"][n], begun[c]["w"][n])
               for c in range(4) for n in own)
    assert any(not torch.equal(first[0]["w"][n], second[0]["w"][n]) for n in own)
    schema = declare(default_schema(), "TRAINER.FEDDPA", FedDPA.options)
    old = {"TRAINER.FEDDPA.VARIANT": "F", "FED.ROUNDS": 3}
    assert read_keys(old, schema) == {"TRAINER.FEDDPA.MODE": "F", "FED.ROUNDS": 3}
    assert "TRAINER.FEDDPA.MODE" not in read_keys(old | {"TRAINER.FEDDPA.VARIANT": "T"}, schema)
    cfg = build_config(None, None, {"TRAINER.FEDDPA.VARIANT": "F"}, [], schema)[0].TRAINER.FEDDPA
    assert (cfg.MODE, cfg.VARIANT) == ("F", "published")
