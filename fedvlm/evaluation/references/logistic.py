"""Logistic regression on the features of a few images: which l2, and what it says of test images.

Features have unit length, less the mean of the training images, over the root of their mean square
distance from it, and a constant 1 beside them (so the intercept is held as small as the rest). A
regression knows the classes of its training images and no others. Its l2 is the one of
``GRID`` with the most right answers on its validation images, of equals the one with the least loss
there, then the strongest; without validation images these are images held out of the training ones:
each of five parts in turn, or one fifth where there are more than ``LARGE``. The parts have whole
groups (a patient's images), where the data say them. A regression may start from the logits of the
class names (``Frozen.names``) instead of from zero; then a strong l2 leaves zero-shot, and it knows
the other classes, too: these share one weight vector, since no training image tells them apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fedvlm.evaluation.references.softmax import GRID, Problems, Solution, path
from fedvlm.federation.batches import NO_WEIGHTS, IndexSplit
from fedvlm.models.features.sources import SampleSource

NAMES_GRID = (100.0, 10.0, *GRID)  # of a start from names; the strongest leaves them alone
FOLDS = 5
LARGE = 500  # training images; beyond it one part is held out, and float32 does
CHUNK_BYTES = 64 << 20  # of the samples of the regressions that are solved side by side


@dataclass(frozen=True)
class Frozen:
    """What the frozen image tower says of the run's images.

    Attributes:
        source: gives the stream ``features [n, d]``.
        labels: by sample index.
        groups: by sample index, numbers of what is never divided; None where nothing is.
        weights: what classes count in the loss (``OPTIM.CLASS_WEIGHTS``).
        names: gives the logits of all class names ``[n, C]`` of samples, from which a regression
            starts; None: it starts from zero.
    """

    source: SampleSource
    labels: np.ndarray
    groups: np.ndarray | None = None
    weights: str = NO_WEIGHTS
    names: Callable[[np.ndarray], Tensor] | None = None

    def x(self, indices: np.ndarray) -> Tensor:
        """Return features of unit length ``[n, d]``, float64."""
        at = torch.tensor(np.asarray(indices, dtype=np.int64))
        features = self.source.fetch(at, view=0)["features"]
        place = "cpu" if features.device.type == "mps" else features.device
        return F.normalize(features.to(place, torch.float64), dim=-1)

    def y(self, indices: np.ndarray) -> Tensor:
        """Return labels ``[n]`` int64."""
        return torch.tensor(self.labels[np.asarray(indices, dtype=np.int64)])


@dataclass(frozen=True)
class FeatureScale:
    """How a regression sees features.

    Attributes:
        mean: of its training images ``[d]``.
        size: root of their mean square distance from it.
    """

    mean: Tensor
    size: Tensor

    @classmethod
    def of(cls, x: Tensor, w: Tensor | None = None) -> FeatureScale:
        """Return the scale of training images ``[n, d]``; of one alone only the mean.

        Args:
            w: how much each counts, ``[n]``; all the same by default.
        """
        if w is None:
            mean = x.mean(0)
            size = (x - mean).square().sum(1).mean().sqrt()
        else:
            mean = w @ x / w.sum()
            size = (w @ (x - mean).square().sum(1) / w.sum()).sqrt()
        return cls(mean, torch.where(size > 0, size, 1.0))

    def __call__(self, x: Tensor) -> Tensor:
        """Return ``[n, d + 1]``."""
        return F.pad((x - self.mean) / self.size, (0, 1), value=1.0)


@dataclass(frozen=True)
class Regression:
    """A regression that is done.

    Attributes:
        labels: predicted on the test images ``[n]``.
        l2: chosen.
        judge: on what: ``validation`` or ``cross-validation``.
        arrived: whether the solver got to its tolerance.
    """

    labels: np.ndarray
    l2: float
    judge: str
    arrived: bool


def regressions(
    frozen: Frozen, shares: Sequence[IndexSplit], grid: Sequence[float] = ()
) -> list[Regression]:
    """Return a regression for each share, in their order; many of like size at a time.

    Args:
        grid: falling; by default ``GRID``, and ``NAMES_GRID`` for a start from names.
    """
    grid = grid or (GRID if frozen.names is None else NAMES_GRID)
    out: dict[int, Regression] = {}
    for here in _chunks(shares):
        group = [shares[i] for i in here]
        for i, one in zip(here, _solved(frozen, group, grid), strict=True):
            out[i] = one
    return [out[i] for i in range(len(shares))]


def _chunks(shares: Sequence[IndexSplit]) -> Iterator[list[int]]:
    """Yield places of shares, large ones first.

    Apart are those with and without validation images, and those of more than ``LARGE`` training
    images: what a client's regression is does not hang on whose are solved beside it.
    """
    def kind(i: int) -> tuple[bool, bool]:
        return not len(shares[i].val), len(shares[i].train) > LARGE

    def size(i: int) -> int:
        n = max(len(shares[i].train), 1)
        return 8 * n * min(n, 1024) * (1 if len(shares[i].val) else FOLDS)

    order = sorted(range(len(shares)), key=lambda i: (kind(i)[0], -len(shares[i].train), i))
    return side_by_side(order, size, lambda first, i: kind(first) == kind(i))


def side_by_side(
    order: Sequence[int], size: Callable[[int], int], alike: Callable[[int, int], bool]
) -> Iterator[list[int]]:
    """Yield places of problems that are solved together, within ``CHUNK_BYTES``.

    Args:
        order: of places, large ones first.
        size: bytes of the problem at a place.
        alike: whether the one at the second place may stand beside the one at the first.
    """
    chunk: list[int] = []
    for i in order:
        full = chunk and size(chunk[0]) * (len(chunk) + 1) > CHUNK_BYTES
        if chunk and (full or not alike(chunk[0], i)):
            yield chunk
            chunk = []
        chunk.append(i)
    if chunk:
        yield chunk


def _solved(
    frozen: Frozen, shares: Sequence[IndexSplit], grid: Sequence[float]
) -> list[Regression]:
    """Return the regressions of a chunk: all have validation images, or none has."""
    judge = "validation" if len(shares[0].val) else "cross-validation"
    names = [np.unique(frozen.labels[s.train]) for s in shares]
    width = max(1, *map(len, names))
    ids = torch.tensor(np.stack([np.pad(n, (0, width - len(n)), constant_values=-1)
                                 for n in names]))  # [K, C]: the classes of each, -1 none
    if frozen.names is not None:
        ids = F.pad(ids, (0, 1), value=-1)  # the last is all other classes
    trains, vals, tests = ([getattr(s, part) for s in shares] for part in ("train", "val", "test"))
    images = [frozen.x(at) for at in trains]
    scales = [FeatureScale.of(x) for x in images]
    exact = torch.float64 if max(map(len, images)) <= LARGE else torch.float32

    def seen(each: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Return ``[K, n, d]`` with rows of zeros, and 1 for the samples ``[K, n]``."""
        scaled = [scale(x).to(exact) for scale, x in zip(scales, each, strict=True)]
        there = [one.new_ones(len(one)) for one in scaled]
        return pad_sequence(scaled, batch_first=True), pad_sequence(there, batch_first=True)

    def started(each: Sequence[np.ndarray], x: Tensor, best: bool = False) -> Tensor | None:
        """Return the logits ``[K, n, C]`` that stand before training; None: there are none."""
        if frozen.names is None:
            return None
        return pad_sequence([start_of(frozen.names(at), own[own >= 0], width, best)
                             for at, own in zip(each, ids, strict=True)], batch_first=True).to(x)

    x, w = seen(images)
    y = _local(frozen, trains, ids)
    if frozen.weights != NO_WEIGHTS:
        from fedvlm.federation.local.balance import sample_costs  # start-up: for such runs only

        for row, share in zip(w, shares, strict=True):
            labels = frozen.labels[share.train]
            costs = sample_costs(labels, int(labels.max(initial=0)) + 1, frozen.weights)
            row[: len(costs)] *= torch.from_numpy(costs).to(row)
    base, known = started(trains, x), ids >= 0
    if base is not None:
        known[:, -1] = base[:, :, -1].amax(1).cpu() > -torch.inf
    problems = Problems(x, y.to(x.device), w, known.to(x.device), base)
    test, _ = seen([frozen.x(at) for at in tests])
    test_base = started(tests, test, best=True)
    val = val_base = None
    if judge == "validation":
        x, w = seen([frozen.x(at) for at in vals])
        val, val_base = (x, _local(frozen, vals, ids).to(x.device), w), started(vals, x)
    answers, arrived, right, loss = [], [], [], []
    for _, solution in path(problems, grid):
        answers.append(_logits(solution, test, problems.classes, test_base).argmax(-1).cpu())
        arrived.append(solution.done.cpu())
        if val is not None:
            counts = _rated(_logits(solution, val[0], problems.classes, val_base), *val[1:])
            right.append(counts[0])
            loss.append(counts[1])
    if val is None:
        groups = frozen.groups
        parts = [fold_parts(frozen.labels[at], None if groups is None else groups[at])
                 for at in trains]
        parts_of = pad_sequence(parts, batch_first=True).to(problems.x.device)
        right, loss = _cross_validated(problems, grid, parts_of)
    out = []
    for k, share in enumerate(shares):
        i = max(range(len(grid)), key=lambda j: (right[j][k].item(), -loss[j][k].item(), -j))
        said = answers[i][k][: len(share.test)]
        labels = ids[k][said].numpy()
        if frozen.names is not None:
            own = ids[k][ids[k] >= 0]
            others = frozen.names(share.test).index_fill(1, own, -torch.inf).argmax(1)
            labels = np.where(said == width, others, labels)
        out.append(Regression(labels, grid[i], judge, bool(arrived[i][k])))
    return out


