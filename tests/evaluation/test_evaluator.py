"""The evaluation protocol on models whose every prediction is known."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch

from fedvlm.core.errors import ConfigError, FedvlmError
from fedvlm.federation.rounds import RoundStarted
from tests.evaluation.fakes import FakeModel, FakeSource, FakeTrainer, Judge, federated, finished

pytestmark = pytest.mark.filterwarnings("error")

# 0-5 train (not used for scores), 6-13 test of 4 base classes, 14-16 test of 2 new classes
LABELS = [0, 1, 2, 3, 0, 1] + [0, 0, 1, 1, 2, 2, 3, 3] + [0, 1, 1]
LOOKS = [0, 1, 2, 3, 0, 1] + [0, 0, 1, 2, 2, 2, 3, 0] + [0, 1, 0]  # 9, 13 and 16 look wrong
CLIENTS = [([0, 1], [6, 8, 9]), ([2, 3], [10, 13]), ([0, 1, 2, 3], []), ([3], [12, 6, 7, 8, 10])]
TEST = list(range(6, 14))
BASE_NEW = {"new": [14, 15, 16], "new_classnames": ["x", "y"]}
RIGHT = dict.fromkeys(range(4), 0.0)


def build(trainer: Any = None, data: Any = None, batch_size: int = 3, **kw: Any) -> Judge:
    data = data or federated(LABELS, CLIENTS, TEST, **BASE_NEW)
    return Judge(FakeModel("abcd"), trainer or FakeTrainer(), FakeSource(LOOKS), data,
                 batch_size=batch_size, **kw)


def test_last_round_in_closed_form() -> None:
    """Clients 0, 2, 3 are right where samples look right; client 1 is always one class off."""
    result = build()(finished(3, 3, RIGHT | {1: 1.0}))
    assert result is not None
    # client 0: 6, 8 right, 9 looks wrong. client 1 (shift 1): 10 -> 3 wrong; 13 looks 0 -> 1 wrong.
    accuracies = [200 / 3, 0.0, None, 100.0]
    assert [r["accuracy"] for r in result["clients"]] == pytest.approx(accuracies)
    assert [(r["client"], r["n"], r["correct"]) for r in result["clients"]] == [
        (0, 3, 2), (1, 2, 0), (2, 0, 0), (3, 5, 5)]
    known = [200 / 3, 0.0, 100.0]
    assert result["personal"] == pytest.approx(np.mean(known))
    assert result["personal_std"] == pytest.approx(np.std(known))
    assert result["personal_worst"] == result["personal_worst_decile"] == 0.0
    assert result["personal_micro"] == 70.0
    # client 0's F1: class 0 -> 1; class 1: true {8, 9}, predicted {8}, 2/(2+1); client 3 all 1
    assert result["personal_macro_f1"] == pytest.approx((100 * (1 + 2 / 3) / 2 + 0 + 100) / 3)
    assert result["global"] == 75.0
    # base: 6 of 8 look right; shifted by one, 9 looks 2 -> 3 and 13 looks 0 -> 1: none right
    base = [75.0, 0.0, 75.0, 75.0]
    assert [r["base_all"] for r in result["clients"]] == base
    # other classes: client 0 has 0, 1: of 10-13 three right; client 3 has 3: of 6-11 five right
    others = [75.0, 0.0, None, 500 / 6]
    assert [r["base_other"] for r in result["clients"]] == pytest.approx(others)
    # new: 14, 15 right, 16 wrong; with the shift mod 2, 14 and 15 wrong, 16 (looks 0) -> 1 right
    new = [200 / 3, 100 / 3, 200 / 3, 200 / 3]
    assert [r["new"] for r in result["clients"]] == pytest.approx(new)
    assert result["base_all"] == np.mean(base) and result["new"] == pytest.approx(np.mean(new))
    assert result["base_other"] == pytest.approx(np.mean([75.0, 0.0, 500 / 6]))
    b, n, p = np.mean(base), np.mean(new), np.mean(known)
    assert result["hm2"] == pytest.approx(2 / (1 / b + 1 / n))
    assert result["hm3"] == pytest.approx(3 / (1 / b + 1 / n + 1 / p))
    assert result["cm"] == pytest.approx((p + 2 / (1 / b + 1 / n)) / 2)
    assert result["notes"] == [
        "1 client (2) without test samples: left out of personal",
        "1 client (2) with every class in training: left out of base_other",
    ]
    assert json.loads(json.dumps(result, allow_nan=False)) == result


def test_which_rounds_and_which_numbers() -> None:
    evaluator = build(every=2)
    rounds = {r: evaluator(finished(r, 5, RIGHT)) for r in range(6)}
    assert [r for r, result in rounds.items() if result] == [0, 2, 4, 5]
    cross = {"base_all", "base_other", "new", "hm2", "hm3", "cm"}
    for r, result in rounds.items():
        if result:
            assert cross & set(result) == (cross if r in (0, 5) else set())
    assert build(every=0)(finished(4, 5, RIGHT)) is None
    assert evaluator(object()) is None and evaluator(RoundStarted(1, 4, [0])) is None
    with pytest.raises(ConfigError, match="EVAL_EVERY"):
        build(every=-1)


def test_all_setting_has_no_new_and_base_only_on_request() -> None:
    data = federated(LABELS, CLIENTS, TEST)
    result = build(data=data)(finished(1, 1, RIGHT))
    assert result is not None and not {"base_all", "new", "hm2", "cm"} & set(result)
    result = build(data=data, cross=True)(finished(1, 1, RIGHT))
    assert result is not None and result["base_all"] == 75.0
    assert not {"new", "hm2", "hm3", "cm"} & set(result)


@pytest.mark.parametrize("batch_size, chunk", [(1, 1), (2, 4), (3, 3), (100, 2)])
def test_batches_and_chunks_do_not_matter(batch_size: int, chunk: int) -> None:
    shifts = {0: 0.0, 1: 1.0, 2: 2.0, 3: 3.0}
    want = build()(finished(3, 3, shifts, everyone=1.0))
    event = finished(3, 3, shifts, everyone=1.0, chunk=chunk)
    assert build(batch_size=batch_size)(event) == want


def test_text_once_per_chunk_and_class_list_and_only_plain_views() -> None:
    trainer = FakeTrainer()
    evaluator = build(trainer)
    told = finished(3, 3, dict(enumerate([0.0, 1.0, 2.0, 3.0])), chunk=2)
    evaluator(told)
    assert trainer.texts == 2 * 2 + 1 and [ids for ids, _ in told.requests] == [[0, 1, 2, 3]]
    source = evaluator.meter._batches.source
    assert all(view == 0 for _, view in source.calls)
    assert all(len(indices) <= 2 * 3 for indices, _ in source.calls)


def test_repeated_evaluation_is_equal_and_leaves_no_trace() -> None:
    event = finished(3, 3, {0: 0.0, 1: 1.0, 2: 2.0, 3: 3.0})
    before = torch.random.get_rng_state(), np.random.get_state()[1].copy()
    one, two = build()(event), build()(event)
    assert one == two
    assert torch.equal(torch.random.get_rng_state(), before[0])
    assert (np.random.get_state()[1] == before[1]).all() and torch.is_grad_enabled()


def test_logits_that_are_not_finite_count_as_wrong_and_are_told() -> None:
    result = build()(finished(3, 3, RIGHT | {0: float("nan")}))
    assert result is not None and result["clients"][0]["accuracy"] == 0.0
    assert result["clients"][0]["broken"] == 3
    assert any("client 0: 3 of 3" in note for note in result["notes"])


def test_missing_client_is_an_error() -> None:
    with pytest.raises(FedvlmError, match=r"clients \[2\]"):
        build()(finished(3, 3, {0: 0, 1: 0, 3: 0}))


def test_new_classes_are_told_apart_among_themselves() -> None:
    result = build()(finished(3, 3, dict.fromkeys(range(4), 2.0)))
    assert result is not None  # a shift of 2 is none among two classes, and always wrong among four
    assert result["new"] == pytest.approx(200 / 3) and result["base_all"] < 30


def test_method_bound_to_its_classes_gets_no_new() -> None:
    trainer = FakeTrainer()
    trainer.open_vocabulary = False  # type: ignore[attr-defined]
    result = build(trainer)(finished(3, 3, RIGHT))
    assert result is not None and "base_all" in result and "new" not in result
    assert any("cannot predict unseen classes" in note for note in result["notes"])


def test_kept_logits_reproduce_the_numbers() -> None:
    evaluator = build(keep_logits=True)
    early = evaluator(finished(2, 3, RIGHT))
    assert early is not None and early["round"] == 2 and evaluator.logits == {}
    result = evaluator(finished(3, 3, {0: 0.0, 1: 1.0, 2: 2.0, 3: 3.0}, everyone=1.0))
    assert result is not None and result["round"] == 3
    kept = evaluator.logits
    assert kept["global"].shape == (8, 4)
    right = (kept["global"].argmax(-1) == kept["true|global"]).float().mean()
    assert 100 * float(right) == pytest.approx(result["global"])
    for row in result["clients"]:
        c = row["client"]
        hits = kept["labels|new|" + str(c)] == kept["true|new"]
        assert 100 * float(hits.double().mean()) == pytest.approx(row["new"])
        if row["n"]:
            own = kept[f"personal|{c}"].argmax(-1) == kept[f"true|personal|{c}"]
            assert int(own.sum()) == row["correct"] and len(own) == row["n"]


def test_zero_shot_row_equals_an_unshifted_model_everywhere() -> None:
    data = federated(LABELS, CLIENTS, TEST, **BASE_NEW)
    found = build(data=data).zero_shot()
    want = build(data=data)(finished(1, 1, RIGHT))
    assert want is not None and found["round"] is None
    assert {k: v for k, v in found.items() if k != "round"} == {
        k: v for k, v in want.items() if k != "round"}


def test_zero_shot_encodes_each_image_once_in_each_half() -> None:
    """The clients' half: their own, base and new images; the other one the whole test set."""
    judge = build()
    judge.zero_shot()
    asked = [i for indices, _ in judge.meter._batches.source.calls for i in indices]
    assert sorted(asked) == sorted([*range(6, 17), *TEST])


