"""Who is best of a lane that is not complete."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from evidence.results import headline
from evidence.results.claims import BEST_ALONE, NOT_RUN, Claim, Side, answers, side_of
from evidence.results.headline import winners
from evidence.results.lanes import Lane, former_defaults, seeds_each
from evidence.results.questions import (
    at_our_place,
    beside,
    cases,
    commonest,
    federate,
    gains_on_map,
    how_wide,
    own_cases,
    shared_deals,
    unreliable,
    useless,
)
from evidence.results.standing import Standing, losers, sentences, standing_of
from evidence.results.tuning import lender_of
from fedvlm.report.collect import Collected
from fedvlm.report.statistics.contrast import contrast
from fedvlm.report.statistics.images import ClientAnswers
from fedvlm.runs.finished import FinishedRun

FACTS = {"methods": 2, "sets": 1, "backbones": 1, "seeds": (3, 3), "lanes": 1, "start": "",
         "cells": 9, "wanted": 9, "missing": 0, "tuned": 0}
Values = dict[str, dict[int, float]]  # data set -> seed -> percent


def runs(
    method: str, values: Values, peft: str = "", tag: str = "", steps: int = 4
) -> list[FinishedRun]:
    """Return runs of a method; a data set with a capital letter takes ten times the steps."""
    label = method + (f" [{peft}]" if peft else "") + (f" ({tag})" if tag else "")
    return [cast(FinishedRun, SimpleNamespace(
        method=label,
        protocol={"trainer": method, "peft": peft, "tag": tag, "dataset": name, "seed": seed,
                  "data_seed": seed},
        value=lambda metric, value=value: None if metric == "new" else value,
        section=lambda name: {}, last={},
        totals=lambda name=name: {"local_steps": steps * (10 if name.isupper() else 1)},
    )) for name, seeds in values.items() for seed, value in seeds.items()]


def standing(**methods: Values) -> Standing | None:
    return standing_of("x", "y", [run for name, sets in methods.items()
                                  for run in runs(name, sets)])


def test_runs_from_before_an_option_say_so() -> None:
    """AFL has its ridge chosen by default since VARIANT; without the key it had none."""
    old, new = (cast(FinishedRun, SimpleNamespace(
        method="AFL", protocol={"trainer": "AFL"}, identity_config=lambda c=config: c))
        for config in ({}, {"TRAINER.AFL.VARIANT": "fixed"}))
    assert former_defaults([new]) == []
    assert former_defaults([old, old, new]) == [
        "AFL: 2 runs are of VARIANT published, from before that option; its default is fixed, so "
        "a new run can have other numbers."]


def test_costs_are_of_all_runs_that_send_and_of_the_best() -> None:
    def costly(method: str, value: float, kilobytes: float, seconds: float) -> list[FinishedRun]:
        out = runs(method, {"s": {1: value, 2: value + 1, 3: value}})
        for at, run in enumerate(out):
            run.totals = lambda: {"local_steps": 4, "bytes_up": 1000 * kilobytes, "bytes_down": 0,
                                  "client_rounds": 1}
            run.seconds = seconds + at
            run.info = {"notes": ["image features: all 1,200 from the store"] if seconds > 1 else
                        [f"image features: {images} encoded in 4.0 s = {speed} images/s, limited by"
                         for images, speed in (("1,200", 30), ("7", 1000))][at % 2:][:1]}
            run.identity_config = lambda: {"FED.CLIENTS": 5}
        return out

    every = [*costly("A", 80.0, 300, 2.0), *costly("B", 60.0, 8.2, 1.0),
             *costly("C", 50.0, 4000, 9.0)]
    one = standing_of("x", "y", every)
    assert one is not None and one.senders == {"A", "B", "C"}
    lanes = [Lane("x", Collected([*every, *costly("Dear", 10.0, 34699, 301.0)]))]
    first = cast(Any, [SimpleNamespace(lane="x", title="y", method="A")])
    assert at_our_place([one], lanes, first)[:3] == [
        "With the small backbones of these pages a CPU is enough. 12 runs of methods that send, "
        "each of all clients, took 1.0 to 303 seconds on one core, half of them at most 6; "
        "encoding the images, once, comes on top.",
        "A client sends and receives 8.2 kB (B) to 34,699 kB (Dear) in each round; with the best "
        "trained method of a setting 300 kB (A). AFL, FedPFT and TOFA need one message; the others "
        "send in every round.",
        "Images are encoded once and stored, which comes on top: 9 of these 12 runs found them "
        "stored; the others encoded 30 a second in the median."]
    for run in lanes[0].runs[-3:]:  # one message, in no round: its seconds count all the same
        run.totals = lambda: {"bytes_up": 5, "bytes_down": 0}
    assert "8.2 kB (B) to 4,000 kB (C)" in (told := at_our_place([one], lanes, first))[1]
    assert "took 1.0 to 303 seconds" in told[0]
    assert seeds_each(lanes) == (3, 3)
    assert seeds_each([*lanes, Lane("z", Collected(every[:1]))]) == (1, 3)


def test_one_round_without_training_stands_beside_the_best_method() -> None:
    """Where no run of the same images knows it, there is none."""
    def dealt(values: dict[str, float], **references: float) -> list[FinishedRun]:
        out = [run for method, value in values.items()
               for run in runs(method, {"s": {1: value, 2: value + 1, 3: value}})]
        told = {name: {"personal": value, "personal_balanced": value - 20,
                       "clients": [{"client": k, "n": 10**5, "correct": 7 * 10**4}
                                   for k in range(4)]}
                for name, value in references.items()}
        sections = {"references": told, "gain": {"reference": "logreg"}, "hurt": {"share": 4.5}}
        for run in out:
            run.last = {"clients": [{"client": k, "n": 10**5, "correct": 10**4 * (6 + k)}
                                    for k in range(4)]}
            run.section = lambda name: sections.get(name, {})
            run.totals = lambda: {"bytes_up": 1}
            run.identity_config = lambda: {"FED.CLIENTS": 5}
        return out

    found = {"logreg": 70.0, "afl": 65.0}
    out = []
    for known in (found, found | {"afl_prior": 82.0}):
        every = dealt({"Ditto": 80.0, "FedAvg": 60.0}, **known)
        one = standing_of("x", "y", every)
        assert one is not None
        out += cases([one], [Lane("x", Collected(every), title="X")])
    bare, case = out
    assert (bare.untrained, bare.beside) == ("65.0 / -", None)
    assert not any("AFL" in line for line in federate([bare]))
    assert federate([case, replace(case, lane="y", shares=66.0)])[0] == (
        "AFL plus each client's class shares, which trains nothing, is above working alone in 1 of "
        "2 settings (+12.0 to +12.0 points), not above it in y (-4.0).")
    lines = beside([bare], [bare])
    assert ("Even with the best method of a setting, 25.0 % (Ditto, x) to 25.0 % (Ditto, x) of the "
            "clients would have done better alone.") in lines  # the runs' own 4.5: a regression
    assert lines[0].endswith(
        "the same methods gain +30.3 to +30.3 points: significantly above alone in 1 and below it "
        "in 0 of 1 settings (by seeds alone, without correction for choosing).")
    assert bare.fair == "Ditto +30.3"
    assert lines[2] == ("Nothing follows for another data set: no comparison has the four that a "
                        "prediction needs.")
    assert not bare.exact and how_wide([bare]).startswith(
        "No setting's gains are all compared image by image: intervals rest on counts")
    assert how_wide([bare, replace(bare, lane="y", exact=True)]).startswith(
        "The gains of 1 of 2 settings are compared image by image, over seeds, too; those of the "
        "others (x) rest at least in part on counts of right answers")
    assert "the others (x) rest" in how_wide(
        [bare, replace(bare, exact=True), replace(bare, lane="y", exact=True)])
    assert how_wide([replace(bare, exact=True)]) == (
        "The gains of 1 of 1 settings are compared image by image, over seeds, too ([how wide]"
        "(../tables.md)).")
    twin = replace(bare, lane="y", sure=1)
    other = replace(twin, lane="z", deals=frozenset({("other",)}))
    assert federate([replace(bare, sure=1), twin])[0].endswith(
        " in y (y). These 2 have images, clients and seeds in common: 1 independent case, not 2.")
    assert federate([replace(bare, sure=1), twin, other])[0].endswith(
        ": 2 independent cases, not 3.")
    assert federate([twin, other])[0].endswith(" in z (y).")
    assert " can be undecided (x): significance is corrected" in federate(
        [replace(bare, sure=0)])[2]
    far = replace(bare.gain, ahead=(-1.0, 3.0))
    assert beside([bare, replace(bare, gain=far)], [bare])[2] == (
        "On another data set a gain is sure in none of the 1 comparisons on four data sets or more "
        "(1 have fewer).")
    assert case.untrained == "65.0 / 82.0" and case.beside is not None
    assert bare.even is None and case.even is not None and case.even.mean == 12.0
    assert case.beside.mean == pytest.approx(80 + 1 / 3 - 82)
    assert ("It reaches at least as much as the best method in 1 of 1 settings, significantly "
            "more in 1 (x).") in federate([case])[-1]


def test_new_classes_are_ranked_by_their_own_accuracy() -> None:
    """Alone, A is best on what it has and at chance on classes that no client has."""
    every = []
    for name, personal, new, by in (("A", 68.0, 2.6, 1), ("B", 47.0, 48.2, 2), ("C", 45.0, 46.0, 1)
                                    ):
        for at, run in enumerate(runs(name, {"s": dict.fromkeys((1, 2, 3), personal)})):
            told = {"personal": personal, "new": new + by * (0.1, 0.3, 0.2)[at]}
            run.value = lambda metric, told=told: told.get(metric)
            run.section = lambda name: {"new": 45.5} if name == "zero_shot" else {}
            run.totals = lambda: {"bytes_up": 1}
            every.append(run)
    one = standing_of("unseen", "y", every)
    assert one is not None and (one.best, one.metric) == ("B", "new")
    assert one.gains["B"].mean == pytest.approx(3.1)
    mine = [run for run in every if run.method == "B"]
    assert losers(side_of(mine, "new"), side_of(mine, "new", "zero_shot")) is None
    (row,) = winners([one])
    assert (row.best, row.metric) == ("B", "new") and row.mean == pytest.approx(48.6)
    assert headline.gains([one]) == "", "not a gain over working alone"
    assert sentences(one, every)[:2] == [
        "Best on classes that no client has: B, 48.6; significantly better on these data sets "
        "(paired, corrected for choosing the best) than 2 of the 2 others.",
        "There significantly above the zero-shot model (by seeds alone): 2 of 3 (B, C); the best "
        "by +3.1 points."]
    (case,) = own_cases([], [one], [], [])
    assert case == ("expect new classes later", "For these alone: B (y), 48.6 % on them, +3.1 "
                    "points over the zero-shot model; 2 of 3 methods are significantly above it "
                    "([unseen](settings/unseen.md)).")


def drawn(case: str, **gains: float) -> list[dict[str, str]]:
    """Return rows of ``methods.csv``: of two sets, one point around a gain."""
    return [{"set": name, "case": case, "method": method, "alone": "50", "personal":
             str(50 + gain + more)} for method, gain in gains.items()
            for name, more in (("eurosat", 1.0), ("dtd", -1.0))]


def test_a_reader_finds_a_case() -> None:
    cells = [{"set": "e", "clients": "5", "images": "5", "skew": skew, "shift": shift,
              "method": method, "gain": gain}
             for skew, shift, method, gain in (
                 ("1", "no", "personal", "9"), ("1", "yes", "personal", "6"),
                 ("1", "no", "ridge+shares", "8"), ("1", "yes", "ridge+shares", "2"),
                 ("0.1", "no", "personal", "99"), ("1", "no", "shared", "50"))]
    for other in ({"clients": "2"}, {"clients": "20"}, {"skew": "two classes"}):  # few, many, none
        cells += [one | other | {"gain": "-9"} for one in cells[:4]]
    rich = drawn("poor beside rich", FedAvg=37.0, Ditto=30.0, FedAS=-3.0)
    even = drawn("even 10x10", AFL=29.0)
    assert own_cases([], [], cells, [*rich, *even]) == [
        ("differ by scanner or hospital", "5 to 10 clients that share classes, with five "
         "simulated scanners (filters): Ditto +6.0 points in the median, AFL plus class shares "
         "+2.0; with one scanner for all +9.0 and +8.0 (1 pairs of cells; [map](map/README.md))."),
        ("have the same classes and one image of each (10 clients, 10 images)",
         "AFL +29.0 points (the best two; [methods on the map](map/methods.md))."),
        ("are poor beside rich", "FedAvg +37.0, Ditto +30.0 points (the best two; [methods on the "
         "map](map/methods.md)).")]
    unlike = [one | {"skew": "0.3", "gain": gain} for one, gain in zip(
        cells[:4], ("7", "3", "6", "-0.04"), strict=True)]
    assert own_cases([], [], [*cells, *unlike], [])[0][1].endswith(
        " Of these with unlike classes (Dirichlet 0.3) +3.0 and +0.0: take Ditto, trained to the "
        "end.")
    for row in rich:
        row.update(poor="70", poor_alone="30", rich="80", rich_alone="65")
    assert own_cases([], [], [], rich)[0][1].endswith(
        " With FedAvg the third with the fewest test images +40.0 (2 draws: +40.0 to +40.0), the "
        "third with the most +15.0 (2 draws: +15.0 to +15.0).")
    assert gains_on_map([*rich, *drawn("poor beside rich", Half=90.0)[:1]], "poor beside rich"
                        ).keys() == {"FedAvg", "Ditto", "FedAS"}, "who lacks a set is left out"


def test_few_clients_in_a_round_are_told_with_how_sure_that_is() -> None:
    def case(lane: str, gain: float, sure: int) -> Any:
        return SimpleNamespace(lane=lane, title="y", method="Ditto", sure=sure,
                               gain=SimpleNamespace(mean=gain))

    every = [case("dirichlet", 3.7, 1), case("participation", 2.7, 0)]
    assert unreliable(every, drawn("two clients in a round", Ditto=-1.8, Ft=4.0)) == (
        "Where a part of the clients answers in each round ([participation](settings/"
        "participation.md), y), Ditto has the highest mean, +2.7 points above alone (undecided); "
        "with all of them Ditto, +3.7 (significant). With two of ten in each round, on the "
        "[map's middle](map/methods.md), it is Ft +4.0, Ditto -1.8.")


def test_what_is_below_alone_everywhere_is_named() -> None:
    def case(lane: str, title: str, gain: float, sure: int) -> Any:
        return SimpleNamespace(lane=lane, title=title, method="A", sure=sure,
                               gain=SimpleNamespace(mean=gain))

    every = [case("a", "prompt", -20.0, -1), case("b", "prompt", -16.5, -1),
             case("a", "head", -3.0, -1), case("b", "head", 1.0, 0)]
    assert useless(every).endswith("in every setting: prompt (-16.5 points at best).")
    assert useless(every[2:]) == ""


def test_a_variant_that_lacks_data_sets_forbids_that_nobody_should_train() -> None:
    """FedTV with a context for each class reaches alone where it ran, and rankings leave it out."""
    every = [cast(Any, SimpleNamespace(lane="x", title=title, sure=-1,
                                       gain=SimpleNamespace(mean=gain)))
             for title, gain in (("y", -13.0), ("z", -16.5))]
    values = {"a": {1: 88.0, 2: 90.0, 3: 89.0}, "b": {1: 70.0, 2: 72.0, 3: 71.0}}

    def told(below: float) -> str:
        left_out = runs("P", values, tag="csc")
        for run, spread in zip(left_out, (0.5, 0.0, -0.5) * 2, strict=True):
            alone = {"personal": run.value("personal") + below + spread}
            run.section = lambda name, alone=alone: {
                "gain": {"reference": "logreg"}, "references": {"logreg": alone}}.get(name, {})
        rest = {name: seeds | {4: 60.0} for name, seeds in values.items()} | {"c": values["a"]}
        one = standing_of("x", "y", [*runs("P", rest), *runs("Q", rest), *left_out])
        assert one is not None and one.lacking.keys() == {"P (csc)"}
        return useless(every, [one], [Lane("x", Collected(left_out))])

    assert told(0.1) == (
        "What not to train on such small backbones, since the best method is significantly below "
        "working alone in every setting: z (-16.5 points at best). Of y the ranked methods are "
        "below, too (-13.0 points at best), but not P (csc) in x: -0.1 [-0.7, +0.5], on a and b "
        "alone. (csc): a context of words for each class; the others have one for all.")
    assert told(5.0).endswith("every setting: y (-13.0 points at best), z (-16.5 points at best).")


def test_settings_of_the_same_images_are_named() -> None:
    def lane(name: str, dataset: str) -> Lane:
        return Lane(name, Collected(runs("A", {dataset: {1: 1.0}})))

    assert ": a, c; b, d. Their cells are not independent." in shared_deals(
        [lane(name, dataset) for name, dataset in zip("abcde", "ststu", strict=True)])
    assert shared_deals([lane("a", "s"), lane("b", "t")]) == ""


def test_a_skew_is_told_as_the_share_of_the_commonest_classes() -> None:
    """Two of ten classes hold everything at 0, and 0.2 without any skew."""
    assert commonest(1e-3) > 99 and commonest(1e6) == pytest.approx(20, abs=0.1)
    assert commonest(0.1) > commonest(0.3) > commonest(1.0)


def test_means_are_of_the_seeds_that_all_have() -> None:
    """With B's fourth seed its mean would be 81.0, and A, above it in every pair, a peer."""
    one = standing(A={"s": {1: 80.0, 2: 80.0, 3: 80.1}},
                   B={"s": {1: 78.0, 2: 78.2, 3: 77.9, 4: 90.0}})
    assert one is not None
    assert (one.best, one.beaten, one.peers) == ("A", ["B"], [])
    assert one.means["B"] == pytest.approx(78.0333, abs=1e-4) and one.seeds == 3


