"""One model on the test sets beside the run's own: ``unseen``, ``target.<NAME>``, ``targets``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fedvlm.evaluation import metrics
from fedvlm.evaluation.predict import Batches, Predicted, Predictor
from fedvlm.evaluation.scores import Federated, OtherTest

DOMAIN = "domain"
UNSEEN = "unseen"
TARGET = "target."
TARGETS = "targets"


def key_of(other: OtherTest) -> str:
    """Return the metric's name: ``unseen`` of a domain left out, else ``target.<NAME>``."""
    return UNSEEN if other.kind == DOMAIN else f"{TARGET}{other.name}"


def unseen_of(federated: Federated) -> OtherTest | None:
    """Return the domain that no client holds, or None."""
    return next((other for other in federated.others if other.kind == DOMAIN), None)


def has_targets(federated: Federated) -> bool:
    """Say whether there are other data sets to transfer to."""
    return any(other.kind != DOMAIN for other in federated.others)


def predictions(
    federated: Federated, batches: Batches, model: Any, build: Callable[[Any], Predictor],
    own: Predictor, *, targets: bool, keep_logits: bool = False,
) -> dict[str, Predicted]:
    """Return one model's predictions on the other test sets, by ``key_of``.

    Args:
        model: ``with_classes(names, templates)`` gives it a target's classes and prompt.
        build: model -> predictor of K = 1 model.
        own: that predictor for the run's classes.
        targets: also predict on other data sets.
    """
    found = {}
    for other in federated.others:
        if other.kind == DOMAIN:
            predict = own
        elif targets:
            predict = build(model.with_classes(other.classnames, other.templates))
        else:
            continue
        found[key_of(other)] = batches.shared(predict, other.indices, 1, keep_logits)[0]
    return found


def other_scores(federated: Federated, predicted: Mapping[str, Predicted]) -> dict[str, Any]:
    """Return the accuracies of ``predictions``, and ``targets``, the mean over the data sets."""
    found: dict[str, Any] = {
        key_of(other): metrics.accuracy(
            federated.labels[other.indices], predicted[key_of(other)].labels
        )
        for other in federated.others if key_of(other) in predicted
    }
    values = [value for name, value in found.items() if name.startswith(TARGET)]
    return found | ({TARGETS: metrics.mean(values)} if values else {})
