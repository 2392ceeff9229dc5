"""From models to predictions, and from those to the named numbers of one evaluation (plain JSON).

``Batches`` predicts with K models at once, on the same samples or on samples of their own. No
gradient is kept, and ``torch.inference_mode`` is avoided on purpose: a tensor that a model caches
under it (a text anchor, say) could never take part in training again.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from fedvlm.core.stats import (
    cm,
    harmonic_mean,
    mean,
    pooled_accuracy,
    population_std,
    quartiles,
    worst,
    worst_decile,
)
from fedvlm.evaluation import metrics
from fedvlm.federation.batches import Split
from fedvlm.federation.server import Row
from fedvlm.federation.trainer import Predictor
from fedvlm.models.features.sources import SampleSource

BROKEN = -1  # the label where a model's logits are not finite: never right, never another class
ABSENT = "absent"  # of a client's row: its site did not answer, or
WITHHELD = 2  # its site sends no numbers of so few images
DOMAIN = "domain"
UNSEEN = "unseen"
UNSEEN_CLIENTS = "unseen_clients"
CONFUSION = "confusion"
RIGHT = "right"  # of lines, which ``take_right`` takes out
SIX = 6  # bytes of bits in one number: no more than a float counts
SURE = ("nll", "ece", "nll_calibrated", "ece_calibrated")  # of lines, and their means
TARGET = "target."
TARGETS = "targets"
_LISTED = 8
Right = Mapping[str, Mapping[int, np.ndarray]]  # model -> client -> its images [n], bool


class OtherTest(Protocol):
    """One more test set (``data.targets.ExtraTest``)."""

    @property
    def name(self) -> str:
        """Of the domain or data set."""

    @property
    def kind(self) -> str:
        """``domain``: the run's classes; ``dataset``: its own."""

    @property
    def classnames(self) -> Sequence[str]:
        """By label."""

    @property
    def templates(self) -> Sequence[str]:
        """Prompt templates."""

    @property
    def indices(self) -> np.ndarray:
        """Its test images."""


class TestSets(Protocol):
    """What the server's half reads of the data set (``data.federated.FederatedData``)."""

    @property
    def labels(self) -> np.ndarray:
        """Label by sample index; new classes have their own, from 0."""

    @property
    def global_test(self) -> np.ndarray:
        """Test images of all classes of the setting."""

    @property
    def new_test(self) -> np.ndarray:
        """Test images of unseen classes; empty where there are none."""

    @property
    def new_classnames(self) -> Sequence[str]:
        """Unseen classes, by their label."""

    @property
    def others(self) -> Sequence[OtherTest]:
        """More test sets: a domain that no client holds, other data sets."""


class Federated(TestSets, Protocol):
    """What is read where the clients are."""

    @property
    def clients(self) -> Sequence[Split]:
        """By client id."""


