"""Rows of numbers, made where the models are; equal models are one, and give the plain numbers."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

from fedvlm.core.errors import FedvlmError
from fedvlm.evaluation import ClientMeter, scores
from fedvlm.federation.server import Measure, only_numbers
from tests.evaluation.fakes import (
    FakeModel,
    FakeSource,
    FakeTrainer,
    Judge,
    federated,
    finished,
    other,
)

pytestmark = pytest.mark.filterwarnings("error")

# 0-7 test of 4 classes, 8-10 of 2 new ones, 11-13 of a domain that no client holds, 14-17 val
LABELS = [0, 0, 1, 1, 2, 2, 3, 3] + [0, 1, 1] + [0, 1, 2] + [0, 1, 2, 3]
LOOKS = [0, 1, 1, 1, 2, 0, 3, 3] + [0, 1, 0] + [0, 2, 2] + [0, 1, 3, 3]
TESTS = [[0, 2], [3, 4, 5], [], [6], [1, 7]]


def data() -> Any:
    clients = [([14 + c % 4], test) for c, test in enumerate(TESTS)]
    away = other("photo", "domain", [11, 12, 13], "abcd")
    return federated(
        LABELS, clients, range(8), new=[8, 9, 10], new_classnames=["x", "y"], others=[away],
        val={0: [14], 1: [15, 16], 3: [17]},
    )


def judge(trainer: Any = None, source: Any = None, **kw: Any) -> Judge:
    return Judge(
        FakeModel("abcd"), trainer or FakeTrainer(), source or FakeSource(LOOKS), data(), **kw
    )


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("keep", [False, True])
def test_equal_models_once_are_the_plain_computation(seed: int, keep: bool) -> None:
    """Chunks of equal models, of different ones, and the same model again behind another one."""
    draw = random.Random(seed)
    values = draw.choice([[0.0], [0.0, 1.0], [0.0, 1.0, 2.0, 3.0], [float("nan"), 1.0]])
    shifts = {c: draw.choice(values) for c in range(5)}
    told = finished(3, 3, shifts, everyone=1.0, chunk=draw.choice([1, 2, 3, 5]))
    size = draw.choice([1, 2, 100])
    plain, folded = (judge(fold=f, batch_size=size, keep_logits=keep) for f in (False, True))
    assert folded(told) == plain(told)
    assert folded.logits.keys() == plain.logits.keys()
    for name, value in plain.logits.items():
        assert torch.equal(torch.nan_to_num(value), torch.nan_to_num(folded.logits[name])), name


@pytest.mark.parametrize("shifts", [[0, 0, 1, 1, 1], [1, 1, 0, 0, 0], [0, 1, 1, 0, 0]])
def test_a_chunk_of_other_models_is_not_taken_for_the_one_before(shifts: list[int]) -> None:
    """Chunks go from the last client to the first: each is equal in itself, or has two models."""
    result = judge()(finished(3, 3, {c: float(s) for c, s in enumerate(shifts)}, chunk=2))
    want = judge(fold=False)(finished(3, 3, {c: float(s) for c, s in enumerate(shifts)}, chunk=2))
    assert result is not None and want is not None and result["clients"] == want["clients"]
    assert len({row["base_all"] for row in result["clients"]}) == 2


def test_one_text_pass_and_each_sample_once_for_all_clients() -> None:
    trainer, source = FakeTrainer(), FakeSource(LOOKS)
    one = judge(trainer, source)
    everyone = dict.fromkeys(range(5), 1.0)
    one(finished(2, 3, everyone, chunk=2))
    assert trainer.texts == 2  # the clients' model and the shared one
    asked = [i for indices, _ in source.calls for i in indices]
    assert sorted(asked) == sorted([*range(8), *range(8), 11, 12, 13])
    trainer.texts, source.calls = 0, []
    one(finished(3, 3, everyone, chunk=2))
    assert trainer.texts == 3  # and the clients' on new classes
    asked = [i for indices, _ in source.calls for i in indices]
    assert sorted(asked) == sorted([*range(14), *range(8), 11, 12, 13])


def test_one_read_of_the_host_per_chunk_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = []

    def watched(do: Any) -> Any:
        return lambda *args: (reads.append(1), do(*args))[1]

    meter = judge().meter
    for name in ("tolist", "item", "__bool__", "cpu", "numpy"):
        monkeypatch.setattr(torch.Tensor, name, watched(getattr(torch.Tensor, name)))
    params = {f"p{i}": torch.full((4, 3), float(i)) for i in range(20)}
    assert meter._equal(params, None) == (True, False) and len(reads) == 1
    row = {n: v[:1].clone() for n, v in params.items()}
    assert meter._equal(params, row) == (True, True) and len(reads) == 2
    params["p7"][3, 2] += 1
    assert meter._equal(params, row) == (False, True)
    row["p7"] += 1
    assert meter._equal(params, row) == (False, False)
    assert meter._equal({"p0": params["p0"]}, row) == (True, False)  # of another form
    assert meter._equal({}, None) == (True, False) and meter._equal({}, {}) == (True, True)


def test_the_split_that_is_asked_for() -> None:
    right = dict.fromkeys(range(5), 0.0)
    judged = judge()
    told = finished(3, 3, right, before=right | {3: 1.0})
    assert judged.validate(told) == pytest.approx((100 + 50 + 0) / 3)  # client 3 before: wrong
    ((clients, measure),) = told.requests
    assert clients == [0, 1, 2, 3, 4] and measure == Measure(split="val", finetuned=False)


def test_rows_of_a_real_call_are_numbers_by_client() -> None:
    meter = ClientMeter(FakeModel("abcd"), FakeTrainer(), FakeSource(LOOKS), data())  # type: ignore[arg-type]
    told = finished(0, 3, dict.fromkeys(range(5), 0.0))
    rows = only_numbers(meter(Measure(cross=True, away=True), told.models(told.shifts, [3, 1])),
                        [1, 3])
    assert [row["client"] for row in rows] == [1, 3]
    assert {type(v) for row in rows for v in row.values()} <= {int, float, type(None)}
    assert set(rows[0]) == {
        "client", "n", "correct", "accuracy", "macro_f1", "balanced", "base_all", "base_other",
        "new", "unseen",
    }


@pytest.mark.parametrize("value", [torch.zeros(3), torch.tensor(1.0), np.zeros(2), [1.0], "w"])
def test_what_is_no_number_does_not_leave(value: Any) -> None:
    rows: Any = [{"client": 4, "accuracy": 50.0, "kept": value}]
    with pytest.raises(FedvlmError, match="client 4 holds 'kept' as .*; only numbers may leave"):
        only_numbers(rows, [4])


def test_how_sure_models_are_and_what_they_confuse() -> None:
    """One-hot logits: the predicted class has e / (e + 3), any other 1 / (e + 3)."""
    measure = Measure(calibration=True, confusion=True)
    told = finished(3, 3, {c: float(c == 1) for c in range(5)} | {4: float("nan")})
    for fold in (True, False):
        meter = ClientMeter(
            FakeModel("abcd"), FakeTrainer(), FakeSource(LOOKS), data(), fold=fold  # type: ignore[arg-type]
        )
        rows = only_numbers(meter(measure, told.models(told.shifts, range(5))), range(5))
        top, low = np.e / (np.e + 3), 1 / (np.e + 3)
        # client 0: 0 looks 0 and 2 looks 1, both right; client 3: 6 looks 3, right
        assert rows[0]["nll"] == pytest.approx(-np.log(top), rel=1e-6)
        assert rows[0]["ece"] == pytest.approx(100 * (1 - top), rel=1e-6)
        assert (rows[2]["nll"], rows[2]["ece"]) == (None, None)  # no test images
        # client 1, a class off: 3 looks 1 -> 2, 4 looks 2 -> 3, 5 looks 0 -> 1: all wrong
        assert rows[1]["nll"] == pytest.approx(-np.log(low), rel=1e-6)
        assert rows[1]["ece"] == pytest.approx(100 * top, rel=1e-6)
        assert (rows[4]["nll"], rows[4]["ece"], rows[4]["broken"]) == (None, None, 2)
        assert scores.personal_scores(rows)["personal_nll"] == pytest.approx(
            -np.mean([np.log(top), np.log(low), np.log(top)]), rel=1e-6
        )
        counts = scores.pool_confusion(rows)
        assert counts == [[0, -1, 1], [0, 0, 1], [1, 1, 1], [1, 2, 1], [2, 1, 1], [2, 3, 1],
                          [3, -1, 1], [3, 3, 1]]
        assert not any(name.startswith("confusion") for row in rows for name in row)


def test_counting_confusions_moves_no_number() -> None:
    told = finished(2, 2, {c: float(c % 2) for c in range(5)})
    plain, counted = judge()(told), judge(confusion=True)(told)
    assert plain is not None and counted is not None
    found = counted.pop("confusion")
    assert counted == plain and "confusion" not in plain
    for name, rows in found.items():
        right = sum(n for true, predicted, n in rows if true == predicted)
        want = sum(r["correct"] for r in plain["clients"]) if name == "personal" else 6
        assert right == want and sum(n for *_, n in rows) == 8
