"""Ranking measures against their definitions, written as plain sums over pairs and thresholds."""

from __future__ import annotations

import numpy as np
import pytest

from fedvlm.evaluation import rankings


def drawn(seed: int, n: int = 40, classes: int = 5) -> tuple[np.ndarray, np.ndarray]:
    """Labels and scores with many ties; the last label is on no image, the one before on all."""
    dice = np.random.default_rng(seed)
    truth = (dice.random((n, classes)) < 0.3).astype(np.uint8)
    truth[:, -1], truth[:, -2] = 0, 1
    return truth, np.round(dice.normal(size=(n, classes)) + truth, 1)


def test_one_class_against_the_rest_is_scikit_learns() -> None:
    from sklearn.metrics import recall_score, roc_auc_score

    dice = np.random.default_rng(3)
    true, scores = dice.integers(0, 3, 50), np.round(dice.random((50, 4)), 1)
    said = scores.argmax(1)
    found = rankings.one_against_rest(true, said, scores)
    for c in range(3):
        truth, yes = true == c, said == c
        assert [each[c] for each in found] == pytest.approx([
            recall_score(truth, yes), recall_score(~truth, ~yes),
            roc_auc_score(truth, scores[:, c])])
    assert np.isnan([found[0][3], found[2][3]]).all()  # on no image
    assert found[1][3] == pytest.approx(recall_score(true != 3, said != 3))


def plain_ap(truth: np.ndarray, score: np.ndarray) -> float:
    """scikit-learn's ``average_precision_score``: the sum of (R_n - R_n-1) P_n."""
    total, before = 0.0, 0.0
    for t in sorted(set(score), reverse=True):
        said = score >= t
        precision, recall = truth[said].mean(), truth[said].sum() / truth.sum()
        total, before = total + (recall - before) * precision, recall
    return total


def plain_auroc(truth: np.ndarray, score: np.ndarray) -> float:
    pairs = [(a > b) + 0.5 * (a == b) for a in score[truth == 1] for b in score[truth == 0]]
    return float(np.mean(pairs))


def plain_f1(truth: np.ndarray, said: np.ndarray) -> float:
    hits = (said & (truth == 1)).sum()
    return float(2 * hits / (said.sum() + truth.sum()))


@pytest.mark.parametrize("seed", range(3))
def test_each_measure_is_its_definition(seed: int) -> None:
    truth, scores = drawn(seed)
    ap, area = rankings.average_precision(truth, scores), rankings.auroc(truth, scores)
    recall = rankings.sensitivity_at(truth, scores, 0.8)
    limits = rankings.thresholds(truth, scores, 9.0)
    f1 = rankings.f1(truth, scores >= limits)
    for i in range(3):
        t, s = truth[:, i], scores[:, i]
        assert ap[i] == pytest.approx(plain_ap(t, s), abs=1e-12)
        assert area[i] == pytest.approx(plain_auroc(t, s), abs=1e-12)
        best = max(plain_f1(t, s >= cut) for cut in s)
        assert f1[i] == pytest.approx(plain_f1(t, s >= limits[i])) == pytest.approx(best)
        fine = [(t[s >= cut] == 1).sum() / t.sum() for cut in s
                if (s[t == 0] < cut).mean() >= 0.8 - 1e-12]
        assert recall[i] == pytest.approx(max(fine, default=0.0))


def test_a_label_without_both_sides_has_no_number() -> None:
    truth, scores = drawn(0)
    nothing, all_ = -1, -2
    for values in (rankings.auroc(truth, scores), rankings.sensitivity_at(truth, scores, 0.9)):
        assert np.isnan(values[nothing]) and np.isnan(values[all_])
    assert np.isnan(rankings.average_precision(truth, scores)[nothing])
    assert rankings.average_precision(truth, scores)[all_] == 1.0
    assert np.isnan(rankings.f1(truth, scores > 0)[nothing])
    assert rankings.thresholds(truth, scores, 0.5)[nothing] == 0.5


def test_the_order_of_images_and_of_equal_scores_moves_nothing() -> None:
    truth, scores = drawn(1)
    at = np.random.default_rng(2).permutation(len(truth))
    for measure in (rankings.average_precision, rankings.auroc):
        np.testing.assert_array_equal(measure(truth, scores), measure(truth[at], scores[at]))


def test_a_threshold_lies_between_two_images() -> None:
    truth = np.array([[1], [1], [0], [0]])
    assert rankings.thresholds(truth, np.array([[0.9], [0.7], [0.3], [0.1]]), 0.5) == 0.5
