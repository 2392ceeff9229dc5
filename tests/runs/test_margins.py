"""The margin of a difference of two models on the same test images."""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import stdtrit

from fedvlm.api.replay import replay
from fedvlm.job.results.references import clustered_margin, pair_images
from fedvlm.runs.bits import (
    BITS,
    PAIRED,
    Pairs,
    decode_bits,
    encode_bits,
    pair_problems,
    paired_margin,
    student,
    unpaired_margin,
)
from fedvlm.runs.verify.answer import answer_lines, federation_answer
from fedvlm.runs.verify.check import inspect
from tests import jobs
from tests.attacks.forge import edit

Answers = dict[int, np.ndarray]  # client -> its images [n], bool


def rows(mine: Answers, own: Answers) -> tuple[Pairs, list[int]]:
    """Return the clients' rows of two models, and on how many images these differ."""
    def row(client: int, right: np.ndarray) -> dict[str, Any]:
        return {"client": client, "n": len(right), "correct": int(np.count_nonzero(right)),
                "accuracy": 100 * int(np.count_nonzero(right)) / len(right)}

    return ([(row(c, mine[c]), row(c, own[c])) for c in mine],
            [int(np.count_nonzero(mine[c] != own[c])) for c in mine])


def clients(sizes: Sequence[int], each: np.ndarray) -> Answers:
    return dict(enumerate(np.split(each, np.cumsum(sizes)[:-1])))


def results(mine: Answers, own: Answers) -> dict[str, Any]:
    pairs, differ = rows(mine, own)
    left, right = ([pair[side] for pair in pairs] for side in (0, 1))
    mean = [float(np.mean([row["accuracy"] for row in side])) for side in (left, right)]
    return {
        "last": {"personal": mean[0], "clients": left}, "spent": {"bytes_up": 1, "bytes_down": 1},
        "references": {"logreg": {"kind": "alone", "personal": mean[1], "clients": right}},
        PAIRED: {"last|logreg": {"differ": {str(c): n for c, n in enumerate(differ)}}},
    }


def test_by_hand() -> None:
    """Two clients with gaps (1, 0, 0, 0) and (1, -1): weights 1/8 and 1/4, df of 1.5 variances."""
    mine = clients([4, 2], np.array([1, 1, 0, 0, 1, 0], bool))
    own = clients([4, 2], np.array([0, 1, 0, 0, 0, 1], bool))
    pairs, differ = rows(mine, own)
    variance = (0.75 / 3 / 4 + 2 / 1 / 2) / 4
    df = (1 / 16 + 1 / 8) ** 2 / (1 / 16**2 / 3 + 1 / 8**2)
    cubes = 4 / 8**3 + 2 / 4**3
    wanted = 100 * math.sqrt(stdtrit(max(df, 2), 0.975) ** 2 * variance + 1.96**2 * 2 * cubes)
    assert paired_margin(pairs, differ) == pytest.approx(wanted, rel=0.01)


@pytest.mark.parametrize("df", [2, 3, 5, 30, 1000])
def test_students_quantile(df: int) -> None:
    assert student(df) == pytest.approx(stdtrit(df, 0.975), rel=0.01)


def test_images_that_are_draws_of_their_own_are_the_plain_case() -> None:
    """The closed form of counts is the general one, of clients with one image, too."""
    draw = np.random.default_rng(1)
    for sizes in ([4] * 10, [1] * 5, [1, 1, 3, 20], [7], [1]):
        mine, own = (clients(sizes, draw.random(sum(sizes)) < p) for p in (0.8, 0.6))
        alone = clients(sizes, np.arange(sum(sizes)))
        gaps = {c: mine[c].astype(int) - own[c] for c in mine}
        assert paired_margin(*rows(mine, own)) == pytest.approx(clustered_margin(gaps, alone))


