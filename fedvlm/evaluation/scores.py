"""From predictions to the named numbers of one evaluation, as plain JSON values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from fedvlm.evaluation import metrics
from fedvlm.evaluation.predict import BROKEN, Predicted

_LISTED = 8


class ClientData(Protocol):
    """One client's samples."""

    @property
    def train(self) -> np.ndarray:
        """Indices it trains on."""
        ...

    @property
    def test(self) -> np.ndarray:
        """Indices of its own test split."""
        ...


class OtherTest(Protocol):
    """One more test set (``data.others.OtherTest``)."""

    @property
    def name(self) -> str:
        """Of the domain or data set."""
        ...

    @property
    def kind(self) -> str:
        """``domain``: the run's classes; ``dataset``: its own."""
        ...

    @property
    def classnames(self) -> Sequence[str]:
        """By label."""
        ...

    @property
    def templates(self) -> Sequence[str]:
        """Prompt templates."""
        ...

    @property
    def indices(self) -> np.ndarray:
        """Its test images."""
        ...


class Federated(Protocol):
    """What is read of the federated data set (``data.federated.FederatedData``)."""

    @property
    def clients(self) -> Sequence[ClientData]:
        """By client id."""
        ...

    @property
    def labels(self) -> np.ndarray:
        """Label by sample index; new classes have their own, from 0."""
        ...

    @property
    def global_test(self) -> np.ndarray:
        """Test images of all classes of the setting."""
        ...

    @property
    def new_test(self) -> np.ndarray:
        """Test images of unseen classes; empty where there are none."""
        ...

    @property
    def new_classnames(self) -> Sequence[str]:
        """Unseen classes, by their label."""
        ...

    @property
    def others(self) -> Sequence[OtherTest]:
        """More test sets: a domain that no client holds, other data sets."""
        ...


def has_new(federated: Federated) -> bool:
    """Say whether the setting has unseen classes to test on."""
    return bool(len(federated.new_classnames)) and bool(len(federated.new_test))


def own_row(client: int, true: np.ndarray, predicted: Predicted) -> dict[str, Any]:
    """Return a client's line: n, correct, accuracy, macro-F1 on its own test split.

    ``accuracy`` and ``macro_f1`` are None for an empty split. ``broken`` counts predictions whose
    logits are not finite, and is there only if there are any.
    """
    row: dict[str, Any] = {
        "client": int(client),
        "n": int(len(true)),
        "correct": int(np.sum(true == predicted.labels)),
        "accuracy": metrics.accuracy(true, predicted.labels),
        "macro_f1": metrics.macro_f1(true, predicted.labels),
    }
    broken = int(np.sum(predicted.labels == BROKEN))
    return row | {"broken": broken} if broken else row


def base_row(federated: Federated, client: int, predicted: Predicted) -> dict[str, Any]:
    """Return ``base_all`` and ``base_other`` of a client's model on the whole base test set.

    ``base_other`` looks only at images of classes that the client has no training image of; it is
    None for a client that has every class.
    """
    true = federated.labels[federated.global_test]
    seen = np.unique(federated.labels[federated.clients[client].train])
    other = ~np.isin(true, seen)
    return {
        "base_all": metrics.accuracy(true, predicted.labels),
        "base_other": metrics.accuracy(true[other], predicted.labels[other]),
    }


def new_row(federated: Federated, predicted: Predicted) -> dict[str, Any]:
    """Return a model's accuracy on unseen classes."""
    return {"new": metrics.accuracy(federated.labels[federated.new_test], predicted.labels)}


def global_scores(federated: Federated, predicted: Predicted) -> dict[str, Any]:
    """Return the numbers of one model on the whole test set."""
    true = federated.labels[federated.global_test]
    return {
        "global": metrics.accuracy(true, predicted.labels),
        "global_macro_f1": metrics.macro_f1(true, predicted.labels),
    }


def personal_scores(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return mean, spread and pooled accuracy over all clients that have test samples."""
    values = [row["accuracy"] for row in rows]
    return {
        "personal": metrics.mean(values),
        "personal_std": metrics.std(values),
        "personal_worst": metrics.worst(values),
        "personal_worst_decile": metrics.worst_decile(values),
        "personal_micro": metrics.pooled([r["correct"] for r in rows], [r["n"] for r in rows]),
        "personal_macro_f1": metrics.mean(row["macro_f1"] for row in rows),
    }


def cross_scores(rows: Sequence[dict[str, Any]], personal: float | None) -> dict[str, Any]:
    """Return means over clients of ``base_all``, ``base_other`` and, where there is one, ``new``.

    With ``new`` come ``hm2`` (base_all, new), ``hm3`` (personal, base_all, new) and ``cm``. Where
    the lines have ``unseen``, its mean is ``unseen_personal``.
    """
    found: dict[str, Any] = {
        name: metrics.mean(row[name] for row in rows)
        for name in ("base_all", "base_other", "new") if rows and name in rows[0]
    }
    if "new" in found:
        found["hm2"] = metrics.hm2(found["base_all"], found["new"])
        found["hm3"] = metrics.hm3(personal, found["base_all"], found["new"])
        found["cm"] = metrics.cm(personal, found["hm2"])
    if rows and "unseen" in rows[0]:
        found["unseen_personal"] = metrics.mean(row["unseen"] for row in rows)
    return found


def left_out(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Say which clients are missing from a mean, and where logits were not finite."""
    notes = []
    empty = [row["client"] for row in rows if not row["n"]]
    if empty:
        notes.append(f"{_clients(empty)} without test samples: left out of personal")
    whole = [row["client"] for row in rows if row.get("base_other", 0.0) is None]
    if whole:
        notes.append(f"{_clients(whole)} with every class in training: left out of base_other")
    for row in rows:
        if row.get("broken"):
            notes.append(
                f"client {row['client']}: {row['broken']} of {row['n']} predictions are not "
                "finite, counted as wrong"
            )
    return notes


def _clients(ids: Sequence[int]) -> str:
    shown = ", ".join(map(str, ids[:_LISTED])) + (", ..." if len(ids) > _LISTED else "")
    return f"{len(ids)} client{'s' * (len(ids) > 1)} ({shown})"
