"""Whole groups where they are wanted."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fedvlm.core.placing import folds_of, place_groups


def test_the_numbers_that_are_wanted_are_met_where_groups_allow_it() -> None:
    counts = np.array([[4, 0], [0, 4], [2, 0], [0, 2], [2, 0], [0, 2]])
    wanted = np.array([[4, 4], [4, 4]])
    places = place_groups(counts, wanted)
    got = np.array([counts[places == p].sum(axis=0) for p in (0, 1)])
    assert got.tolist() == wanted.tolist()


@settings(max_examples=30)
@given(st.lists(st.integers(0, 6), min_size=1, max_size=40), st.integers(2, 5))
def test_a_group_is_in_one_fold(groups: list[int], folds: int) -> None:
    numbers = np.array(groups)
    kinds = np.arange(len(groups)) % 3
    at = folds_of(numbers, kinds, folds)
    assert at.min() >= 0 and at.max() < folds
    for group in set(groups):
        assert len(set(at[numbers == group].tolist())) == 1


def test_folds_are_even_where_every_group_is_one_member() -> None:
    at = folds_of(np.arange(20), np.repeat([0, 1], 10), 5)
    assert np.bincount(at).tolist() == [4] * 5
    assert all(np.bincount(at[k * 10:][:10]).tolist() == [2] * 5 for k in (0, 1))