def test_no_difference_is_no_certainty() -> None:
    same = clients([4] * 10, np.ones(40, bool))
    pairs, differ = rows(same, same)
    assert 5 < paired_margin(pairs, differ) < unpaired_margin(pairs)
    groups = {c: np.zeros(4, int) + c // 2 for c in same}
    gaps = {c: np.zeros(4, int) for c in same}
    assert clustered_margin(gaps, groups) > 3 * paired_margin(pairs, differ)


#: sizes; the chances that the run alone, or the baseline alone, is right on an image; images of one
#: draw: none, "group" (each five of a client), "shared" (all clients are tested on the same ones).
DESIGNS: list[tuple[list[int], float, float, str]] = [
    ([4] * 10, 0.08, 0.0, ""), ([4] * 10, 0.2, 0.0, ""), ([4] * 10, 0.3, 0.1, ""),
    ([4] * 10, 0.0, 0.97, ""), ([20] * 10, 0.02, 0.02, ""), ([1] * 12, 0.3, 0.0, ""),
    ([1, 2, 3, 30, 60], 0.1, 0.05, ""), ([30], 0.2, 0.1, ""),
    ([20] * 5, 0.2, 0.05, "group"), ([10] * 5, 0.2, 0.05, "shared"),
]


@pytest.mark.parametrize(("sizes", "won", "lost", "kind"), DESIGNS)
def test_the_interval_covers(sizes: list[int], won: float, lost: float, kind: str) -> None:
    """At least 93 % of intervals hold the true difference, and pairing makes them narrower.

    In draws of several images four of five images get the answer of their draw.
    """
    tries, covered, narrower = 1000, 0, 0
    draw = np.random.default_rng(sum(sizes) + int(1000 * won))
    total = sum(sizes)
    at = {"group": np.arange(total) // 5, "shared": np.concatenate([*map(np.arange, sizes)])}.get(
        kind, np.arange(total))
    draws = clients(sizes, at)
    for _ in range(tries):
        chance = np.where(draw.random(total) < 0.8, draw.random(total)[at], draw.random(total))
        both = draw.random(total) < 0.7  # right or wrong alike on the images they agree on
        won_, lost_ = chance < won, chance > 1 - lost
        mine = clients(sizes, won_ | (both & ~lost_))
        own = clients(sizes, lost_ | (both & ~won_))
        gaps = {c: mine[c].astype(int) - own[c] for c in mine}
        found = 100 * sum(gap.sum() / len(gap) for gap in gaps.values()) / len(gaps)
        if kind:
            margin = clustered_margin(gaps, draws)
        else:
            pairs, differ = rows(mine, own)
            margin = paired_margin(pairs, differ)
            narrower += margin < unpaired_margin(pairs)
        covered += abs(found - 100 * (won - lost)) <= margin
    assert covered >= 0.93 * tries
    if not kind and won + lost < 0.3 and len(set(sizes)) == 1:  # else not alike, or few degrees
        assert narrower > 0.9 * tries


def test_the_answer_uses_it() -> None:
    """+12 points over ten clients, on all images that differ: the pairs decide."""
    own = clients([20] * 10, np.arange(200) % 2 == 0)
    mine = {c: right.copy() for c, right in own.items()}
    for right in mine.values():
        right[1:7:2] = True  # three more of twenty
    numbers = results(mine, own)
    paired = federation_answer(numbers)
    plain = federation_answer({k: v for k, v in numbers.items() if k != PAIRED})
    assert paired is not None and plain is not None
    assert (paired["verdict"], paired[PAIRED], PAIRED in plain) == ("pays", "image", False)
    assert paired["points"] == pytest.approx(15) and paired["margin"] < 0.6 * plain["margin"]
    assert {k: v for k, v in paired.items() if k not in (PAIRED, "margin")} == {
        k: v for k, v in plain.items() if k != "margin"}


def test_groups_and_shared_images_are_one_draw() -> None:
    mine, own = (clients([4, 4], np.arange(8) % n == 0) for n in (2, 3))
    numbers = {**results(mine, own), "spent": {"bytes_up": 0, "bytes_down": 0}}
    right = {"last": mine, "logreg": own, "afl": own}
    alone = clients([4, 4], np.arange(8))
    found = pair_images(numbers, right, alone, "image")
    assert list(found) == ["last|logreg", "afl|logreg", "afl|last"]  # of a run that shares nothing
    assert found["last|logreg"] == numbers[PAIRED]["last|logreg"]
    shared = pair_images(numbers, right, clients([4, 4], np.arange(8) % 4), "image")["last|logreg"]
    gaps = {c: mine[c].astype(int) - own[c] for c in mine}
    assert shared["margin"] == clustered_margin(gaps, clients([4, 4], np.arange(8) % 4))
    numbers[PAIRED]["last|logreg"] = shared
    assert (federation_answer(numbers) or {})["margin"] == shared["margin"]
    assert list(pair_problems(numbers)) == []
    shared["margin"] = 1.0
    assert "is below that of its images" in next(pair_problems(numbers))


@pytest.mark.parametrize(("differ", "why"), [
    ({"0": 2, "1": 2}, "2 images of client 0 differ, with 4 and 1 right of 4"),
    ({"0": 5, "1": 2}, "5 images of client 0 differ"),
    ({"0": 3, "1": 4}, "4 images of client 1 differ, their bits give 2"),
    ({"0": 3, "1": 1.5}, "1.5 images of client 1 differ"), ({"0": 3}, "is of other clients"),
])
def test_an_edited_number_is_found(differ: dict[str, Any], why: str) -> None:
    """By the counts beside it, and by the bits where they are kept."""
    mine = clients([4, 4], np.array([1, 1, 1, 1, 1, 0, 0, 1], bool))
    own = clients([4, 4], np.array([1, 0, 0, 0, 0, 1, 0, 1], bool))
    numbers = results(mine, own)
    bits = {"1": ["4:kA==", "4:UA=="]}
    numbers["last"][BITS] = {"personal": {"1": bits["1"][0]}}
    numbers["references"]["logreg"][BITS] = {"personal": {"1": bits["1"][1]}}
    assert list(pair_problems(numbers)) == []
    numbers[PAIRED]["last|logreg"]["differ"] = differ
    assert any(why in said for said in pair_problems(numbers))


def test_a_run_records_it_and_again_after_a_kill_behind_its_last_round(
    tmp_path: Path, quick_run: Path
) -> None:
    """A run that has all rounds but no results asks its models again; with bits all is told."""
    whole = jobs.results(quick_run)
    assert whole["answer"][PAIRED] == "image" and list(whole[PAIRED])[0].startswith("last|")
    assert not any("right.0" in row for one in [whole["zero_shot"], *whole["references"].values()]
                   for row in one["clients"])
    shutil.copytree(quick_run, tmp_path / "again")
    folder = jobs.folder(tmp_path / "again")
    (folder / "results.json").unlink()
    assert jobs.run(tmp_path / "again", "TEST.PER_IMAGE", "True") == 0
    found = jobs.results(tmp_path / "again")
    assert (found[PAIRED], found["answer"]) == (whole[PAIRED], whole["answer"])
    assert {name for name, one in found["references"].items() if BITS not in one} <= {"chance"}
    told = found["references"][found["answer"]["alone"]["reference"]]
    for row in told["clients"]:
        bits = decode_bits(told[BITS]["personal"][str(row["client"])])
        assert (len(bits), sum(bits)) == (row["n"], row["correct"])
    assert inspect(folder).damage == ()
    best = found["answer"]["alone"]["reference"]
    edit(folder / "results.json", lambda r: r["results"]["references"][best][BITS][
        "personal"].update({"0": encode_bits([False] * told["clients"][0]["n"])}))
    assert any(f"references.{best}: image_bits" in clause for clause in inspect(folder).damage)
    edit(folder / "results.json",
         lambda r: r["results"]["references"][best].update({BITS: told[BITS]}))
    name = next(iter(found[PAIRED]))
    edit(folder / "results.json",
         lambda r: r["results"][PAIRED][name]["differ"].update({"0": 10**6}))
    assert any("images of client 0 differ" in clause for clause in inspect(folder).damage)


def test_a_run_of_an_earlier_version_is_as_it_was(tmp_path: Path, quick_run: Path) -> None:
    """Without pairs its answer is from the number of images, and a replay compares with that."""
    shutil.copytree(quick_run, tmp_path, dirs_exist_ok=True)

    def earlier(record: dict[str, Any]) -> None:
        numbers = record["results"]
        del numbers[PAIRED]
        numbers["answer"] = federation_answer(numbers)

    edit(jobs.folder(tmp_path) / "results.json", earlier)
    numbers = jobs.results(tmp_path)
    assert PAIRED not in numbers["answer"]
    assert "from the number of test images" in " ".join(answer_lines(numbers, "FedTV"))
    assert inspect(jobs.folder(tmp_path)).word == "ok"
    assert replay(jobs.folder(tmp_path), 2).differences == []
