"""Proportions to whole images: nothing lost, nobody favoured."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fedvlm.data.partition.deal import cut_evenly, fill_empty_clients, proportions
from fedvlm.data.partition.dirichlet import cut_counts


def test_cuts_lose_no_image_to_rounding() -> None:
    short = np.array([[0.3, 0.3, 0.4 - 1e-6], [1.0, 0.0, 0.0]])
    cut = cut_counts(short, np.array([1000, 7]))
    assert cut.sum(axis=1).tolist() == [1000, 7] and (cut >= 0).all()


@settings(deadline=None, max_examples=100)
@given(
    st.integers(1, 8), st.integers(1, 8), st.integers(0, 2), st.integers(0, 999), st.booleans()
)
def test_even_cuts_lose_nothing(
    classes: int, clients: int, least: int, seed: int, sparse: bool
) -> None:
    rng = np.random.default_rng(seed)
    shares = rng.random((classes, clients))
    shares *= (rng.random(shares.shape) < 0.4) | (not sparse)
    shares[shares.sum(axis=1) == 0, 0] = 1
    shares /= shares.sum(axis=1, keepdims=True)
    counts = rng.integers(0, 40, classes)
    cut = cut_evenly(shares, counts, least)
    assert cut.sum(axis=1).tolist() == counts.tolist() and cut.min() >= 0
    assert not cut[shares == 0].any()
    enough = counts >= least * (shares > 0).sum(axis=1)
    assert (cut[enough] >= least * (shares[enough] > 0)).all()


def test_even_cuts_favour_nobody() -> None:
    shares = cut_evenly(np.full((30, 3), 1 / 3), np.ones(30, dtype=np.int64))
    assert shares.sum(axis=0).tolist() == [10, 10, 10]
    assert cut_evenly(np.array([[0.5, 0.3, 0.2]]), np.array([10])).tolist() == [[5, 3, 2]]
    assert cut_evenly(np.array([[0.9, 0.1, 0.0]]), np.array([3]), least=1).tolist() == [[2, 1, 0]]


def test_a_client_without_an_image_gets_one_of_its_classes_from_the_richest() -> None:
    shares = np.array([[0.5, 0.1, 0.4], [0.9, 0.1, 0.0], [1.0, 0.0, 0.0]])
    cut = np.array([[2, 0, 3], [4, 0, 0], [9, 0, 0]])
    assert fill_empty_clients(cut, shares).tolist() == [[2, 0, 3], [3, 1, 0], [9, 0, 0]]
    alone = np.array([[1, 0]])
    assert fill_empty_clients(alone, np.array([[0.5, 0.5]])).tolist() == [[1, 0]]  # none to spare


def test_proportions_in_their_limits() -> None:
    rng = np.random.default_rng(0)
    assert sorted(proportions(1e-300, 4, rng)) == [0, 0, 0, 1]
    assert np.allclose(proportions(1e308, 4, rng), 0.25, atol=1e-5)