# ---- predictions -------------------------------------------------------------------------------
@dataclass(frozen=True)
class Predictions:
    """One model on n samples.

    Attributes:
        labels: predicted labels ``[n]`` int64; ``BROKEN`` where the logits are not finite.
        logits: ``[n, C]`` on the CPU, if they were asked for.
        confidence: probability of the predicted class ``[n]``, where true labels were given.
        loss: minus the log of the true class's probability ``[n]``, nats, as ``confidence``; both
            are NaN where the logits are not finite.
    """

    labels: np.ndarray
    logits: Tensor | None = None
    confidence: np.ndarray | None = None
    loss: np.ndarray | None = None

    def part(self, where: Any) -> Predictions:
        """Return those of some samples: an index of the leading axes."""
        return replace(self, **{k: v[where] for k, v in vars(self).items() if v is not None})


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
        wide: int = 1, truth: np.ndarray | None = None,
    ) -> list[Predictions]:
        """Predict the same samples with each of ``k`` models; a sample is fetched once.

        Args:
            predict: ``x`` with streams ``[K, B, ...]`` -> logits ``[K, B, C]``.
            indices: ``[n]``.
            wide: how many batches go side by side, where one model stands for many clients.
            truth: the label of every sample; with it come confidence and loss.
        """
        parts, size = [], self.batch_size * wide
        for start in range(0, len(indices), size):
            these = indices[start : start + size]
            x = self._fetch(these)
            each = {s: v.unsqueeze(0).expand(k, *v.shape) for s, v in x.items()}
            true = None if truth is None else np.broadcast_to(truth[these], (k, len(these)))
            parts.append(_run(predict, each, keep_logits, true))
        return [_join([p.part(i) for p in parts], truth) for i in range(k)]

    def separate(
        self, predict: Predictor, indices: Sequence[np.ndarray], keep_logits: bool = False, *,
        truth: np.ndarray | None = None,
    ) -> list[Predictions]:
        """Predict with each model its own samples; short clients are padded, and cut again.

        Args:
            predict, truth: as in ``shared``.
            indices: K arrays ``[n_k]``, some of them empty.
        """
        longest = max((len(one) for one in indices), default=0)
        rows: list[list[Predictions]] = [[] for _ in indices]
        filler = next((one[0] for one in indices if len(one)), 0)
        for start in range(0, longest, self.batch_size):
            cut = [one[start : start + self.batch_size] for one in indices]
            width = max(map(len, cut))
            index = np.full((len(cut), width), filler, dtype=np.int64)
            for row, one in zip(index, cut, strict=True):
                row[: len(one)] = one
            flat = self._fetch(index)
            x = {s: v.reshape(*index.shape, *v.shape[1:]) for s, v in flat.items()}
            found = _run(predict, x, keep_logits, None if truth is None else truth[index])
            for i, one in enumerate(cut):
                if len(one):
                    rows[i].append(found.part((i, slice(len(one)))))
        return [_join(row, truth) for row in rows]


def _run(
    predict: Predictor, x: Mapping[str, Tensor], keep_logits: bool, true: np.ndarray | None
) -> Predictions:
    """Return the predictions ``[K, B]`` of a batch."""
    with torch.no_grad():
        logits = predict(x).detach()
        finite = torch.isfinite(logits).all(-1)
        labels = torch.where(finite, logits.argmax(-1), BROKEN).cpu().numpy()
        sure = [None, None] if true is None else certainty(logits, true)
        return Predictions(labels, logits.cpu().clone() if keep_logits else None, *sure)


def certainty(logits: Tensor, true: np.ndarray) -> list[np.ndarray]:
    """Return confidence and loss of logits ``[..., C]``, float64, by one read of the device."""
    place = "cpu" if logits.device.type == "mps" else logits.device  # mps has no float64
    logs = torch.log_softmax(logits.to(place, torch.float64), -1)
    at = torch.tensor(true, dtype=torch.int64, device=logs.device)
    both = torch.stack([logs.amax(-1).exp(), -logs.gather(-1, at.unsqueeze(-1)).squeeze(-1)])
    return list(both.cpu().numpy())


def _join(parts: Sequence[Predictions], truth: np.ndarray | None) -> Predictions:
    if not parts:
        sure = () if truth is None else (np.zeros(0), np.zeros(0))
        return Predictions(np.zeros(0, dtype=np.int64), None, *sure)
    logits = [p.logits for p in parts if p.logits is not None]
    confidence = [p.confidence for p in parts if p.confidence is not None]
    loss = [p.loss for p in parts if p.loss is not None]
    return Predictions(
        np.concatenate([p.labels for p in parts]), torch.cat(logits) if logits else None,
        np.concatenate(confidence) if confidence else None, np.concatenate(loss) if loss else None,
    )


# ---- numbers -----------------------------------------------------------------------------------
def has_new(federated: TestSets) -> bool:
    """Say whether the setting has unseen classes to test on."""
    return bool(len(federated.new_classnames)) and bool(len(federated.new_test))


