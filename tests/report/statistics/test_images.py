"""What test images add to an interval: bits, counts, groups of images, the bootstrap."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedvlm.report.statistics.images import (
    ClientAnswers,
    answers_of,
    bootstrap_images,
    image_component,
)
from fedvlm.report.statistics.intervals import Component
from fedvlm.runs.bits import BITS, encode_bits, encode_places


def answers(*bits: str, names: str = "") -> dict[str, ClientAnswers]:
    return {str(at): ClientAnswers(len(word), word.count("1"), tuple(c == "1" for c in word),
                                   tuple(names)) for at, word in enumerate(bits)}


def test_a_record_is_read_with_and_without_bits() -> None:
    record = {"clients": [{"client": 3, "n": 4, "correct": 2}, {"client": 4, "n": 0}]}
    assert answers_of(record) == {"3": ClientAnswers(4, 2.0)} and answers_of({}) == {}
    record[BITS] = {"personal": {"3": encode_bits([True, False, False, True])}}
    assert answers_of(record)["3"].bits == (True, False, False, True)
    images = {"of": "list", "clients": {"3": encode_places([4, 0, 2, 70000])}}
    assert answers_of(record, images)["3"].names == (4, 0, 2, 70000)
    assert answers_of(record, images)["3"].listed == "list"
    for damaged in ("4:xx", encode_places([1]), 5):
        assert answers_of(record, {"clients": {"3": damaged}})["3"].names == ()
    record[BITS] = {"personal": {"3": "9:xx"}}
    assert answers_of(record)["3"].bits == (), "damaged: as if not kept"


def test_methods_that_err_on_the_same_images_differ_by_nothing() -> None:
    """By bits the variance is that of the differing answers; counts must assume the worst."""
    one = {1: answers("1100")}
    found = image_component(one, one)
    assert found is not None and found[0].variance == 0.0
    found = image_component(one, {1: {"0": ClientAnswers(4, 2.0)}})
    assert found is not None and found[0].variance == pytest.approx(1e4 * 0.5 / 4)
    assert found[0].df == 3 and not found[1]


def test_clients_weigh_alike_and_seeds_do_not_divide() -> None:
    """Gaps (1, 0): sample variance 1/2 over 2 images = 1/4; two clients, the other without gaps."""
    a, b = answers("00", "1111"), answers("10", "1111")
    for seeds in ((1,), (1, 2, 3)):
        found = image_component(dict.fromkeys(seeds, a), dict.fromkeys(seeds, b))
        assert found is not None and found[0].variance == pytest.approx(1e4 * 0.25 / 4)


def test_what_images_keep_over_seeds_is_seen_by_their_names() -> None:
    """Gaps 1 0 1 0 in both seeds stay (deviations 1/8, four of them); then 1 1 0 0 they do not."""
    still = {1: answers("1010"), 2: answers("1010")}
    moved = {1: answers("1010"), 2: answers("1100")}
    none = dict.fromkeys((1, 2), answers("0000", names="wxyz"))
    found = image_component(none, still)
    assert found is not None and found[1] and found[0].variance == pytest.approx(1e4 * 4 / 64)
    found = image_component(none, moved)
    assert found is not None and found[0] == Component(0.0, 3.0)


def test_images_of_other_lists_or_of_some_seeds_only_are_not_named() -> None:
    """Then nothing is known of what images keep: all that they do in one seed counts."""
    b = dict.fromkeys((1, 2), answers("1010"))
    whole = image_component(dict.fromkeys((1, 2), answers("0000")), b)
    names = answers("0000", names="wxyz")
    other = {"0": replace(names["0"], listed="another")}
    for a in ({1: names, 2: other}, {1: names, 2: answers("0000")}):
        found = image_component(a, b)
        assert whole is not None and found == whole and not found[1]
        (_, low, high), (_, least, most) = (bootstrap_images(one, b) for one in (
            a, dict.fromkeys((1, 2), answers("0000"))))
        assert (low, high) == (least, most)


def test_one_side_s_names_are_enough_unless_the_other_s_contradict() -> None:
    a, b = (dict.fromkeys((1, 2), answers(bits)) for bits in ("0000", "1010"))
    named = {seed: {"0": replace(one["0"], names=tuple("wxyz"))} for seed, one in b.items()}
    turned = {seed: {"0": replace(one["0"], names=tuple("xwyz"))} for seed, one in a.items()}
    mine = {seed: {"0": replace(one["0"], names=tuple("wxyz"))} for seed, one in a.items()}
    found = image_component(a, named)
    assert found is not None and found[1] and found == image_component(mine, named)
    assert bootstrap_images(a, named) == bootstrap_images(mine, named)
    unknown = image_component(turned, named)
    assert unknown is not None and not unknown[1]


def test_images_of_a_group_are_one_draw() -> None:
    """Images of two patients that answer alike: twice the variance of four images."""
    b = dict.fromkeys((1, 2), answers("1100"))
    single, grouped = (image_component(dict.fromkeys((1, 2), answers("0000", names=names)), b)
                       for names in ("abcd", "ppqq"))
    assert single is not None and grouped is not None
    assert grouped[0].variance == pytest.approx(2 * single[0].variance) and grouped[0].df == 1


def test_the_bootstrap_draws_shared_images_together() -> None:
    """All seeds of the same 200 images: their draw does not average out over seeds."""
    stream = np.random.default_rng(1)
    right = stream.random((2, 200)) < [[0.6], [0.8]]
    a, b = (answers("".join("01"[int(x)] for x in row)) for row in right)
    seeds = range(5)
    runs = dict.fromkeys(seeds, a), dict.fromkeys(seeds, b)
    named = dict.fromkeys(seeds, {"0": replace(a["0"], names=tuple(range(200)))}), runs[1]
    centre, low, high = bootstrap_images(*runs)
    same, least, most = bootstrap_images(*named)
    assert centre == same == pytest.approx(100 * (right[1].mean() - right[0].mean()))
    # seeds drawn again add 4/5 of what independent images add: sqrt(5 / 1.8)
    assert (most - least) / (high - low) == pytest.approx(1.667, rel=0.1)
    component = image_component(*named)
    assert component is not None
    assert most - least == pytest.approx(2 * 1.96 * component[0].variance**0.5, rel=0.08)
    with pytest.raises(ValueError, match="no bit per test image"):
        bootstrap_images({1: {"0": ClientAnswers(4, 2.0)}}, {1: {"0": ClientAnswers(4, 2.0)}})
    with pytest.raises(ValueError, match="no seed"):
        bootstrap_images({1: a}, {2: a})
