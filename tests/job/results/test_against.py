"""Notes that compare a method with its baselines, on numbers made up."""

from __future__ import annotations

from typing import Any

import pytest

from fedvlm.evaluation.references.suite import NAMES
from fedvlm.job.flags import parse
from fedvlm.job.resolve import resolve
from fedvlm.job.results import against
from fedvlm.runs.verify import beside
from fedvlm.runs.verify.answer import BASELINES, federation_answer

FOUND: dict[str, dict[str, Any]] = {
    name: {"kind": kind, "personal": value, "personal_worst": 1.0, "how": "",
           "clients": [{"client": c, "accuracy": a} for c, a in enumerate(each)]}
    for name, kind, value, each in [
        ("majority", "alone", 40.0, (40.0, 40.0, None)), ("zero_shot", "alone", None, ()),
        ("logreg", "alone", 55.0, (60.0, 50.0, None)), ("afl", "together", 58.0, (58.0,) * 3),
        ("pooled", "bound", 90.0, (90.0,) * 3),
    ]
}
CLIENTS = [{"client": 0, "accuracy": 59.0}, {"client": 1, "accuracy": 50.0},
           {"client": 2, "accuracy": None}]


def said(personal: float, kind: str = "together") -> list[tuple[str, float]]:
    return [(one["reference"], one["personal"])
            for one in against.below("FedAvg", personal, FOUND, kind)]


def test_below_what_is_of_its_kind_the_best_first() -> None:
    assert said(41.2) == [("afl", 58.0), ("logreg", 55.0)]
    assert said(41.2, "alone") == [("logreg", 55.0)]  # AFL is no reference of who sends nothing
    assert said(58.0) == [] and said(58.0 - 1e-12) == []  # equal; the bound is nobody's kind
    assert against.below("FedAvg", None, FOUND, "together") == []
    sentence = against.below("FedAvg", 41.2, FOUND, "alone")[0]["sentence"]
    assert sentence == "FedAvg personal accuracy 41.2 is below logistic regression 55.0"


def test_gain_is_over_the_best_alone() -> None:
    gain = beside.gain(57.0, FOUND)
    assert gain == {
        "points": 2.0, "reference": "logreg", "personal": 55.0, "untuned": "method"
    }
    only = {"majority": FOUND["majority"]}
    assert (beside.gain(30.0, only) or {})["points"] == -10.0
    assert (beside.gain(30.0, only) or {})["untuned"] == "both"
    assert beside.gain(None, FOUND) is None and beside.gain(1.0, {}) is None


def test_whom_federation_hurts() -> None:
    """Client 0 has more alone; client 1 the same; client 2 has no test image."""
    assert beside.hurt(CLIENTS, FOUND) == {
        "share": 50.0, "clients": [0], "of": 2, "reference": "logreg"
    }
    names = {**FOUND["logreg"], "personal": 56.0, "clients": [
        {**row, "accuracy": 0.0} for row in FOUND["logreg"]["clients"]]}
    counted = beside.hurt(CLIENTS, FOUND | {"logreg_names": names})
    assert counted == {"share": 0.0, "clients": [], "of": 2, "reference": "logreg_names"}, \
        "from the best alone"
    assert beside.hurt(CLIENTS, {}) is None and beside.hurt([], FOUND) is None


def test_every_reference_has_words() -> None:
    assert set(BASELINES) == set(NAMES) and set(against.NO_ROW) < set(NAMES)
    rows = against.table_rows(FOUND)
    assert list(rows) == ["most frequent class", "logistic regression", "federated ridge (AFL)",
                          "logistic regression, pooled"]
    assert rows["federated ridge (AFL)"] == {"personal": 58.0, "personal_worst": 1.0}
    assert rows["logistic regression, pooled"]["personal"] == pytest.approx(90.0)


