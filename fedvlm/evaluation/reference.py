"""The reference row: the zero-shot model, with the dataset's template prompt as its classifier."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedvlm.evaluation import others, scores
from fedvlm.evaluation.predict import Batches, Predicted, Predictor, Source


def zero_shot(
    model: Any, source: Source, federated: scores.Federated, *, batch_size: int = 256,
    cross: bool | None = None,
) -> dict[str, Any]:
    """Return the numbers of the model as it comes, named as in ``Evaluator.evaluate``.

    One model for all clients: ``personal`` is it on each client's test split, ``base_all`` and
    ``new`` are the same for everyone, and so is ``unseen``. A target's images have its own template
    prompt. Each test image is encoded once.

    Args:
        model: ``anchor("template", 0)`` ``[C, d]`` is the classifier.
        source, federated, batch_size, cross: as for ``Evaluator``.
    """
    batches = Batches(source, batch_size, getattr(model, "device", "cpu"))
    predict = template_predictor(model)
    tests = [np.asarray(client.test, dtype=np.int64) for client in federated.clients]
    wanted = np.unique(np.concatenate([np.asarray(federated.global_test, dtype=np.int64), *tests]))
    labels = batches.shared(predict, wanted, 1)[0].labels

    def at(indices: np.ndarray) -> Predicted:
        return Predicted(labels[np.searchsorted(wanted, indices)])

    rows = [scores.own_row(c, federated.labels[t], at(t)) for c, t in enumerate(tests)]
    base = at(federated.global_test)
    if scores.has_new(federated) if cross is None else cross:
        new = {}
        if scores.has_new(federated):
            unseen = template_predictor(model.with_classes(federated.new_classnames))
            new = scores.new_row(federated, batches.shared(unseen, federated.new_test, 1)[0])
        for c, row in enumerate(rows):
            row |= scores.base_row(federated, c, base) | new
    beside = others.other_scores(federated, others.predictions(
        federated, batches, model, template_predictor, predict, targets=True
    ))
    if others.UNSEEN in beside:
        for row in rows:
            row[others.UNSEEN] = beside[others.UNSEEN]
    result = {"round": None} | scores.personal_scores(rows)
    result |= scores.global_scores(federated, base) | beside
    result |= scores.cross_scores(rows, result["personal"])
    return result | {"clients": rows, "notes": scores.left_out(rows)}


def template_predictor(model: Any) -> Predictor:
    """Return ``x -> logits [K, B, C]`` with the template prompt's text features."""
    with torch.no_grad():
        anchor = model.anchor("template", n_ctx=0)

    def predict(x: Mapping[str, Tensor]) -> Tensor:
        z = model.image(x)
        logits: Tensor = model.logits(z, anchor.expand(z.shape[0], *anchor.shape))
        return logits

    return predict
