"""From models to predictions, and from those to the named numbers of one evaluation (plain JSON).

``Batches`` predicts with K models at once, on the same samples or on samples of their own. No
gradient is kept, and ``torch.inference_mode`` is avoided on purpose: a tensor that a model caches
under it (a text anchor, say) could never take part in training again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from fedvlm.core.stats import mean, population_std
from fedvlm.evaluation import metrics
from fedvlm.federation.batches import Split
from fedvlm.federation.server import Row
from fedvlm.federation.trainer import Predictor
from fedvlm.models.features.sources import SampleSource

BROKEN = -1  # the label where a model's logits are not finite: never right, never another class
DOMAIN = "domain"
UNSEEN = "unseen"
UNSEEN_CLIENTS = "unseen_clients"
TARGET = "target."
TARGETS = "targets"
_LISTED = 8


class OtherTest(Protocol):
    """One more test set (``data.federated.OtherTest``)."""

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


class TestSets(Protocol):
    """What the server's half reads of the data set (``data.federated.FederatedData``)."""

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


class Federated(TestSets, Protocol):
    """What is read where the clients are."""

    @property
    def clients(self) -> Sequence[Split]:
        """By client id."""
        ...


# ---- predictions -------------------------------------------------------------------------------
@dataclass(frozen=True)
class Predictions:
    """One model on n samples.

    Attributes:
        labels: predicted labels ``[n]`` int64; ``BROKEN`` where the logits are not finite.
        logits: ``[n, C]`` on the CPU, if they were asked for.
    """

    labels: np.ndarray
    logits: Tensor | None = None


class Batches:
    """Fetches test samples in a fixed order and size, so that a repeated evaluation is bit-equal.

    Args:
        source: where samples come from; view 0 is the plain, unaugmented one.
        batch_size: samples per client and batch.
        device: where the predictor works; streams are moved there.
    """

    def __init__(self, source: SampleSource, batch_size: int, device: torch.device | str) -> None:
        self.source, self.batch_size, self.device = source, batch_size, device

    def _fetch(self, indices: np.ndarray) -> dict[str, Tensor]:
        flat = torch.tensor(np.asarray(indices, dtype=np.int64).reshape(-1))
        streams = self.source.fetch(flat, view=0)
        return {name: v.to(self.device) for name, v in streams.items()}

    def shared(
        self, predict: Predictor, indices: np.ndarray, k: int, keep_logits: bool = False, *,
        wide: int = 1,
    ) -> list[Predictions]:
        """Predict the same samples with each of ``k`` models; a sample is fetched once.

        Args:
            predict: ``x`` with streams ``[K, B, ...]`` -> logits ``[K, B, C]``.
            indices: ``[n]``.
            wide: how many batches go side by side, where one model stands for many clients.
        """
        parts, size = [], self.batch_size * wide
        for start in range(0, len(indices), size):
            x = self._fetch(indices[start : start + size])
            each = {s: v.unsqueeze(0).expand(k, *v.shape) for s, v in x.items()}
            parts.append(_run(predict, each, keep_logits))
        return [_join([(p[i], None if z is None else z[i]) for p, z in parts]) for i in range(k)]

    def separate(
        self, predict: Predictor, indices: Sequence[np.ndarray], keep_logits: bool = False
    ) -> list[Predictions]:
        """Predict with each model its own samples; short clients are padded, and cut again.

        Args:
            predict: as in ``shared``.
            indices: K arrays ``[n_k]``, some of them empty.
        """
        longest = max((len(one) for one in indices), default=0)
        rows: list[list[tuple[np.ndarray, Tensor | None]]] = [[] for _ in indices]
        filler = next((one[0] for one in indices if len(one)), 0)
        for start in range(0, longest, self.batch_size):
            cut = [one[start : start + self.batch_size] for one in indices]
            width = max(map(len, cut))
            index = np.full((len(cut), width), filler, dtype=np.int64)
            for row, one in zip(index, cut, strict=True):
                row[: len(one)] = one
            flat = self._fetch(index)
            x = {s: v.reshape(*index.shape, *v.shape[1:]) for s, v in flat.items()}
            labels, logits = _run(predict, x, keep_logits)
            for i, one in enumerate(cut):
                if len(one):
                    z = None if logits is None else logits[i, : len(one)]
                    rows[i].append((labels[i, : len(one)], z))
        return [_join(row) for row in rows]