def test_shots_of_a_set_are_one_set() -> None:
    """Two columns of a set are its mean, seed by seed: two sets are no four."""
    every = []
    for name, more in (("A", 4.0), ("B", 0.0)):
        for dataset, up in (("s", 1.0), ("t", 3.0)):
            for shots in (1, 2):
                for run in runs(name, {dataset: {i: 50.0 + i + more * up * shots
                                                 for i in (1, 2, 3)}}):
                    run.protocol["shots"] = shots
                    every.append(run)
    one = standing_of("x", "y", every)
    assert one is not None and one.sets == winners([one])[0].sets == 2 and one.seeds == 3
    by_hand = [{(i, i): 50.0 + i + 4.0 * up * 1.5 for i in (1, 2, 3)} for up in (1.0, 3.0)]
    assert one.values["A"] == by_hand
    assert one.apart["B"] == contrast(one.values["B"], one.values["A"])
    (answer,) = answers("A", Claim("personal", "B", "x"), every)
    assert answer.difference == one.apart["B"] and answer.difference.pairs == 6


def test_columns_of_a_set_weigh_alike_in_the_images_part() -> None:
    """Right answers 1, 2, 3 and 10 of 10 are 4 on average: p(1 - p) is 0.24, not that of 6.4."""
    told = {("s", shots): {1: {"0": ClientAnswers(10, right)}}
            for shots, right in ((1, 1.0), (2, 2.0), (4, 3.0), (8, 10.0))}
    cells = {(place, 1) for place in told}
    assert Side({}, told).by_set(list(told), cells) == [{1: {"0": ClientAnswers(10, 4.0)}}]