def test_zero_shot_without_new_classes() -> None:
    found = build(data=federated(LABELS, CLIENTS, TEST)).zero_shot()
    assert found["global"] == 75.0 and "new" not in found and "base_all" not in found


FOUR = [0, 1, 2, 3]


def tuned_evaluator() -> Judge:
    data = federated(FOUR, [([0], [0, 1]), ([1], [2, 3]), ([2], [])], FOUR)
    return Judge(FakeModel("abcd"), FakeTrainer(), FakeSource(FOUR), data)


def test_before_and_after_a_final_fine_tuning() -> None:
    """All are right after the fine-tuning; before it client 1 was one class off."""
    right = {0: 0.0, 1: 0.0, 2: 0.0}
    result = tuned_evaluator()(finished(3, 3, right, before=right | {1: 1.0}))
    assert result is not None
    assert (result["personal"], result["personal_before_ft"]) == (100.0, 50.0)
    assert [c["accuracy_before_ft"] for c in result["clients"]] == [100.0, 0.0, None]
    assert [c["accuracy"] for c in result["clients"]] == [100.0, 100.0, None]
    plain = tuned_evaluator()(finished(3, 3, right))
    assert plain is not None and plain["personal_before_ft"] == plain["personal"] == 100.0
    assert all("accuracy_before_ft" not in c for c in plain["clients"])
