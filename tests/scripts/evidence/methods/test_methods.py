"""Real runs on the map: which cells, which clients, how they are judged, and the page of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from yacs.config import CfgNode

from evidence.map.deal import EVEN, Held
from evidence.map.images import Features, Part
from evidence.map.map import keys_of
from evidence.methods import page as methods_page
from evidence.methods import real
from evidence.methods.axes import axes_words
from evidence.methods.figure import cell_words, draw_fixed, draw_methods, gains
from evidence.methods.runs import COLUMNS, poor_and_rich, read_plans, rows_of
from fedvlm.core.errors import ConfigError
from fedvlm.data.partition.index_file import seal
from fedvlm.federation.discovery import load_trainer
from fedvlm.job.describe import partition_name
from fedvlm.runs.bits import BITS, encode_bits
from fedvlm.runs.finished import FinishedRun

PLANS = Path(__file__).resolve().parents[4] / "configs" / "results" / "map"


def test_every_fourth_cell_is_drawn_by_its_name_alone() -> None:
    cells = list(keys_of("EuroSAT", 1000, 1))
    some = real.drawn("EuroSAT", 1000)
    assert len(some) == -(-len(cells) // 4)
    assert set(some) < set(cells)
    assert some == real.drawn("EuroSAT", 1000) != real.drawn("DescribableTextures", 1000)
    assert {key[2] for key in some} == {key[2] for key in cells}  # all skews, both shifts
    assert {key[3] for key in some} == {False, True}
    assert len({real.word_of(key) for key in some}) == len(some)


def test_a_client_is_judged_on_all_test_images_by_its_class_shares() -> None:
    labels = np.array([0, 0, 0, 0, 1, 1])
    part = Part(np.zeros((1, 6, 2)), labels)
    data = Features("Made", 2, part, part, part)
    at = np.array([0])
    held = [Held(np.array([0.75, 0.25]), at, at), Held(np.array([0.0, 1.0]), at, at)]
    right = [[True, True, True, False, True, False], [False] * 4 + [True, True]]
    last = {BITS: {"personal": {str(k): encode_bits(r) for k, r in enumerate(right)}},
            "bytes_up": {"0": 10, "1": 30}}
    run = FinishedRun(Path("run"), {"trainer": "Ditto"}, {"last": last}, {})
    row = real._row("Made", (2, 1, EVEN, False, 1), run, data, held,
                    {"alone": {"personal": 50.0, "balanced": 40.0}, "personal": {"personal": 80.0}})
    assert row["personal"] == pytest.approx((0.75 * 75 + 0.25 * 50 + 100) / 2)
    assert row["worst"] == pytest.approx(0.75 * 75 + 0.25 * 50)
    assert row["balanced"] == pytest.approx((62.5 + 50) / 2)
    assert (row["alone"], row["fixed"], row["bytes_up"]) == (50.0, 80.0, 20.0)


def test_plans_name_methods_that_exist_and_cells_that_differ() -> None:
    plans = read_plans(PLANS)
    for plan in plans:
        assert len(set(plan.planned())) == len(plan.planned())
        for method in plan.methods:
            load_trainer(str(method["name"]))
    twelve = [plan for plan in plans if plan.name in methods_page.CELLS]
    assert len({m["label"] for plan in twelve for m in plan.methods}) >= 12
    for plan in twelve:
        assert len({(s, c) for s, c, _, _ in plan.planned()}) == 24
    with pytest.raises(ConfigError, match="no plans"):
        read_plans(PLANS / "nowhere")


def test_a_run_is_known_by_the_checksum_of_its_index_file(tmp_path: Path) -> None:
    """Results keep no path of one, but a partition's name has its first digits."""
    path = tmp_path / "index.json"
    content = {"dataset": "D", "classnames": ["a"], "spec": {"kind": "iid", "clients": 1,
               "seed": 1}, "clients": [{"train": ["x"], "val": [], "test": ["y"]}]}
    path.write_text(json.dumps(seal(content)))
    cfg = CfgNode({
        "FED": {"HELD_OUT_DOMAIN": "", "INDEX_FILE": str(path), "CLIENTS": 1, "FRAC": 1.0},
        "DATASET": {"SERVER_HOLDOUT": 0, "CORRUPTION": ""}})
    assert real._mark(partition_name(cfg)) == real._index_mark(path) != ""


def row(plan: str, case: str, method: str, personal: float, **more: Any) -> dict[str, Any]:
    return dict.fromkeys(COLUMNS) | {
        "plan": plan, "set": "eurosat", "case": case, "method": method, "seed": 1,
        "personal": personal, "balanced": personal, "worst": 30.0, "hurt": 10.0, "alone": 60.0,
        "alone_balanced": 50.0, "prior": 75.0, "prior_balanced": 90.0, "bytes": 2000.0,
        "rounds": 20} | more