def test_a_table_of_an_earlier_version_is_told_in_todays_words() -> None:
    table = [{"": "AFL (together)", "personal": 58.0}, {"": "logistic, class names"},
             {"": "pooled (bound)", "personal": 90.0}, {"": "FedAvg, round 1", "personal": 41.2}]
    assert against.told_table({"table": table}) == [
        {"": "federated ridge (AFL)", "personal": 58.0}, {"": "regression from class names"},
        {"": "logistic regression, pooled", "personal": 90.0}, table[-1]]
    assert against.told_table({"table": table, "privacy": {}}) == table[-1:]


def records(*personal: float) -> list[dict[str, Any]]:
    return [{"personal": value} for value in (0.0, *personal)]


def numbers(
    personal: float, sent: int = 1, afl: float = 80.0, alone: str = "logreg", steps: int = 9
) -> dict[str, Any]:
    """Return results of ten clients with a hundred test images each, who reach 60 alone."""
    found = {
        name: {"kind": kind, "personal": value, "personal_balanced": value,
               "clients": [{"client": c, "n": 100, "accuracy": value} for c in range(10)]}
        for name, kind, value in ((alone, "alone", 60.0), ("afl", "together", afl),
                                  ("pooled", "bound", 90.0), ("chance", "bound", 10.0))
    }
    rows = [{"client": c, "n": 100, "accuracy": personal} for c in range(10)]
    out: dict[str, Any] = {
        "last": {"personal": personal, "personal_balanced": personal, "clients": rows},
        "references": found, "spent": {"bytes_up": sent, "bytes_down": 0, "local_steps": steps},
    }
    return out | {"answer": federation_answer(out)}


RISING = records(10, 20, 30, 40, 50, 60, 70, 72)
FLAT = records(*[70.0] * 8)
HEAD = ["--trainer", "FedAvg", "--peft", "head"]
NEAR = [*HEAD, "--lr", "0.05"]
DITTO = ["--trainer", "Ditto", "--peft", "head"]
OWN_HEAD = ["--trainer", "LocalOnly", "--peft", "head"]
LONGER = ["--rounds", "20", "--tag", "rounds-20"]  # the folder without a tag holds the run
SLOWER = ["--lr", "0.05", "--tag", "lr-0.05"]
AFL = ["--trainer", "AFL", "--rounds", "1"]  # also after a command that names more
SHARES = list(against.SHARES)


def swinging(values: tuple[float, ...], losses: tuple[float, ...]) -> list[dict[str, Any]]:
    return [{"personal": 30.0}, *(
        {"personal": value, "train": {"0": {"w/loss": loss}}, "participants": [0]}
        for value, loss in zip(values, losses, strict=True))]


UP_AND_DOWN = (58.5, 45.8) * 6


