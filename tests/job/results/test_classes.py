"""Right answers by class and the confusion matrix, as Dassl's users know them."""

from __future__ import annotations

import io

import torch
from sklearn.metrics import confusion_matrix as sklearn_matrix

from fedvlm.job.results.classes import class_lines, confusion_matrix, matrix_file, per_class

TRUE, SAID = [0, 0, 0, 1, 3], [0, 2, 2, 1, 1]
COUNTS = [[0, 0, 1], [0, 2, 2], [1, 1, 1], [3, 1, 1]]
NAMES = ["ant", "bee", "cat", "dog"]


def test_by_class() -> None:
    lines = per_class(COUNTS, NAMES)
    assert [(x["name"], x["n"], x["correct"]) for x in lines] == [
        ("ant", 3, 1), ("bee", 1, 1), ("cat", 0, 0), ("dog", 1, 0)]
    assert lines[2]["accuracy"] is None
    assert class_lines(lines) == [
        ["=> per-class result"],
        ["* class: 0 (ant)", "total: 3", "correct: 1", "acc: 33.3%"],
        ["* class: 1 (bee)", "total: 1", "correct: 1", "acc: 100.0%"],
        ["* class: 3 (dog)", "total: 1", "correct: 0", "acc: 0.0%"],
        ["* average: 44.4%"],
    ]
    assert class_lines([]) == [["=> per-class result"]]


def test_the_matrix_is_scikit_learns() -> None:
    want = sklearn_matrix(TRUE, SAID, normalize="true", labels=range(4))
    assert confusion_matrix(COUNTS, 4).tolist() == want.tolist()
    file = io.BytesIO(matrix_file(COUNTS, 4))
    assert torch.equal(torch.load(file, weights_only=True), confusion_matrix(COUNTS, 4))


def test_what_is_not_finite_is_in_no_column() -> None:
    assert confusion_matrix([[0, -1, 1], [0, 0, 3]], 2).tolist() == [[0.75, 0.0], [0.0, 0.0]]
    assert per_class([[0, -1, 1], [0, 0, 3]], ["a", "b"])[0]["accuracy"] == 75.0
