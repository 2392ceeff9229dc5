"""A domain left out and other data sets, on models whose every prediction is known."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.evaluation.fakes import (
    FakeModel,
    FakeSource,
    FakeTrainer,
    Judge,
    Round,
    federated,
    finished,
    other,
)

pytestmark = pytest.mark.filterwarnings("error")

# 0-3 train and test of 4 classes; 4-7 a domain left out; 8-10 and 11-12 two other data sets
LABELS = [0, 1, 2, 3] + [0, 1, 2, 3] + [0, 1, 2] + [1, 0]
LOOKS = [0, 1, 2, 3] + [0, 1, 2, 0] + [0, 1, 2] + [1, 1]
CLIENTS = [([0], [0, 1]), ([1], [2]), ([2, 3], [3])]
AWAY = other("photo", "domain", [4, 5, 6, 7], "abcd")
BIRDS = other("Birds", "dataset", [8, 9, 10], ["hen", "owl", "jay"])
CARS = other("Cars", "dataset", [11, 12], ["van", "bus"])
RIGHT = dict.fromkeys(range(3), 0.0)


def data(*others: Any) -> Any:
    return federated(LABELS, CLIENTS, [0, 1, 2, 3], others=others)


def build(*others: Any, trainer: Any = None, **kw: Any) -> Judge:
    return Judge(
        FakeModel("abcd"), trainer or FakeTrainer(), FakeSource(LOOKS), data(*others),
        batch_size=2, **kw,
    )


def evaluated(evaluator: Judge, event: Round) -> dict[str, Any]:
    result = evaluator(event)
    assert result is not None
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    return result


def test_a_domain_left_out() -> None:
    """Three of its four images look right; client 1 is a class off: only 7 (looks 0) is no hit."""
    result = evaluated(build(AWAY), finished(2, 2, RIGHT | {1: 1.0}, everyone=3.0))
    # everyone + 3: looks 0, 1, 2, 0 -> 3, 0, 1, 3: right for 7 alone
    assert result["unseen"] == 25.0
    # client 1 (+1): 1, 2, 3, 1: none right
    assert [row["unseen"] for row in result["clients"]] == [75.0, 0.0, 75.0]
    assert result["unseen_personal"] == 50.0
    assert result["global"] == 0.0 and result["personal"] == pytest.approx(200 / 3)
    assert "targets" not in result and "base_all" not in result


def test_other_data_sets_are_judged_by_their_own_classes() -> None:
    """The shift counts modulo the target's classes: 3 are nothing to Birds, one off to Cars."""
    result = evaluated(build(BIRDS, CARS), finished(1, 1, RIGHT, everyone=3.0))
    assert result["target.Birds"] == 100.0
    assert result["target.Cars"] == 50.0  # looks 1, 1 -> 0, 0; true 1, 0
    assert result["targets"] == 75.0
    assert "unseen" not in result and result["notes"] == []


def test_a_target_has_its_own_classes_and_prompt() -> None:
    seen: list[tuple[Any, Any]] = []

    class Watched(FakeTrainer):
        def predictor(self, model: FakeModel, params: Any) -> Any:
            seen.append((model.classnames, model.templates))
            return super().predictor(model, params)

    evaluated(build(BIRDS, AWAY, trainer=Watched()), finished(1, 1, {0: 0, 1: 0, 2: 0}, chunk=3))
    assert seen == [
        (tuple("abcd"), ("{}",)),  # personal models, their run's classes and the domain left out
        (tuple("abcd"), ("{}",)),  # the global model
        (("hen", "owl", "jay"), ("Birds {}",)),
    ]


def test_when() -> None:
    """The domain: every evaluated round (personal: at the ends); targets: at the ends only."""
    evaluator = build(AWAY, BIRDS)
    for round_ in range(4):
        result = evaluated(evaluator, finished(round_, 3, RIGHT))
        ends = round_ in (0, 3)
        assert result["unseen"] == 75.0
        assert ("unseen_personal" in result, "targets" in result) == (ends, ends)
        assert all(("unseen" in row) == ends for row in result["clients"])


def test_a_method_bound_to_its_classes_gets_the_domain_and_no_targets() -> None:
    trainer = FakeTrainer()
    trainer.open_vocabulary = False  # type: ignore[attr-defined]
    result = evaluated(build(AWAY, BIRDS, trainer=trainer), finished(2, 2, RIGHT))
    assert result["unseen"] == 75.0 and result["unseen_personal"] == 75.0
    assert not [name for name in result if name.startswith("target")]
    assert result["notes"] == [
        "the method cannot predict unseen classes: TEST.TARGETS does not apply"
    ]


def test_zero_shot_row_equals_an_unshifted_model() -> None:
    want = evaluated(build(AWAY, BIRDS, CARS), finished(1, 1, RIGHT))
    judge = build(AWAY, BIRDS, CARS)
    found = judge.zero_shot()
    assert {k: v for k, v in found.items() if k != "round"} == {
        k: v for k, v in want.items() if k != "round"}
    assert (found["target.Birds"], found["target.Cars"], found["targets"]) == (100.0, 50.0, 75.0)
    asked = [i for indices, _ in judge.meter._batches.source.calls for i in indices]
    # each image once in each half: the clients' own and the domain; those, and the targets'
    assert sorted(asked) == sorted([*range(8), *range(13)])


def test_without_others_nothing_changes() -> None:
    result = evaluated(build(), finished(1, 1, RIGHT))
    assert not [name for name in result if name.startswith(("unseen", "target"))]


def test_kept_logits() -> None:
    evaluator = build(AWAY, BIRDS, keep_logits=True)
    evaluated(evaluator, finished(1, 1, RIGHT | {1: 1.0}))
    kept = evaluator.logits
    assert kept["target.Birds"].shape == (3, 3) and kept["unseen"].shape == (4, 4)
    assert kept["true|target.Birds"].tolist() == [0, 1, 2]
    assert kept["true|unseen"].tolist() == [0, 1, 2, 3]
    assert kept["labels|unseen|1"].tolist() == [1, 2, 3, 1]
    assert kept["unseen"].argmax(-1).tolist() == kept["labels|unseen|0"].tolist() == [0, 1, 2, 0]