def test_page_names_the_best_and_what_is_missing(tmp_path: Path) -> None:
    plans = read_plans(PLANS)
    rows = [row("map-heads", "0.3 10x10", "FedAvg", 70.0),
            row("map-heads", "0.3 10x10", "Ditto", 80.0),
            row("map-prompts", "0.3 10x10", "PromptFL", 51.0),
            row("map-prompts", "0.3 10x10", "PromptFL (CSC)", 72.0),
            row("map-axes", "middle", "FedAvg", 66.0),
            row("map-new-clients", "three new clients", "FedAvg", 66.0, unseen_clients=61.5)]
    cells = [{"set": "EuroSAT", "clients": 5.0, "images": 10.0, "skew": "0.3", "shift": False,
              "seed": 1.0, "method": m, "personal": p, "alone": 60.0, "fixed": 80.0}
             for m, p in (("FedAvg", 75.0), ("Ditto", 59.0))]
    text = methods_page.page_of(plans, rows, cells)
    assert ("| EuroSAT | Dirichlet 0.3 | 10 x 10 | 60.0 | Ditto | +20.0 | - | 10.0 | +15.0 | 40 |"
            in text)
    assert "| EuroSAT | Dirichlet 1 | 10 x 10 | - | missing |" in text
    assert "- PromptFL: +21.0 points in the mean of 1 pair (+21.0 to +21.0), better in 1." in text
    assert "- FedAvg: 1 cell; -5.0 points from its fixed point" in text
    assert "the same answer in 0" in text  # Ditto's run is below alone, its fixed point above
    assert "| 10.0 | 61.5 |" in text
    assert "`map-towers`: 288 of 288 runs are missing: HEART-PFL (72)" in text
    assert "1 of 216 planned pairs of runs are there; the others have not been run" in text
    assert "2 of 192 planned runs are there" in text and "Not run" not in text
    nothing = methods_page.page_of(plans, rows[:2], [])
    assert "None of the 192 planned runs has been run yet." in nothing
    assert "None of the 216 planned pairs of runs has been run yet." in nothing
    assert "| Thorki | missing | 24 |" in text and "| Ditto | missing" not in text
    first = methods_page.words_of(rows[:2])
    assert first.splitlines()[:2] == [
        "Start with Ditto: +20.0 points over working alone in the mean of 1 cell.",
        "These cells have 1 seed each. Each row's best method was picked among 2 by these same "
        "runs."]
    two = [*rows[:2], *(one | {"seed": 2} for one in rows[:2])]
    other = [one | {"case": "even 10x10"} for one in rows[:2]]
    assert methods_page.words_of([*two, *other]).splitlines()[1].startswith(
        "These cells have 1 to 2 seeds each. ")
    lucky = [row("map-prompts", "0.3 10x10", "FedTV", 99.0), *two]  # of one seed, not compared
    assert methods_page.words_of(lucky) == methods_page.words_of(two)
    page = methods_page.page_of(plans, lucky, [])
    assert "| EuroSAT | Dirichlet 0.3 | 10 x 10 | 60.0 | Ditto | +20.0 |" in page
    assert "| Ditto | 1 | 2 | +20.0 |" in page and "| FedTV | 1 | 1 | +39.0 |" in page
    assert methods_page.words_of(rows[:2]).splitlines()[2:] == [
        "Mean gain on 1 cell: Ditto +20.0, FedAvg +10.0 points."]
    shares = [one | {"prior": 85.0} for one in rows[:2]]
    assert methods_page.words_of(shares).startswith(
        "Start with AFL plus each client's class shares (two rounds, no training; with a single "
        "image of each class it is plain AFL): +25.0 points over working alone in the mean of 1 "
        "cell, at least as much as the best trained method in 1 of them. Of trained methods Ditto "
        "gains most (+20.0); heads that are trained longer, to the end, can gain more.\n")
    lost = [one | {"personal": 59.0} for one in rows[:2]]
    assert methods_page.words_of(lost).startswith("These cells"), "nobody starts with a loss"
    own = [one | {"case": "two 10x10", "personal": 60.5, "prior": 60.9} for one in rows[:2]]
    assert methods_page.words_of(own).splitlines()[0].endswith(
        "With two classes each AFL plus class shares gains +0.9 with 10 clients; no method gains a "
        "point in the mean of 1 such cell.")
    noisy = [one | {"seed": s, "personal": one["personal"] + s * sign}
             for one, sign in zip(rows[:2], (1, -1), strict=True) for s in (1, 2, 3)]
    half = 4.303 * (2 * 4 / 2 / 3) ** 0.5  # t of 2, variance of +-1, 0 about the mean, 3 seeds
    assert f"differ by chance by up to {half:.1f} points in a row of 1 cell" in \
        methods_page.words_of(noisy)
    tower = row("map-towers", "0.3 10x10", "Thorki", 70.0, prior=100.0)  # of another backbone
    assert methods_page.words_of([*rows[:2], tower]).startswith("Start with Ditto")
    more = [*rows[:2], row("map-heads", "even 10x10", "FedAvg", 81.5),
            row("map-heads", "even 10x10", "Ditto", 81.0), rows[2]]
    assert methods_page.cases_of(more).splitlines()[2:] == [
        "| classes mixed by Dirichlet 0.3 | Ditto | +20.0 | Ditto +30.0 | 10.0 % | - | "
        "FedAvg +10.0 | +15.0 (class-balanced +40.0) |",
        "| all classes evenly | FedAvg | +21.5 | FedAvg +31.5 | 10.0 % | Ditto | Ditto +21.0 | "
        "+15.0 (class-balanced +40.0) |", "",
        "Means of EuroSAT, clients x images of each on average: 10 x 10."]
    flat = [row("map-heads", "two 10x10", method, value)
            for method, value in (("FedAvg", 60.9), ("Ditto", 59.0))]
    assert methods_page.cases_of(flat).splitlines()[2].startswith(
        "| two classes each | none gains a point (highest: FedAvg) | +0.9 |")
    assert methods_page.cases_of([]) == ""
    assert methods_page.words_of([]) == ""
    assert len(text.splitlines()) <= 300
    assert gains(rows)["eurosat", "0.3 10x10", "Ditto"] == pytest.approx(20)
    draw_methods(plans, rows, tmp_path)
    assert cell_words("two 5x40") == ("two classes each", "5 x\n40")
    assert cell_words("0.3 10x10") == ("Dirichlet 0.3", "10 x\n10")
    drawn = (tmp_path / "methods.svg").read_text()
    assert drawn.count(">two classes each<") == 2, "once above its columns, in both panels"
    assert drawn.count(">clients x images of each; dot: one seed<") == 2
    draw_fixed(cells, tmp_path)
    assert {p.name for p in tmp_path.glob("*.png")} == {"methods.png", "fixed.png"}


