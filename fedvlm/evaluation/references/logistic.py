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
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

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
    order = sorted(range(len(shares)), key=lambda i: (
        not len(shares[i].val), -len(shares[i].train), i
    ))
    chunk: list[int] = []
    for i in order:
        if chunk:
            first = shares[chunk[0]]
            n = max(len(first.train), 1)
            size = 8 * n * min(n, 1024) * (1 if len(first.val) else FOLDS)
            split = bool(len(first.val)) != bool(len(shares[i].val))
            split |= (len(first.train) > LARGE) != (len(shares[i].train) > LARGE)
            if split or size * (len(chunk) + 1) > CHUNK_BYTES:
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
    trains = [frozen.x(s.train) for s in shares]
    scales = [FeatureScale.of(x) for x in trains]
    exact = torch.float64 if max(map(len, trains)) <= LARGE else torch.float32

    def seen(each: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        return _padded([scale(x).to(exact) for scale, x in zip(scales, each, strict=True)])

    x, w = seen(trains)
    y = _local(frozen, [s.train for s in shares], ids, x.shape[1])
    if frozen.weights != NO_WEIGHTS:
        from fedvlm.federation.local.balance import sample_costs  # start-up: for such runs only

        for row, share in zip(w, shares, strict=True):
            labels = frozen.labels[share.train]
            costs = sample_costs(labels, int(labels.max(initial=0)) + 1, frozen.weights)
            row[: len(costs)] *= torch.from_numpy(costs).to(row)
    base, _ = _started(frozen, [s.train for s in shares], ids, x)
    known = ids >= 0
    if base is not None:
        known[:, -1] = base[:, :, -1].amax(1).cpu() > -torch.inf
    problems = Problems(x, y.to(x.device), w, known.to(x.device), base)
    test, _ = seen([frozen.x(s.test) for s in shares])
    test_base, others = _started(frozen, [s.test for s in shares], ids, test, best=True)
    val = val_base = None
    if judge == "validation":
        x, w = seen([frozen.x(s.val) for s in shares])
        val = x, _local(frozen, [s.val for s in shares], ids, x.shape[1]).to(x.device), w
        val_base, _ = _started(frozen, [s.val for s in shares], ids, x)
    answers, arrived, right, loss = [], [], [], []
    for _, solution in path(problems, grid):
        answers.append(_logits(solution, test, problems.classes, test_base).argmax(-1).cpu())
        arrived.append(solution.done.cpu())
        if val is not None:
            counts = _rated(_logits(solution, val[0], problems.classes, val_base), *val[1:])
            right.append(counts[0])
            loss.append(counts[1])
    if val is None:
        if frozen.groups is None:
            right, loss = _cross_validated(problems, grid)
        else:
            parts = _group_parts(_parts(problems), frozen.labels, frozen.groups, shares)
            right, loss = _cross_validated(problems, grid, parts)
    out = []
    for k, share in enumerate(shares):
        i = max(range(len(grid)), key=lambda j: (right[j][k].item(), -loss[j][k].item(), -j))
        said = answers[i][k][: len(share.test)]
        labels = ids[k][said].numpy()
        if others is not None:
            labels = np.where(said == ids.shape[1] - 1, others[k][: len(said)], labels)
        out.append(Regression(labels, grid[i], judge, bool(arrived[i][k])))
    return out


def _padded(each: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return ``[K, n, d]`` with rows of zeros, and 1 for the samples ``[K, n]``."""
    most = max(map(len, each))
    x = torch.stack([F.pad(one, (0, 0, 0, most - len(one))) for one in each])
    counts = torch.tensor([len(one) for one in each], device=x.device)
    here = torch.arange(most, device=x.device) < counts.unsqueeze(1)
    return x, here.to(x.dtype)


def _local(
    frozen: Frozen, indices: Sequence[np.ndarray], ids: Tensor, most: int
) -> Tensor:
    """Return labels ``[K, most]`` as places in ``ids [K, C]``; -1 for classes that are not there.

    Padding has the first class.
    """
    out = torch.zeros(len(indices), most, dtype=torch.int64)
    for row, some, names in zip(out, indices, ids, strict=True):
        same = frozen.y(some).unsqueeze(1) == names
        row[: len(some)] = torch.where(same.any(1), same.int().argmax(1), -1)
    return out


def _started(
    frozen: Frozen, indices: Sequence[np.ndarray], ids: Tensor, x: Tensor, best: bool = False
) -> tuple[Tensor | None, Tensor | None]:
    """Return logits that stand before training, and the likeliest of the classes not in ``ids``.

    Args:
        ids: the classes of each problem ``[K, C]``, -1 none; the last place is all other classes.
        x: the padded samples ``[K, n, d]``.
        best: the other classes have the logit of the likeliest, instead of the log of their sum.

    Returns:
        ``[K, n, C]`` and labels ``[K, n]``; None and None without ``frozen.names``.
    """
    if frozen.names is None:
        return None, None
    out, others = x.new_zeros(*x.shape[:2], ids.shape[1]), torch.zeros(*x.shape[:2]).long()
    for row, other, some, own in zip(out, others, indices, ids, strict=True):
        logits, there = frozen.names(some), own[own >= 0]
        row[: len(some), : len(there)] = logits[:, there].to(row)
        logits[:, there] = -torch.inf
        top, other[: len(some)] = logits.max(1)
        row[: len(some), -1] = (top if best else logits.logsumexp(1)).to(row)
    return out, others


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
    problems: Problems, grid: Sequence[float], parts: Tensor | None = None
) -> tuple[list[Tensor], list[Tensor]]:
    """Return right answers and loss on held-out training images, for each l2, ``[K]``."""
    k, n = problems.w.shape
    parts = _parts(problems) if parts is None else parts
    folds = FOLDS if n <= LARGE else 1
    held = torch.stack([(parts == f) for f in range(folds)], 1).flatten(0, 1)  # [K * F, n]
    x, y, w, classes = (t.repeat_interleave(folds, 0) for t in (
        problems.x, problems.y, problems.w, problems.classes
    ))
    base = None if problems.base is None else problems.base.repeat_interleave(folds, 0)
    many = Problems(x, y, w, classes, base)
    held = held & (many.w > 0)
    fits = many.weighted(many.w * ~held)
    right, loss = [], []
    for _, solution in path(fits, grid):
        counts = _rated(_logits(solution, many.x, many.classes, many.base), many.y,
                        held.to(many.x.dtype))
        right.append(counts[0].view(k, folds).sum(1))
        loss.append(counts[1].view(k, folds).sum(1))
    return right, loss


def _parts(problems: Problems) -> Tensor:
    """Return which of ``FOLDS`` parts each training image is in, ``[K, n]``: dealt class by class.

    One that is alone in its part (n < ``FOLDS``) is left out alone.
    """
    n = problems.y.shape[1]
    later = torch.where(problems.w > 0, problems.y, problems.classes.shape[1])  # padding last
    order = later.argsort(dim=1, stable=True)
    deal = (torch.arange(n, device=order.device) % FOLDS).expand_as(order)
    return torch.empty_like(order).scatter_(1, order, deal)


def _group_parts(
    parts: Tensor, labels: np.ndarray, groups: np.ndarray, shares: Sequence[IndexSplit]
) -> Tensor:
    """Return the parts ``[K, n]`` with every group of a share in one of them."""
    out = parts.clone()
    for k, share in enumerate(shares):
        at = np.asarray(share.train, dtype=np.int64)
        fold: dict[int, int] = {}
        for i in at[np.argsort(labels[at], kind="stable")]:
            fold.setdefault(int(groups[i]), len(fold) % FOLDS)
        out[k, : len(at)] = torch.tensor([fold[int(groups[i])] for i in at]).to(out.device)
    return out