def test_a_share_of_clients_counts_data_sets_alike() -> None:
    """One of ten on one set of three seeds, 7 on one of two: 40, not 34 of all runs.

    They lose against the best alone: against the regression from nothing, as ``hurt``, none does.
    """
    def clients(right: int, of: int = 10) -> dict[str, Any]:
        return {"clients": [{"client": k, "n": 10, "correct": 5 + (k >= right)}
                            for k in range(of)], "personal": 55.0}

    every = runs("A", {"s": {1: 50.0, 2: 50.0, 3: 50.5}, "t": {1: 40.0, 2: 41.0}})
    for run in every:
        run.last = clients(1 if run.protocol["dataset"] == "s" else 7)
        known = {"references": {"logreg": clients(10), "logreg_names": clients(0)},
                 "gain": {"reference": "logreg_names"}, "hurt": {"share": 0.0}}
        run.section = lambda name, known=known: known.get(name, {})
        run.totals = lambda: {"bytes_up": 1}
    one = standing_of("x", "y", [*every, *runs("B", {"s": {1: 49.0, 2: 49.0, 3: 49.0},
                                                     "t": {1: 39.0, 2: 39.0}})])
    assert one is not None and set(one.gains) == {"A"}
    mine = [run for run in every if run.method == "A"]
    assert losers(side_of(mine, "personal"), side_of(mine, "personal", BEST_ALONE)) == \
        pytest.approx(40.0)


