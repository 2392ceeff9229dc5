"""Claims: the sentence, its setting, and what runs say to it."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from evidence.results.claims import (
    NOT_RUN,
    REFUTED,
    SUPPORTED,
    UNDECIDED,
    Answer,
    Claim,
    Label,
    answers,
    firmed,
    labels_of,
    missing,
    read_claim,
    rivals_of,
    unmeasured,
    verdict,
)
from evidence.results.headline import claims_counted, sure
from evidence.results.plans import read_plan
from fedvlm.config.families import peft_words
from fedvlm.config.keys import default_schema
from fedvlm.core.errors import ConfigError, fold
from fedvlm.federation.cards import card, fields, trainer_files
from fedvlm.federation.discovery import load_trainer
from fedvlm.federation.peft_trainer import PeftTrainer
from fedvlm.report.collect import collect
from fedvlm.report.statistics.contrast import contrast
from fedvlm.runs.verify.answer import BASELINES
from tests.jobs import REPOSITORY
from tests.report.table_runs import reference, write_seeds

# Method -> what of its claim is in no plan of the claim's lane. Entered by hand, so that a plan
# which loses a method, or a card which gains a claim, is noticed.
UNPLANNED = {
    "CLIP-LoRA": ["CLIP-LoRA"], "CoCoOp": ["CoCoOp"], "FedALA": ["FedALA"], "FedBN": ["FedBN"],
    "FedDecomp": ["FedDecomp"], "FedDyn": ["FedDyn"], "FedFomo": ["FedFomo"],
    "FedMGP": ["FedMGP"], "FedMVP": ["FedMVP"], "pFedMe": ["pFedMe"], "pFedMMA": ["pFedMMA"],
}


def test_method_and_rival_of_every_claim_are_in_a_plan_of_its_lane() -> None:
    """But those of ``UNPLANNED``; of these a lane of rivals may have some by now."""
    lanes: dict[str, set[str]] = {}
    for path in sorted((REPOSITORY / "configs" / "results").rglob("*.yaml")):
        one = read_plan(path)
        lanes.setdefault(one["lane"], set()).update(one["planned"])
    for path in trainer_files().values():
        text = card(path)
        name, claim = text.partition(":")[0], read_claim(fields(text)["Claim"])
        if claim is None:
            continue
        gone = missing(name, claim, lanes[claim.lane])
        there = "rivals" in lanes and not missing(name, claim, lanes["rivals"])
        assert gone == UNPLANNED.get(name, []) or (name in UNPLANNED and there), (name, gone)


def test_every_claim_names_one_method_of_its_lane_and_one_rival() -> None:
    """A bare name is several methods' in most lanes: then one of them trains what the method does.

    Whom ``UNPLANNED`` has is looked up among the rivals, where these have a plan.
    """
    lanes: dict[str, set[Label]] = {}
    stems = {fold(card(path).partition(":")[0]): stem for stem, path in trainer_files().items()}
    for path in sorted((REPOSITORY / "configs" / "results").rglob("*.yaml")):
        plan = yaml.safe_load(path.read_text())
        there = lanes.setdefault(Path(plan["output_dir"]).name, set())
        for word in plan["trainers"]:
            entry = {"name": word} if isinstance(word, str) else word
            name = str(entry["name"])
            parts = str(entry.get("peft") or parts_of(stems[fold(name)]))
            there.add(Label(name, parts, str(entry.get("tag", ""))))
    for path in trainer_files().values():
        text = card(path)
        name, claim = text.partition(":")[0], read_claim(fields(text)["Claim"])
        if claim is None:
            continue
        lane = lanes.get("rivals" if name in UNPLANNED else claim.lane, set())
        mine = [one for one in lane if one.trainer == name and not one.tag]
        assert mine or name in UNPLANNED, f"{name}: in no plan of its lane"
        for one in mine if claim.rival not in BASELINES.values() else ():
            rivals = [str(other) for other in rivals_of(claim.rival, one.parts, lane)]
            assert len(rivals) == 1, (str(claim), str(one), rivals)


def parts_of(stem: str) -> str:
    """Return what a method trains by its own file; empty where it has no choice."""
    if not issubclass(load_trainer(stem), PeftTrainer):
        return ""
    path, schema = REPOSITORY / "configs" / "trainers" / f"{stem}.yaml", default_schema()
    told = (yaml.safe_load(path.read_text()) or {}).get("PEFT", {}) if path.is_file() else {}
    return peft_words(*(str(told.get(key, schema[f"PEFT.{key}"].default))
                      for key in ("TEXT", "VISUAL", "HEAD")))


def test_a_plan_counts_its_axes_and_one_number_of_shots(tmp_path: Path) -> None:
    plan = tmp_path / "1.yaml"
    text = "output_dir: out/x\ndatasets: [a, b]\ntrainers: [Ditto]\nseeds: [1, 2]\nshots: 8\n"
    plan.write_text(text + "axes: {OPTIM.LR: [0.1, 0.2, 0.3]}\n")
    one = read_plan(plan)
    assert one["cells"] == 12 and set(one["planned"]) == {f"Ditto (lr0.{n})" for n in (1, 2, 3)}
    plan.write_text(text + "axes: [0.1]\n")
    with pytest.raises(ConfigError, match="not a plan of a setting"):
        read_plan(plan)


def test_an_entry_goes_by_its_name_its_tag_and_what_it_trains() -> None:
    assert labels_of("FedAvg", "prompt", "ft") == {"FedAvg (ft)", "FedAvg [prompt] (ft)"}
    assert labels_of("VPT") == {"VPT"}
    claim = Claim("personal", "FedAvg [prompt]", "x")
    assert missing("FedTV", claim, {"FedTV", "FedAvg"}) == ["FedAvg [prompt]"]
    assert missing("VPT", Claim("personal", "zero-shot", "x"), {"VPT"}) == []


def test_every_card_claims_what_can_be_tested() -> None:
    lanes = {Path(yaml.safe_load(path.read_text())["output_dir"]).name
             for path in (REPOSITORY / "configs" / "results").rglob("*.yaml")}
    claims = {stem: read_claim(fields(card(path))["Claim"])
              for stem, path in trainer_files().items()}
    assert {claim.lane for claim in claims.values() if claim} <= lanes
    said = [fields(card(path))["Claim"] for path in trainer_files().values()]
    assert not [words for words in said if "lane" in words], "pages and cards say setting"
    assert read_claim("new is higher than A's in lane x.") == Claim("new", "A", "x"), "of old cards"
    assert sorted(stem for stem, claim in claims.items() if claim is None) == [
        "fedmedclip", "fedpft", "local_only", "sage", "trip", "zeroshot",
    ]
    assert claims["ditto"] == Claim("personal_worst", "FedAvg", "dirichlet")


def test_a_sentence_of_another_form_is_refused() -> None:
    assert read_claim("none.") is None
    with pytest.raises(ConfigError, match="'It is better' is not a claim; the card's field Claim "
                                          "is 'METRIC is"):
        read_claim("It is better")


@pytest.mark.parametrize(("values", "word"), [
    ([61.0, 62.0, 63.5], SUPPORTED), ([41.0, 42.0, 43.5], REFUTED),
    ([50.1, 51.0, 51.9], REFUTED), ([50.0, 51.0, 52.0], REFUTED),
    ([40.0, 51.0, 62.0], UNDECIDED), ([30.0, 40.0, 50.0], UNDECIDED),
    ([46.0, 50.5, 50.5], UNDECIDED), ([48.0, 50.0, 50.0], REFUTED),
])
def test_the_interval_answers(tmp_path: Path, values: list[float], word: str) -> None:
    write_seeds(tmp_path, "FedAvg", [50.0, 51.0, 52.0], peft="head")
    write_seeds(tmp_path, "FedAvg", [90.0, 90.0, 90.0], peft="prompt")
    write_seeds(tmp_path, "Ditto", values, peft="head")
    (answer,) = answers("Ditto", Claim("personal", "FedAvg", "x"), collect([tmp_path]).runs)
    assert (answer.verdict, answer.rival, answer.steps) == (word, "FedAvg [head]", 1.0)


def test_a_reference_may_be_the_rival_and_what_did_not_run_says_so(tmp_path: Path) -> None:
    sections = {"references": {"zero_shot": reference("alone", 3, 4)}}
    write_seeds(tmp_path, "VPT", [60.0, 61.0, 62.0], sections=sections)
    runs = collect([tmp_path]).runs
    (answer,) = answers("VPT", Claim("personal", "zero-shot", "x"), runs)
    assert answer.verdict == SUPPORTED
    assert answer.difference is not None and answer.difference.mean == pytest.approx(26.0)
    (answer,) = answers("VPT", Claim("new", "zero-shot", "x"), runs)
    assert (answer.verdict, answer.why) == (NOT_RUN, "no run of VPT has new")
    (answer,) = answers("VPT", Claim("personal", "MaPLe", "x"), runs)
    assert (answer.verdict, answer.why) == (NOT_RUN, "no run of MaPLe has personal")
    assert [a.verdict for a in answers("FedTV", Claim("personal", "VPT", "x"), runs)] == [NOT_RUN]


def test_the_verdict_depends_on_where_the_interval_lies_alone() -> None:
    """One set, d = (1, 2, 3): mean 2, s = 1, half = t(2) 4.3027 / sqrt 3 = 2.4841."""
    seen = contrast([dict.fromkeys("abc", 0.0)], [{"a": 1.0, "b": 2.0, "c": 3.0}])
    assert seen is not None and seen.high == pytest.approx(2 + 2.48414, abs=1e-4)
    # t = 2 / (1 / sqrt 3) = 3.4641 with 2 degrees of freedom: p = 1 - t / sqrt(t^2 + 2)
    assert seen.chance == pytest.approx(1 - 3.4641016 / math.sqrt(14), abs=1e-6)
    assert verdict(seen) == UNDECIDED
    for low, high, word in ((0.1, 0.3, SUPPORTED), (-9.0, 0.9, UNDECIDED), (-0.5, 0.9, REFUTED),
                            (-9.0, -8.0, REFUTED), (-0.1, 1.0, UNDECIDED)):
        assert verdict(replace(seen, low=low, high=high)) == word


def test_a_claim_is_answered_on_its_own_sets() -> None:
    """Effects 2 and 40, each +- 1: sure of these two sets, whatever a third would say."""
    far = contrast([{1: 0.0, 2: 0.0}] * 2, [{1: 1.0, 2: 3.0}, {1: 39.0, 2: 41.0}])
    assert far is not None and far.low == pytest.approx(21 - 4.30265 * math.sqrt(2 / 2 / 2), 1e-4)
    # t = 21 / sqrt(1/2) with 2 df: p = 1 - t / sqrt(t^2 + 2)
    assert far.chance == pytest.approx(1 - 1 / math.sqrt(1 + 2 / (21**2 * 2)), rel=1e-6)
    assert verdict(far) == SUPPORTED and far.ahead is None and (far.least, far.most) == (2, 40)
    once = contrast([{1: 0.0}, {1: 0.0}], [{1: 2.0}, {1: 4.0}])
    assert once is not None and once.low is None and verdict(once) == UNDECIDED


def test_a_rival_that_is_not_trained_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nothing of zero-shot is trained"):
        read_claim("personal is higher than zero-shot's in lane x.")
    quiet = {"totals": {"bytes_up": 0, "bytes_down": 0}}
    write_seeds(tmp_path, "LocalOnly", [10.0, 11.0, 12.0], peft="head", info=quiet)
    write_seeds(tmp_path, "FedAvg", [50.0, 51.0, 52.0], peft="head")
    (answer,) = answers("FedAvg", Claim("global", "LocalOnly", "x"), collect([tmp_path]).runs)
    assert answer.verdict == NOT_RUN
    assert answer.why == "LocalOnly shares nothing, so its shared model is the untrained start"


def test_a_personal_claim_is_held_against_working_alone_too(tmp_path: Path) -> None:
    """Ditto is 10 above FedAvg, 6 below LocalOnly and 5 below logistic regression."""
    write_seeds(tmp_path / "a", "FedAvg", [50.0, 51.0, 52.0], peft="head")
    write_seeds(tmp_path / "a", "Ditto", [60.0] * 3, peft="head", sections={
        "references": {"logreg": reference("alone", 6, 7)}, "gain": {
            "points": -5.0, "reference": "logreg", "personal": 65.0, "untuned": "method"}})
    claim = Claim("personal", "FedAvg", "x")
    (answer,) = answers("Ditto", claim, collect([tmp_path / "a"]).runs)
    assert answer.alone == "best baseline without collaboration" and answer.second is not None
    assert answer.second.mean == pytest.approx(-5.0) and answer.best == answer.second
    write_seeds(tmp_path / "a", "LocalOnly", [65.0, 66.5, 67.1], peft="head")
    (answer,) = answers("Ditto", claim, collect([tmp_path / "a"]).runs)
    assert answer.verdict == SUPPORTED and answer.alone == "LocalOnly [head]"
    assert answer.second is not None and answer.second.apart == -1
    assert answer.best is not None and answer.best.mean == pytest.approx(-5.0)


def test_a_set_without_unseen_classes_misses_no_pair(tmp_path: Path) -> None:
    """Of FedAvg's three seeds none has unseen classes; each has a personal accuracy."""
    write_seeds(tmp_path, "FedAvg", [50.0, 51.0, 52.0], peft="head")
    runs = collect([tmp_path]).runs
    assert (unmeasured("new", runs), unmeasured("personal", runs)) == (3, 0)


