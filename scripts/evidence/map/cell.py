"""One cell of the map: what linear heads reach for K clients of n images, at their fixed points."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from evidence.map.deal import Held, Labels, deal
from evidence.map.images import Features, Part
from fedvlm.evaluation.references import heads as solve
from fedvlm.evaluation.references.heads import HeadClient, Heads
from fedvlm.evaluation.references.logistic import CHUNK_BYTES, NAMES_GRID, FeatureScale
from fedvlm.federation.toolbox.moments import SMOOTH, TEMPERS

ALONE, TOGETHER = "alone", "together"
METHODS = ("shared", "shared+shares", "ridge", "ridge+shares", "personal")
# together: the best of these by validation images, the first of equal ones
SHARING = ("shared+shares", "personal", "ridge+shares", "shared")


@dataclass(frozen=True)
class Score:
    """What the clients of a cell reach, percent.

    Attributes:
        clients: accuracy of each client ``[K]``: recall of each class on all test images, weighed
            by the client's class shares.
        balanced: ``[K]``, the same with all classes alike.
        val: ``[K]``, on the client's own validation images.
    """

    clients: Tensor
    balanced: Tensor
    val: Tensor

    def numbers(self, alone: Score) -> dict[str, float]:
        """Return means over clients, the worst client, and the percentage worse than alone."""
        return {
            "personal": float(self.clients.mean()), "balanced": float(self.balanced.mean()),
            "worst": float(self.clients.min()),
            "hurt": float((self.clients < alone.clients - 1e-9).double().mean() * 100),
        }


class Cell:
    """The clients of a cell and their images, unit features for regressions, raw ones for a ridge.
    """

    def __init__(self, data: Features, held: Sequence[Held]) -> None:
        self.data, self.held = data, held
        self.shares = torch.stack([torch.from_numpy(one.shares) for one in held])
        self.raw, self.unit = self._clients(False), self._clients(True)
        self._tests: dict[tuple[int, bool], Tensor] = {}  # by domain, and whether unit features

    def _clients(self, unit: bool) -> list[HeadClient]:
        return [HeadClient(self._rows(self.data.train, one.train, one.domain, unit),
                           torch.from_numpy(self.data.train.labels[one.train]))
                for one in self.held]

    @staticmethod
    def _rows(part: Part, places: Labels | slice, domain: int, unit: bool) -> Tensor:
        rows = torch.from_numpy(part.features[domain][places])
        return torch.nn.functional.normalize(rows, dim=-1) if unit else rows

    @cached_property
    def prior(self) -> Tensor:
        """Log-smoothed class shares by each client's own counts ``[K, C]``."""
        return torch.stack([one.shares(self.data.classes, SMOOTH) for one in self.raw])

    @cached_property
    def _judges(self) -> dict[bool, Tensor]:
        """Each client's validation images by whether they are unit features, ``[K, n, d]``.

        Behind those of a client are zeros.
        """
        return {unit: pad_sequence([self._rows(self.data.val, one.val, one.domain, unit)
                                    for one in self.held], batch_first=True)
                for unit in (False, True)}

    @cached_property
    def _truth(self) -> Tensor:
        """The labels ``[K, n]`` of ``_judges``; -1 behind a client's."""
        return pad_sequence([torch.from_numpy(self.data.val.labels[one.val]) for one in self.held],
                            batch_first=True, padding_value=-1)

    def val(self, found: Heads, unit: bool) -> Tensor:
        """Return the accuracy ``[K]`` on each client's own validation images, percent."""
        return self._rated(found.logits(self._judges[unit]))

    def _rated(self, logits: Tensor) -> Tensor:
        right = (logits.argmax(-1) == self._truth).double().sum(1)
        return 100 * (right / (self._truth >= 0).sum(1))

    def score(self, found: Heads, unit: bool) -> Score:
        """Judge heads: one of all, or one for each client."""
        test = self.data.test
        accuracy = torch.empty(len(self.held), dtype=torch.float64)
        balanced = torch.empty_like(accuracy)
        labels = torch.tensor(test.labels)
        for domain in sorted({one.domain for one in self.held}):
            at = [k for k, one in enumerate(self.held) if one.domain == domain]
            x = self._tests.get((domain, unit))
            if x is None:
                x = self._tests[domain, unit] = self._rows(test, slice(None), domain, unit)
            some = found if len(found) == 1 else Heads(found.weights[at], found.seen[at])
            recall = recalls(some, x, labels)
            accuracy[at] = 100 * by_shares(recall.expand(len(at), -1), self.shares[at])
            balanced[at] = 100 * by_classes(recall)
        return Score(accuracy, balanced, self.val(found, unit))

    def best(self, candidates: Sequence[Heads], unit: bool) -> tuple[Heads, Score]:
        """Return the heads with the best mean validation accuracy, the first of equal ones."""
        means = [float(self.val(one, unit).mean()) for one in candidates]
        found = candidates[means.index(max(means))]
        return found, self.score(found, unit)

    @cached_property
    def names(self) -> Heads | None:
        """The head that class names are, where they say something of the set."""
        rows = self.data.names
        return None if rows is None else solve.head_of_names(torch.from_numpy(rows))

    def alone(self) -> Score:
        """Return each client's own logistic regression, its l2 by its own validation images.

        From zero, or from the class names: whichever is better on the validation images of all.
        """
        found = [self._chosen(solve.alone_heads(self.unit, self.data.classes))]
        if self.names is not None:
            starts = [self.names.logits(one.x)[0] for one in self.unit]
            found.append(self._chosen([
                Heads(self.names.weights + one.weights, one.seen) for one in
                solve.alone_heads(self.unit, self.data.classes, NAMES_GRID, starts)]))
        return self.best(found, True)[1]

    def _loss(self, logits: Tensor) -> Tensor:
        """Return the mean cross-entropy ``[K]`` of validation images' logits, at most 50."""
        there = self._truth >= 0
        own = logits.log_softmax(-1).gather(2, self._truth.clamp_min(0).unsqueeze(2)).squeeze(2)
        return -own.clamp(min=-50).where(there, 0).sum(1) / there.sum(1)

    def _chosen(self, candidates: Sequence[Heads]) -> Heads:
        """Return for each client the head that is best on its own validation images.

        Of equally many right answers the one with the least loss, as in runs
        (``logistic.regressions``): few images seldom tell strengths apart.
        """
        judged = (one.logits(self._judges[True]) for one in candidates)
        best = torch.stack([self._rated(logits) - 1e-3 * self._loss(logits)
                            for logits in judged]).argmax(0).tolist()
        weights, seen = (torch.stack([getattr(candidates[i], name)[k] for k, i in enumerate(best)])
                         for name in ("weights", "seen"))
        return Heads(weights, seen)

    def shared(self, scale: FeatureScale) -> tuple[Heads, Score]:
        """Return one head of all, from zero or from the class names, by the validation images."""
        candidates = solve.shared_heads(self.unit, self.data.classes, scale)
        if self.names is not None:
            pooled = HeadClient(*(torch.cat([getattr(one, name) for one in self.unit])
                                  for name in ("x", "y")))
            candidates += solve.personal_heads([pooled], self.names, scale, NAMES_GRID)
        return self.best(candidates, True)


