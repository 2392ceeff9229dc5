"""Two records of numbers, compared in images."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedvlm.api import elsewhere
from fedvlm.api.elsewhere import AnswerTally, compare_records


def record(*correct: int, **more: Any) -> dict[str, Any]:
    rows = [{"client": c, "n": 1000, "correct": v, "accuracy": v / 10, "nll": 1.0}
            for c, v in enumerate(correct)]
    return {"clients": rows, "personal": sum(correct) / len(correct) / 10, **more}


def problems(a: dict[str, Any], b: dict[str, Any], allowed: int | None = None) -> list[str]:
    tally = AnswerTally()
    compare_records(tally, "last", a, b, allowed)
    return tally.problems


def test_images_are_counted_client_by_client() -> None:
    assert problems(record(500, 600), record(500, 600), 0) == []
    assert "1 of 2,000 images are answered otherwise here, at most 0 may be" in problems(
        record(501, 600), record(500, 600), 0)[0]
    assert problems(record(501, 600), record(500, 600), 1) == []
    assert problems(record(501, 601), record(500, 600)) == []  # trained again: one in a thousand
    assert "3 of 2,000" in problems(record(501, 602), record(500, 600))[0]
    assert "2 of 2,000" in problems(record(501, 599), record(500, 600), 1)[0]  # the mean is equal


@pytest.mark.parametrize(("key", "a", "b", "told"), [
    ("spent", {"samples": 3, "seconds": 1.0}, {"samples": 4, "seconds": 9.0}, "spent.samples"),
    ("bytes_up", {"0": 3}, {"0": 4}, "bytes_up.0"),
    ("train", {"loss": 1.0}, {"loss": 1.1}, "train.loss"),
    ("global", 50.0, 51.0, "global"),
    ("mode", "a", "b", "mode"),
    ("global", 50.0, None, "global"),
])
def test_other_numbers(key: str, a: Any, b: Any, told: str) -> None:
    (clause,) = problems(record(500, **{key: a}), record(500, **{key: b}))
    assert clause.startswith(f"last.{told}: recorded")
    assert problems(record(500, **{key: a}), record(500, **{key: a})) == []


def test_a_last_bit_is_no_difference() -> None:
    assert problems(record(5, train={"loss": 1.0}), record(5, train={"loss": 1.0 + 1e-6})) == []
    assert problems(record(5, seconds=1.0), record(5, seconds=2.0)) == []


def test_bits_find_answers_that_are_exchanged() -> None:
    a = record(1, image_bits={"personal": {"0": "2:gA=="}})
    b = record(1, image_bits={"personal": {"0": "2:QA=="}})
    assert "2 of 1,000 images" in problems(a, b, 0)[0]


def test_images_in_doubt() -> None:
    """Two first classes within 1e-4; an answer that is no number is in doubt."""
    sure = torch.tensor([[5.0, 0.0], [1.0, 0.0]])
    assert elsewhere._doubtful(sure) == 0
    assert elsewhere._doubtful(torch.tensor([[1.0, 1.0001], [5.0, 0.0]])) == 1
    assert elsewhere._doubtful(torch.tensor([[float("nan"), 0.0]])) == 1
    assert elsewhere._doubtful(torch.zeros(0, 2)) == 0
