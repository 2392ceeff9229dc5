"""Yes, no and cannot say; who gains; how many images alone would take."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from fedvlm.advise.page import advice_lines, advice_record, cost_words, method_flags
from fedvlm.advise.trial import AFL, FEDAVG, CrossValidation, try_heads
from fedvlm.advise.verdict import (
    ALONE_DOES,
    FEDERATE,
    UNKNOWN,
    Advice,
    conclude,
    names_sentence,
)
from tests.advise.fakes import made_up

SHARED = [range(6)] * 6


def advice(images: int, classes: object = SHARED, twins: float = 0.0, **more: object) -> Advice:
    found = made_up(classes, images, **more)  # type: ignore[arg-type]
    return conclude(try_heads(found), [images] * len(found.labels), twins)


@pytest.fixture(scope="module")
def yes() -> Advice:
    return advice(70, spread=3.5)


def test_clients_with_the_same_classes_and_few_images_federate(yes: Advice) -> None:
    assert yes.verdict == FEDERATE and yes.points - yes.margin > 0
    assert yes.method in (AFL, FEDAVG) and yes.judged == list(range(6))
    assert not yes.losing and len(yes.gaining) >= 1
    assert all(n is None or n > 70 for n in yes.needs)
    assert any(n is not None for n in yes.needs)


def test_clients_with_classes_of_their_own_do_not() -> None:
    found = advice(60, [[0, 1], [2, 3], [4, 5]], spread=0.8)
    assert found.verdict == ALONE_DOES and abs(found.points) < 2


def test_few_images_and_no_clear_gain_is_cannot_say() -> None:
    found = advice(8, [[0, 1], [2, 3], [4, 5]], spread=0.5)
    assert found.verdict == UNKNOWN and "all clients have fewer than 30 images" in found.why
    assert found.judged == [] and found.gaining == [] and found.losing == []


def test_images_of_patients_are_counted_by_patient() -> None:
    """40 images of 8 patients are more than 30 images, and fewer than 30 to judge by."""
    found = advice(8, [[0, 1], [2, 3], [4, 5]], spread=0.5, times=5, grouped=True)
    assert found.verdict == UNKNOWN and "fewer than 30 groups of images to judge by" in found.why
    trial = CrossValidation((), (), 6, 5, {}, 0.0)
    lines = advice_lines(found, trial, [40] * 3, "abc", "", "")
    assert any("all have fewer than 30 groups of images, too few" in line for line in lines)


def test_near_duplicates_are_cannot_say_and_name_the_flag() -> None:
    found = advice(36, twins=0.5, spread=2.5)
    assert found.verdict == UNKNOWN and "--groups" in found.why


def test_the_page_is_short_and_its_record_the_same(yes: Advice) -> None:
    trial = CrossValidation((), (), 6, 5, {}, 0.0)
    parts = (yes, trial, [70] * 6, list("abcdef"), "fedvlm run X", cost_words(FEDAVG, 12, 6))
    lines = advice_lines(*parts)
    assert len(lines) <= 25 and "no test image was opened" in lines[0]
    assert any(line.startswith("Verdict: federate") for line in lines)
    numbered = "\n".join(advice_lines(yes, trial, [70] * 6, list("012345"), "", ""))
    assert "(client " in numbered and "in images: client " in numbered
    assert any("fedvlm run X" in line for line in lines)
    record = advice_record(*parts)
    assert record["verdict"] == FEDERATE and record["cost"].startswith("288 bytes up")
    assert [c["client"] for c in record["clients"]] == list("abcdef")
    for client, need in zip(record["clients"], yes.needs, strict=True):
        assert client["needs_more_than_tried"] == (need is not None and math.isinf(need))


@pytest.mark.parametrize(("zero", "says"), [
    (None, "no text tower"), (20.0, "does not know these names"), (40.0, "a head reaches more"),
    (99.0, "prompts may reach more"),
])
def test_what_prompts_could_add(yes: Advice, zero: float | None, says: str) -> None:
    assert says in names_sentence(replace(yes, names=zero))


def test_the_flags_of_a_method() -> None:
    assert method_flags(AFL, 12.34567) == "--trainer AFL --rounds 1 TRAINER.AFL.KEEP 12.3"
    assert "--peft head" in method_flags(FEDAVG)
    assert cost_words(AFL, 10, 3).startswith("1,040 bytes up and 120 down per client, once")