def _run(
    predict: Predictor, x: Mapping[str, Tensor], keep_logits: bool
) -> tuple[np.ndarray, Tensor | None]:
    with torch.no_grad():
        logits = predict(x).detach()
        finite = torch.isfinite(logits).all(-1)
        labels = torch.where(finite, logits.argmax(-1), BROKEN).cpu().numpy()
        return labels, logits.cpu().clone() if keep_logits else None


def _join(parts: Sequence[tuple[np.ndarray, Tensor | None]]) -> Predictions:
    if not parts:
        return Predictions(np.zeros(0, dtype=np.int64))
    logits = [z for _, z in parts if z is not None]
    return Predictions(
        np.concatenate([labels for labels, _ in parts]), torch.cat(logits) if logits else None
    )


# ---- numbers -----------------------------------------------------------------------------------
def has_new(federated: TestSets) -> bool:
    """Say whether the setting has unseen classes to test on."""
    return bool(len(federated.new_classnames)) and bool(len(federated.new_test))


def whole(row: Row, name: str) -> int:
    """Return a whole number of a row: ``client``, ``n``, ``correct``."""
    return int(row[name] or 0)


def client_row(client: int, true: np.ndarray, predicted: Predictions) -> Row:
    """Return a client's line: n, correct, accuracy, macro-F1 on its own test split.

    ``accuracy`` and ``macro_f1`` are None for an empty split. ``broken`` counts predictions whose
    logits are not finite, and is there only if there are any.
    """
    row: Row = {
        "client": int(client),
        "n": int(len(true)),
        "correct": int(np.sum(true == predicted.labels)),
        "accuracy": metrics.accuracy(true, predicted.labels),
        "macro_f1": metrics.macro_f1(true, predicted.labels),
    }
    broken = int(np.sum(predicted.labels == BROKEN))
    return row | {"broken": broken} if broken else row


def base_row(federated: Federated, client: int, predicted: Predictions) -> Row:
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


def new_row(federated: TestSets, predicted: Predictions) -> Row:
    """Return a model's accuracy on unseen classes."""
    return {"new": metrics.accuracy(federated.labels[federated.new_test], predicted.labels)}


def global_scores(federated: TestSets, predicted: Predictions) -> dict[str, Any]:
    """Return the numbers of one model on the whole test set."""
    true = federated.labels[federated.global_test]
    return {
        "global": metrics.accuracy(true, predicted.labels),
        "global_macro_f1": metrics.macro_f1(true, predicted.labels),
    }


def personal_scores(rows: Sequence[Row]) -> dict[str, Any]:
    """Return mean, spread and pooled accuracy over all clients that have test samples."""
    values = [row["accuracy"] for row in rows]
    return {
        "personal": mean(values),
        "personal_std": population_std(values),
        "personal_worst": metrics.worst(values),
        "personal_worst_decile": metrics.worst_decile(values),
        "personal_micro": metrics.pooled(
            [whole(row, "correct") for row in rows], [whole(row, "n") for row in rows]
        ),
        "personal_macro_f1": mean(row["macro_f1"] for row in rows),
    }