def _local(frozen: Frozen, indices: Sequence[np.ndarray], ids: Tensor) -> Tensor:
    """Return labels ``[K, n]`` as places in ``ids [K, C]``; -1 for classes that are not there.

    Padding has the first class.
    """
    same = [frozen.y(some).unsqueeze(1) == own for some, own in zip(indices, ids, strict=True)]
    return pad_sequence([torch.where(one.any(1), one.int().argmax(1), -1) for one in same],
                        batch_first=True)


def start_of(logits: Tensor, own: Tensor, width: int, best: bool = False) -> Tensor:
    """Return the logits ``[n, width + 1]`` that a regression starts from, of those of all classes.

    Those of its own classes come first; the last stands for all others: the log of their sum.

    Args:
        logits: ``[n, C]``.
        own: the classes of its training images, at most ``width``.
        best: of the others the likeliest one's instead.
    """
    rest = logits.index_fill(1, own, -torch.inf)
    last = rest.amax(1) if best else rest.logsumexp(1)
    return torch.cat([F.pad(logits[:, own], (0, width - len(own))), last.unsqueeze(1)], 1)


def _logits(
    solution: Solution, x: Tensor, classes: Tensor, base: Tensor | None = None
) -> Tensor:
    logits = solution.logits(x) if base is None else solution.logits(x) + base
    return logits.masked_fill(~classes.unsqueeze(1), -torch.inf)