def test_who_is_below_zero_shot_on_new_classes_is_named() -> None:
    every = [*runs("A", {"s": {1: 50.0, 2: 50.0}}), *runs("B", {"s": {1: 40.0, 2: 41.0}})]
    for run in every:
        run.section = lambda name: {"new": 45.5} if name == "zero_shot" else {}
        new = run.value("personal")
        run.value = lambda metric, new=new: new if metric == "new" else None
    said = sentences(None, every)
    assert said == ["1 of 2 methods are on average below the zero-shot model on unseen classes "
                    "(B)."]


def test_who_lacks_a_set_is_named_and_a_set_of_few_waits() -> None:
    full = {"s": {1: 50.0, 2: 51.0}, "t": {1: 60.0, 2: 61.0}}
    one = standing(A=full, B=full, C=full, MOON={"s": {1: 90.0, 2: 90.0}})
    assert one is not None and one.lacking == {"MOON": "0 of 2 seeds of t"}
    assert "MOON (0 of 2 seeds of t)" in " ".join(sentences(one, []))
    assert (winners([one])[0].of, winners([one])[0].absent) == (3, "MOON")
    one = standing(A=full, B={"s": full["s"]}, C={"s": full["s"]})
    assert one is not None and set(one.means) == {"A", "B", "C"} and one.thin == ["t"]
    assert winners([one])[0].absent == "data set t" and one.sets == 1


