"""The evaluation that every method goes through: a subscriber of the round loop.

What the numbers mean:

* ``personal``: each client's own model on its own test split, unweighted mean over all clients;
  ``personal_micro`` pools the samples. ``global``: the shared model on the whole test set.
* Between the untrained start and the last round ``personal`` is that of the clients of the round
  (``Panel``); ``personal_clients`` says how many, wherever they are not all. With ``TEST.COHORT`` a
  cohort stands for all, at the ends too.
* ``base_all``: the personal models on the test set of all base classes; ``base_other``: the same on
  images of classes the client had no training image of; ``new``: the same models on unseen classes.
* ``unseen``: the global model on the domain that no client holds; ``unseen_personal``: the personal
  models on it. ``target.<NAME>``: the global model on another data set's test images, with that
  set's class names; ``targets``: their mean.
* ``unseen_clients`` with ``_std`` and ``_worst``: clients that never worked
  (``FED.UNSEEN_CLIENTS``) and are in none of the numbers above: after the last round each gets
  what a new client gets, and the method's final fine-tuning where there is one; then its model on
  its own test split.
* After the last round ``personal`` (and ``base_*``, ``new``) is after the final fine-tuning of a
  method or run that has one; ``personal_before_ft`` is the same mean before it, and equals
  ``personal`` where there is none.
* ``personal_balanced``: class-balanced accuracy (mean recall over the classes of a client's test
  split), mean over clients. ``personal_q1``, ``_median``, ``_q3``: quartiles over clients.
* At start and last round ``personal_nll`` and ``personal_ece``: how sure the personal models are,
  mean over clients (``metrics.calibration_error``; 15 bins of equal width). They read a method's
  logits as it gives them: those of a method that does not train log-probabilities mean little.
* ``backdoor``: with a simulated trigger (``FED.ATTACK backdoor``), at start and last round: share
  of the clients' test images of other classes that are taken for the attackers' class once they
  have the trigger, mean over clients.
* Logits range over all classes of the setting. Nothing is chosen on test; view 0 only.

It draws no random number and changes no state: training goes on as if it had not been there.
It asks for rows of numbers, one per client (first half: ``meter``), and adds the shared model's.
``zero_shot`` is the reference row: the pretrained model, with the dataset's template prompt as its
classifier.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fedvlm.core.errors import ConfigError
from fedvlm.core.stats import mean
from fedvlm.core.trees import Tree
from fedvlm.evaluation import scores
from fedvlm.evaluation.meter import template_predictor
from fedvlm.evaluation.panel import Panel
from fedvlm.evaluation.scores import Batches, Predictions
from fedvlm.federation.rounds import RoundFinished
from fedvlm.federation.server import Measure, Row, only_numbers
from fedvlm.federation.trainer import Predictor, Trainer
from fedvlm.models.features.sources import SampleSource
from fedvlm.models.vlmodel import VLModel

if TYPE_CHECKING:
    from fedvlm.evaluation.named import NamedMetric

Ask = Callable[[Measure, Sequence[int]], Iterable[Row]]


class Evaluator:
    """Evaluates the rounds that are due, and always the untrained start and the last round.

    Args:
        model: sees images and prompts; ``with_classes`` gives it other classes.
        trainer: ``predictor(model, params) -> (x -> logits [K, B, C])``. A method that is bound to
            its training classes says ``open_vocabulary = False``: no ``new``, no targets.
        source: test samples, ``fetch(indices, view=0)``.
        tests: the test sets of the shared model, labels.
        panel: whose personal models are asked for, and when.
        batch_size: samples per batch of the shared model.
        keep_logits: keep per-sample logits of the last round; the shared model's in ``logits``.
        cross: also ask for ``base_all`` and ``base_other`` (at start and last round); by default
            only where there are unseen classes.
        confusion: count, after the last round, which class was taken for which: ``confusion``.

    Attributes:
        answers: ask after the last round which test images each personal model classifies right.
        right: the answer, client -> ``[n]`` bool; empty before.
        logits: with ``keep_logits``, after the last round: ``global`` ``[n, C]``, and on other test
            sets ``unseen`` and ``target.<NAME>``; true labels under ``true|global``,
            ``true|unseen``, ``true|new``, ... Samples in the order of the partition's index arrays.
    """

    def __init__(
        self, model: VLModel, trainer: Trainer, source: SampleSource, tests: scores.TestSets,
        panel: Panel, *, batch_size: int = 256, keep_logits: bool = False,
        cross: bool | None = None, confusion: bool = False,
    ) -> None:
        if batch_size < 1:
            raise ConfigError(f"cannot evaluate in batches of {batch_size}: the batch size must "
                              "be at least 1")
        self.model, self.trainer, self.data, self.panel = model, trainer, tests, panel
        self.keep_logits, self.confusion = keep_logits, confusion
        self.open = trainer.open_vocabulary
        self.cross = scores.has_new(tests) if cross is None else cross
        self.sets = getattr(tests, "label_sets", None) is not None
        self.captioned = bool(getattr(tests, "captioned", False))
        self.answers = False
        self.right: dict[int, np.ndarray] = {}
        self.logits: dict[str, Tensor] = {}
        self.named: Sequence[NamedMetric] = ()
        self._batches = Batches(source, batch_size, getattr(model, "device", "cpu"))

    def __call__(self, event: object) -> dict[str, Any] | None:
        """Evaluate if ``event`` is a finished round that is due; return the result, else None."""
        if isinstance(event, RoundFinished) and self.panel.due(event.round, event.total_rounds):
            return self.evaluate(event)
        return None

    def evaluate(self, event: RoundFinished) -> dict[str, Any]:
        """Return the numbers of a finished round.

        Returns:
            ``round``, ``personal`` with ``_std``, ``_worst``, ``_worst_decile``, ``_micro``,
            ``_macro_f1``, ``_balanced``, ``_q1``, ``_median``, ``_q3``, ``personal_clients`` where
            not all were asked, ``global``, ``global_macro_f1``, ``clients`` (a line each, see
            ``scores.client_row``), ``notes``; at start and last round ``personal_nll`` and
            ``personal_ece``; with unseen classes also ``base_all``, ``base_other``, ``new``,
            ``hm2``, ``hm3``, ``cm``. With a domain left out ``unseen``, and at start and last round
            ``unseen_personal``; with other data sets, at start and last round, ``target.<NAME>``
            and ``targets``. After the last round, of clients that never worked,
            ``unseen_clients``, ``_std``, ``_worst`` and ``unseen_clients_rows``. Percent; None
            where a number has no samples, absent where it was not asked for. After the last round
            also ``personal_before_ft``, after a final fine-tuning with ``accuracy_before_ft`` in
            the clients' lines; with ``confusion`` the counts (``scores.confusion``) of the personal
            models on their clients' images together, and of the shared one: ``{"personal": [...],
            "global": [...]}``.

        Raises:
            FedvlmError: a client's row is missing, or holds more than numbers.
        """
        last = event.round == event.total_rounds
        ends, keep = event.round == 0 or last, self.keep_logits and last
        self.logits = {} if keep else self.logits
        asked = self.panel.whom(event)
        rows = event.rows(asked, Measure(
            cross=ends and self.cross, away=ends and scores.unseen_of(self.data) is not None,
            keep_logits=keep, calibration=ends, confusion=last and self.confusion,
            answers=last and self.answers,
        ))
        self.right = scores.take_right(rows)
        counts = scores.pool_confusion(rows) if last and self.confusion else None
        by_label = _by_label(rows, self.model.classnames) if self.sets else None
        more: dict[str, Any] = {}
        if self.named and ends:
            from fedvlm.evaluation.named import take_metrics  # start-up: for metrics by name only

            more["named"] = take_metrics(self.named, rows)
        if by_label is not None:
            more["labels"] = by_label
        result = self.combine(event.round, rows) | more
        if self.captioned:
            shared = None
            result |= self._retrieved(event.shared)
        else:
            shared, numbers = self._global(event.shared, ends, keep)
            result |= numbers
        if counts is not None and shared is not None:
            true = self.data.labels[self.data.global_test]
            result[scores.CONFUSION] = {
                "personal": counts, "global": scores.confusion(true, shared)
            }
        if last:
            result["personal_before_ft"] = (
                _before(event, rows) if event.finetuning else result["personal"]
            )
        if last and self.panel.unseen:
            result |= scores.unseen_client_scores(event.rows(self.panel.unseen, Measure()))
        notes = result["notes"]
        if ends and self.cross and scores.has_new(self.data) and not self.open:
            notes.append("the method cannot predict unseen classes: no accuracy on new classes")
        if ends and scores.has_targets(self.data) and not self.open:
            notes.append("the method cannot predict unseen classes: TEST.TARGETS does not apply")
        if ends and self.panel.is_cohort:
            notes.append(
                f"personal models of {len(rows)} of {self.panel.members} clients are "
                "evaluated (TEST.COHORT)"
            )
        return result

    def combine(self, round_: int, rows: Sequence[Row]) -> dict[str, Any]:
        """Return what the clients' rows say together."""
        result: dict[str, Any] = {"round": round_} | scores.personal_scores(rows)
        if len(rows) < self.panel.members:
            result["personal_clients"] = len(rows)
        result |= scores.cross_scores(rows, result["personal"])
        struck = [row["backdoor"] for row in rows if row.get("backdoor") is not None]
        if struck:
            result["backdoor"] = mean(struck)
        return result | {"clients": rows, "notes": scores.notes(rows)}

    def validate(self, event: RoundFinished) -> float | None:
        """Return the mean accuracy on the clients' validation splits, to select a round by.

        All rounds alike: the same clients, and the last round's models as they are before any final
        fine-tuning.
        """
        rows = event.rows(self.panel.clients, Measure(split="val", finetuned=False))
        return mean(row["accuracy"] for row in rows)

    def _global(
        self, params: Tree, ends: bool, keep: bool
    ) -> tuple[Predictions, dict[str, Any]]:
        """Return what the shared model says of the whole test set, and its numbers on all sets."""
        predict = self._predictor(self.model, params)
        shared = self._batches.shared(predict, self.data.global_test, 1, keep or self.sets)[0]
        beside = scores.other_predictions(
            self.data, self._batches, self.model, lambda model: self._predictor(model, params),
            predict, targets=ends and self.open, keep_logits=keep,
        )
        if keep:
            self._keep("global", self.data.global_test, shared)
            for other in self.data.others:
                if (name := scores.key_of(other)) in beside:
                    self._keep(name, other.indices, beside[name])
            if self.cross and self.open and scores.has_new(self.data):
                self._keep_labels("new", self.data.new_test)
        numbers = scores.global_scores(self.data, shared) | scores.other_scores(self.data, beside)
        return shared, numbers

    def _retrieved(self, params: Tree) -> dict[str, Any]:
        """Return the numbers of the shared model on the whole test set's images and captions."""
        from fedvlm.evaluation import caption_rows  # start-up: for captions only

        return caption_rows.shared_recall(
            lambda x: self.trainer.image_features(self.model, params, x), self._batches.source,
            self.data.global_test, self._batches.batch_size, self.model.device)

    def _predictor(self, model: VLModel, params: Tree) -> Predictor:
        with torch.no_grad():
            return self.trainer.predictor(model, params)

    def _keep(self, name: str, indices: np.ndarray, predictions: Predictions) -> None:
        if predictions.logits is not None:
            self.logits[name] = predictions.logits
        self._keep_labels(name, indices)

    def _keep_labels(self, name: str, indices: np.ndarray) -> None:
        self.logits[f"true|{name}"] = torch.from_numpy(self.data.labels[indices])


