"""The evaluation that every method goes through: a subscriber of the round loop.

What the numbers mean:

* ``personal``: each client's own model on its own test split, unweighted mean over all clients;
  ``personal_micro`` pools the samples. ``global``: the shared model on the whole test set.
* ``base_all``: the personal models on the test set of all base classes; ``base_other``: the same on
  images of classes the client had no training image of; ``new``: the same models on unseen classes.
* ``unseen``: the global model on the domain that no client holds; ``unseen_personal``: the personal
  models on it. ``target.<NAME>``: the global model on another data set's test images, with that
  set's class names; ``targets``: their mean.
* After the last round ``personal`` (and ``base_*``, ``new``) is after the final fine-tuning of a
  method or run that has one; ``personal_before_ft`` is the same mean before it.
* Logits range over all classes of the setting. Nothing is chosen on test; view 0 only.

It draws no random number and changes no state: training goes on as if it had not been there.
``zero_shot`` is the reference row: the model as it comes, with the dataset's template prompt as its
classifier.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedvlm.core.errors import ConfigError, FedvlmError
from fedvlm.core.stats import mean
from fedvlm.core.trees import TreeView
from fedvlm.evaluation import metrics, scores
from fedvlm.evaluation.scores import Batches, Predictions
from fedvlm.federation.rounds import RoundFinished
from fedvlm.federation.trainer import Predictor
from fedvlm.models.features.sources import SampleSource


class Evaluator:
    """Evaluates every ``every`` rounds, and always at the untrained start and the last round.

    Args:
        model: sees images and prompts; ``with_classes`` gives it other classes.
        trainer: ``predictor(model, params) -> (x -> logits [K, B, C])``. A method that is bound to
            its training classes says ``open_vocabulary = False``: no ``new``, no targets.
        source: test samples, ``fetch(indices, view=0)``.
        federated: clients, test sets, labels.
        every: rounds between evaluations; 0 for start and last round only.
        batch_size: test samples per client and batch.
        keep_logits: keep per-sample logits of the last round in ``logits``.
        cross: also ask for ``base_all`` and ``base_other`` (at start and last round); by default
            only where there are unseen classes.

    Attributes:
        logits: with ``keep_logits``, after the last round: ``global`` ``[n, C]``,
            ``personal|<client>`` ``[n_k, C]``, and predicted labels (int64) under
            ``labels|base_all|<client>``, ``labels|new|<client>``, ``labels|unseen|<client>``; true
            labels under ``true|global``, ``true|personal|<client>``, ``true|new``. The global
            model's logits on other test sets are ``unseen`` and ``target.<NAME>``, true labels
            ``true|unseen``, ... Samples in the order of the partition's index arrays.
    """

    def __init__(
        self, model: Any, trainer: Any, source: SampleSource, federated: scores.Federated, *,
        every: int = 1, batch_size: int = 256, keep_logits: bool = False,
        cross: bool | None = None,
    ) -> None:
        if every < 0 or batch_size < 1:
            raise ConfigError(
                f"cannot evaluate every {every} rounds in batches of {batch_size}: "
                "TEST.EVAL_EVERY starts at 0 and the test batch size at 1"
            )
        self.model, self.trainer, self.data = model, trainer, federated
        self.every, self.keep_logits = every, keep_logits
        self.open = bool(getattr(trainer, "open_vocabulary", True))
        self.with_new = scores.has_new(federated) and self.open
        self.unseen = scores.unseen_of(federated)
        self.cross = scores.has_new(federated) if cross is None else cross
        self.logits: dict[str, Tensor] = {}
        self._batches = Batches(source, batch_size, getattr(model, "device", "cpu"))

    def __call__(self, event: object) -> dict[str, Any] | None:
        """Evaluate if ``event`` is a finished round that is due; return the result, else None."""
        if isinstance(event, RoundFinished) and self.due(event.round, event.total_rounds):
            return self.evaluate(event)
        return None

    def due(self, round_: int, total: int) -> bool:
        """Say whether a round is evaluated."""
        return round_ in (0, total) or (self.every > 0 and round_ % self.every == 0)

    def evaluate(self, event: RoundFinished) -> dict[str, Any]:
        """Return the numbers of a finished round.

        Returns:
            ``round``, ``personal`` with ``_std``, ``_worst``, ``_worst_decile``, ``_micro``,
            ``_macro_f1``, ``global``, ``global_macro_f1``, ``clients`` (a line each, see
            ``scores.client_row``), ``notes``; at start and last round with unseen classes also
            ``base_all``, ``base_other``, ``new``, ``hm2``, ``hm3``, ``cm``. With a domain left out
            ``unseen``, and at start and last round ``unseen_personal``; with other data sets, at
            start and last round, ``target.<NAME>`` and ``targets``. Percent; None where a
            number has no samples, absent where it was not asked for. After a final fine-tuning
            also ``personal_before_ft``, and ``accuracy_before_ft`` in the clients' lines.

        Raises:
            FedvlmError: the event left a client's model out.
        """
        ends = event.round in (0, event.total_rounds)
        keep = self.keep_logits and event.round == event.total_rounds
        self.logits = {} if keep else self.logits
        rows = self._personal(event, ends, keep)
        result = {"round": event.round} | scores.personal_scores(rows)
        result |= self._global(event.shared(), ends, keep)
        result |= scores.cross_scores(rows, result["personal"])
        if event.finetuning:
            result["personal_before_ft"] = self._before(event, rows)
        notes = scores.notes(rows)
        if ends and self.cross and scores.has_new(self.data) and not self.open:
            notes.append("the method is bound to its training classes: no number for new ones")
        if ends and scores.has_targets(self.data) and not self.open:
            notes.append("the method is bound to its training classes: no number for TEST.TARGETS")
        return result | {"clients": rows, "notes": notes}

    def _global(self, params: TreeView, ends: bool, keep: bool) -> dict[str, Any]:
        """Return the shared model's numbers on the whole test set and on other ones."""
        predict = self._predictor(self.model, params)
        shared = self._batches.shared(predict, self.data.global_test, 1, keep)[0]
        beside = scores.other_predictions(
            self.data, self._batches, self.model, lambda model: self._predictor(model, params),
            predict, targets=ends and self.open, keep_logits=keep,
        )
        if keep:
            self._keep("global", self.data.global_test, shared)
            for other in self.data.others:
                if scores.key_of(other) in beside:
                    name = scores.key_of(other)
                    self._keep(name, other.indices, beside[name])
        return scores.global_scores(self.data, shared) | scores.other_scores(self.data, beside)

    def _before(self, event: RoundFinished, rows: Sequence[dict[str, Any]]) -> float | None:
        """Add the accuracies before the final fine-tuning to the lines; return their mean."""
        for chunk, params in event.before_finetuning([row["client"] for row in rows]):
            tests = [self.data.clients[c].test for c in chunk]
            each = self._batches.separate(self._predictor(self.model, params), tests)
            for c, test, one in zip(chunk, tests, each, strict=True):
                row = scores.client_row(c, self.data.labels[test], one)
                rows[c]["accuracy_before_ft"] = row["accuracy"]
        return mean(row["accuracy_before_ft"] for row in rows)

    def _personal(self, event: RoundFinished, ends: bool, keep: bool) -> list[dict[str, Any]]:
        """Return one line per client, by ascending id; each personal model is built once."""
        rows: dict[int, dict[str, Any]] = {}
        everyone = list(range(len(self.data.clients)))
        for chunk, params in event.personal(everyone):
            tests = [self.data.clients[c].test for c in chunk]
            predict = self._predictor(self.model, params)
            each = self._batches.separate(predict, tests, keep)
            for c, test, one in zip(chunk, tests, each, strict=True):
                rows[c] = scores.client_row(c, self.data.labels[test], one)
                if keep:
                    self._keep(f"personal|{c}", test, one)
            if ends and self.cross:
                self._cross(rows, chunk, predict, params, keep)
            if ends and self.unseen is not None:
                self._unseen(rows, chunk, predict, self.unseen.indices, keep)
        missing = [c for c in everyone if c not in rows]
        if missing:
            raise FedvlmError(f"round {event.round}: no personal model came for clients {missing}")
        return [rows[c] for c in everyone]

    def _cross(
        self, rows: dict[int, dict[str, Any]], chunk: Sequence[int], predict: Predictor,
        params: TreeView, keep: bool,
    ) -> None:
        """Add base and new accuracies of a chunk's models to their lines."""
        base = self._batches.shared(predict, self.data.global_test, len(chunk))
        new: list[Predictions] = []
        if self.with_new:
            other = self._predictor(self.model.with_classes(self.data.new_classnames), params)
            new = self._batches.shared(other, self.data.new_test, len(chunk))
        for i, c in enumerate(chunk):
            rows[c] |= scores.base_row(self.data, c, base[i])
            if new:
                rows[c] |= scores.new_row(self.data, new[i])
            if keep:
                self.logits[f"labels|base_all|{c}"] = torch.from_numpy(base[i].labels)
                if new:
                    self.logits[f"labels|new|{c}"] = torch.from_numpy(new[i].labels)
                    self.logits["true|new"] = torch.from_numpy(self.data.labels[self.data.new_test])

    def _unseen(
        self, rows: dict[int, dict[str, Any]], chunk: Sequence[int], predict: Predictor,
        indices: np.ndarray, keep: bool,
    ) -> None:
        """Add a chunk's accuracies on the domain that no client holds to their lines."""
        each = self._batches.shared(predict, indices, len(chunk))
        for c, one in zip(chunk, each, strict=True):
            rows[c][scores.UNSEEN] = metrics.accuracy(self.data.labels[indices], one.labels)
            if keep:
                self.logits[f"labels|unseen|{c}"] = torch.from_numpy(one.labels)

    def _predictor(self, model: Any, params: TreeView) -> Predictor:
        with torch.no_grad():  # text features: once per client and evaluation
            predictor: Predictor = self.trainer.predictor(model, params)
        return predictor

    def _keep(self, name: str, indices: Any, predictions: Predictions) -> None:
        if predictions.logits is not None:
            self.logits[name] = predictions.logits
        self.logits[f"true|{name}"] = torch.from_numpy(self.data.labels[indices])


