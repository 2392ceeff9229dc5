"""The references of a run whose images have sets of labels, by the measures of ``label_rows``.

``alone``: ``chance`` (a label's share of the test images: the average precision of a random order),
``zero_shot`` (the template prompt), ``logreg`` (a logistic regression for each label on the
client's own features). ``together``: ``afl``, ridge regression of the labels from sums of all
clients. ``bound``: ``pooled``, the regressions on everybody's images. A client's regressions have
one l2: the one with the least loss on its validation images; without these, on training images
held out in ``FOLDS`` parts, groups whole. A label that no training image has, or all have, gets one
score for all images.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedvlm.evaluation import label_rows
from fedvlm.evaluation.references import suite
from fedvlm.evaluation.references.logistic import (
    CHUNK_BYTES,
    FOLDS,
    FeatureScale,
    Regression,
    fold_parts,
)
from fedvlm.evaluation.references.softmax import GRID, Problems, path
from fedvlm.federation.batches import NO_WEIGHTS, IndexSplit
from fedvlm.federation.local.balance import sample_costs
from fedvlm.federation.server import Row
from fedvlm.federation.toolbox import moments

COLUMNS = ("client", "n", "accuracy", *suite.OF_SETS)
Scores = Callable[[int, np.ndarray], np.ndarray]  # (client, samples) -> [n, C]


def label_references(asked: suite.Asked) -> dict[str, dict[str, Any]]:
    """Return the references that need no text tower, by name (``suite.reference``)."""
    shares = {c: suite.share_of(asked.data, c) for c in asked.clients}
    own = {c: _regressions(asked, share) for c, share in shares.items()}
    gram, cross, n = suite.ridge_sums(asked)
    strength = float(moments.best_ridge(gram, cross, torch.tensor(float(n)).to(gram)))
    ridge = moments.ridge(gram, cross, strength)
    return {
        "chance": suite.reference(suite.ALONE, "each label's share of the test images", [
            _chance(asked, c) for c in asked.clients]),
        "logreg": _judged(asked, suite.ALONE, suite.choice_words([one for one, _ in own.values()]),
                          lambda c, at: own[c][1](at)),
        "afl": _judged(
            asked, suite.TOGETHER, "AFL, ridge regression of the labels in one round: ridge "
            f"{strength:.0e} by cross-validation",
            lambda c, at: (suite.raw_features(asked, at) @ ridge).cpu().numpy()),
        "pooled": _pooled(asked),
    }


def _judged(
    asked: suite.Asked, kind: str, how: str, scores: Scores
) -> dict[str, Any]:
    rows = []
    for c in asked.clients:
        share = suite.share_of(asked.data, c)
        truths = {p: label_rows.truth_of(asked.data, getattr(share, p)) for p in ("val", "test")}
        fixed = label_rows.fix(truths["val"], scores(c, share.val) if len(share.val)
                               else np.zeros(truths["val"].shape))
        row = label_rows.set_row(c, truths["test"], scores(c, share.test), fixed)
        rows.append({name: row[name] for name in COLUMNS})
    return suite.reference(kind, how, rows)


def _chance(asked: suite.Asked, client: int) -> Row:
    truth = label_rows.truth_of(asked.data, suite.share_of(asked.data, client).test)
    shares = truth.mean(0) if len(truth) else np.zeros(0)
    there = shares[shares > 0]
    return {"client": client, "n": len(truth), "positives": int(truth.sum()),
            "accuracy": 100.0 * float(there.mean()) if len(there) else None,
            "auroc": 50.0 if len(there) else None}


def _pooled(asked: suite.Asked) -> dict[str, Any]:
    """Return the regressions on all members' images; without numbers where they are large."""
    train = asked.every("train")
    if left_out := suite.pooled_left_out(asked, train, "labels"):
        return left_out
    found, scores = _regressions(asked, IndexSplit(train, asked.every("val"), train[:0]))
    return _judged(asked, suite.BOUND, f"centralised: {suite.choice_words([found])}",
                   lambda c, at: scores(at))


def _regressions(
    asked: suite.Asked, share: IndexSplit
) -> tuple[Regression, Callable[[np.ndarray], np.ndarray]]:
    """Return how the l2 was chosen, and the scores ``[n, C]`` of any images."""
    train = asked.frozen.x(share.train)
    scale, y = FeatureScale.of(train), _truth(asked, share.train).to(train.device)
    x = scale(train)
    costs = torch.ones_like(y) if asked.weights == NO_WEIGHTS else torch.from_numpy(sample_costs(
        asked.data.labels[share.train], asked.classes, asked.weights, asked.sets)).to(y)
    found, judge = _path(x, y, costs), "cross-validation"
    if len(share.val):
        judge = "validation"
        z, of = scale(asked.frozen.x(share.val)), _truth(asked, share.val).to(x.device)
        losses = [float(F.binary_cross_entropy_with_logits(z @ w.mT, of)) for w in found]
    else:
        losses, groups = [0.0] * len(GRID), asked.frozen.groups
        parts = fold_parts(asked.data.labels[share.train],
                           None if groups is None else groups[share.train]).to(x.device)
        for part in range(FOLDS):
            held = parts == part
            if held.any() and not held.all():
                for i, w in enumerate(_path(x[~held], y[~held], costs[~held])):
                    losses[i] += float(F.binary_cross_entropy_with_logits(
                        x[held] @ w.mT, y[held], reduction="sum"))
    best = int(np.argmin(losses))
    return (Regression(np.zeros(0, dtype=np.int64), GRID[best], judge, True),
            lambda at: (scale(asked.frozen.x(at)) @ found[best].mT).cpu().numpy())


def _truth(asked: suite.Asked, at: np.ndarray) -> Tensor:
    return torch.from_numpy(label_rows.truth_of(asked.data, at).astype(np.float64))


def _path(x: Tensor, y: Tensor, costs: Tensor) -> list[Tensor]:
    """Return the weights ``[C, d + 1]`` of the labels' regressions for each l2 of ``GRID``.

    Args:
        x, y: features ``[n, d + 1]`` and labels ``[n, C]`` of 0 and 1.
        costs: what each label of each image counts ``[n, C]``.
    """
    n, classes = y.shape
    out = [torch.zeros(classes, x.shape[1], dtype=x.dtype, device=x.device) for _ in GRID]
    mixed = ((y.sum(0) > 0) & (y.sum(0) < n)).nonzero().flatten()
    size = 8 * n * min(n, x.shape[1])
    for some in mixed.split(max(1, CHUNK_BYTES // max(size, 1))):
        k = len(some)
        problems = Problems(
            x.expand(k, *x.shape).contiguous(), y[:, some].mT.long().contiguous(),
            costs[:, some].mT.to(x).contiguous(), x.new_ones(k, 2, dtype=torch.bool))
        for w, (_, solution) in zip(out, path(problems), strict=True):
            w[some] = solution.weights[:, 1] - solution.weights[:, 0]
    for i in (y.sum(0) == n).nonzero().flatten().tolist():
        for w in out:
            w[i, -1] = 1.0  # on every image: yes
    return out
