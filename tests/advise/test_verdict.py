"""Yes, no and cannot say; who gains; how many images alone would take."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from fedvlm.advise.judge import _checked_pull
from fedvlm.advise.page import (
    advice_lines,
    advice_record,
    alone_flags,
    cost_words,
    method_flags,
)
from fedvlm.advise.trial import AFL, DITTO, FEDAVG, CrossValidation, try_heads
from fedvlm.advise.verdict import (
    ALONE_DOES,
    FEDERATE,
    UNKNOWN,
    Advice,
    conclude,
    names_sentence,
)
from fedvlm.evaluation.references.heads import PULLS
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
    """They are told how to train alone; the run that checks it has the pull that was judged."""
    data = made_up([[0, 1], [2, 3], [4, 5]], 60, spread=0.8)
    trial = try_heads(data)
    found = conclude(trial, [60] * 3)
    assert found.verdict == ALONE_DOES and abs(found.points) < 2
    x = torch.cat([F.normalize(one, dim=-1) for one in data.features])
    size2 = float((x - x.mean(0)).square().sum(1).mean())
    assert any(trial.pull == pytest.approx(size2 * pull) for pull in PULLS)
    pull = _checked_pull(replace(found, method=DITTO), trial)
    command = f"fedvlm run X {method_flags(DITTO, pull=pull)}"
    assert command.endswith(f"TRAINER.DITTO.LAMBDA {trial.pull:.3g}")
    alone = f"fedvlm run X {alone_flags(found)}"
    lines = advice_lines(found, trial, [60] * 3, "abc", command, "1 byte", alone=alone)
    assert lines[-3:] == [
        "Next: each client uses only its own images: fedvlm run X --trainer LocalOnly --peft head "
        "--lr 0.5 --rounds 50", f"To check that sharing does not pay: {command}",
        "That run would cost 1 byte."]
    assert advice_record(found, trial, [60] * 3, "abc", command, "", alone=alone)[
        "alone_command"] == alone


def test_who_is_to_gain_gets_a_pull_that_reaches_its_head_in_so_many_rounds(yes: Advice) -> None:
    trial = CrossValidation((), (), 6, 5, {}, 0.0, 1e-4)
    assert _checked_pull(yes, trial) is None and alone_flags(yes) == ""
    assert method_flags(DITTO).endswith("TRAINER.DITTO.LAMBDA 0.3")


def test_clients_that_are_not_clear_one_by_one_are_counted(yes: Advice) -> None:
    """Where the mean gain is clear, "0 gain" would be read as its contrary."""
    few = replace(yes, gains=(3.0, 3.0, 3.0, -1.0, 20.0, -20.0), margins=(9.0,) * 6)
    lines = advice_lines(few, CrossValidation((), (), 6, 5, {}, 0.0), [70] * 6, "abcdef", "", "")
    assert ("Clients: 1 gain clearly (e +20), 1 lose clearly (f -20), 4 not clear one by one (3 of "
            "these did better together)") in lines


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