def test_of_methods_that_train_nothing_in_common_none_is_the_best() -> None:
    every = [*runs("AFL", {"s": {1: 1.0, 2: 2.0}}), *runs("TOFA", {"s": {1: 9.0, 2: 9.5}})]
    one = standing_of("x", "own", every, alike=False)
    assert one is not None and set(one.means) == {"AFL", "TOFA"}
    assert winners([one]) == [] and sentences(one, every) == []


def test_the_best_of_many_is_not_judged_as_one() -> None:
    """d = 2 +- 1 of three seeds: p 0.07 of one; d = 2 +- 0.5: p 0.02 of one, more of ten."""
    alone = {"s": {1: 50.0, 2: 51.0, 3: 52.0}}
    up = {"s": {1: 51.5, 2: 53.0, 3: 54.5}}
    one = standing(LocalOnly=alone, Ditto=up)
    assert one is not None and one.above_local("") == ["Ditto"]
    many = standing(LocalOnly=alone, Ditto=up, **{f"M{at}": alone for at in range(9)})
    assert many is not None and many.above_local("") == [] and many.beaten == []
    assert winners([many])[0].over == "0 of 10" and winners([one])[0].over == "1 of 1"


def test_the_backbone_s_start_is_told() -> None:
    (run,) = runs("Ditto", {"EuroSAT": {1: 1.0}})
    run.section = lambda name: {"zero_shot": {"personal": 17.4}, "chance": {"personal": 10.0}}
    assert "accuracy of the backbone: EuroSAT 17 % (chance 10)" in headline.start([run])
    assert "4 data sets, 3 to 5 seeds of each and" in headline.counts(
        FACTS | {"sets": 4, "seeds": (3, 5)})
    assert headline.counts(FACTS).startswith("9 runs: 2 methods on one frozen backbone")


