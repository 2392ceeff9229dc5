"""What each kind of head reaches on images held out, client by client.

Every training image is held out once, with all of its group, at all clients at once; validation
images are judged likewise and train nothing, as in a run. Settings (L2, pull) are
those that are best on the *other* folds, so that no image judges a setting that it chose. A group
counts once, in training and in judging. Simulated clients are judged by all (``judges``).
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
from fedvlm.advise.judges import Judges, all_judges, own_judges
from fedvlm.advise.others import Others
from fedvlm.advise.ways import (
    AFL,
    AFL_PRIOR,
    DITTO,
    FEDAVG,
    FROM_NAMES,
    LOGREG,
    MAJORITY,
    NAME_SHARES,
    NAMES,
    OWN_NAMES,
    POOLED,
    TOGETHER,
)
from fedvlm.evaluation.references import heads
from fedvlm.evaluation.references.heads import HeadClient, Heads, Sums
from fedvlm.evaluation.references.logistic import NAMES_GRID
from fedvlm.evaluation.references.softmax import GRID
from fedvlm.federation.toolbox.moments import SMOOTH, TEMPERS

# Who lacks a class answers it less.
OF_SHARES = (MAJORITY, OWN_NAMES, LOGREG, FROM_NAMES, AFL_PRIOR, DITTO)
PARTS = (0.25, 0.5)  # of its training images, for a client's learning curve
ONE = 1.5  # images of a class, or groups: about one
JUDGES = 30  # validation images, above which they say how often a client lacks a class
RIDGES = tuple(10 ** (-i / 2) for i in range(2, 11))  # in traces of the sums
EXACT = 3_000  # images; beyond it float32 does
WORK = 2e8  # images x features x classes; beyond it fewer L2 are tried
FEW_L2 = GRID[2:5]
SIDE_BYTES = 128 << 20  # of heads of clients alone that are fitted side by side
# Of each client, 1 for a right answer on what was held out ``[n]``, float64 (``_Work.corrected``).
Reached = Sequence[Tensor]


@dataclass(frozen=True)
class CrossValidation:
    """The cross-validation of a federation.

    Attributes:
        clients: with features of unit length, all that can be judged.
        ids: their numbers.
        classes: C.
        folds: how many.
        reached: by method (``ALONE``, ``TOGETHER``, ``POOLED``), of these images.
        ridge: strength of AFL's ridge that is best on all folds, for sums of all training images.
        pull: of Ditto's personal heads that is best on all folds, for features of unit length.
        curve: what logistic regression alone reaches with ``PARTS`` of the images, by part.
        hold: l2 that holds the shared head to the class names, of the one that is best on all
            folds; 0: that one starts from zero.
        judges: the images by which each client is judged.
        by_all: whether these are others' images, too.
    """

    clients: Sequence[HeadClient]
    ids: Sequence[int]
    classes: int
    folds: int
    reached: dict[str, Reached]
    ridge: float
    pull: float = 0.0
    curve: dict[float, Reached] = field(default_factory=dict)
    hold: float = 0.0
    judges: Sequence[Judges] = ()
    by_all: bool = False

    def personal(self, reached: Reached) -> Tensor:
        """Return each client's accuracy in percent ``[K]``: a group counts once."""
        return torch.tensor([100 * judges.mean(right) for judges, right in zip(
            self.judges, reached, strict=True)], dtype=torch.float64)

    def balanced(self, reached: Reached) -> Tensor:
        """Return each client's accuracy averaged over its classes, percent ``[K]``."""
        return torch.tensor([100 * judges.balanced(right, self.classes) for judges, right in zip(
            self.judges, reached, strict=True)], dtype=torch.float64)


