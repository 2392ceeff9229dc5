"""Baselines of clients whose images are at sites: each alone, and pooled by sums of the sites.

A site computes on its own clients and tells rows of numbers and one sum over them; what all sites'
sums give is the ridge regression that one place with all images would compute.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedvlm.core.trees import Tree
from fedvlm.evaluation import scores
from fedvlm.evaluation.references.logistic import regressions
from fedvlm.evaluation.references.suite import (
    ALONE,
    BOUND,
    COLUMNS,
    Asked,
    names_regressions,
    raw_features,
    reference,
    ridge_sums,
    share_of,
    template_readers,
)
from fedvlm.evaluation.scores import Predictions
from fedvlm.federation.groups import BASELINE_SUMS
from fedvlm.federation.server import Row
from fedvlm.federation.toolbox import moments
from fedvlm.models.vlmodel import VLModel

GRAM, CROSS, COUNT = BASELINE_SUMS
WEIGHTS = "weights"
_KINDS = {
    "logreg": (ALONE, "logistic regression at each client's site"),
    "logreg_names": (ALONE, "logistic regression from class names at each client's site"),
    "pooled": (BOUND, "ridge regression from the sums of all sites"),
}


def alone_rows(asked: Asked, model: VLModel | None = None) -> list[Row]:
    """Return each client's row of a logistic regression on its own images.

    Args:
        model: start from the logits of its template prompt; None: from zero.
    """
    found = (
        regressions(asked.frozen, [share_of(asked.data, c) for c in asked.clients])
        if model is None else names_regressions(asked, template_readers(asked, model)))
    return [_row(asked, c, one.labels) for c, one in zip(asked.clients, found, strict=True)]


def site_sums(asked: Asked) -> Tree:
    """Return the sums of z z' ``[d, d]`` and z y' ``[d, C]`` over all clients, and the images."""
    gram, cross, n = ridge_sums(asked)
    return {GRAM: gram.cpu(), CROSS: cross.cpu(), COUNT: torch.tensor(float(n))}


def pooled_rows(asked: Asked, weights: Tensor) -> list[Row]:
    """Return each client's row of a shared linear model ``[d, C]``."""
    out = []
    for c in asked.clients:
        test = np.asarray(asked.data.clients[c].test, dtype=np.int64)
        z = raw_features(asked, test)
        out.append(_row(asked, c, (z @ weights.to(z)).argmax(1).cpu().numpy()))
    return out


def sound_sums(tree: Tree, width: int, classes: int) -> bool:
    """Tell whether a site's sums have the shapes that they must have, and finite numbers."""
    shapes = {GRAM: (width, width), CROSS: (width, classes), COUNT: ()}
    return tree.keys() == shapes.keys() and all(
        tuple(tree[n].shape) == shape and tree[n].is_floating_point()
        and bool(torch.isfinite(tree[n]).all()) for n, shape in shapes.items()
    )


def pooled_weights(each: Sequence[Tree]) -> Tensor:
    """Return the ridge regression ``[d, C]`` of all sites' sums; as AFL chooses its ridge."""
    gram, cross, n = (torch.stack([one[name].double() for one in each]).sum(0)
                      for name in (GRAM, CROSS, COUNT))
    return moments.ridge(gram, cross, float(moments.best_ridge(gram, cross, n)))


def site_references(found: Mapping[str, Sequence[Row]]) -> dict[str, dict[str, Any]]:
    """Return the references that rows of sites give, by name, as ``suite.references``."""
    return {name: reference(*_KINDS[name], [{n: row[n] for n in COLUMNS} for row in rows])
            for name, rows in found.items()}


def _row(asked: Asked, client: int, labels: np.ndarray) -> Row:
    said = Predictions(np.asarray(labels, dtype=np.int64))
    return scores.client_row(client, asked.true(client), said)