def zero_shot(
    model: Any, source: SampleSource, federated: scores.Federated, *, batch_size: int = 256,
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

    def at(indices: np.ndarray) -> Predictions:
        return Predictions(labels[np.searchsorted(wanted, indices)])

    rows = [scores.client_row(c, federated.labels[t], at(t)) for c, t in enumerate(tests)]
    base = at(federated.global_test)
    if scores.has_new(federated) if cross is None else cross:
        new = {}
        if scores.has_new(federated):
            unseen = template_predictor(model.with_classes(federated.new_classnames))
            new = scores.new_row(federated, batches.shared(unseen, federated.new_test, 1)[0])
        for c, row in enumerate(rows):
            row |= scores.base_row(federated, c, base) | new
    beside = scores.other_scores(federated, scores.other_predictions(
        federated, batches, model, template_predictor, predict, targets=True
    ))
    if scores.UNSEEN in beside:
        for row in rows:
            row[scores.UNSEEN] = beside[scores.UNSEEN]
    result = {"round": None} | scores.personal_scores(rows)
    result |= scores.global_scores(federated, base) | beside
    result |= scores.cross_scores(rows, result["personal"])
    return result | {"clients": rows, "notes": scores.notes(rows)}


def template_predictor(model: Any) -> Predictor:
    """Return ``x -> logits [K, B, C]`` with the template prompt's text features."""
    with torch.no_grad():
        anchor = model.anchor("template", n_ctx=0)

    def predict(x: Mapping[str, Tensor]) -> Tensor:
        z = model.image(x)
        logits: Tensor = model.logits(z, anchor.expand(z.shape[0], *anchor.shape))
        return logits

    return predict
