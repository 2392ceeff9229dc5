"""References choose their strength on folds that keep groups: a copied patient raises no number."""

from __future__ import annotations

import numpy as np
import torch

from fedvlm.evaluation.references.logistic import Frozen, Regression, regressions
from fedvlm.federation.batches import IndexSplit

PATIENTS, WIDTH, COPIES, TESTS = 20, 12, 10, 40


class Noise:
    """Features that say nothing: of patients, their copies, and of test images."""

    def __init__(self, copies: int) -> None:
        g = torch.Generator().manual_seed(3)
        own = torch.randn(PATIENTS, WIDTH, generator=g)
        tests = torch.randn(TESTS, WIDTH, generator=g)
        self.features = torch.cat([own.repeat_interleave(copies, 0), tests])
        self.labels = torch.zeros(len(self.features))

    def fetch(self, indices: torch.Tensor, view: int) -> dict[str, torch.Tensor]:
        return {"features": self.features[indices]}


def fitted(copies: int, grouped: bool) -> Regression:
    patients = np.repeat(np.arange(PATIENTS), copies)
    labels = np.concatenate([patients % 2, np.arange(TESTS) % 2])
    groups = np.concatenate([patients, PATIENTS + np.arange(TESTS)]) if grouped else None
    n = len(patients)
    share = IndexSplit(np.arange(n), np.arange(0), np.arange(n, n + TESTS))
    (one,) = regressions(Frozen(Noise(copies), labels, groups), [share])  # type: ignore[arg-type]
    return one


def test_a_patient_in_tenfold_raises_no_number() -> None:
    once, tenfold = fitted(1, True), fitted(COPIES, True)
    assert once.judge == tenfold.judge == "cross-validation"
    assert tenfold.l2 == once.l2
    assert tenfold.labels.tolist() == once.labels.tolist()


def test_without_groups_copies_choose_a_weaker_hold() -> None:
    """What the groups are there for: a copy in another fold is answered by heart."""
    assert fitted(COPIES, False).l2 < fitted(COPIES, True).l2