def test_a_bare_rival_that_is_several_says_so() -> None:
    both = [*runs("FedAvg", {"s": {1: 1.0}}, "head"), *runs("FedAvg", {"s": {1: 1.0}}, "prompt"),
            *runs("AFL", {"s": {1: 2.0, 2: 3.0}})]
    (answer,) = answers("AFL", Claim("personal", "FedAvg", "x"), both)
    assert (answer.verdict, answer.why) == (NOT_RUN, "FedAvg is ambiguous here: FedAvg [head], "
                                            "FedAvg [prompt]; the claim must name one of them")
    (answer,) = answers("AFL", Claim("personal", "FedAvg [head]", "x"), both)
    assert answer.difference is not None and answer.difference.pairs == 1


def test_steps_are_compared_over_the_pairs() -> None:
    every = [*runs("FedAvg", {"s": {1: 1.0}, "BIG": {1: 1.0}}), *runs("Ditto", {"s": {1: 2.0}})]
    (answer,) = answers("Ditto", Claim("personal", "FedAvg", "x"), every)
    assert answer.steps == 1.0


def test_surplus_runs_stand_for_no_planned_cell() -> None:
    cells = frozenset((name, "", seed) for name in "st" for seed in (1, 2))
    planned = {"FedAvg": cells, "FedAvg [head]": cells}
    again = runs("FedAvg", {"s": {1: 1.0, 2: 1.0}}, "head", "again")
    lane = Lane("x", Collected([*runs("FedAvg", {"s": {1: 1.0}}, "head"), *again]), wanted=4,
                folders={"plans": planned})
    assert lane.absent == 3
    assert lane.pairs("FedAvg [head]", "FedAvg") == 4 and Lane("x", Collected()).absent == 0


def test_the_lender_of_an_optimiser_is_named() -> None:
    record: dict[str, Any] = {"entries": [{"label": "PromptFL", "trainer": "PromptFL", "values": {
        "OPTIM.NAME": "adamw", "OPTIM.LR": "0.0676"}}]}
    for trainer, rate, lender in (("FedPHA", 0.0676, "PromptFL"), ("FedPHA", 0.002, ""),
                                  ("PromptFL", 0.0676, "")):
        run = SimpleNamespace(protocol={"trainer": trainer}, identity_config=lambda rate=rate: {
            "OPTIM.NAME": "adamw", "OPTIM.LR": rate})
        assert lender_of(cast(FinishedRun, run), record) == lender
