"""Yes, no and cannot say; who gains; how many images alone would take."""

from __future__ import annotations

import math
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from fedvlm.advise.judge import _checked_pull
from fedvlm.advise.page import AdvicePage, alone_flags, cost_line
from fedvlm.advise.trial import CrossValidation, try_heads
from fedvlm.advise.verdict import Advice, _verdict, conclude, names_sentence
from fedvlm.advise.ways import (
    AFL,
    AFL_PRIOR,
    ALONE_DOES,
    DITTO,
    FEDAVG,
    FEDERATE,
    UNKNOWN,
    cost_words,
    method_flags,
)
from fedvlm.evaluation.references.heads import PULLS
from fedvlm.federation.toolbox.moments import TEMPERS
from tests import jobs
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
    lines = AdvicePage(found, trial, [60] * 3, "abc", command, "1 byte", alone=alone).lines()
    assert lines[-3:] == [
        "Next: each client uses only its own images: fedvlm run X --trainer LocalOnly --peft head "
        "--lr 0.5 --rounds 50", f"To check that sharing does not pay: {command}",
        "That run would cost 1 byte."]
    assert AdvicePage(found, trial, [60] * 3, "abc", command, "", alone=alone).record()[
        "alone_command"] == alone


def test_who_is_to_gain_gets_a_pull_that_reaches_its_head_in_so_many_rounds(yes: Advice) -> None:
    trial = CrossValidation((), (), 6, 5, {}, 0.0, 1e-4)
    assert _checked_pull(yes, trial) is None and alone_flags(yes) == ""
    assert method_flags(DITTO).endswith("TRAINER.DITTO.LAMBDA 0.3")


def test_clients_who_mean_opposite_things_by_a_name_are_asked_what_they_mean() -> None:
    """All images in one place then reach half; with the same names they reach what each does."""
    for turned in (True, False):
        data = made_up([[0, 1]] * 4, 60, spread=0.8)
        if turned:
            data = replace(data, labels=[1 - y if k % 2 else y for k, y in enumerate(data.labels)])
        trial = try_heads(data)
        found = conclude(trial, [60] * 4)
        page = AdvicePage(found, trial, [60] * 4, "abcd", classnames=data.classnames)
        said = [line for line in page.lines() if "check that all clients mean the same" in line]
        assert said == ([
            f"All images in one place reach {found.pooled.personal:.1f}, alone "
            f"{found.alone.personal:.1f}: check that all clients mean the same by 'class 0' and "
            "'class 1'."] if turned else [])
        assert ("check" in page.record()) == turned
        assert page.lines().index(said[0]) == 9 if turned else found.pooled.personal > 95


def test_clients_that_are_not_clear_one_by_one_are_counted(yes: Advice) -> None:
    """Where the mean gain is clear, "0 gain" would be read as its contrary."""
    few = replace(yes, gains=(3.0, 3.0, 3.0, -1.0, 20.0, -20.0), margins=(9.0,) * 6)
    lines = AdvicePage(few, CrossValidation((), (), 6, 5, {}, 0.0), [70] * 6, "abcdef").lines()
    assert ("Clients: 1 gain clearly (e +20), 1 lose clearly (f -20), 4 not clear one by one (a "
            "+3, b +3, c +3, d -1; 3 of these did better together).") in lines


def test_clients_of_whom_the_same_is_told_are_one_phrase(yes: Advice) -> None:
    trial, many = CrossValidation((), (), 6, 5, {}, 0.0), math.inf
    for needs, says in (
        ((many,) * 6, "all 6 clients more than 280 (have 70)."),
        ((many, 90.2, many, None, many, 90.4),
         "3 clients more than 280 (have 70), b and f about 90 (have 70)."),
        ((71.0, 72.0, 73.0, 74.0, 75.0, 71.0),
         "a and f about 71 (have 70), b about 72 (has 70), c about 73 (has 70), "
         "d about 74 (has 70), ..."),
    ):
        lines = AdvicePage(replace(yes, needs=needs), trial, [70] * 6, "abcdef").lines()
        assert f"To reach the same alone a client would need, in images: {says}" in lines


def test_few_images_and_no_clear_gain_is_cannot_say() -> None:
    found = advice(8, [[0, 1], [2, 3], [4, 5]], spread=0.5)
    assert found.verdict == UNKNOWN and "all clients have fewer than 30 images" in found.why
    assert found.judged == [] and found.gaining == [] and found.losing == []


def test_images_of_patients_are_counted_by_patient() -> None:
    """40 images of 8 patients are more than 30 images, and fewer than 30 to judge by."""
    found = advice(8, [[0, 1], [2, 3], [4, 5]], spread=0.5, times=5, grouped=True)
    assert found.verdict == UNKNOWN and "fewer than 30 groups of images to judge by" in found.why
    trial = CrossValidation((), (), 6, 5, {}, 0.0)
    lines = AdvicePage(found, trial, [40] * 3, "abc").lines()
    assert any("all have fewer than 30 groups of images, too few" in line for line in lines)