def test_a_method_with_defaults_is_in_no_ranking() -> None:
    plans = read_plans(PLANS)
    rows = [row("map-heads", "0.3 10x10", method, value) for method, value in (
        ("Thorki feature", 99.0), ("FedAvg", 70.0), ("Ditto", 80.0))]
    assert methods_page.words_of(rows) == methods_page.words_of(rows[1:])
    assert methods_page.cases_of(rows) == methods_page.cases_of(rows[1:])
    page = methods_page.page_of(plans, rows, [])
    assert "| 60.0 | Ditto | +20.0 | - |" in page
    above, below = page.split("These have fewer cells or seeds, or defaults")
    assert "| Thorki feature (defaults) | 1 | 1 | +39.0 |" in below
    assert "Thorki feature" not in above and "| Ditto | 1 | 1 | +20.0 |" in above


def test_bytes_are_those_of_all_rounds_that_a_method_needs() -> None:
    """AFL sends the same in every round: one is counted, whatever the run had."""
    rows = [row("map-heads", "0.3 10x10", method, value, bytes=sent) for method, value, sent in (
        ("AFL", 70.0, 2_138_112.0), ("Ditto", 80.0, 151_552.0))]
    page = methods_page.page_of(read_plans(PLANS), rows, [])
    assert "kB that a client sends in all rounds" in page and "a round |" not in page
    assert any(line.startswith("| AFL | 1 |") and line.endswith("| 2,138 |")
               for line in page.splitlines())
    assert any(line.startswith("| Ditto | 1 |") and line.endswith("| 3,031 |")
               for line in page.splitlines())


def test_the_map_and_these_runs_stand_side_by_side() -> None:
    rows = [row("map-heads", "even 10x10", "AFL", 89.0), row("map-heads", "even 5x40", "AFL", 99.0)]
    cells = [{"set": "EuroSAT", "clients": 10, "images": n, "skew": EVEN, "shift": shift,
              "method": "together", "gain": gain}
             for n, shift, gain in ((10, False, 45.0), (10, True, 9.0), (25, False, 7.0))]
    page = methods_page.page_of(read_plans(PLANS), rows, [], cells)
    assert "all classes evenly +45.0 on the map, +29.0 here. [Why](README.md#why" in page
    assert "The map promises more" not in methods_page.page_of(read_plans(PLANS), rows, [])