@pytest.mark.parametrize(("found", "history", "trainer", "flags"), [
    (numbers(72.0), RISING, "FedTV", LONGER),
    (numbers(72.0), records(*range(40, 80)), "FedTV",
     ["--rounds", "80", "--tag", "rounds-80"]),
    (numbers(88.0), RISING, "FedTV", LONGER),  # within the margin of the bound: said
    (numbers(50.0), records(50), "FedTV", LONGER),  # few rounds, above the start
    (numbers(50.0), records(0), "FedTV", AFL),  # one round that taught nothing
    (numbers(72.0, steps=0), records(72), "TOFA", AFL),  # without steps more rounds are no help
    (numbers(72.0), FLAT, "FedTV", AFL),
    (numbers(78.9), FLAT, "FedTV", AFL),  # less than the margin: advice needs a point
    (numbers(72.0, sent=0), FLAT, "LocalOnly", AFL),
    (numbers(72.0), FLAT, "FedAvg", AFL),
    (numbers(50.0), FLAT, "FedTV", AFL),  # below alone, where a head together is above it
    (numbers(50.0, afl=59.0), FLAT, "FedTV", OWN_HEAD),
    (numbers(50.0, afl=59.0, alone="zero_shot"), FLAT, "FedTV", ["--trainer", "ZeroShot"]),
    (numbers(80.0, steps=0), FLAT, "AFL", NEAR),  # the bound is above it
    (numbers(80.0, steps=0), records(80), "AFL", [*NEAR, "--rounds", "20"]),
    (numbers(57.0, afl=59.0), FLAT, "FedAvg", DITTO),  # AFL is below alone: no way out of it
    (numbers(57.0, afl=57.5), FLAT, "FedAvg", DITTO),
    (numbers(57.0, afl=58.5), FLAT, "FedAvg", DITTO),  # AFL is below alone
    (numbers(57.0, afl=57.5), FLAT, "Ditto", OWN_HEAD),
    (numbers(57.0, afl=57.5, alone="zero_shot"), FLAT, "FedTV", ["--trainer", "ZeroShot"]),
])
def test_the_next_step(
    found: dict[str, Any], history: list[dict[str, Any]], trainer: str, flags: list[str]
) -> None:
    peft = "head" if trainer == "FedAvg" else ""
    step = against.next_step(found, history, trainer, peft, 0.5)
    assert step is not None and step["flags"] == flags
    afl = f"{found['references']['afl']['personal']:.1f}"  # who quotes it names its command
    assert (afl in step["reason"]) == (flags == AFL)


@pytest.mark.parametrize(("personal", "history", "flags"), [
    (57.0, FLAT, [*DITTO, "--lr", "0.05"]),
    (57.0, records(0), [*DITTO, "--lr", "0.05", "--rounds", "20"]),
    (50.0, FLAT, [*OWN_HEAD, "--lr", "0.05"]),
])
def test_a_head_gets_the_rate_of_heads(
    personal: float, history: list[dict[str, Any]], flags: list[str]
) -> None:
    """The command that it goes on from may have the default, which is that of prompts."""
    step = against.next_step(numbers(personal, afl=57.5), history, "FedTV", "", 0.005)
    assert step is not None and step["flags"] == flags
    step = against.next_step(numbers(personal, afl=57.5), FLAT, "FedTV", "", 0.05)
    assert step is not None and "--lr" not in step["flags"]
    step = against.next_step(numbers(personal, afl=57.5), FLAT, "FedTV", "", 0.005, sgd=False)
    assert step is not None and "--lr" not in step["flags"]  # AdamW's would be far too high


@pytest.mark.parametrize("flags", [LONGER, SLOWER, HEAD, OWN_HEAD, AFL, NEAR, DITTO,
                                   ["--trainer", "ZeroShot"], [*HEAD, "--rounds", "20"]])
def test_what_is_proposed_is_a_command(flags: list[str]) -> None:
    cfg = resolve(parse(["--demo", "--trainer", "FedTV", "--rounds", "2", *flags])).jobs[0].cfg
    said = dict(zip(flags[::2], flags[1::2], strict=True))
    assert said.get("--trainer", "FedTV") == cfg.TRAINER.NAME
    assert said.get("--rounds", "2") == str(cfg.FED.ROUNDS)


SLOW = records(*(20 + n / 2 for n in range(12)))  # 1.5 points a quarter: 6 in twelve more rounds


@pytest.mark.parametrize(("found", "history", "flags"), [
    (numbers(25.5), SLOW, AFL),
    (numbers(54.5), SLOW, ["--rounds", "24", "--tag", "rounds-24"]),  # 5.5 below alone
    (numbers(25.5, afl=59.0), SLOW, OWN_HEAD),
    (numbers(2.0), records(2), AFL),  # one round: 2 points each, 38 in the next 19
    (numbers(25.5, afl=59.0, alone="majority"), SLOW, ["--rounds", "24", "--tag", "rounds-24"]),
])
def test_where_all_are_far_below_alone_a_head_comes_before_more_rounds(
    found: dict[str, Any], history: list[dict[str, Any]], flags: list[str]
) -> None:
    """More rounds where nothing simpler is known, or where one client has no loss."""
    step = against.next_step(found, history, "PromptFL", "", 0.5)
    assert step is not None and step["flags"] == flags
    found["last"]["clients"][3]["accuracy"] = 99.0
    step = against.next_step(found, history, "PromptFL", "", 0.5)
    assert step is not None and step["flags"][0] == "--rounds"