def test_near_duplicates_are_cannot_say_and_name_the_flag() -> None:
    found = advice(36, twins=0.5, spread=2.5)
    assert found.verdict == UNKNOWN and "--groups" in found.why


def test_the_page_is_short_and_its_record_the_same(yes: Advice) -> None:
    trial = CrossValidation((), (), 6, 5, {}, 0.0)
    parts = (yes, trial, [70] * 6, list("abcdef"), "fedvlm run X", cost_words(FEDAVG, 12, 6))
    lines = AdvicePage(*parts).lines()
    assert len(lines) <= 25 and "no test image was opened" in lines[0]
    assert any(line.startswith("Verdict: federate") for line in lines)
    numbered = "\n".join(AdvicePage(yes, trial, [70] * 6, list("012345")).lines())
    assert "(client " in numbered and "in images: client " in numbered
    assert any("fedvlm run X" in line for line in lines)
    record = AdvicePage(*parts).record()
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
    near_chance = replace(yes, names=14.0, chance=9.0)  # more than half above it, and of no use
    assert "hardly knows these names; train a head" in names_sentence(near_chance)


def test_the_flags_of_a_method() -> None:
    assert method_flags(AFL, 12.34567) == "--trainer AFL --rounds 1 TRAINER.AFL.KEEP 12.3"
    assert "--peft head" in method_flags(FEDAVG)
    assert method_flags(FEDAVG, hold=1e-4) == "--trainer FedAvg --peft head --lr 0.1 --rounds 50"
    assert cost_words(AFL, 10, 3).startswith("1,040 bytes up and 120 down per client, once")
    assert "SHARES True" in method_flags(AFL_PRIOR) and "KEEP" not in method_flags(AFL_PRIOR, 9)
    for one in (AFL, AFL_PRIOR):
        assert cost_line(one, 10, 3) == cost_words(one, 10, 3) + (
            ". AFL's sums tell the feature and class of every image that is a client's only one "
            "of its class")
    assert cost_line(FEDAVG, 10, 3) == cost_words(FEDAVG, 10, 3)
    up = 1040 + 8 * len(TEMPERS)
    assert cost_words(AFL_PRIOR, 10, 3).startswith(f"{up:,} bytes up and 928 down per client and ")


@pytest.mark.parametrize("verdict", [FEDERATE, UNKNOWN, ALONE_DOES])
def test_what_serves_rare_classes_better_is_told(yes: Advice, verdict: str) -> None:
    """Where that is more than 5 points, class by class, than what is advised."""
    shares = replace(yes.together, name=AFL_PRIOR, balanced=50.0)
    alone = replace(yes.alone, balanced=50.0)
    told = [page(replace(yes, verdict=verdict, lacks="images", method=AFL_PRIOR, together=shares,
                         alone=alone, others=(replace(yes.alone, name=AFL, balanced=50.0 + more),)))
            for more in (4.9, 6.0)]
    assert "rare classes" not in told[0]
    assert ("If rare classes matter more than own shares: AFL (--trainer AFL --rounds 1), "
            "class-balanced +6.0.") in told[1]
    best = page(replace(yes, verdict=FEDERATE, method=AFL_PRIOR, together=shares, others=(),
                        alone=replace(alone, balanced=56.0)))
    assert "own shares: working alone, class-balanced +6.0." in best
    twins = page(replace(yes, verdict=UNKNOWN, method=AFL_PRIOR, together=shares, alone=alone,
                         others=(replace(yes.alone, name=AFL, balanced=60.0),)))
    assert "rare classes" not in twins


def test_the_command_with_class_shares_sends_what_the_advice_says(tmp_path: Path) -> None:
    words = shlex.split(method_flags(AFL_PRIOR))
    assert jobs.run(tmp_path, *words) == 0
    spent = jobs.results(tmp_path)["spent"]
    up, down = (int(one.replace(",", "")) for one in re.findall(
        r"([\d,]+) (?:bytes up|down)", cost_words(AFL_PRIOR, 128, 10)))
    assert (spent["bytes_up"], spent["bytes_down"]) == (4 * up, 4 * down), "two clients, two rounds"


def page(found: Advice, **more: object) -> str:
    """Return the page of an advice on six clients with 70 images each."""
    trial = CrossValidation((), (), 6, 5, {}, 0.0)
    return "\n".join(AdvicePage(
        found, trial, [70] * 6, "abcdef", "", "", **more).lines())  # type: ignore[arg-type]