def row_integer(row: Row, name: str) -> int:
    """Return a whole number of a row: ``client``, ``n``, ``correct``."""
    return int(row[name] or 0)


def client_row(client: int, true: np.ndarray, predicted: Predictions) -> Row:
    """Return a client's line: n, correct, accuracy, macro-F1, balanced, on its own test split.

    ``balanced`` is the class-balanced accuracy. All three are None for an empty split. Predictions
    with their loss add ``nll`` (mean, nats) and ``ece`` (percent; ``metrics.calibration_error``),
    None where some logits are not finite. ``broken`` counts predictions whose logits are not
    finite, and is there only if there are any.
    """
    row: Row = {
        "client": int(client),
        "n": int(len(true)),
        "correct": int(np.sum(true == predicted.labels)),
        "accuracy": metrics.accuracy(true, predicted.labels),
        "macro_f1": metrics.macro_f1(true, predicted.labels),
        "balanced": metrics.balanced_accuracy(true, predicted.labels),
    }
    if predicted.loss is not None and predicted.confidence is not None:
        whole_loss = float(np.mean(predicted.loss)) if len(true) else math.nan
        fine = math.isfinite(whole_loss)
        right = true == predicted.labels
        row["nll"] = whole_loss if fine else None
        row["ece"] = metrics.calibration_error(right, predicted.confidence) if fine else None
    broken = int(np.sum(predicted.labels == BROKEN))
    return row | {"broken": broken} if broken else row


def confusion(true: np.ndarray, predicted: Predictions) -> list[list[int]]:
    """Return the confusion counts as rows (true, predicted, images), without the empty ones.

    ``BROKEN`` is predicted where the logits are not finite.
    """
    pairs, counts = np.unique(np.stack([true, predicted.labels]), axis=1, return_counts=True)
    return np.vstack([pairs, counts]).T.tolist() if len(true) else []


def confusion_row(true: np.ndarray, predicted: Predictions) -> Row:
    """Return ``confusion`` as numbers of a client's line, which ``pool_confusion`` takes out."""
    return {f"{CONFUSION}.{t}.{p}": n for t, p, n in confusion(true, predicted)}


def pool_confusion(rows: Sequence[Row]) -> list[list[int]]:
    """Take the confusion counts out of the clients' lines; return their sum, as ``confusion``."""
    total: Counter[tuple[int, int]] = Counter()
    for row in rows:
        for name in [name for name in row if name.startswith(f"{CONFUSION}.")]:
            true, predicted = map(int, name.split(".")[1:])
            total[true, predicted] += int(row.pop(name) or 0)
    return [[*pair, n] for pair, n in sorted(total.items())]


def right_row(true: np.ndarray, predicted: Predictions) -> Row:
    """Return a bit for each image, whether it is classified right, as numbers of a client's line.

    48 images to a number, the first in the highest bit; ``take_right`` takes them out.
    """
    data = np.packbits(true == predicted.labels).tobytes()
    return {f"{RIGHT}.{at // SIX}": int.from_bytes(data[at : at + SIX].ljust(SIX, b"\0"), "big")
            for at in range(0, len(data), SIX)}


def take_right(rows: Sequence[Row]) -> dict[int, np.ndarray]:
    """Take the numbers of ``right_row`` out of the clients' lines.

    Returns:
        Client -> ``[n]`` bool, in the order of its images; without clients whose lines have none.
    """
    out = {}
    for row in rows:
        count = sum(name.startswith(f"{RIGHT}.") for name in row)
        data = b"".join(int(row.pop(f"{RIGHT}.{at}") or 0).to_bytes(SIX, "big")
                        for at in range(count))
        if count:
            bits = np.unpackbits(np.frombuffer(data, np.uint8), count=row_integer(row, "n"))
            out[row_integer(row, "client")] = bits.astype(bool)
    return out


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
    if getattr(federated, "label_sets", None) is not None:
        from fedvlm.evaluation import label_rows  # start-up: for sets of labels only

        truth = label_rows.truth_of(federated, federated.global_test)
        return dict(label_rows.shared_scores(truth, predicted.logits))
    true = federated.labels[federated.global_test]
    return {
        "global": metrics.accuracy(true, predicted.labels),
        "global_macro_f1": metrics.macro_f1(true, predicted.labels),
    }