@pytest.mark.parametrize(("pooled", "flags"), [(90.0, DITTO), (60.5, OWN_HEAD)])
def test_at_sites_the_shared_head_is_judged_by_one_place(pooled: float, flags: list[str]) -> None:
    """There is no AFL; what all images in one place reach says whether sharing can pay."""
    found = numbers(25.5)
    del found["references"]["afl"]
    found["references"]["pooled"]["personal"] = pooled
    found["answer"] = federation_answer({k: v for k, v in found.items() if k != "answer"})
    step = against.next_step(found, SLOW, "PromptFL", "", 0.5)
    assert step is not None and step["flags"] == flags


def test_a_run_that_a_rule_stopped_gets_no_more_rounds() -> None:
    step = against.next_step(numbers(72.0), RISING, "FedTV", "", 0.5, longer=False)
    assert step is not None and step["flags"] == AFL


def test_it_never_proposes_the_run_itself_nor_what_the_table_shows_to_be_worse() -> None:
    assert against.next_step(numbers(68.0, steps=0), FLAT, "AFL", "", 0.5) == {
        "reason": "a linear head on all images in one place reaches 90.0, and FedAvg of a head can "
                  "come near that", "flags": NEAR}
    found = numbers(50.0, afl=49.0, alone="zero_shot_local")  # ZeroShot has not its numbers
    assert against.next_step(found, FLAT, "FedTV", "", 0.5) is None
    found["references"]["logreg"] = {"kind": "alone", "personal": 55.0, "clients": []}
    step = against.next_step(found, FLAT, "FedTV", "", 0.5)
    assert step is not None and step["flags"] == OWN_HEAD


def test_class_shares_come_before_a_head_that_is_a_point_worse() -> None:
    """They need a point over the method and over AFL, and to be above the clients alone."""
    for method, reach, shares, said in (
        ("FedTV", 68.0, 81.0, True), ("FedTV", 68.0, 80.5, False), ("FedTV", 80.5, 81.0, False),
        ("AFL", 80.0, 81.0, True), ("AFL", 81.0, 81.0, False),
    ):
        found = numbers(reach)
        found["references"]["afl_prior"] = {"kind": "together", "personal": shares, "clients": []}
        step = against.next_step(found, FLAT, method, "", 0.5) or {"flags": [], "reason": ""}
        assert (step["flags"] == list(against.SHARES)) is said
        assert ("two rounds of AFL with SHARES reach 81.0" in step["reason"]) is said
    found = numbers(50.0, afl=49.0)
    found["references"]["afl_prior"] = {"kind": "together", "personal": 59.0, "clients": []}
    step = against.next_step(found, FLAT, "FedTV", "", 0.5)  # 60 alone
    assert step is not None and step["flags"] != list(against.SHARES)


