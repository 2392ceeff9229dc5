"""What heads reach on images held out, where an image has a set of labels.

A head is a logistic regression for each label, with the references' solvers
(``evaluation.references.by_label`` says what a run shows of them); AFL is the ridge regression of
all labels from sums. Folds, groups and weights are those of ``trial``. Settings (L2, pull) are
those with the least binary cross-entropy on the *other* folds, one for all labels of a client.

A client's number is its mAP, as in a run: the mean over labels of the average precision on its
images; here of labels with ``FEW`` positive and ``FEW`` negative images at the client. Of fewer a
number would be chance, and to hold one out would take away much of what the client has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import add

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedvlm.advise.folds import NothingToJudge, deal_folds, fold_count
from fedvlm.advise.gather import Gathered
from fedvlm.advise.trial import EXACT, FEW_L2, WORK
from fedvlm.advise.ways import AFL, DITTO, FEDAVG, LOGREG, NAMES, POOLED
from fedvlm.data.datum import IntArray
from fedvlm.evaluation import rankings
from fedvlm.evaluation.references import heads
from fedvlm.evaluation.references.heads import HeadClient, Heads, Sums
from fedvlm.evaluation.references.softmax import GRID

FEW = 5  # images with, and without, a label at a client: of fewer its precision is not told


@dataclass(frozen=True)
class LabelTrial:
    """The cross-validation of a federation whose images have sets of labels.

    Attributes:
        ids: clients that can be judged.
        classes: labels C.
        folds: how many.
        truth: of each of these clients ``[n, C]`` of 0 and 1.
        held: the fold of each image ``[n]``.
        told: labels of each client that are judged ``[C]`` bool.
        scores: by method, of each client ``[n, C]``.
        silent: labels that no client can judge.
        left_out: share of pairs of a client and a label that it has, which are not judged.
    """

    ids: Sequence[int]
    classes: int
    folds: int
    truth: Sequence[np.ndarray]
    held: Sequence[IntArray]
    told: Sequence[np.ndarray]
    scores: dict[str, Sequence[np.ndarray]] = field(repr=False)
    silent: Sequence[int]
    left_out: float

    def positives(self, k: int) -> int:
        """Return how many positive labels client k's number is of."""
        return int(self.truth[k][:, self.told[k]].sum())

    def chance(self) -> float:
        """Return the mAP of a random order, percent: the labels' shares, mean over clients."""
        return 100 * float(np.mean([
            y[:, told].mean() for y, told in zip(self.truth, self.told, strict=True)]))

    def reached(self, name: str, k: int, without: int = -1) -> tuple[float, float]:
        """Return client k's mAP and AUROC in percent, of a method.

        Args:
            without: a fold whose images do not count; -1: all do.
        """
        rows, told = self.held[k] != without, self.told[k]
        y, said = self.truth[k][rows][:, told], self.scores[name][k][rows][:, told]
        ap, area = rankings.average_precision(y, said), rankings.auroc(y, said)
        return tuple(100 * float(one[~np.isnan(one)].mean())  # type: ignore[return-value]
                     if not np.isnan(one).all() else 0.0 for one in (ap, area))

    def gain(self, mine: str, own: str, k: int) -> tuple[float, float]:
        """Return client k's gain in points of mAP, and its variance.

        The variance is the jackknife's over folds (Efron and Stein 1981), whose groups are whole.
        """
        folds = np.unique(self.held[k]).tolist()
        apart = [self.reached(mine, k, f)[0] - self.reached(own, k, f)[0] for f in (-1, *folds)]
        count = len(folds)
        if count < 2:
            return apart[0], 100.0**2
        return apart[0], (count - 1) ** 2 / count * float(np.var(apart[1:], ddof=1))


def try_labels(
    found: Gathered, told: Callable[[str, int, int], None] | None = None
) -> LabelTrial:
    """Cross-validate every kind of head on clients' features, label by label.

    Args:
        told: called with (what, done, of).

    Raises:
        NothingToJudge: no client has ``FEW`` images with and without any label.
    """
    table = np.zeros((0, 0)) if found.sets is None else found.sets
    truth = [table[y.numpy()].astype(np.int64) for y in found.labels]
    count = fold_count(len(np.unique(np.concatenate(found.groups))))
    held = deal_folds(found.groups, [y.numpy() for y in found.labels], count)
    count = int(max(fold.max() for fold in held)) + 1
    judged = [np.minimum(y.sum(0), len(y) - y.sum(0)) >= FEW for y in truth]
    kept = [k for k, some in enumerate(judged) if some.any()]
    if not kept:
        raise NothingToJudge(f"no client has {FEW} images with and {FEW} without any one label")
    work = _Labels(found, truth, held)
    for f in range(count):
        if told is not None:
            told("cross-validation", f, count)
        work.fit(f)
    if told is not None:
        told("cross-validation", count, count)
    scores = work.chosen(count)
    if found.names is not None:
        scores[NAMES] = [one.numpy() for one in found.names]
    has = np.array([y.any(0) for y in truth])
    return LabelTrial(
        kept, table.shape[1], count, [truth[k] for k in kept], [held[k] for k in kept],
        [judged[k] for k in kept], {n: [s[k] for k in kept] for n, s in scores.items()},
        np.flatnonzero(~np.array(judged).any(0)).tolist(),
        1 - float((np.array(judged) & has).sum() / max(has.sum(), 1)),
    )


