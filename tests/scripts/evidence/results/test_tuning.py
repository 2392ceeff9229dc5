"""Which runs have tuned values: by their configs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from evidence.results.tuning import (
    chosen_edges,
    kind_of,
    other_ranges,
    searched,
    searched_again,
)
from fedvlm.runs.finished import FinishedRun
from fedvlm.sweep.tune.tuned import trains_of

ENTRY = {"label": "FedProx", "trainer": "FedProx",
         "settings": {"PEFT.VISUAL": "feature", "FED.LOCAL_EPOCHS": "2"},
         "values": {"OPTIM.LR": "1e-3", "TRAINER.FEDPROX.MU": "0.5"}}
TRAINS = {"FedProx": {"PEFT.VISUAL": "feature", "FED.FINETUNE_EPOCHS": -1}}
RECORD = {"plan": {"common": {"MODEL.BACKBONE.NAME": "local-dir:../shared/realfeat"}},
          "entries": [ENTRY]}


@pytest.mark.parametrize(("changes", "kind"), [
    ({}, "tuned"),
    ({"FED.LOCAL_EPOCHS": 7}, "tuned"),  # not among what was chosen
    ({"TRAINER.FEDPROX.MU": 1.0}, "in part"),
    ({"OPTIM.LR": 0.002}, "defaults"),
    ({"PEFT.VISUAL": "none"}, "defaults"),
    ({"PEFT.TEXT": "prompt"}, "defaults"),  # trains more than what was tuned
    ({"FED.FINETUNE_EPOCHS": 5}, "defaults"),
    ({"MODEL.BACKBONE.NAME": "tiny"}, "defaults"),
])
def test_a_run_is_tuned_when_its_config_has_the_values(changes: dict[str, Any], kind: str) -> None:
    config = {"OPTIM.LR": 0.001, "TRAINER.FEDPROX.MU": 0.5, "PEFT.VISUAL": "feature",
              "FED.FINETUNE_EPOCHS": -1, "MODEL.BACKBONE.NAME": "local-dir:/data/realfeat"}
    config |= changes
    run = SimpleNamespace(protocol={"trainer": "FedProx"}, identity_config=lambda: config)
    assert kind_of(cast(FinishedRun, run), RECORD, TRAINS) == kind


def test_what_an_entry_trained_is_resolved_as_runs_are() -> None:
    """FedTV trains prompt and feature by its own file; keys that nothing reads are left out."""
    record = {"plan": {"common": {"OPTIM.LR": "0.1"}}, "entries": [
        {"label": "FedTV", "trainer": "FedTV", "settings": {}},
        {"label": "mine", "trainer": "FedAvg", "settings": {"PEFT.TEXT": "none",
                                                           "PEFT.VISUAL": "feature"}}]}
    trains = trains_of(record)
    assert trains["mine"]["PEFT.TEXT"] == "none" and trains["mine"]["FED.FINETUNE_EPOCHS"] == -1
    assert not any(key.startswith("PEFT.LORA") for key in trains["mine"])
    assert set(trains) == {"FedTV", "mine"}


@pytest.mark.parametrize(("work", "sentence"), [
    ((), "none of 2: the plan sets it (FED.LOCAL_EPOCHS 2 for 2), so that"),
    (("A",), "1 of 2; for the others the plan sets it (FED.LOCAL_EPOCHS 2 for 1), so that"),
    (("A", "B"), "2 of 2."),
])
def test_whose_local_work_was_searched_is_said(work: tuple[str, ...], sentence: str) -> None:
    record = {"budget": 20, "plan": {"common": {}}, "entries": [
        {"label": label, "trainer": "FedAvg",
         "settings": {} if label in work else {"FED.LOCAL_EPOCHS": "2"},
         "space": ["OPTIM.NAME sgd | adamw", "OPTIM.LR 0.002 to 2 log",
                   *(["FED.LOCAL_EPOCHS 1 | 2 | 4"] if label in work else [])]}
        for label in ("A", "B")]}
    assert searched(record)[-1].startswith(f"Local work was tuned for {sentence}")


def test_a_range_that_a_method_has_no_more_is_named() -> None:
    """Optimisers' ranges are every method's, and stand elsewhere on the page."""
    entries = [{"label": "M", "trainer": "M", "space": [
        "OPTIM.LR 0.002 to 2 log", f"TRAINER.M.MU {span}", "TRAINER.M.TAU 0.1 to 1 log"]}
               for span in ("0.1 to 10 log", "0.1 to 10 log")]
    cards = {"M": "M: a method.\n\nKnobs: MU 0.0 | 10.0; TAU 0.1 to 1 log.\n"}
    assert other_ranges({"entries": entries}, cards.__getitem__) == [
        "M: MU was searched in 0.1 to 10 log; the method's range is now 0.0 | 10.0. What these "
        "pages say of M rests on the range that was searched."]
    cards["M"] = cards["M"].replace("0.0 | 10.0", "0.1 to 10 log")
    assert other_ranges({"entries": entries}, cards.__getitem__) == []
    assert other_ranges({}, cards.__getitem__) == []


def test_values_at_the_edge_of_their_range_are_named() -> None:
    """On a log scale; adamw's rates are a tenth of the range; choices of words have no edge."""
    space = ["OPTIM.NAME sgd or adamw", "OPTIM.LR 0.002 to 2 log", "OPTIM.HEAD.LR 0.002 to 2 log"]
    plain = {"OPTIM.NAME": "sgd", "OPTIM.LR": "0.05", "OPTIM.HEAD.LR": "1.9"}
    record = {"entries": [
        {"label": "A", "space": space, "values": plain},
        {"label": "B", "space": space, "values": plain | {"OPTIM.NAME": "adamw",
                                                          "OPTIM.HEAD.LR": "0.005"}},
        {"label": "C", "space": ["MU 0 to 5"], "values": {"MU": "4.8"}}]}
    assert chosen_edges(record) == [("A", "OPTIM.HEAD.LR", "0.002 to 2 log", "1.9"),
                                    ("C", "MU", "0 to 5", "4.8")]
    assert chosen_edges({}) == []


def test_a_second_search_says_what_the_edge_had_held_back() -> None:
    first, again = ([{"label": label, "values": {"LR": value}, "score": score}
                     for label, value, score in rows] for rows in (
        (("MOON", "9", 81.8), ("A", "1", 70.0), ("B", "1", 60.0), ("C", "1", 50.0)),
        (("MOON", "9", 81.8), ("A", "2", 70.5), ("B", "2", 58.5), ("gone", "1", 1.0))))
    assert searched_again({"entries": first}, {"entries": again}) == (
        "3 entries were searched again in the wider ranges, with as many trials again. "
        "MOON reached more and has the values of that search. "
        "The other 2 keep theirs: at most +0.5 points (A), on average -0.5; the edge did not hold "
        "them back.")
    assert searched_again({"entries": first}, {}) == ""