def try_heads(
    found: Gathered, told: Callable[[str, int, int], None] | None = None
) -> CrossValidation:
    """Cross-validate every kind of head on clients' features.

    Args:
        told: called with (what, done, of).

    Raises:
        NothingToJudge: each client has one image, or one group of them, in all or of each class.
    """
    classes = len(found.classnames)
    kept = [k for k, g in enumerate(found.groups) if len(np.unique(g)) > 1]
    if not kept:
        raise NothingToJudge("no client has two images that differ, so none can be held out")
    if found.named:
        kept = [k for k in kept if not mostly_lone(found, k)]
    if not kept:
        raise NothingToJudge("most classes of each client have one image (group) there: held out, "
                             "it leaves none of its class")
    total = sum(map(len, found.labels))
    exact = torch.float64 if total <= EXACT else torch.float32
    groups = [torch.from_numpy(g) for g in found.groups]
    raw = [HeadClient(x, y, g) for x, y, g in zip(
        found.features, found.labels, groups, strict=True)]
    unit = [HeadClient(F.normalize(c.x, dim=-1).to(exact), c.y, c.groups) for c in raw]
    count = fold_count(len(np.unique(np.concatenate(found.groups))))
    folds = [torch.from_numpy(f) for f in deal_folds(
        found.groups, [y.numpy() for y in found.labels], count)]
    count = int(torch.cat(folds).max()) + 1
    judges, others = own_judges(unit), None
    if found.dealt is not None:
        judges, rows = all_judges(unit, found.dealt)
        kept = [k for k in kept if len(judges[k].y)]
        told_groups = np.concatenate(found.groups) if found.grouped else None
        others = Others(unit, raw, folds, found.names, rows, told_groups)
    work = _Work(raw, unit, found.trains, folds, count, classes, found.names, found.anchor, others)
    heavy = 8 * len(raw) * classes * (raw[0].x.shape[1] + 1) * len(GRID)
    several = max(1, SIDE_BYTES // heavy)
    for f in range(count):
        if told is not None:
            told("cross-validation", f, count)
        if f % several == 0:
            work.fit_alone(range(f, min(f + several, count)))
        work.fit_together(f)
    reached, curve = work.untrained() | work.reached(), work.curve()
    if told is not None:
        told("cross-validation", count, count)

    def only(right: Reached, name: str = LOGREG) -> Reached:
        if name in OF_SHARES and others is None:
            right = work.corrected(right)
        return [right[k] for k in kept]

    return CrossValidation(
        [unit[k] for k in kept], kept, classes, count,
        {name: only(one, name) for name, one in reached.items()}, work.ridge(), work.pull(),
        {part: only(one) for part, one in curve.items()}, work.hold(), [judges[k] for k in kept],
        others is not None)


def mostly_lone(found: Gathered, client: int) -> bool:
    """Return whether most of a client's images (groups) are its only training ones of a class.

    Held out, such an image leaves none of its class, so working alone is wrong about it whatever
    it does; nothing can be said of such a client alone. Images for validation meet all others.
    """
    trains = found.trains[client].numpy()
    pairs = np.stack([found.labels[client].numpy(), found.groups[client]])
    own = np.unique(pairs[:, trains], axis=1)
    _, times = np.unique(own[0], return_counts=True)
    others = np.unique(pairs[:, ~trains], axis=1).shape[1]
    return bool(2 * (times == 1).sum() > own.shape[1] + others)


class _Work:
    """Fits fold by fold, and keeps what each setting of each method says of what is held out."""

    def __init__(
        self, raw: Sequence[HeadClient], unit: Sequence[HeadClient], trains: Sequence[Tensor],
        folds: Sequence[Tensor], count: int, classes: int,
        names: Sequence[Tensor] | None = None, anchor: Tensor | None = None,
        others: Others | None = None,
    ) -> None:
        self.raw, self.unit, self.trains, self.folds = raw, unit, trains, folds
        self.count, self.classes, self.names, self.others = count, classes, names, others
        self.hits: dict[str, list[Tensor]] = {}  # [settings, n] for each client
        self.loss: dict[str, list[Tensor]] = {}
        images = sum(map(len, unit)) * unit[0].x.shape[1] * classes
        self.grid = GRID if images <= WORK else FEW_L2
        self.shared: list[list[Heads]] = []
        self.named = None if anchor is None else self._named(anchor.to(unit[0].x))

    def _named(self, anchor: Tensor) -> Heads | None:
        """Return the head that class names are, where they say something of training images."""
        found = heads.head_of_names(anchor)
        right = [found.logits(c.x[t])[0].argmax(1) == c.y[t]
                 for c, t in zip(self.unit, self.trains, strict=True)]
        return found if torch.cat(right).double().mean() >= heads.KNOWN / self.classes else None

    def training(
        self, clients: Sequence[HeadClient], f: int
    ) -> tuple[list[int], list[HeadClient]]:
        """Return who has training images outside fold f, and these, in the same class shares."""
        there, out = [], []
        for k, client in enumerate(clients):
            held = self.folds[k][self.trains[k]] == f
            if not held.all():
                there.append(k)
                out.append(client.take(self.trains[k]).hold_out(held))
        return there, out

    def untrained(self) -> dict[str, Reached]:
        """Return the commonest class, and where there are names, zero-shot."""
        kinds = (MAJORITY,) if self.names is None else (MAJORITY, NAMES, OWN_NAMES, NAME_SHARES)
        own: list[list[Tensor]] = [[] for _ in kinds]
        whole = [c.take(t) for c, t in zip(self.unit, self.trains, strict=True)]
        for k, c in enumerate(self.unit):
            right = torch.zeros(len(kinds), len(c), dtype=torch.float64)
            for fold in self.folds[k].unique():
                held = self.folds[k] == fold
                if not (self.trains[k] & ~held).any():
                    continue
                counts = whole[k].hold_out(held[self.trains[k]]).counts(self.classes)
                said = None if self.names is None else self.names[k][held]
                for i, classes in enumerate(_guesses(said, counts, int(held.sum()))):
                    right[i, held] = (classes == c.y[held]).double()
            for one, row in zip(own, right, strict=True):
                one.append(row)
        if self.others is not None:
            own = self.others.untrained(_guesses, [c.counts(self.classes) for c in whole], own)
        return dict(zip(kinds, own, strict=True))

    def fit_alone(self, folds: Sequence[int]) -> None:
        """Train each client alone without each of some folds, side by side, and answer these.

        Clients that others' images alone judge need none of that.
        """
        each = [(f, k, c) for f in folds for k, c in zip(*self.training(self.unit, f), strict=True)
                if self.others is None or self.others.own[k].any()]
        if not each:
            return
        there, train = [k for _, k, _ in each], [c for _, _, c in each]
        held = [(self.folds[k] == f).nonzero().flatten() for f, k, _ in each]
        for name, part in ((LOGREG, 1.0), *((f"part {part}", part) for part in PARTS)):
            some = train if part == 1.0 else [c.take(_part_rows(c, part)) for c in train]
            self._answer(name, heads.alone_heads(some, self.classes, GRID), there, held, self.unit)
        if self.names is not None:
            starts = [self.names[k][self.trains[k] & (self.folds[k] != f)] for f, k, _ in each]
            self._answer(FROM_NAMES, heads.alone_heads(
                train, self.classes, NAMES_GRID, starts), there, held, self.unit, self.names)

    def fit_together(self, f: int) -> None:
        """Train what clients share without fold f, and answer its images."""
        there, train = self.training(self.unit, f)
        # An image that is all of its client judges others, so shared heads answer it, too.
        asked = there if self.others is None else range(len(self.unit))
        held = [(self.folds[k] == f).nonzero().flatten() for k in asked]
        scale = heads.common_scale(train)
        self.shared.append(heads.shared_heads(train, self.classes, scale, self.grid))
        if self.named is not None:
            every = HeadClient(torch.cat([c.x for c in train]), torch.cat([c.y for c in train]),
                               times=torch.cat([c.w for c in train]))
            self.shared[-1] += heads.personal_heads([every], self.named, scale, NAMES_GRID)
        self._answer(FEDAVG, self.shared[-1], asked, held, self.unit)
        total = reduce(add, (Sums.of(c, self.classes) for c in self.training(self.raw, f)[1]))
        ridges = heads.ridge_heads(total, RIDGES)
        self._answer(AFL, ridges, asked, held, self.raw)
        shares = torch.stack([c.shares(self.classes, SMOOTH) for c in train])
        ridge = heads.ridge_head(total)  # as the run chooses it
        prior = [heads.add_shares(ridge, shares, t) for t in TEMPERS]
        held = [(self.folds[k] == f).nonzero().flatten() for k in there]
        self._answer(AFL_PRIOR, prior, there, held, self.raw)
        if self.others is not None:
            self.others.answer(AFL_PRIOR, prior, there, f, raw=True)

    def _answer(
        self, name: str, settings: Sequence[Heads], there: Sequence[int], held: Sequence[Tensor],
        clients: Sequence[HeadClient], starts: Sequence[Tensor] | None = None,
    ) -> None:
        """Note whether each setting's heads are right on held-out images, and their loss.

        Args:
            starts: logits of each client's images ``[n, C]``, to which those of heads are added.
        """
        if name not in self.hits:
            shape = len(settings)
            for table in (self.hits, self.loss):
                table[name] = [torch.zeros(shape, len(c), dtype=torch.float64) for c in clients]
        for i, setting in enumerate(settings):
            for p, (k, at) in enumerate(zip(there, held, strict=True)):
                if not len(at):
                    continue
                logits, y = setting.one(p).logits(clients[k].x[at])[0], clients[k].y[at]
                if starts is not None:
                    logits = logits + starts[k][at].to(logits)
                self.hits[name][k][i, at] = (logits.argmax(1) == y).double()
                logs = logits.log_softmax(1).gather(1, y.unsqueeze(1)).squeeze(1)
                self.loss[name][k][i, at] = -logs.clamp_min(-20).double()

    def best(self, name: str, f: int, clients: Sequence[int]) -> int:
        """Return the setting with the most right answers outside fold f, clients counting alike."""
        right = loss = torch.zeros(len(self.hits[name][0]), dtype=torch.float64)
        for k in clients:
            w = self.unit[k].w.double() * (self.folds[k] != f)
            w = w / w.sum().clamp_min(1e-12)
            right, loss = right + self.hits[name][k] @ w, loss + self.loss[name][k] @ w
        rows = zip(right.tolist(), loss.tolist(), strict=True)
        return min(((-round(a, 9), b, i) for i, (a, b) in enumerate(rows)))[2]

    def chosen(self, name: str, alone: bool = False) -> Reached:
        """Return what settings say that are chosen fold by fold: by each client, or by all."""
        out = [torch.zeros(len(c), dtype=torch.float64) for c in self.unit]
        every = range(len(self.unit))
        for f in range(self.count):
            common = None if alone else self.best(name, f, every)
            for k in every:
                at = self.folds[k] == f
                if at.any():
                    i = self.best(name, f, [k]) if common is None else common
                    out[k][at] = self.hits[name][k][i, at]
        return out

    def ridge(self) -> float:
        """Return the ridge of AFL with the most right answers, for all training images."""
        part = RIDGES[self.best(AFL, -1, range(len(self.unit)))]
        trace = sum(float(c.x[t].double().square().sum())
                    for c, t in zip(self.raw, self.trains, strict=True))
        return part * trace

    def hold(self) -> float:
        """Return ``CrossValidation.hold``."""
        best = self.best(FEDAVG, -1, range(len(self.unit))) - len(self.grid)
        return NAMES_GRID[best] if best >= 0 else 0.0

    def pull(self) -> float:
        """Return the pull of personal heads with the most right answers, for unscaled features.

        A head on features that are divided by their size is that times as long, hence the square.
        """
        train = [c.take(t) for c, t in zip(self.unit, self.trains, strict=True) if t.any()]
        size = float(heads.common_scale(train).size)
        return heads.PULLS[self.best(DITTO, -1, range(len(self.unit)))] * size**2

    def corrected(self, right: Sequence[Tensor]) -> list[Tensor]:
        """Return right answers, where a class vanished with what was held out: partly others'.

        A client's only training image of a class leaves none when it is held out. If images came
        at random, as many test images would be of classes that the client lacks (Good and Turing);
        if they are dealt in fixed shares, none. Between the two, half of these images count as they
        are, half as the mean of all clients' images where one of the class was left (``ONE``). With
        validation images, the half is averaged with the share that they show.
        """
        left = []
        for c, fold, trains in zip(self.unit, self.folds, self.trains, strict=True):
            counts = torch.zeros(self.count, self.classes, dtype=torch.float64)
            counts.index_put_((fold[trains], c.y[trains]),
                              c.take(trains).w.double(), accumulate=True)
            left.append((counts.sum(0) - counts)[fold, c.y])
        only = lone = lacking = judges = 0.0
        for c, n, trains in zip(self.unit, left, self.trains, strict=True):
            whole = c.take(trains).counts(self.classes)
            lone += float((n[trains] <= 0.01).sum())
            only += float(trains.sum())
            lacking += float((whole[c.y[~trains]] <= 0.01).sum())
            judges += float((~trains).sum())
        every, w = torch.cat(left), torch.cat([c.w.double() for c in self.unit])
        few = w * ((every > 0.01) & (every <= ONE))
        if not few.any() or not lone:
            return list(right)
        shown = min(lacking / judges * only / lone, 1.0) if judges >= JUDGES else 0.5
        mean, way = few @ torch.cat(list(right)) / few.sum(), 1 - (shown + 0.5) / 2
        return [torch.where((n <= 0.01) & t, one + way * (mean - one), one)
                for one, n, t in zip(right, left, self.trains, strict=True)]

    def reached(self) -> dict[str, Reached]:
        """Return what all trained heads reach; fits the personal ones around the shared."""
        for f in range(self.count):
            there, train = self.training(self.unit, f)
            scale = heads.common_scale(train)
            shared = self.shared[f][self.best(FEDAVG, f, range(len(self.unit)))]
            held = [(self.folds[k] == f).nonzero().flatten() for k in there]
            tuned = heads.personal_heads(train, shared, scale)
            self._answer(DITTO, tuned, there, held, self.unit)
            if self.others is not None:
                self.others.answer(DITTO, tuned, there, f)
        kinds = (LOGREG,) if self.names is None else (LOGREG, FROM_NAMES)
        out = {name: self._alone(name) for name in kinds}
        out |= {name: self._together(name) for name in TOGETHER}
        return out | {POOLED: out[FEDAVG]}

    def curve(self) -> dict[float, Reached]:
        """Return what logistic regression alone reaches with ``PARTS`` of the images, by part."""
        return {part: self._alone(f"part {part}", part) for part in PARTS}

    def _together(self, name: str) -> Reached:
        """Return right answers of a way of sharing."""
        if self.others is None:
            return self.chosen(name)
        if name in OF_SHARES:
            every = [self.best(name, f, range(len(self.unit))) for f in range(self.count)]
            return self.others.chosen(name, every)
        return self.others.of_all(self.chosen(name))

    def _alone(self, name: str, part: float = 1.0) -> Reached:
        """Return right answers of clients alone, with a part of their images."""
        own = self.chosen(name, alone=True) if name in self.hits else [
            torch.zeros(len(c), dtype=torch.float64) for c in self.unit]
        if self.others is None:
            return own
        trains = [t.nonzero().flatten() for t in self.trains]
        if part < 1:
            trains = [at[_part_rows(c.take(at), part)]
                      for c, at in zip(self.unit, trains, strict=True)]
        vals = [(~t).nonzero().flatten() for t in self.trains]
        return self.others.alone(trains, vals, own, name == FROM_NAMES)


def _guesses(said: Tensor | None, counts: Tensor, images: int) -> list[Tensor]:
    """Return the commonest class, and by names: of all classes, of its own, and with its shares.

    Args:
        said: logits of the class names ``[n, C]``; None without text tower.
        counts: a client's images of each class ``[C]``.
        images: n.
    """
    counts = counts.double().round(decimals=6)
    out = [counts.argmax().expand(images)]
    if said is None:
        return out
    every = (said, said.masked_fill(counts == 0, -torch.inf), said + (counts + 1).log().to(said))
    return out + [scores.argmax(1) for scores in every]


def _part_rows(client: HeadClient, part: float) -> Tensor:
    """Return which images are a part of a client's groups, class by class, at least one."""
    order = client.y.argsort(stable=True)
    groups = (torch.arange(len(client)) if client.groups is None else client.groups)[order]
    names = list(dict.fromkeys(groups.tolist()))
    step = 1 / part
    kept = {names[int(i * step)] for i in range(max(1, round(len(names) * part)))
            if int(i * step) < len(names)}
    rows = torch.tensor([int(g) in kept for g in groups], dtype=torch.bool)
    return order[rows].sort().values