def test_poor_and_rich_clients_few_in_a_round_and_those_that_come() -> None:
    def axis(case: str, method: str, personal: float, **more: Any) -> dict[str, Any]:
        plan = "map-new-clients" if "new" in case else "map-axes"
        return row(plan, case, method, personal, **more)

    rows = [
        axis("poor beside rich", "FedAvg", 80.0, poor=70.0, poor_alone=10.0, rich=80.0,
             rich_alone=65.0),
        axis("poor beside rich", "FedAS", 61.0, poor=15.0, poor_alone=10.0, rich=60.0,
             rich_alone=65.0),
        axis("middle", "Ditto", 70.0), axis("two clients in a round", "Ditto", 58.0),
        axis("middle", "FedAvg", 62.0), axis("two clients in a round", "FedAvg", 64.0),
        axis("three new clients", "Ditto", 70.0, unseen_clients=45.0),
        axis("three new clients", "FedRep", 65.0, unseen_clients=79.0)]
    words = axes_words(rows)
    assert "fewest test images reaches 10.0 %, that with the most 65.0 %" in words
    assert "With FedAvg the poor gain +60.0 points and the rich +15.0; the rich lose with FedAS." \
        in words
    assert "| FedAS | +5.0 | -5.0 |" in words
    assert "gain in points: FedAvg +4.0 (+2.0), Ditto -2.0 (+10.0)." in words
    assert "accuracy: FedRep 79.0 %, Ditto 45.0 %. Ditto, the best for the clients that" in words
    assert "sizes drawn with Dirichlet 0.3: compare these rows with no others" in words
    assert axes_words([]) == ""
    cases = methods_page.cases_of(rows).splitlines()
    assert cases[2].startswith("| all classes evenly, poor clients beside rich ones | FedAvg | +20")
    assert cases[3].startswith("| classes mixed by Dirichlet 0.3, two of ten in a round | FedAvg |")
    assert cases[4] == ("| clients that join after training | FedRep | 79.0 % | - | - | - | "
                        "Ditto 45.0 % | - |")


def test_the_poor_are_the_third_with_the_fewest_images() -> None:
    clients = [{"client": k, "n": n, "accuracy": a} for k, (n, a) in enumerate(
        ((50, 90.0), (2, 50.0), (30, 70.0), (9, 60.0), (8, 40.0), (70, 80.0)))]
    alone = [{"client": k, "accuracy": 10.0 * k} for k in range(6)]
    results = {"last": {"clients": clients}, "answer": {"alone": {"reference": "logreg"}},
               "references": {"logreg": {"clients": alone}, "zero_shot": {"clients": []}}}
    run = FinishedRun(Path("run"), {}, results, {})
    assert poor_and_rich(run) == (45.0, 25.0, 85.0, 25.0)
    assert poor_and_rich(FinishedRun(Path("run"), {}, {"last": {}}, {})) == (None,) * 4


def test_how_far_runs_stay_from_the_map_is_told_by_clients() -> None:
    cells = [row("map-heads", "0.3 10x10", "FedAvg", 70.0)]
    real_rows = [{"clients": k, "method": m, "personal": p, "fixed": 80.0, "alone": 60.0}
                 for m, k, p in (("FedAvg", 5, 81.0), ("FedAvg", 50, 79.0), ("Ditto", 5, 80.0),
                                 ("Ditto", 50, 60.0))]
    assert methods_page.words_of(cells, real_rows).splitlines()[-1] == (
        "The map is what heads reach when trained to the end: in 20 rounds FedAvg is +1.0 points "
        "from it below 20 clients and -1.0 from 20 on, Ditto is +0.0 points from it below 20 "
        "clients and -20.0 from 20 on.")


def test_a_run_finds_its_case_and_method() -> None:
    plans = read_plans(PLANS)
    config = {"FED.PARTITION": "dirichlet", "FED.BETA": 0.3, "FED.CLIENTS": 10,
              "DATASET.NUM_SHOTS": 10, "DATASET.SUBSAMPLE_CLASSES": "all"}

    class Run(FinishedRun):
        def identity_config(self) -> dict[str, Any]:
            return config

    last = {"round": 20, "participants": [0, 1], "personal": 70.0}
    run = Run(Path("x"), {"dataset": "EuroSAT", "trainer": "FedAvg", "tag": "csc", "seed": 1,
                          "peft": "prompt+feature+csc",
                          "backbone": "local-dir:../shared/weights/realfeat"},
              {"last": last, "spent": {"bytes_up": 80.0}}, {})
    (found,) = rows_of(plans, [run])
    assert (found["plan"], found["case"], found["method"]) == (
        "map-prompts", "0.3 10x10", "FedAvg prompt+feature (CSC)")
    assert found["bytes"] == 2.0
    config["FED.FRAC"] = 0.2
    assert rows_of(plans, [run]) == []