@pytest.mark.parametrize(("points", "margin", "why", "says"), [
    (-8.2, 4.7, "together is clearly worse",
     "loses 8.2 points against working alone (95 % interval -12.9 to -3.5), class-balanced"),
    (-0.2, 1.5, "there are less than 2 points to gain",
     "seems to lose 0.2 points against working alone (95 % interval -1.7 to +1.3)"),
    (0.2, 1.5, "there are less than 2 points to gain", "gains +0.2 points over working alone"),
])
def test_a_loss_is_said_as_a_loss(
    yes: Advice, points: float, margin: float, why: str, says: str
) -> None:
    verdict = _verdict(points, margin, [70.0] * 6, 0.0, "images")[:2]
    assert verdict == (ALONE_DOES, why)
    assert says in page(replace(yes, verdict=verdict[0], why=why, points=points, margin=margin))


@pytest.mark.parametrize(("points", "margin", "twins", "way", "says"), [
    (14.3, 13.5, 0.0, FEDERATE,
     "This points to federating: the whole interval, +0.8 to +27.8, is above 0."),
    (-6.0, 7.5, 0.0, ALONE_DOES,
     "This points to working alone: the interval ends at +1.5, below 2 points."),
    (5.6, 12.8, 0.0, None, "This points neither way."),
    (14.3, 13.5, 0.5, None, ""),  # images that are not new point nowhere
])
def test_an_open_verdict_says_which_way_it_points(
    yes: Advice, points: float, margin: float, twins: float, way: str | None, says: str
) -> None:
    sizes = (16.0,) * 6
    verdict, why, lacks = _verdict(3.0, 9.0, sizes, twins, "images")
    few = replace(yes, verdict=verdict, why=why, lacks=lacks, points=points, margin=margin,
                  sizes=sizes)
    assert few.leaning == way and yes.leaning is None
    more = ("; fewer simulated clients, --num-users 2, have about 48 images each, enough to be "
            "judged, but sharing adds less there.\n")
    assert (f"{says[:-1]}{more}" in page(few, fewer=2)) == bool(says)
    assert ("This points" in page(few)) == bool(says) and "This points" not in page(yes)
    assert not says or f"{says}\n" in page(few)
    trial = CrossValidation((), (), 6, 5, {}, 0.0)
    assert AdvicePage(few, trial, [16] * 6, "abcdef").record()["points_to"] == way


def test_an_interval_that_says_nothing_is_not_told(yes: Advice) -> None:
    wide = replace(yes, verdict=UNKNOWN, points=60.0, margin=50.5, margins=(50.5, *yes.margins[1:]))
    assert "against working alone: too few images to tell the difference." in page(wide)
    assert "+60.0" not in page(wide) and "+59.5" in page(replace(wide, points=59.5, margin=50.0))
    record = AdvicePage(wide, CrossValidation((), (), 6, 5, {}, 0.0), [70] * 6, "abcdef").record()
    assert record["margin"] is None and record["points"] == 60.0
    assert [c["margin"] for c in record["clients"]] == [None, *yes.margins[1:]]


@pytest.mark.parametrize(("images", "gain", "says"), [
    ([100, 20, 20, 20, 20, 21], -3.5, "-3.5 points, not clear (95 % interval -9.9 to +2.9)"),
    ([100, 20, 20, 20, 20, 21], 8.0, "+8.0 points, a clear gain (95 % interval +1.6 to +14.4)"),
    ([100, 20, 20, 20, 20, 21], -8.0, "-8.0 points, a clear loss (95 % interval"),
    ([100, 21, 21, 21, 21, 21], -3.5, ""), ([29, 1, 1, 1, 1, 1], -3.5, ""),
])
def test_the_one_large_client_has_its_own_number(
    yes: Advice, images: list[int], gain: float, says: str
) -> None:
    """The mean is then of clients with few images, and says nothing of the large one."""
    found = replace(yes, gains=(gain, *yes.gains[1:]), margins=(6.4, *yes.margins[1:]),
                    sizes=tuple(map(float, images)))
    lines = AdvicePage(found, CrossValidation((), (), 6, 5, {}, 0.0), images, "abcdef").lines()
    told = [line for line in lines if line.startswith("The largest client, a (100 images), ")]
    assert len(told) == bool(says) and all(says in line for line in told)


def test_what_is_not_known_of_images_alone_is_said(yes: Advice) -> None:
    start = "How many images a client would need to reach the same alone is not known: "
    named = replace(yes, alone=replace(yes.alone, name="logreg_names"))
    assert start + ("it is fitted for logistic regression only, and regression from class names is "
                    "better alone here") in page(named)
    assert start not in page(yes) and start not in page(replace(named, verdict=ALONE_DOES))
    assert start not in page(replace(named, points=-1.0))
    assert f"{start}it is not fitted for sets of labels" in page(replace(yes, measure="mAP"))
    trial = CrossValidation((), (), 6, 5, {}, 0.0)
    for advice_, known in ((yes, True), (named, False)):
        record = AdvicePage(advice_, trial, [70] * 6, "abcdef").record()
        assert record["needs_known"] == known
        needs = [c["needs_alone"] or c["needs_more_than_tried"] for c in record["clients"]]
        assert any(needs) == known
