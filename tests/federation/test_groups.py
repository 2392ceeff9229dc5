"""The final personalisation: a function of state and seed that changes neither."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedvlm.check.compare import copy_fed, same_fed, same_tree
from fedvlm.check.disk import read_state, write_state
from fedvlm.check.world import SIZES, CheckWorld, Setup
from fedvlm.core.errors import ConfigError, DivergedError
from fedvlm.core.trees import Tree, unstack
from fedvlm.federation.discovery import load_trainer
from fedvlm.federation.rounds import Federation, RoundFinished, WholeState
from fedvlm.federation.server import Measure

BOTH = ("PEFT.VISUAL", "feature")
METHODS = ["FedAvg", "FedTV", "FedRep", "FedBABU", "LG-FedAvg", "Ditto"]


def world(epochs: int | None, *more: str) -> CheckWorld:
    asked = [] if epochs is None else ["FED.FINETUNE_EPOCHS", str(epochs)]
    return CheckWorld([*BOTH, *asked, *more])


def models(fed: Federation, whole: WholeState, finetune: bool = True) -> dict[int, Tree]:
    found: dict[int, Tree] = {}
    for ids, p in fed.personal(fed.adopt(whole), range(fed.plan.clients), finetune=finetune):
        found |= dict(zip(ids, unstack(p, len(ids)), strict=True))
    return found


@pytest.mark.parametrize("name", METHODS)
def test_it_changes_the_last_evaluation_and_nothing_else(name: str, tmp_path: Path) -> None:
    """Same training as without; same bits when repeated, after a reload, and stacked (1e-9)."""
    place, cls = world(2), load_trainer(name)
    run = place.record(cls)
    fed, end = run.fed, run.states[-1]
    before = copy_fed(end)
    tuned, again = models(fed, end), models(fed, end)
    after = fed.read(fed.adopt(end))
    same_fed(after, before, "the state after two fine-tunings")
    same_fed(end, world(0).record(cls).states[-1], "a run without fine-tuning")
    plain = models(fed, end, finetune=False)
    write_state(tmp_path, fed, fed.adopt(end))
    other = place.federation(cls)
    back = other.read(read_state(tmp_path, other, on_disk=True))
    fresh = models(place.federation(cls), back)
    stacked = models(place.federation(cls, Setup(chunk=4)), end)
    for client in range(len(SIZES)):
        same_tree(again[client], tuned[client], "repeated")
        same_tree(fresh[client], tuned[client], "after a reload")
        same_tree(stacked[client], tuned[client], "stacked", 1e-9)
        assert any(not torch.equal(v, plain[client][n]) for n, v in tuned[client].items())


def test_only_after_the_last_round() -> None:
    run = world(2).record(load_trainer("FedAvg"))
    told = [(e.round, bool(e.finetuning)) for e in run.events]
    assert told == [(1, False), (2, False), (3, True)]
    early = run.states[1]
    a, b = models(run.fed, early), models(run.fed, early, finetune=False)
    for client in a:
        same_tree(a[client], b[client], "round 1")
    assert run.fed.finetuning_cost() == {
        "epochs": 2, "lr": 0.05, "samples": 2 * sum(SIZES),
        "steps": 2 * sum(run.fed.batcher.lengths(range(len(SIZES)), 1)),
    }


def moved_names(run_world: CheckWorld, name: str) -> set[str]:
    run = run_world.record(load_trainer(name))
    tuned, plain = models(run.fed, run.states[-1]), models(run.fed, run.states[-1], False)
    return {n for n, v in tuned[0].items() if not torch.equal(v, plain[0][n])}


@pytest.mark.parametrize(
    ("name", "asked", "expected"),
    [
        ("FedAvg", "own", {"text.ctx", "image.adapter.down", "image.adapter.up"}),
        ("FedAvg", "head", {"text.ctx"}),
        ("FedAvg", "body", {"image.adapter.down", "image.adapter.up"}),
        ("FedPer", "own", {"text.ctx"}),
        ("FedPer", "shared", {"image.adapter.down", "image.adapter.up"}),
        ("LG-FedAvg", "own", {"image.adapter.down", "image.adapter.up"}),
        ("LG-FedAvg", "personal", {"image.adapter.down", "image.adapter.up"}),
        ("FedBABU", "own", {"text.ctx", "image.adapter.down", "image.adapter.up"}),  # FT_PART full
        ("FedBABU", "all", {"text.ctx", "image.adapter.down", "image.adapter.up"}),
        ("LocalOnly", "personal", {"text.ctx", "image.adapter.down", "image.adapter.up"}),
    ],
)
def test_what_is_trained(name: str, asked: str, expected: set[str]) -> None:
    assert moved_names(world(1, "FED.FINETUNE_TRAIN", asked), name) == expected


@pytest.mark.parametrize(("name", "epochs"), [("FedAvg", 0), ("FedRep", 10), ("FedBABU", 5)])
def test_the_methods_own_number(name: str, epochs: int) -> None:
    cls = load_trainer(name)
    assert world(None).federation(cls).finetuning.epochs == epochs
    assert world(0).federation(cls).finetuning.epochs == 0
    assert world(3).federation(cls).finetuning.epochs == 3


def test_own_rate() -> None:
    cls = load_trainer("FedBABU")
    given = ("TRAINER.FEDBABU.FT_LR", "0.25")
    assert world(None, *given).federation(cls).finetuning.lr == 0.25
    over = world(None, *given, "FED.FINETUNE_LR", "0.5").federation(cls)
    assert over.finetuning.lr == 0.5


def test_nothing_to_train_is_refused_before_training() -> None:
    with pytest.raises(ConfigError, match="LocalOnly would train nothing: it needs shared"):
        world(1, "FED.FINETUNE_TRAIN", "shared").federation(load_trainer("LocalOnly"))


def test_a_number_that_is_not_finite_is_named_or_left_visible() -> None:
    cls = load_trainer("FedAvg")
    state = world(1).record(cls).states[-1]
    poisoned = Setup(poisoned=(1,))
    with pytest.raises(DivergedError, match="round 3, client 1: loss of fit 'finetune'"):
        models(world(1).federation(cls, poisoned), state)
    found = models(world(1).federation(cls, Setup(poisoned=(1,), nonfinite="drop")), state)
    whole = {c: all(bool(v.isfinite().all()) for v in p.values()) for c, p in found.items()}
    assert whole == {0: True, 1: False, 2: True, 3: True}


def test_the_event_measures_both() -> None:
    seen: list[RoundFinished] = []
    fed = world(1).federation(load_trainer("FedAvg"))
    fed.subscribers.append(lambda e: seen.append(e) if isinstance(e, RoundFinished) else None)
    fed.meter = lambda measure, models: [
        {"client": ids[0], "sum": float(p["text.ctx"].sum())} for ids, p in models
    ]
    state = fed.run()
    ((after,), (before,)) = (seen[-1].rows([0], Measure(finetuned=f)) for f in (True, False))
    for row, finetune in ((after, True), (before, False)):
        assert row["sum"] == float(models(fed, fed.read(state), finetune)[0]["text.ctx"].sum())
    assert after != before