@pytest.mark.parametrize(("personal", "sent", "reached", "flags", "trial"), [
    (50.0, 1, {"afl": 62.0}, AFL, True), (50.0, 1, {"afl": 80.0}, AFL, False),
    (50.0, 1, {"afl": 59.0, "afl_prior": 62.0}, SHARES, True),
    (50.0, 1, {"afl": 59.0, "afl_prior": 80.0}, SHARES, False),
    (59.0, 1, {"afl": 61.0}, AFL, True),  # unclear
    (72.0, 1, {"afl": 75.0, "pooled": 72.0}, AFL, False),  # that federation pays is shown
    (65.0, 1, {"afl": 66.5, "pooled": 65.0}, AFL, False),
    (99.0, 0, {"afl": 100.0, "pooled": 100.0}, AFL, True),  # LocalOnly: one image of a hundred
    (57.0, 1, {"afl": 57.5, "pooled": 61.5}, DITTO, True),
])
def test_a_step_to_sharing_within_the_margin_is_a_trial(
    personal: float, sent: int, reached: dict[str, float], flags: list[str], trial: bool
) -> None:
    """A run that says "does not pay" does not say "train together" in the next line."""
    found = numbers(personal, sent=sent)
    found["references"]["afl_prior"] = dict(found["references"]["afl"]) | {"personal": 0.0}
    for name, value in reached.items():
        rows = [{"client": c, "n": 100, "accuracy": value} for c in range(10)]
        found["references"][name] |= {"personal": value, "clients": rows}
    found["answer"] = federation_answer({k: v for k, v in found.items() if k != "answer"})
    step = against.next_step(found, FLAT, "LocalOnly" if not sent else "FedAvg", "head", 0.5)
    assert step is not None and step["flags"] == flags
    words = "it may be worth a try (1,000 test images cannot tell): "
    assert step["reason"].startswith(words) == trial and ("worth" in step["reason"]) == trial


@pytest.mark.parametrize(("alone", "pooled", "shared", "said"), [
    (98.0, 54.0, ["a", "b"], True), (98.0, 54.0, ["a"], False), (98.0, 95.0, ["a", "b"], False),
])
def test_class_names_that_clients_use_for_opposite_things_come_first(
    alone: float, pooled: float, shared: list[str], said: bool
) -> None:
    """Before a rate, which does not help there."""
    found = numbers(45.8, afl=52.0)
    for name, value in (("logreg", alone), ("pooled", pooled)):
        rows = [{"client": c, "n": 100, "accuracy": value} for c in range(10)]
        found["references"][name] |= {"personal": value, "clients": rows}
    found["references"]["chance"]["personal"] = 50.0
    found["answer"] = federation_answer({k: v for k, v in found.items() if k != "answer"})
    history = swinging(UP_AND_DOWN, (0.29, 0.23) * 6)
    step = against.next_step(found, history, "FedAvg", "head", 0.05, shared=shared)
    assert step is not None
    assert (step == {
        "reason": "all images in one place reach 54.0, alone 98.0: check that all clients mean the "
                  "same by 'a' and 'b'", "flags": []}) == said
    assert said or step["flags"][0] == "--lr"


@pytest.mark.parametrize("history", [RISING, swinging(UP_AND_DOWN, (0.29, 0.23) * 6)])
def test_no_rate_and_no_rounds_where_one_place_reaches_no_more(
    history: list[dict[str, Any]]
) -> None:
    """Although the clients alone reach much more."""
    found = numbers(45.8, afl=49.0)
    for pooled, flags in ((46.0, OWN_HEAD), (47.0, LONGER if history is RISING else SLOWER[:1])):
        found["references"]["pooled"]["personal"] = pooled
        found["answer"] = federation_answer({k: v for k, v in found.items() if k != "answer"})
        step = against.next_step(found, history, "FedAvg", "head", 0.5)
        assert step is not None and step["flags"][:len(flags)] == flags


def test_of_sets_of_labels_it_is_what_takes_them() -> None:
    found = numbers(50.0)
    found["answer"] |= {"measure": "mAP"}
    step = against.next_step(found, records(0), "LocalOnly", "prompt", 0.5)
    assert step is not None and step["flags"] == HEAD  # AFL needs one class for each image
    assert step["reason"] == "train a linear head together"  # whose number the table lacks
    own = against.next_step(found, FLAT, "FedAvg", "head", 0.5)
    assert own is not None and own["flags"] == OWN_HEAD  # 60 alone by logistic regression