def measure(
    data: Features, clients: int, images: int, skew: str, shift: bool, seed: int,
    heads: Callable[[Cell], Mapping[str, Score]] | None = None,
) -> dict[str, dict[str, float]]:
    """Return the numbers of a cell by method, ``ALONE`` and ``TOGETHER`` among them.

    Empty where the set has too few images of the clients' classes.
    ``TOGETHER`` is the method of ``SHARING`` with the best mean validation accuracy.
    """
    held = deal(data, clients, images, skew, shift, seed)
    if not held:
        return {}
    cell = Cell(data, held)
    scores = dict((heads or fit)(cell))
    alone = scores[ALONE]
    best = max(SHARING, key=lambda name: float(scores[name].val.mean()))
    scores[TOGETHER] = scores[best]
    return {name: score.numbers(alone) for name, score in scores.items()}


def fit(cell: Cell) -> dict[str, Score]:
    """Return the scores of all methods."""
    classes = cell.data.classes
    scale = solve.common_scale(cell.unit)
    shared, score = cell.shared(scale)
    tempered = [solve.add_shares(shared, cell.prior, t) for t in (0.25, 0.5, 1.0)]
    personal = solve.personal_heads(cell.unit, shared, scale)
    total = solve.Sums.of(cell.raw[0], classes)
    for one in cell.raw[1:]:
        total = total + solve.Sums.of(one, classes)
    ridge = solve.ridge_head(total)
    shifted = [solve.add_shares(ridge, cell.prior, t) for t in TEMPERS]
    return {
        ALONE: cell.alone(), "shared": score,
        "shared+shares": cell.best(tempered, True)[1], "ridge": cell.score(ridge, False),
        "ridge+shares": cell.best(shifted, False)[1], "personal": cell.best(personal, True)[1],
    }


def recalls(heads: Heads, x: Tensor, y: Tensor) -> Tensor:
    """Return each head's recall of each class on the same images, ``[P, C]``; nan: no image.

    Args:
        x: ``[m, d]``.
        y: ``[m]`` int64.
    """
    classes = heads.weights.shape[1]
    counts = torch.bincount(y, minlength=classes).to(x)
    out = torch.empty(len(heads), classes, dtype=x.dtype, device=x.device)
    step = max(1, CHUNK_BYTES // (8 * max(1, len(y)) * classes))
    for begin in range(0, len(heads), step):
        part = Heads(heads.weights[begin : begin + step], heads.seen[begin : begin + step])
        right = (part.logits(x).argmax(-1) == y).to(x)
        hits = torch.zeros(len(part), classes, dtype=x.dtype, device=x.device)
        out[begin : begin + step] = hits.index_add_(1, y, right) / counts
    return out


def by_shares(recall: Tensor, shares: Tensor) -> Tensor:
    """Return recalls ``[P, C]`` weighed by class shares ``[K, C]``: accuracies ``[K]``.

    A class without a test image is left out, and the other shares grow by as much.
    """
    there = ~recall.isnan() & (shares > 0)
    weights = torch.where(there, shares, 0.0)
    return (weights * recall.nan_to_num()).sum(1) / weights.sum(1)


def by_classes(recall: Tensor) -> Tensor:
    """Return class-balanced accuracies ``[P]`` over the classes with a test image."""
    return recall.nanmean(1)