def personal_scores(rows: Sequence[Row]) -> dict[str, Any]:
    """Return mean, spread and pooled accuracy over all clients that have test samples.

    And quartiles of the accuracies over clients, the mean of the class-balanced ones, and where the
    lines have them the means of ``nll`` and ``ece``. Of sets of labels ``label_rows.set_scores``,
    of captions ``caption_rows.caption_scores``.
    """
    if any("i2t_r1" in row for row in rows):
        from fedvlm.evaluation import caption_rows  # start-up: for captions only

        return caption_rows.caption_scores(rows)
    if any("auroc" in row for row in rows):
        from fedvlm.evaluation import label_rows  # start-up: for sets of labels only

        return label_rows.set_scores(rows)
    values = [row["accuracy"] for row in rows]
    low, middle, high = quartiles(values)
    sure = {f"personal_{name}": mean(row.get(name) for row in rows) for name in SURE
            if any(name in row for row in rows)}
    return {
        "personal": mean(values),
        "personal_std": population_std(values),
        "personal_worst": worst(values),
        "personal_worst_decile": worst_decile(values),
        "personal_micro": pooled_accuracy(
            [row_integer(row, "correct") for row in rows], [row_integer(row, "n") for row in rows]
        ),
        "personal_macro_f1": mean(row["macro_f1"] for row in rows),
        "personal_balanced": mean(row["balanced"] for row in rows),
        "personal_q1": low, "personal_median": middle, "personal_q3": high,
    } | sure


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
        means["hm2"] = harmonic_mean(means["base_all"], means["new"])
        means["hm3"] = harmonic_mean(personal, means["base_all"], means["new"])
        means["cm"] = cm(personal, means["hm2"])
    if rows and "unseen" in rows[0]:
        means["unseen_personal"] = mean(row["unseen"] for row in rows)
    return means


def unseen_client_scores(rows: Sequence[Row]) -> dict[str, Any]:
    """Return mean, spread and worst accuracy of clients that never worked, with their lines."""
    values = [row["accuracy"] for row in rows]
    return {
        UNSEEN_CLIENTS: mean(values),
        f"{UNSEEN_CLIENTS}_std": population_std(values),
        f"{UNSEEN_CLIENTS}_worst": worst(values),
        f"{UNSEEN_CLIENTS}_rows": list(rows),
    }


def notes(rows: Sequence[Row]) -> list[str]:
    """Say which clients are missing from a mean, and where logits were not finite."""
    sentences = []
    hidden = [row_integer(row, "client") for row in rows if row.get(ABSENT) == WITHHELD]
    if hidden:
        sentences.append(f"{client_list(hidden)} whose site reports nothing: not in any number")
    away = [row_integer(row, "client") for row in rows
            if row.get(ABSENT) not in (None, 0, WITHHELD)]
    if away:
        sentences.append(f"{client_list(away)} whose site did not answer: not in any number")
    empty = [row_integer(row, "client") for row in rows if not row["n"] and not row.get(ABSENT)]
    if empty:
        sentences.append(f"{client_list(empty)} without test samples: left out of personal")
    full = [row_integer(row, "client") for row in rows
            if row.get("base_other", 0.0) is None and not row.get(ABSENT)]
    if full:
        sentences.append(
            f"{client_list(full)} with every class in training: left out of base_other"
        )
    for row in rows:
        if row.get("broken"):
            sentences.append(
                f"client {row['client']}: {row['broken']} of {row['n']} predictions are not "
                "finite, counted as wrong"
            )
    return sentences


def client_list(ids: Sequence[int]) -> str:
    """Return how many clients these are, and the first by number."""
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
