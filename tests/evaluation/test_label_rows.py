"""A client's line where an image has a set of labels, and what lines say together."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedvlm.evaluation import label_rows, rankings
from fedvlm.runs.verify.numbers import problems

NAMES = ("a", "b", "c")


def client(seed: int, n: int = 30) -> tuple[np.ndarray, np.ndarray]:
    dice = np.random.default_rng(seed)
    truth = (dice.random((n, 3)) < 0.4).astype(np.uint8)
    return truth, 6.0 * (truth + 0.6 * dice.normal(size=truth.shape)) - 3.0


def test_a_line_has_the_means_over_labels() -> None:
    truth, logits = client(0)
    row = label_rows.set_row(2, truth, logits, label_rows.fix(*client(1)))
    assert row["client"] == 2 and row["n"] == 30 and row["positives"] == truth.sum()
    assert row["accuracy"] == pytest.approx(
        100 * rankings.average_precision(truth, logits).mean())
    assert row["auroc"] == pytest.approx(100 * rankings.auroc(truth, logits).mean())
    log_p = torch.distributions.Bernoulli(logits=torch.from_numpy(logits)).log_prob(
        torch.from_numpy(truth).double())
    assert row["nll"] == pytest.approx(-float(log_p.sum(1).mean()))


def test_temperature_and_thresholds_are_those_of_validation_images() -> None:
    val, (truth, logits) = client(1), client(0)
    fixed = label_rows.fix(*val)
    p = label_rows.probabilities(logits, fixed.temperature)
    row = label_rows.set_row(0, truth, logits, fixed)
    assert row["macro_f1"] == pytest.approx(
        100 * rankings.f1(truth, p >= fixed.thresholds).mean())
    other = label_rows.set_row(0, truth, logits, label_rows.fix(truth, logits))
    assert other["macro_f1"] != row["macro_f1"], "the test split would choose others"
    assert label_rows.fix(val[0], 10 * val[1]).temperature == pytest.approx(
        10 * fixed.temperature, rel=0.06)
    bare = label_rows.fix(val[0][:0], val[1][:0])
    assert bare.temperature == 1 and (bare.thresholds == 0.5).all()


def test_labels_leave_the_lines_and_stand_in_a_section() -> None:
    rows = [label_rows.set_row(k, *client(k), label_rows.fix(*client(k + 9))) for k in range(3)]
    ap = [row["label.1.ap"] for row in rows]
    section = label_rows.take_labels(rows, NAMES)
    assert section is not None and not any("." in key for row in rows for key in row)
    assert [one["name"] for one in section["labels"]] == list(NAMES)
    assert section["labels"][1]["ap"] == pytest.approx(np.mean(ap))
    assert len(section["clients"]) == 3 and len(section["clients"][0]["thresholds"]) == 3
    numbers = label_rows.set_scores(rows)
    assert numbers["personal"] == pytest.approx(np.mean([r["accuracy"] for r in rows]))
    assert not list(problems(numbers | {"clients": rows, "labels": section}))
    assert list(problems(numbers | {"clients": rows, "personal_auroc": 1.0}))
    assert label_rows.take_labels(rows, NAMES) is None


def test_what_is_not_finite_comes_last_and_is_counted() -> None:
    truth = np.array([[1, 0], [0, 1]])
    row = label_rows.set_row(0, truth, np.array([[np.nan, 0.0], [0.0, 1.0]]))
    assert row["broken"] == 1 and row["accuracy"] == pytest.approx(75.0)


def test_a_client_without_test_images_or_labels_has_no_number() -> None:
    assert label_rows.set_row(0, np.zeros((0, 2)), np.zeros((0, 2)))["accuracy"] is None
    assert label_rows.set_row(0, np.zeros((3, 2)), np.zeros((3, 2)))["accuracy"] is None
