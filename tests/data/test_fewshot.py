"""CoOp's picks, bit for bit, without CoOp's use of the global generator."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedvlm.config.build import build_config
from fedvlm.config.keys import default_schema
from fedvlm.core.errors import ConfigError
from fedvlm.data.fewshot import coop_draw, draw_shots, relabel, short_classes
from fedvlm.data.formats.coop import read_coop
from tests.data.miniatures.own import copy, shared


def coop_reference(labels: list[int], shots: int) -> list[int]:
    """What CoOp does: the *global* generator, classes in order of first appearance."""
    groups: dict[int, list[int]] = {}
    for i, label in enumerate(labels):
        groups.setdefault(label, []).append(i)
    out: list[int] = []
    for items in groups.values():
        out.extend(random.sample(items, shots) if len(items) >= shots else items)
    return out


def both_with_global_generator(
    train: list[int], val: list[int], shots: int, seed: int
) -> tuple[list[int], list[int]]:
    kept = random.getstate()
    random.seed(seed)
    found = coop_reference(train, shots), coop_reference(val, min(shots, 4))
    random.setstate(kept)
    return found


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=80),
    st.lists(st.integers(0, 5), max_size=40),
    st.integers(1, 16),
    st.integers(0, 2**31),
)
def test_same_picks_as_the_global_generator(
    train: list[int], val: list[int], shots: int, seed: int
) -> None:
    before = random.getstate()
    mine = coop_draw(train, val, shots, -1, seed)
    assert random.getstate() == before
    assert mine == both_with_global_generator(train, val, shots, seed)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_same_picks_on_a_published_split(seed: int) -> None:
    folder = shared("splits")
    split = read_coop(folder, copy(folder, folder / "split_zhou_OxfordFlowers.json"))
    train, val = [d.label for d in split.train_x], [d.label for d in split.val]
    assert coop_draw(train, val, 16, -1, seed) == both_with_global_generator(train, val, 16, seed)


def test_order_of_first_appearance_not_of_label() -> None:
    picked = draw_shots([7, 3, 7, 3], 2, random.Random(0))
    assert [[7, 3, 7, 3][i] for i in picked] == [7, 7, 3, 3]


def test_negative_shots_take_all_and_draw_nothing() -> None:
    rng = random.Random(5)
    before = rng.getstate()
    assert draw_shots([0, 1, 0], -1, rng) == [0, 1, 2]
    assert rng.getstate() == before


def test_val_shots_override() -> None:
    labels = [0] * 9
    assert len(coop_draw(labels, labels, 8, -1, 1)[1]) == 4
    assert len(coop_draw(labels, labels, 8, 2, 1)[1]) == 2
    assert len(coop_draw(labels, labels, -1, -1, 1)[1]) == 9


@pytest.mark.parametrize(("n", "base"), [(1, 1), (2, 1), (37, 19), (100, 50), (397, 199)])
def test_halves(n: int, base: int) -> None:
    assert relabel(n, "base") == {i: i for i in range(base)}
    if n > 1:
        assert relabel(n, "new") == {base + i: i for i in range(n - base)}


def test_new_half_of_one_class_and_unknown_half() -> None:
    with pytest.raises(ConfigError, match="no class is left of 1"):
        relabel(1, "new")
    with pytest.raises(ConfigError, match="did you mean 'base'"):
        build_config(None, None, {"DATASET.SUBSAMPLE_CLASSES": "bases"}, [], default_schema())


def test_short_classes() -> None:
    assert short_classes(np.array([0, 0, 1]), 2) == [1]
    assert short_classes(np.array([0, 0, 1]), -1) == []