def test_the_first_page_says_how_sure_the_claims_are() -> None:
    claim = Claim("personal", "B", "x")
    up, down = (contrast([dict.fromkeys("abc", 0.0)], [dict(zip("abc", values, strict=True))])
                for values in ((1.0, 2.0, 1.5), (-1.0, -2.0, -1.5)))
    every = [Answer("A", claim, SUPPORTED, up, second=down, best=down, untuned=True),
             Answer("C", claim, SUPPORTED, up, second=up, best=down),
             Answer("D", claim, UNDECIDED, up)]
    assert claims_counted([]) == "" and claims_counted(every, 2) == (
        "Each method's card claims one thing. Of 3 claims 2 hold on these data sets (0 with "
        "Holm's correction for all), 0 do not, 1 are undecided, with 3 seeds where we ask for 10. "
        "2 of their methods have other defaults today. Of the methods with a claim on personal "
        "accuracy 1 of 1 with LocalOnly of the same "
        "parameters beside them are significantly above it, and 0 of 2 with a baseline alone are "
        "significantly above it.")
    words = sure([], {"wanted": 9, "cells": 9, "missing": 0, "tuned": 4, "unranked": 3})
    assert words[0].startswith("4 of 9 runs use all tuned values of their method; 3 use none and "
                               "are in no ranking; the other 2 are variants")


def test_holm_holds_for_all_answers_together() -> None:
    """p = 0.038 beside one that is far smaller: 0.038 of two, 0.076 of three; who did not run is
    none of them."""
    one = contrast([dict.fromkeys(range(40), 0.0)], [{i: 1.0 + i % 2 for i in range(40)}])
    weak = contrast([dict.fromkeys("abc", 0.0)], [{"a": 1.0, "b": 2.0, "c": 1.5}])
    assert one is not None and weak is not None and weak.apart > 0
    assert weak.chance is not None and 0.025 < weak.chance < 0.05
    claim = Claim("personal", "B", "x")
    every = [Answer("A", claim, verdict(seen), seen) for seen in (one, weak, weak)]
    assert [a.firm for a in firmed(every)] == [True, False, False]
    assert [a.firm for a in firmed([*every[:2], Answer("C", claim, NOT_RUN)])] == [
        True, True, False]