def cross_scores(rows: Sequence[Row], personal: float | None) -> dict[str, Any]:
    """Return means over clients of ``base_all``, ``base_other`` and, where there is one, ``new``.

    With ``new`` come ``hm2`` (base_all, new), ``hm3`` (personal, base_all, new) and ``cm``. Where
    the lines have ``unseen``, its mean is ``unseen_personal``.
    """
    means: dict[str, Any] = {
        name: mean(row[name] for row in rows)
        for name in ("base_all", "base_other", "new") if rows and name in rows[0]
    }
    if "new" in means:
        means["hm2"] = metrics.harmonic_mean(means["base_all"], means["new"])
        means["hm3"] = metrics.harmonic_mean(personal, means["base_all"], means["new"])
        means["cm"] = metrics.cm(personal, means["hm2"])
    if rows and "unseen" in rows[0]:
        means["unseen_personal"] = mean(row["unseen"] for row in rows)
    return means


def unseen_client_scores(rows: Sequence[Row]) -> dict[str, Any]:
    """Return mean, spread and worst accuracy of clients that never worked, with their lines."""
    values = [row["accuracy"] for row in rows]
    return {
        UNSEEN_CLIENTS: mean(values),
        f"{UNSEEN_CLIENTS}_std": population_std(values),
        f"{UNSEEN_CLIENTS}_worst": metrics.worst(values),
        f"{UNSEEN_CLIENTS}_rows": list(rows),
    }


def notes(rows: Sequence[Row]) -> list[str]:
    """Say which clients are missing from a mean, and where logits were not finite."""
    sentences = []
    empty = [whole(row, "client") for row in rows if not row["n"]]
    if empty:
        sentences.append(f"{_clients(empty)} without test samples: left out of personal")
    full = [whole(row, "client") for row in rows if row.get("base_other", 0.0) is None]
    if full:
        sentences.append(f"{_clients(full)} with every class in training: left out of base_other")
    for row in rows:
        if row.get("broken"):
            sentences.append(
                f"client {row['client']}: {row['broken']} of {row['n']} predictions are not "
                "finite, counted as wrong"
            )
    return sentences


def _clients(ids: Sequence[int]) -> str:
    listing = ", ".join(map(str, ids[:_LISTED])) + (", ..." if len(ids) > _LISTED else "")
    return f"{len(ids)} client{'s' * (len(ids) > 1)} ({listing})"


# ---- test sets beside the run's own: unseen, target.<NAME>, targets ------------------------------
def key_of(other: OtherTest) -> str:
    """Return the metric's name: ``unseen`` of a domain left out, else ``target.<NAME>``."""
    return UNSEEN if other.kind == DOMAIN else f"{TARGET}{other.name}"


def unseen_of(federated: TestSets) -> OtherTest | None:
    """Return the domain that no client holds, or None."""
    return next((other for other in federated.others if other.kind == DOMAIN), None)


def has_targets(federated: TestSets) -> bool:
    """Say whether there are other data sets to transfer to."""
    return any(other.kind != DOMAIN for other in federated.others)


def other_predictions(
    federated: TestSets, batches: Batches, model: Any, build: Callable[[Any], Predictor],
    own: Predictor, *, targets: bool, keep_logits: bool = False,
) -> dict[str, Predictions]:
    """Return one model's predictions on the other test sets, by ``key_of``.

    Args:
        model: ``with_classes(names, templates)`` gives it a target's classes and prompt.
        build: model -> predictor of K = 1 model.
        own: that predictor for the run's classes.
        targets: also predict on other data sets.
    """
    out = {}
    for other in federated.others:
        if other.kind == DOMAIN:
            predict = own
        elif targets:
            predict = build(model.with_classes(other.classnames, other.templates))
        else:
            continue
        out[key_of(other)] = batches.shared(predict, other.indices, 1, keep_logits)[0]
    return out


def other_scores(federated: TestSets, predicted: Mapping[str, Predictions]) -> dict[str, Any]:
    """Return the accuracies of ``other_predictions``, and ``targets``: the mean over data sets."""
    accuracies: dict[str, Any] = {
        key_of(other): metrics.accuracy(
            federated.labels[other.indices], predicted[key_of(other)].labels
        )
        for other in federated.others if key_of(other) in predicted
    }
    values = [value for name, value in accuracies.items() if name.startswith(TARGET)]
    return accuracies | ({TARGETS: mean(values)} if values else {})