def test_no_next_step_where_nothing_cheap_helps() -> None:
    assert against.next_step(numbers(92.0), RISING, "FedTV", "", 0.5) is None  # above the bound
    assert against.next_step(numbers(79.5), FLAT, "FedTV", "", 0.5) is None  # less than a point
    assert against.next_step(
        numbers(50.0, sent=0, afl=59.0), FLAT, "LocalOnly", "head", 0.5) is None
    assert against.next_step(  # alone the commonest class is better: nothing of these is
        numbers(57.0, afl=57.5, alone="majority"), FLAT, "FedAvg", "head", 0.5) is None
    assert against.next_step({"answer": None, "references": {}}, FLAT, "FedTV", "", 0.5) is None


def test_accuracy_rises_by_quarters() -> None:
    assert against.last_rise(RISING) == 71.0 - 55.0
    assert against.last_rise(FLAT) == 0.0 and against.last_rise(records(1, 2, 3)) == 0.0


def test_a_mad_rate_is_named() -> None:
    """Guessing among ten classes has a loss of 2.3; three times that is no training."""
    for loss, flags in ((40.0, SLOWER), (6.8, AFL)):
        history = [*FLAT[:-1], {"personal": 20.0, "train": {"0": {"w/loss": loss}}}]
        step = against.next_step(numbers(20.0), history, "FedAvg", "head", 0.5)
        assert step is not None and step["flags"] == flags


@pytest.mark.parametrize(("values", "losses", "lower"), [
    (UP_AND_DOWN, (0.29, 0.23) * 6, True),
    (UP_AND_DOWN, tuple(1 - n / 20 for n in range(12)), False),  # of few images, not of the rate
    (tuple(50 + n % 2 for n in range(12)), (0.29, 0.23) * 6, False),  # less than 3 points
    (tuple(20.0 + 3 * n for n in range(12)), (0.29, 0.23) * 6, False),  # it rises
    (UP_AND_DOWN[:6], (0.29, 0.23) * 3, False),  # too few rounds to tell
])
def test_accuracy_that_swings_says_a_lower_rate(
    values: tuple[float, ...], losses: tuple[float, ...], lower: bool
) -> None:
    """Before anything is said on federation, which is not at fault."""
    history = swinging(values, losses)
    step = against.next_step(numbers(45.8), history, "FedAvg", "head", 0.05)
    assert step is not None
    assert (step["flags"] == ["--lr", "0.01", "--tag", "lr-0.01"]) == lower
    assert step["reason"].startswith("accuracy goes up and down by 12.7 points a round") == lower
    history[-1]["participants"] = [1]  # other clients, other accuracy
    step = against.next_step(numbers(45.8), history, "FedAvg", "head", 0.05)
    assert step is not None and step["flags"][0] != "--lr"
    assert against.next_step(  # nothing is to be gained
        numbers(91.0), swinging(values, losses), "FedAvg", "head", 0.05) is None


def test_models_worse_than_untrained_ones_say_a_lower_rate() -> None:
    for start, loss, flags in ((60.0, 2.8, SLOWER), (60.0, 1.0, AFL), (20.0, 2.8, AFL)):
        history = [{"personal": start}, *FLAT[1:-1],
                   {"personal": 20.0, "train": {"0": {"w/loss": loss}}}]
        step = against.next_step(numbers(20.0), history, "FedAvg", "head", 0.5)
        assert step is not None and step["flags"] == flags


def test_a_high_loss_in_the_first_rounds_may_still_fall() -> None:
    """Unless it rises: the second round may say so, the first has nothing to compare with."""
    for losses, lower in (([6.0], False), ([6.0, 5.0], False), ([3.0, 6.0], True),
                          ([6.0, 5.0, 4.0], True)):
        history: list[dict[str, Any]] = [{"personal": 60.0}]
        history += [{"personal": 20.0, "train": {"0": {"loss": loss}}} for loss in losses]
        step = against.next_step(numbers(20.0), history, "FedAvg", "head", 0.5)
        assert step is not None and step["flags"] == (SLOWER if lower else AFL)
