"""The first half of an evaluation: numbers of each client, made where its personal model is.

Personal tensors and test samples come in, rows of numbers go out (``federation.server.Row``); what
they add up to is the second half's (``evaluator``). Logits that are kept stay here, too.

Clients whose personal models are equal in every number (all of FedAvg's) are one model: it is built
once, goes over their samples side by side, and sees no sample twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fedvlm.core.trees import Tree, TreeView
from fedvlm.evaluation import metrics, scores
from fedvlm.evaluation.scores import Batches, Predictions
from fedvlm.federation.server import Measure, Row
from fedvlm.federation.trainer import Predictor, Trainer
from fedvlm.federation.workplace import PersonalModels
from fedvlm.models.features.sources import SampleSource
from fedvlm.models.vlmodel import VLModel

if TYPE_CHECKING:
    from fedvlm.evaluation.backdoor import Backdoor
    from fedvlm.evaluation.named import NamedMetric

UNASKED = -2  # no label, and not ``scores.BROKEN`` either; memory holds labels above it, 0 is it
Build = Callable[[VLModel], Predictor]


class Stacked:
    """K different models.

    Args:
        model: with the run's classes.
        build: a model -> the predictor ``[K, B, ...] -> [K, B, C]``.
        truth: labels by sample, where the models' own samples get confidence and loss.
    """

    def __init__(
        self, model: VLModel, build: Build, batches: Batches, truth: np.ndarray | None = None
    ) -> None:
        self.predict, self.build, self.batches = build(model), build, batches
        self.truth = truth

    def own(self, samples: Sequence[np.ndarray], keep: bool = False) -> list[Predictions]:
        """Return each model's predictions of its own samples, K arrays ``[n_k]``.

        Args:
            keep: the logits, too.
        """
        return self.batches.separate(self.predict, samples, keep, truth=self.truth)

    def all(
        self, samples: np.ndarray, k: int, model: VLModel | None = None
    ) -> list[Predictions]:
        """Return K predictions of the same samples; ``model``: with other classes than its own."""
        predict = self.predict if model is None else self.build(model)
        return self.batches.shared(predict, samples, k)


class Same:
    """One model that K clients have; what it said of a sample is remembered.

    Args:
        model, build: as of ``Stacked``, for K = 1.
        total: number of samples there are.
        wide: how many clients' batches go side by side.
        truth: as of ``Stacked``.
    """

    def __init__(
        self, model: VLModel, build: Build, batches: Batches, total: int, wide: int = 1,
        truth: np.ndarray | None = None,
    ) -> None:
        self.predict, self.build, self.batches, self.wide = build(model), build, batches, wide
        self.truth = truth
        self._memory = np.zeros(total, dtype=np.int64)  # zeros cost nothing before they are read
        self._sure = np.zeros((2, 0 if truth is None else total))
        self._other: list[Predictions] = []  # with other classes

    def at(self, samples: np.ndarray) -> Predictions:
        """Return the predictions of ``samples [n]``; each is fetched the first time only."""
        missing = np.unique(samples[self._memory[samples] == 0])
        if len(missing):
            found = self.batches.shared(
                self.predict, missing, 1, wide=self.wide, truth=self.truth
            )[0]
            self._memory[missing] = found.labels - UNASKED
            if found.loss is not None:
                self._sure[:, missing] = found.confidence, found.loss
        sure = (None, None) if self.truth is None else self._sure[:, samples]
        return Predictions(self._memory[samples] + UNASKED, None, *sure)

    def own(self, samples: Sequence[np.ndarray], keep: bool = False) -> list[Predictions]:
        """See ``Stacked.own``; with ``keep`` the samples are gone through anew."""
        every = np.concatenate([np.asarray(one, dtype=np.int64) for one in samples])
        whole = (
            self.batches.shared(
                self.predict, every, 1, True, wide=self.wide, truth=self.truth
            )[0] if keep else self.at(every)
        )
        edges = np.cumsum([0, *map(len, samples)])
        parts = [whole.part(slice(i, j)) for i, j in zip(edges[:-1], edges[1:], strict=True)]
        return [  # logits of their own: a view would keep everybody's
            replace(p, logits=p.logits.clone() if p.logits is not None and len(p.labels) else None)
            for p in parts
        ]

    def all(
        self, samples: np.ndarray, k: int, model: VLModel | None = None
    ) -> list[Predictions]:
        """See ``Stacked.all``; there is one ``model`` with other classes, and one set for it."""
        if model is None:
            return [self.at(np.asarray(samples, dtype=np.int64))] * k
        if not self._other:
            self._other = self.batches.shared(self.build(model), samples, 1, wide=self.wide)
        return self._other * k


Answers = Stacked | Same


class ClientMeter:
    """Measures personal models on the samples of their clients (``federation.rounds.Meter``).

    Args:
        model, trainer, source: as of ``evaluator.Evaluator``.
        federated: clients, test sets, labels.
        batch_size: samples per client and batch.
        fold: equal models are one; False is the plain path, model by model.

    Attributes:
        logits: of the newest measure that keeps logits: ``personal|<client>`` ``[n_k, C]`` with
            true labels under ``true|personal|<client>``, and predicted labels (int64) under
            ``labels|base_all|<client>``, ``labels|new|<client>``, ``labels|unseen|<client>``.
            Samples in the partition's order.
        backdoor: where attackers train a trigger: how its success is measured, where calibration
            on test images is asked for.
        named: metrics by name, computed there.
        calibrate: there, also fit a temperature on validation images (``calibrated``).
    """

    def __init__(
        self, model: VLModel, trainer: Trainer, source: SampleSource, federated: scores.Federated,
        *, batch_size: int = 256, fold: bool = True,
    ) -> None:
        self.model, self.trainer, self.data, self.fold = model, trainer, federated, fold
        self.logits: dict[str, Tensor] = {}
        self.backdoor: Backdoor | None = None
        self.named: Sequence[NamedMetric] = ()
        self.calibrate = False
        self._batches = Batches(source, batch_size, getattr(model, "device", "cpu"))

    def __call__(self, measure: Measure, models: PersonalModels) -> list[Row]:
        """Return a row for every client: see ``scores.client_row``, ``base_row``, ``new_row``."""
        if getattr(self.data, "captioned", False):
            from fedvlm.evaluation import caption_rows  # start-up: for captions only

            return list(caption_rows.personal_rows(
                self.trainer, self.model, models, self._batches.source, self.data.clients,
                measure.split, self._batches.batch_size))
        if measure.keep_logits:
            self.logits = {}
        truth = self._truth(measure)
        rows: list[Row] = []
        known: tuple[Tree, Same] | None = None
        before: VLModel | None = None
        for clients, params in models:
            answers: Answers
            model = self._of(clients)
            known, before = (known if model is before else None), model
            alike, as_before = self._equal(params, known[0] if known else None)
            if alike:
                if known is None or not as_before:
                    known = self._same(model, params, len(clients), truth)
                answers = known[1]
            else:
                answers = Stacked(model, self._build(params), self._batches, truth)
            new = self._new(measure, model) if self.trainer.open_vocabulary else None
            found = self._rows(measure, clients, answers, new)
            ends = measure.calibration and measure.split == "test"
            if self.backdoor is not None and ends:
                tests = [np.asarray(getattr(self.data.clients[c], measure.split)) for c in clients]
                self.backdoor.add(found, tests, partial(self._build(params), model))
            if (self.named or self.calibrate) and ends:
                self._add_more(found, measure, clients, answers)
            rows += found
        return rows

    def _add_more(
        self, rows: Sequence[Row], measure: Measure, clients: Sequence[int], answers: Answers
    ) -> None:
        """Add metrics by name and temperatures to the rows of a chunk, by a pass of their own."""
        said = self._said(measure.split, clients, answers)
        if self.named:
            from fedvlm.evaluation.named import add_metrics  # start-up: for metrics by name only

            add_metrics(self.named, rows, [truth for _, truth in said], [z for z, _ in said])
        if self.calibrate:
            from fedvlm.evaluation import calibrated  # start-up: for temperatures only

            calibrated.add_calibration(rows, self._said("val", clients, answers), said)

    def _said(
        self, split: str, clients: Sequence[int], answers: Answers
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return logits ``[n, C]`` float64 and labels of each client's samples, or sets of them."""
        at = [np.asarray(getattr(self.data.clients[c], split), dtype=np.int64) for c in clients]
        none = np.zeros((0, len(self.model.classnames)))
        logits = [none if one.logits is None else one.logits.double().numpy()
                  for one in answers.own(at, True)]
        sets = getattr(self.data, "label_sets", None)
        labels = [self.data.labels[samples] for samples in at]
        truths = labels if sets is None else [sets[rows] for rows in labels]
        return list(zip(logits, truths, strict=True))

    def template(self, measure: Measure, clients: Sequence[int]) -> list[Row]:
        """Return the rows of the pretrained model, classified by the dataset's template prompt."""
        if getattr(self.data, "captioned", False):
            from fedvlm.evaluation import caption_rows  # start-up: for captions only

            return [caption_rows.caption_row(
                c, self.model.image, self._batches.source,
                getattr(self.data.clients[c], measure.split), self._batches.batch_size,
                self.model.device) for c in clients]
        groups: dict[VLModel, list[int]] = {}
        for c in clients:
            groups.setdefault(self._of([c]), []).append(c)
        found: dict[int, Row] = {}
        for model, some in groups.items():
            same = Same(
                model, template_predictor, self._batches, len(self.data.labels),
                truth=self._truth(measure),
            )
            asked = replace(measure, keep_logits=False)
            found |= zip(some, self._rows(asked, some, same, self._new(measure, model)),
                         strict=True)
        return [found[c] for c in clients]

    def _of(self, clients: Sequence[int]) -> VLModel:
        """Return the model with the clients' own templates, where they have some."""
        own = getattr(self.data, "client_templates", None)
        return self.model.of_clients(clients) if own else self.model

    def _truth(self, measure: Measure) -> np.ndarray | None:
        """Return the labels, where confidence and loss are asked for; not of sets of labels."""
        sets = getattr(self.data, "label_sets", None)
        return self.data.labels if measure.calibration and sets is None else None

    def _new(self, measure: Measure, model: VLModel) -> VLModel | None:
        """Return ``model`` with the unseen classes, where they are asked for."""
        if measure.cross and scores.has_new(self.data):
            return model.with_classes(self.data.new_classnames)
        return None

    def _equal(self, params: TreeView, known: Tree | None) -> tuple[bool, bool]:
        """Say whether the K models are one, and whether it is ``known``, by one host read."""
        if not self.fold or not params:
            return self.fold, known == {}
        before = known if known is not None and known.keys() == params.keys() else None
        place = next(iter(params.values())).device
        flags = [torch.stack([(v == v[:1]).all().to(place) for v in params.values()]).all()]
        if before is not None:
            flags.append(torch.stack(
                [(v[:1] == before[n]).all().to(place) for n, v in params.items()]
            ).all())
        told = torch.stack(flags).tolist()
        return told[0], len(told) > 1 and told[1]

    def _same(
        self, model: VLModel, params: TreeView, k: int, truth: np.ndarray | None
    ) -> tuple[Tree, Same]:
        row = {name: v[:1].detach().clone() for name, v in params.items()}
        total = len(self.data.labels)
        return row, Same(model, self._build(row), self._batches, total, k, truth)

    def _build(self, params: TreeView) -> Build:
        def build(model: VLModel) -> Predictor:
            with torch.no_grad():  # text features: once per model and class list
                return self.trainer.predictor(model, dict(params))

        return build

    def _rows(
        self, measure: Measure, clients: Sequence[int], answers: Answers, new: VLModel | None
    ) -> list[Row]:
        """Return the rows of one chunk."""
        if getattr(self.data, "label_sets", None) is not None:
            return self._set_rows(measure, clients, answers)
        tests = [np.asarray(getattr(self.data.clients[c], measure.split)) for c in clients]
        each = answers.own(tests, measure.keep_logits)
        rows = []
        for c, test, one in zip(clients, tests, each, strict=True):
            rows.append(scores.client_row(c, self.data.labels[test], one))
            if measure.confusion:
                rows[-1] |= scores.confusion_row(self.data.labels[test], one)
            if measure.answers:
                rows[-1] |= scores.right_row(self.data.labels[test], one)
            if measure.keep_logits:
                if one.logits is not None:
                    self.logits[f"personal|{c}"] = one.logits
                self.logits[f"true|personal|{c}"] = torch.from_numpy(self.data.labels[test])
        if measure.cross:
            self._cross(rows, answers, new, measure.keep_logits)
        away = scores.unseen_of(self.data) if measure.away else None
        if away is not None:
            true = self.data.labels[away.indices]
            for row, one in zip(rows, answers.all(away.indices, len(rows)), strict=True):
                row[scores.UNSEEN] = metrics.accuracy(true, one.labels)
                if measure.keep_logits:
                    self._keep_labels(scores.UNSEEN, row, one)
        return rows

    def _set_rows(
        self, measure: Measure, clients: Sequence[int], answers: Answers
    ) -> list[Row]:
        """Return the rows of one chunk where an image has a set of labels."""
        from fedvlm.evaluation import label_rows  # start-up: for sets of labels only

        fixed: list[label_rows.Fixed | None] = [None] * len(clients)
        if measure.calibration:
            fixed = [label_rows.fix(truth, logits)
                     for logits, truth in self._said("val", clients, answers)]
        rows, said = [], self._said(measure.split, clients, answers)
        for c, (logits, truth), one in zip(clients, said, fixed, strict=True):
            rows.append(label_rows.set_row(c, truth, logits, one))
            if measure.keep_logits:
                self.logits[f"personal|{c}"] = torch.from_numpy(logits).float()
                self.logits[f"true|personal|{c}"] = torch.from_numpy(truth)
        return rows

    def _cross(
        self, rows: Sequence[Row], answers: Answers, model: VLModel | None, keep: bool
    ) -> None:
        """Add accuracies on base and on new classes to the rows of a chunk."""
        for row, one in zip(rows, answers.all(self.data.global_test, len(rows)), strict=True):
            row |= scores.base_row(self.data, scores.row_integer(row, "client"), one)
            if keep:
                self._keep_labels("base_all", row, one)
        if model is None:
            return
        for row, one in zip(rows, answers.all(self.data.new_test, len(rows), model), strict=True):
            row |= scores.new_row(self.data, one)
            if keep:
                self._keep_labels("new", row, one)

    def _keep_labels(self, what: str, row: Row, predictions: Predictions) -> None:
        client = scores.row_integer(row, "client")
        self.logits[f"labels|{what}|{client}"] = torch.from_numpy(predictions.labels.copy())


def template_predictor(model: VLModel) -> Predictor:
    """Return ``x -> logits [K, B, C]`` with the template prompt's text features."""
    with torch.no_grad():
        anchor = model.anchor("template", n_ctx=0)

    def predict(x: Mapping[str, Tensor]) -> Tensor:
        z = model.image(x)
        return model.logits(z, anchor.expand(z.shape[0], *anchor.shape))

    return predict
