"""Attackers: closed forms of what they send, who they are, and which rule stands them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedvlm.core.errors import ConfigError
from fedvlm.federation.aggregation.rules import AggregateSpec, combine
from fedvlm.federation.aggregation.updates import Updates
from fedvlm.federation.batches import Batch
from fedvlm.federation.reliability.hostile import (
    Hostile,
    Trigger,
    alie_deviations,
    broken_assumption,
    check_attack,
    draw_hostile,
)

from ..toys import Quadratic, quadratic

HONEST = [[1.0, 0.0], [1.1, 0.1], [0.9, -0.1], [1.0, 0.2], [1.2, 0.0], [0.8, -0.2], [1.0, 0.0]]


def updates(*own: list[float], home: float = 10.0) -> Updates:
    """Seven honest clients, and those of ``own`` behind them; all received ``home``."""
    moves = torch.tensor([*HONEST, *own], dtype=torch.float64)
    start = torch.full_like(moves, home)
    return Updates(
        tuple(range(len(moves))), {"w": start + moves}, torch.ones(len(moves)).double(),
        received={"w": start},
    )


@pytest.mark.parametrize(("kind", "strength", "expected"), [
    ("sign", 0.0, [-3.0, -4.0]), ("sign", 2.0, [-6.0, -8.0]), ("scale", 0.0, [30.0, 40.0]),
    ("scale", 100.0, [300.0, 400.0]), ("constant", 0.5, [0.5, 0.5]),
])
def test_what_is_sent_in_closed_form(
    kind: str, strength: float, expected: list[float]
) -> None:
    before = updates([3.0, 4.0])
    after = Hostile(kind, (7,), strength).corrupt(before)
    moves = after.params["w"] - after.received["w"]
    assert moves[7].tolist() == pytest.approx(expected)
    assert torch.equal(after.params["w"][:7], before.params["w"][:7])
    assert before.params["w"][7].tolist() == [13.0, 14.0]  # what was given is not written into


def test_alie_sends_the_honest_mean_less_some_deviations() -> None:
    after = Hostile("alie", (7, 8), 1.5).corrupt(updates([9.0, 9.0], [-9.0, 9.0]))
    honest = torch.tensor(HONEST, dtype=torch.float64)
    expected = honest.mean(0) - 1.5 * honest.std(0, correction=0)
    for k in (7, 8):
        assert (after.params["w"][k] - 10).tolist() == pytest.approx(expected.tolist())


def test_alies_own_formula() -> None:
    """n 50, m 24: s = 2 supporters, z = Phi^-1(24/26)."""
    assert alie_deviations(50, 24) == pytest.approx(1.4261, abs=1e-4)
    assert alie_deviations(10, 2) == 0.0  # half of the honest would have to support it
    assert alie_deviations(5, 4) == 0.0


def test_an_attack_without_effect_says_why() -> None:
    """And results have the strength that was used."""
    alie = Hostile("alie", (3, 7), cohort=10, members=10)
    assert "formula of alie gives strength 0 for 2 hostile of 10 clients" in alie.idle()
    assert alie.report([])["strength"] == 0 and alie.report([])["scale"] == 0
    three = replace(alie, clients=(3, 7, 8))
    for other, used in ((replace(alie, strength=1.5), 1.5), (three, 0.18)):
        assert not other.idle() and other.report([])["strength"] == pytest.approx(used, abs=1e-3)
    alone = replace(alie, clients=tuple(range(10)))
    assert "does nothing here, because" in alone.idle() and "no client is honest" in alone.idle()
    assert alone.report([])["strength"] is None
    flip = Hostile("label_flip", (1,), 4.0, cohort=10, members=10)
    assert "FED.ATTACK_SCALE 4 has no effect: label_flip" in flip.idle()
    assert "attack label_flip (docs" in flip.words() and flip.used is None
    scale = Hostile("scale", (1,), cohort=10, members=10)
    assert not scale.idle() and scale.used == 10 and "attack scale 10 (docs" in scale.words()


def test_what_was_not_sent_stays() -> None:
    before = updates([3.0, 4.0])
    present = torch.ones(8, 2, dtype=torch.bool)
    present[7, 1] = False
    partial = replace(before, present={"w": present}, axes={"w": 1})
    after = Hostile("constant", (7,)).corrupt(partial)
    assert (after.params["w"][7] - 10).tolist() == pytest.approx([1.0, 4.0])


def test_labels_are_flipped_for_attackers_only() -> None:
    batch = Batch({}, torch.tensor([[0, 1, 2], [0, 1, 2]]), torch.ones(2, 3), clients=(4, 5))
    poison = Hostile("label_flip", (5,), classes=5).poison
    assert poison is not None
    assert poison(batch).y.tolist() == [[0, 1, 2], [4, 3, 2]]
    assert Hostile("sign", (5,)).poison is None


def test_the_trigger_is_on_every_other_image_of_an_attacker() -> None:
    x = torch.zeros(2, 3, 3, 16, 16)
    batch = Batch({"pixels": x}, torch.tensor([[0, 1, 2]] * 2), torch.ones(2, 3), clients=(4, 5))
    poison = Hostile("backdoor", (5,), trigger=Trigger((1.0, 2.0, 3.0), 7)).poison
    assert poison is not None
    after = poison(batch)
    assert after.y.tolist() == [[0, 1, 2], [7, 1, 7]]
    assert after.x["pixels"][0].abs().sum() == 0 == after.x["pixels"][1, 1].abs().sum()
    corner = after.x["pixels"][1, 2, :, -2:, -2:]
    assert corner.flatten(1).unique(dim=1).flatten().tolist() == [1.0, 2.0, 3.0]
    assert after.x["pixels"][1, 2].count_nonzero() == 12 and x.abs().sum() == 0


def test_the_drawn_are_the_same_for_a_seed_and_others_for_another() -> None:
    members = list(range(40))
    drawn = draw_hostile(0.2, members, 1)
    assert drawn == draw_hostile(0.2, members, 1) and len(drawn) == 8 == len(set(drawn))
    assert drawn != draw_hostile(0.2, members, 2)
    assert len(draw_hostile(0.001, members, 1)) == 1
    assert len(draw_hostile(0.3, members[:10], 1)) == 3
    sites = [0] * 20 + [1] * 20
    assert draw_hostile(0.5, members, 1, sites) in (tuple(range(20)), tuple(range(20, 40)))
    with pytest.raises(ConfigError, match="all clients are at one site; set FED.SITES"):
        draw_hostile(0.5, members, 1, [0] * 40)


def test_a_run_that_goes_on_ends_as_one_that_was_not_stopped() -> None:
    plan = {"hostile": Hostile("alie", (2,), 1.0), "sizes": (1, 1, 1),
            "wells": ((1.0, 0.0), (3.0, 4.0), (2.0, -8.0))}
    whole = quadratic(Quadratic(), 4, **plan).run()
    again = quadratic(Quadratic(), 4, **plan)
    half = again.run(until=2)
    end = again.run(half)
    assert torch.equal(whole.server["w"]["w"], end.server["w"]["w"])
    honest = quadratic(Quadratic(), 4, **{**plan, "hostile": None}).run()
    assert not torch.equal(whole.server["w"]["w"], honest.server["w"]["w"])


# ---- rules ------------------------------------------------------------------------------------
STANDING = [
    AggregateSpec("median"), AggregateSpec("trimmed_mean", 0.3), AggregateSpec("geometric_median"),
    AggregateSpec("krum", byzantine=3), AggregateSpec("multi_krum", byzantine=3),
]


@pytest.mark.parametrize("spec", STANDING, ids=lambda spec: spec.rule)
@pytest.mark.parametrize(("kind", "strength"), [
    ("sign", 100.0), ("scale", 1000.0), ("constant", 1e4), ("alie", 1.5),
])
def test_a_rule_stands_the_attackers_that_it_claims_to(
    spec: AggregateSpec, kind: str, strength: float
) -> None:
    """Three attackers among ten move no rule beyond the honest updates; they move the mean."""
    given = Hostile(kind, (7, 8, 9), strength).corrupt(updates(*[[1.0, 0.1]] * 3))
    found = combine(given, spec)[0]["w"] - 10
    honest = torch.tensor(HONEST, dtype=torch.float64)
    low, high = honest.min(0).values, honest.max(0).values
    assert bool(((found >= low - 1e-3) & (found <= high + 1e-3)).all())
    if kind != "alie":
        plain = combine(given, AggregateSpec("mean"))[0]["w"] - 10
        assert float((plain - honest.mean(0)).norm()) > 10


@pytest.mark.parametrize(("spec", "words"), [
    (AggregateSpec(), "FedAvg's own rule has no bound"), (AggregateSpec("mean"), "no bound"),
    (AggregateSpec("trimmed_mean", 0.1), "cuts 1 at each end"),
    (AggregateSpec("krum", byzantine=2), "FED.BYZANTINE is 2: set it to 3"),
    (AggregateSpec("clipped_mean"), ""), *((spec, "") for spec in STANDING),
])
def test_an_assumption_that_does_not_hold_is_said(spec: AggregateSpec, words: str) -> None:
    said = broken_assumption(spec, 10, 3, "FedAvg")
    assert (words in said) if words else not said
    assert "less than half" in broken_assumption(AggregateSpec("median"), 10, 5)


@pytest.mark.parametrize(("given", "words"), [
    ({"kind": "sign", "shared": False}, "the clients of AFL send none"),
    ({"kind": "backdoor", "pixels": False}, "add FED.PLAIN True"),
    ({"kind": "backdoor", "target": 4}, "numbered 0 to 3"),
])
def test_what_has_nothing_to_attack_is_refused(given: dict, words: str) -> None:
    usual = {"shared": True, "method": "AFL", "pixels": True, "target": 0, "classes": 4}
    with pytest.raises(ConfigError, match=words):
        check_attack(**(usual | given))
