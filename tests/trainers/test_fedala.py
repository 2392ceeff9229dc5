"""FedALA against closed forms."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedvlm.check.compare import copy_fed, same_fed
from fedvlm.check.world import CheckWorld, Setup, Trajectory
from fedvlm.core.trees import Tree
from fedvlm.federation.batches import Batch
from fedvlm.federation.discovery import load_trainer
from tests.federation.toys import quadratic

from .toys import drive, own, personal, toy

FedALA = load_trainer("FedALA")
PROMPT = ["PEFT.VISUAL", "none"]


def one(value: float) -> torch.Tensor:
    return torch.tensor([value], dtype=torch.float64)


def steps(eta: float, count: int) -> list[float]:
    """Mixing weights after each step, w_l = 0, w_g = 4, F = (w - 1)^2 / 2."""
    made = toy("FedALA", options={"MIX_LR": eta})
    ctx = quadratic(made, 1).context([0], 1)
    batch = Batch({"a": one(1)[None], "b": one(1)[None]}, torch.zeros(1, 1), one(1)[None])
    mix: Tree = {"image.w": one(1.0)}
    pair, found = ({"image.w": one(0.0)}, {"image.w": one(4.0)}), []
    for _ in range(count):
        mix, _ = made.mix_step(ctx, {"image.w": one(4.0)}, pair, mix, batch)
        found.append(float(mix["image.w"]))
    return found


def test_mixing_weight_finds_the_optimum() -> None:
    found = steps(0.05, 30)
    assert found[0] == pytest.approx(1 - 0.05 * (4 - 1) * 4)
    assert found[-1] == pytest.approx(0.25, abs=1e-12)  # the mixture is then 4 * 0.25 = 1


def test_step_of_one_can_swing() -> None:
    assert steps(1.0, 4) == [0.0, 1.0, 0.0, 1.0]


def test_first_round_takes_all_of_the_received_model() -> None:
    _, state = drive("FedALA", 1)
    assert own(state) == pytest.approx([0.0, 1.2], abs=1e-12)  # plain FedAvg's first step
    assert own(state, slot="mix") == [1.0, 1.0]
    assert own(state, "learned", "ala") == [0.0, 0.0]


def test_round_two_starts_from_the_mixture() -> None:
    options = {"MIX_LR": 0.05, "MAX_EPOCHS": 200, "STEADY": 1e-12}
    fed, state = drive("FedALA", 2, options=options)
    # w_g = 0.6: client 0 (b = 0, w_l = 0) takes nothing of it in the limit; client 1 (b = 4,
    # w_l = 1.2) would go beyond what it has: away from 0.6, so it takes nothing either
    assert own(state, "learned", "ala") == [1.0, 1.0]
    mix = own(state, slot="mix")
    assert mix[1] == 0.0 and 0 <= mix[0] < 0.1
    start = 1.2 + (0.6 - 1.2) * mix[1]
    assert own(state)[1] == pytest.approx(start - 0.1 * 3 * (start - 4), abs=1e-12)
    assert len(personal(fed, state)) == 2


def test_passes_many_the_first_time_then_one() -> None:
    """Four steps a pass, of which the share of 0.8 is rounded up to four; of 0.5 two."""
    for share, used in ((0.8, 4), (0.5, 2), (0.01, 1)):
        options = {"MIX_LR": 0.05, "SHARE": share, "MAX_EPOCHS": 7, "STEADY": 0.0}
        made = toy("FedALA", options=options)
        fed = quadratic(made, 4, sizes=(4, 4), batch=1)
        seen: list[Any] = []
        fed.subscribers.append(seen.append)
        fed.run()
        spent = [e.counters.get("mix_steps", 0) for e in seen if hasattr(e, "counters")][1:]
        assert spent == [0, 2 * 7 * used, 2 * used, 2 * used]


def test_steady_losses_end_the_first_time() -> None:
    options = {"MIX_LR": 0.05, "MAX_EPOCHS": 50, "STEADY": 100.0}
    fed = quadratic(toy("FedALA", options=options), 2)
    seen: list[Any] = []
    fed.subscribers.append(seen.append)
    fed.run()
    assert seen[-1].counters["mix_steps"] == 2 * 11  # ten losses and one more


@pytest.fixture(scope="module")
def run() -> Trajectory:
    """Three rounds with a prompt alone."""
    return CheckWorld(PROMPT).trajectory(FedALA)


def test_evaluation_leaves_the_state_alone(run: Trajectory) -> None:
    before = run.states[-1]
    state = run.fed.adopt(copy_fed(before))
    first = [p for _, p in run.fed.personal(state, [0, 1])]
    again = [p for _, p in run.fed.personal(state, [0, 1])]
    assert all(torch.equal(a["text.ctx"], b["text.ctx"])
               for a, b in zip(first, again, strict=True))
    same_fed(run.fed.read(state), before, "after evaluation")
    received = before.server["w"]["text.ctx"]
    assert not torch.equal(first[0]["text.ctx"][0], received)
    assert not torch.equal(first[0]["text.ctx"][0], before.clients[0]["w"]["text.ctx"])


def test_weights_stay_in_the_unit_interval_and_never_travel(run: Trajectory) -> None:
    for state in run.states[-1].clients.values():
        mix = state["mix"]["text.ctx"]
        assert 0 <= float(mix.min()) <= float(mix.max()) <= 1
    assert all(set(e.updates.params) == {"text.ctx"} and not e.updates.extras
               and len(e.updates) == 4 for e in run.events)


@pytest.mark.parametrize(
    ("layers", "names"),
    [(1, {"text.ctx"}), (2, {"image.adapter.up", "text.ctx"}),
     (0, {"image.adapter.down", "image.adapter.up", "text.ctx"})],
)
def test_layers_counts_from_the_output(layers: int, names: set[str]) -> None:
    world = CheckWorld(["PEFT.VISUAL", "feature", "PEFT.WIDTH", "6"])
    run = world.record(FedALA, Setup(rounds=2, opts={"LAYERS": layers, "MAX_EPOCHS": 2}))
    state = run.states[-1].clients[0]
    assert set(state["mix"]) == names
    assert any(bool((v < 1).any()) for v in state["mix"].values())


# ---- several clients at once --------------------------------------------------------------------
def stopping(chunk: int, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, list[Any]]:
    """Three clients of 9, 6 and 3 samples whose losses are steady after unlike numbers of passes.

    Each client of the first round moves by itself; in the second all have something to choose.
    """
    monkeypatch.setattr("tests.federation.toys.A", (1.0, 3.0, 0.4))
    monkeypatch.setattr("tests.federation.toys.B", (0.0, 4.0, 2.0))
    made = toy("FedALA", options={"MIX_LR": 0.02, "STEADY": 0.02, "SHARE": 0.6, "MAX_EPOCHS": 40})
    fed = quadratic(made, 3, sizes=(9, 6, 3), batch=2, chunk=chunk)
    seen: list[Any] = []
    fed.subscribers.append(seen.append)
    return fed.run(), [e for e in seen if hasattr(e, "counters")][1:]


def test_stacked_clients_stop_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Within 1e-12 of client by client, and with as many steps: nobody waits, nobody goes on."""
    alone, one = stopping(1, monkeypatch)
    together, all_ = stopping(3, monkeypatch)
    counts = [
        [(e.counters.get("mix_steps", 0), e.counters["gradient_samples"]) for e in events]
        for events in (one, all_)
    ]
    assert counts[0] == counts[1]
    spent = [taken for taken, _ in counts[0]]
    assert spent[1] not in (0, 40 * (3 + 2 + 2)) and spent[2] == 3 + 2 + 2
    for slot, name in (("w", "image.w"), ("mix", "image.w"), ("ala", "learned")):
        assert own(together, name, slot) == pytest.approx(own(alone, name, slot), abs=1e-12)
    assert len(set(own(alone, slot="mix"))) == 3