def _rated(logits: Tensor, y: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Return the right answers and the loss of each problem, ``[P]``.

    An image of a class that the problem does not have is never right, and in no loss.
    """
    there = (y >= 0) & (w > 0)
    right = ((logits.argmax(-1) == y) & there).sum(1)
    logs = logits.log_softmax(-1).gather(-1, y.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    return right.cpu(), -torch.where(there, logs, 0.0).sum(1).cpu()


def _cross_validated(
    problems: Problems, grid: Sequence[float], parts: Tensor
) -> tuple[list[Tensor], list[Tensor]]:
    """Return right answers and loss on held-out training images, for each l2, ``[K]``.

    Args:
        parts: which one each image is in, ``[K, n]``.
    """
    k, n = problems.w.shape
    folds = FOLDS if n <= LARGE else 1
    held = torch.stack([(parts == f) for f in range(folds)], 1).flatten(0, 1)  # [K * F, n]
    x, y, w, classes = (t.repeat_interleave(folds, 0) for t in (
        problems.x, problems.y, problems.w, problems.classes
    ))
    base = None if problems.base is None else problems.base.repeat_interleave(folds, 0)
    many = Problems(x, y, w, classes, base)
    held = held & (many.w > 0)
    right, loss = [], []
    for _, solution in path(replace(many, w=many.w * ~held), grid):
        counts = _rated(_logits(solution, many.x, many.classes, many.base), many.y,
                        held.to(many.x.dtype))
        right.append(counts[0].view(k, folds).sum(1))
        loss.append(counts[1].view(k, folds).sum(1))
    return right, loss


def fold_parts(labels: np.ndarray, groups: np.ndarray | None) -> Tensor:
    """Return which of ``FOLDS`` parts each image is in ``[n]``: dealt label by label, groups whole.

    One that is alone in its part (n < ``FOLDS``) is left out alone.
    """
    owner = np.arange(len(labels)) if groups is None else groups
    fold: dict[int, int] = {}
    for i in np.argsort(labels, kind="stable"):
        fold.setdefault(int(owner[i]), len(fold) % FOLDS)
    return torch.tensor([fold[int(one)] for one in owner], dtype=torch.int64)