def _by_label(rows: Sequence[Row], names: Sequence[str]) -> dict[str, Any] | None:
    """Take the numbers by label out of clients' lines (``label_rows.take_labels``)."""
    from fedvlm.evaluation import label_rows  # start-up: for sets of labels only

    return label_rows.take_labels(rows, names)


def _before(event: RoundFinished, rows: Sequence[Row]) -> float | None:
    """Add the accuracies before the final fine-tuning to the lines; return their mean."""
    clients = [scores.row_integer(row, "client") for row in rows]
    for row, early in zip(rows, event.rows(clients, Measure(finetuned=False)), strict=True):
        row["accuracy_before_ft"] = early["accuracy"]
    return mean(row["accuracy_before_ft"] for row in rows)


def zero_shot(
    model: VLModel, source: SampleSource, tests: scores.TestSets, panel: Panel, ask: Ask, *,
    batch_size: int = 256, cross: bool | None = None, answers: bool = False,
) -> dict[str, Any]:
    """Return the numbers of the pretrained model, named as in ``Evaluator.evaluate``.

    One model for all clients: ``personal`` is it on each client's test split, ``base_all`` and
    ``new`` are the same for everyone, and so is ``unseen``. A target's images have its own template
    prompt.

    Args:
        model: ``anchor("template", 0)`` ``[C, d]`` is the classifier.
        source, tests, panel, batch_size, cross: as for ``Evaluator``.
        ask: the clients' half: ``ClientMeter.template``.
        answers: leave in the clients' lines which images are classified right.
    """
    batches = Batches(source, batch_size, getattr(model, "device", "cpu"))
    wide = Measure(
        cross=scores.has_new(tests) if cross is None else cross,
        away=scores.unseen_of(tests) is not None, calibration=True,
        answers=answers,
    )
    rows = only_numbers(ask(wide, panel.clients), panel.clients)
    sets = getattr(tests, "label_sets", None) is not None
    if sets:
        _by_label(rows, ())
    result: dict[str, Any] = {"round": None} | scores.personal_scores(rows)
    if panel.is_cohort:
        result["personal_clients"] = len(rows)
    if getattr(tests, "captioned", False):
        from fedvlm.evaluation import caption_rows  # start-up: for captions only

        result |= caption_rows.shared_recall(
            model.image, source, tests.global_test, batch_size, model.device)
    else:
        predict = template_predictor(model)
        base = batches.shared(predict, tests.global_test, 1, sets)[0]
        beside = scores.other_predictions(
            tests, batches, model, template_predictor, predict, targets=True
        )
        result |= scores.global_scores(tests, base) | scores.other_scores(tests, beside)
    result |= scores.cross_scores(rows, result["personal"])
    result["personal_before_ft"] = result["personal"]
    if panel.unseen:
        unseen = only_numbers(ask(Measure(), panel.unseen), panel.unseen)
        result |= scores.unseen_client_scores(unseen)
    return result | {"clients": rows, "notes": scores.notes(rows)}
