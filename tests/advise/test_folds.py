"""Folds keep groups whole and classes even; images that are nearly the same are found."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F

from fedvlm.advise.folds import deal_folds, fold_count, twin_share


def test_a_group_is_in_one_fold_at_all_clients_and_folds_are_even() -> None:
    groups = [np.array([0, 0, 1, 2, 3, 4]), np.array([5, 6, 1, 7, 0])]
    labels = [np.array([0, 0, 0, 1, 1, 1]), np.array([0, 1, 0, 1, 0])]
    folds = deal_folds(groups, labels, 3)
    every, of = np.concatenate(groups), np.concatenate(folds)
    for group in set(every.tolist()):
        assert len(set(of[every == group].tolist())) == 1
    assert sorted(np.unique([of[every == g][0] for g in range(8)], return_counts=True)[1]) == [
        2, 3, 3]


def test_a_class_is_dealt_evenly() -> None:
    labels = np.repeat(np.arange(3), 8)
    (folds,) = deal_folds([np.arange(24)], [labels], 4)
    for c in range(3):
        assert np.bincount(folds[labels == c], minlength=4).tolist() == [2, 2, 2, 2]


def test_a_class_of_alike_clients_is_not_in_one_fold() -> None:
    """One image of each of 20 classes at 5 clients, 20 folds: none holds a whole class out."""
    groups = [np.arange(20) + 20 * k for k in range(5)]
    folds = deal_folds(groups, [np.arange(20)] * 5, 20)
    for own in folds:
        assert sorted(own.tolist()) == list(range(20))
    for c in range(20):
        assert len({int(own[c]) for own in folds}) == 5
    few = deal_folds([np.arange(2), np.arange(2, 4)], [np.arange(2)] * 2, 20)
    assert np.concatenate(few).tolist() == [0, 1, 2, 3]  # no fold is empty


def test_few_images_are_dealt_to_more_folds() -> None:
    assert [fold_count(n) for n in (20, 500, 2_000, 50_000)] == [20, 20, 10, 5]


def test_near_duplicates_are_counted_unless_they_are_one_group() -> None:
    draw = torch.Generator().manual_seed(0)
    one = torch.randn(40, 16, generator=draw)
    y = torch.arange(40) % 2
    x = F.normalize(torch.cat([one, one + 0.01 * torch.randn(40, 16, generator=draw)]), dim=1)
    own, both = np.arange(80), np.arange(80) % 40
    assert twin_share(x[:40], y, own[:40]) == 0
    assert twin_share(x, y.repeat(2), own) == 1
    assert twin_share(x, y.repeat(2), both) == 0