class _Labels:
    """Fits fold by fold; keeps each setting's scores of what is held out, and its losses."""

    def __init__(
        self, found: Gathered, truth: Sequence[np.ndarray], held: Sequence[IntArray]
    ) -> None:
        exact = torch.float64 if sum(map(len, truth)) <= EXACT else torch.float32
        self.raw = list(found.features)
        self.x = [F.normalize(one, dim=-1).to(exact) for one in found.features]
        self.y = [torch.from_numpy(one) for one in truth]
        self.groups = [torch.from_numpy(one) for one in found.groups]
        self.trains, self.held = list(found.trains), [torch.from_numpy(one) for one in held]
        self.weights = [HeadClient(x, y[:, 0], g).w.double()
                        for x, y, g in zip(self.x, self.y, self.groups, strict=True)]
        self.labels = self.y[0].shape[1]
        size = sum(map(len, self.x)) * self.x[0].shape[1] * self.labels
        self.grid = GRID if size <= WORK else FEW_L2
        self.scores: dict[str, list[Tensor]] = {}  # [settings, n, C] of each client
        self.loss: dict[str, list[Tensor]] = {}  # [settings, n]
        self.shared: list[list[list[Heads]]] = []  # by fold, setting and label

    def training(self, f: int, label: int) -> tuple[list[int], list[HeadClient]]:
        """Return who has training images outside fold f, and these, as one label's yes and no."""
        there, out = [], []
        for k, (x, y, groups) in enumerate(zip(self.x, self.y, self.groups, strict=True)):
            at = self.trains[k]
            away = self.held[k][at] == f
            if not away.all():
                there.append(k)
                out.append(HeadClient(x[at], y[at, label], groups[at]).hold_out(away))
        return there, out

    def fit(self, f: int) -> None:
        """Train all but the personal heads without fold f, and answer its images."""
        each = [self.training(f, label) for label in range(self.labels)]
        there, most = each[0][0], len(each[0][0])
        alone = heads.alone_heads([c for _, some in each for c in some], 2, self.grid)
        self._keep(LOGREG, f, there, [
            [Heads(one.weights[at : at + most], one.seen[at : at + most])
             for at in range(0, most * self.labels, most)] for one in alone])
        self.shared.append([
            list(row) for row in zip(*(
                heads.shared_heads(some, 2, heads.common_scale(some), self.grid)
                for _, some in each), strict=True)])
        self._keep(FEDAVG, f, there, self.shared[-1])
        ridge = heads.ridge_head(self._sums(f)).weights[0, :, :-1]
        for k in there:
            at = self.held[k] == f
            self._of(AFL, self.scores, k, 1, self.labels)[0, at] = self.raw[k][at] @ ridge.mT

    def _sums(self, f: int) -> Sums:
        """Return everybody's sums without fold f: of features, and of features with labels."""
        each = []
        for x, y, w, held, trains in zip(
                self.raw, self.y, self.weights, self.held, self.trains, strict=True):
            at = trains & (held != f)
            z, one = x[at], w[at].unsqueeze(1)
            each.append(Sums((z * one).mT @ z, z.mT @ (y[at].double() * one), one.sum()))
        return reduce(add, each)

    def _keep(
        self, name: str, f: int, there: Sequence[int], settings: Sequence[Sequence[Heads]]
    ) -> None:
        """Keep what each setting's heads, one a label, say of the images of fold f, and its loss.
        """
        for p, k in enumerate(there):
            at = (self.held[k] == f).nonzero().flatten()
            if not len(at):
                continue
            scores = self._of(name, self.scores, k, len(settings), self.labels)
            loss = self._of(name, self.loss, k, len(settings))
            for i, one in enumerate(settings):
                said = torch.stack([_yes(head.one(p), self.x[k][at]) for head in one], 1).double()
                scores[i, at] = said
                loss[i, at] = F.binary_cross_entropy_with_logits(
                    said, self.y[k][at].double(), reduction="none").sum(1)

    def _of(self, name: str, kept: dict[str, list[Tensor]], k: int, *shape: int) -> Tensor:
        if name not in kept:
            kept[name] = [torch.zeros(shape[0], len(y), *shape[1:], dtype=torch.float64)
                          for y in self.y]
        return kept[name][k]

    def best(self, name: str, f: int, clients: Sequence[int]) -> int:
        """Return the setting with the least loss outside fold f, clients counting alike."""
        total = torch.zeros(len(self.loss[name][0]), dtype=torch.float64)
        for k in clients:
            w = self.weights[k] * (self.held[k] != f)
            total += self.loss[name][k] @ (w / w.sum().clamp_min(1e-12))
        return int(total.argmin())

    def chosen(self, count: int) -> dict[str, Sequence[np.ndarray]]:
        """Return the scores of settings that are chosen fold by fold; fits the personal heads."""
        every = range(len(self.y))
        for f in range(count):
            i = self.best(FEDAVG, f, every)
            tuned: list[list[Heads]] = []
            there: list[int] = []
            for label in range(self.labels):
                there, some = self.training(f, label)
                tuned.append(heads.personal_heads(
                    some, self.shared[f][i][label], heads.common_scale(some)))
            self._keep(DITTO, f, there, list(zip(*tuned, strict=True)))
        out = {AFL: [one[0].numpy() for one in self.scores[AFL]]}
        for name in (LOGREG, FEDAVG, DITTO):
            out[name] = [one[0].clone().numpy() for one in self.scores[name]]
            for f in range(count):
                common = self.best(name, f, every)
                for k in every:
                    at = (self.held[k] == f).numpy()
                    i = self.best(name, f, [k]) if name == LOGREG else common
                    out[name][k][at] = self.scores[name][k][i].numpy()[at]
        return out | {POOLED: out[FEDAVG]}


def _yes(head: Heads, x: Tensor) -> Tensor:
    """Return the logit of a label; the same for all images where a head saw one answer only."""
    if not head.seen.all():
        return x.new_zeros(len(x)) + (1.0 if head.seen[0, 1] else -1.0)
    weights = head.weights[0, 1] - head.weights[0, 0]
    return x @ weights[:-1] + weights[-1]
