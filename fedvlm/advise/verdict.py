"""Whether to federate, and with what: what follows from a cross-validation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedvlm.advise.judges import Judges
from fedvlm.advise.sets import LabelTrial
from fedvlm.advise.trial import PARTS, CrossValidation, Reached
from fedvlm.advise.ways import (
    AFL,
    ALONE,
    ALONE_DOES,
    CLEAR,
    DITTO,
    FEDAVG,
    FEDERATE,
    LOGREG,
    NAMES,
    POOLED,
    SMALL,
    TOGETHER,
    UNKNOWN,
    simplest_way,
)
from fedvlm.runs.verify.answer import ACCURACY, MAP

ENOUGH = 30  # images (groups) of a client to judge by
FEW = 5.0  # points: least gain that is clear of few images
LACKS, LACKS_EACH = "images", "images of each client"  # what would settle an open verdict
TWINS = 0.2  # share of images with a near-duplicate above which nothing is said
NORMAL = 1.96
RETRAINED = 2.0  # variance over that of independent judges: folds share most of their training
BEYOND = 4.0  # times its images: what is needed beyond is not extrapolated
IMAGES, POSITIVES = "images", "positive labels"  # what is judged by
GROUPS = "groups of images"  # the same patient, or the same bytes
MOST_LEFT_OUT = 0.5  # share of clients' labels that are not judged, above which nothing is said
KNOWN, BLIND = 0.9, 1.5  # zero-shot: of what a head reaches; of chance
HARDLY = 0.1  # zero-shot: of the way from chance to what a head reaches


@dataclass(frozen=True)
class MethodReach:
    """What a method reaches: means over clients in percent, and each client's.

    Of sets of labels the number is mAP, and ``balanced`` AUROC.
    """

    name: str
    personal: float
    balanced: float
    worst: float
    clients: tuple[float, ...]


@dataclass(frozen=True)
class Advice:
    """What is said to the user.

    Attributes:
        verdict: ``FEDERATE``, ``ALONE_DOES`` or ``UNKNOWN``.
        why: the reason, a sentence.
        method: which to use together.
        alone, together, pooled: the best alone, the method, all images in one place.
        others: the other methods together.
        points, margin: mean gain over alone, and half its 95 % interval.
        gains, margins: of each client.
        needs: images with which each client would reach the same alone; None: no more than it has,
            inf: more than ``BEYOND`` times as many.
        sizes: images (groups) of each client to judge by.
        names: zero-shot accuracy of the class names in percent; None without text tower.
        twins: share of images with a near-duplicate.
        measure: ``ACCURACY``, or ``MAP`` of sets of labels.
        chance: what an answer without the images reaches, percent.
        silent: labels that are too rare to be judged.
        unit: what ``sizes`` count: ``IMAGES``, ``GROUPS`` or ``POSITIVES``.
        lacks: ``LACKS`` or ``LACKS_EACH`` where nothing but the interval is in the way of a
            verdict; else empty.
        pooled_margin: half the 95 % interval of what ``pooled`` gains over ``alone``.
        held: images (groups) that all clients have together.
    """

    verdict: str
    why: str
    method: str
    alone: MethodReach
    together: MethodReach
    pooled: MethodReach
    others: tuple[MethodReach, ...]
    points: float
    margin: float
    gains: tuple[float, ...]
    margins: tuple[float, ...]
    needs: tuple[float | None, ...]
    sizes: tuple[float, ...]
    names: float | None
    twins: float
    measure: str = ACCURACY
    chance: float = 0.0
    silent: tuple[int, ...] = ()
    unit: str = IMAGES
    lacks: str = ""
    pooled_margin: float = math.inf
    held: float = math.inf

    @property
    def own_size(self) -> float:
        """What all clients together can be judged by, others' images not counted."""
        return min(sum(self.sizes), self.held)

    @property
    def leaning(self) -> str | None:
        """The verdict that an open one points to; None: neither."""
        if not self.lacks:
            return None
        if self.points > self.margin:
            return FEDERATE
        return ALONE_DOES if self.points + self.margin < SMALL else None

    @property
    def gaining(self) -> list[int]:
        """Clients with enough images whose gain is clear."""
        return [k for k in self.judged if self.gains[k] > self.margins[k]]

    @property
    def losing(self) -> list[int]:
        """Clients with enough images whose loss is clear."""
        return [k for k in self.judged if self.gains[k] < -self.margins[k]]

    @property
    def judged(self) -> list[int]:
        """Clients with at least ``ENOUGH`` images (positive labels) to judge by."""
        return [k for k, n in enumerate(self.sizes) if n >= ENOUGH]


def conclude(trial: CrossValidation, images: Sequence[int], twins: float = 0.0) -> Advice:
    """Return what follows from a trial.

    Args:
        images: training images of each client.
        twins: share of images with a near-duplicate in another group (``folds.twin_share``).
    """
    sides = {name: _side(trial, name, one) for name, one in trial.reached.items()}
    alone = max((sides[n] for n in ALONE if n in sides), key=lambda side: side.personal)
    together = _simplest(trial, sides)
    mine, own = trial.reached[together.name], trial.reached[alone.name]
    points, margin = _gain(trial, mine, own)
    gains, margins = zip(*(_own_gain(judges, a - b) for judges, a, b in zip(
        trial.judges, mine, own, strict=True)), strict=True)
    sizes = tuple(judges.size for judges in trial.judges)
    alike = any(c.size < len(c.y) for c in trial.clients)
    unit = GROUPS if alike else IMAGES
    verdict, why, lacks = _verdict(points, margin, sizes, twins, unit)
    return Advice(
        verdict, why, together.name, alone, together, sides[POOLED],
        tuple(sides[n] for n in TOGETHER if n != together.name), points, margin, gains, margins,
        _needs(trial, sides[LOGREG], together, images), sizes,
        sides[NAMES].personal if NAMES in sides else None, twins, chance=100.0 / trial.classes,
        unit=unit, lacks=lacks,
        pooled_margin=_gain(trial, trial.reached[POOLED], own)[1],
        held=sum(c.size for c in trial.clients),
    )


def conclude_labels(trial: LabelTrial, twins: float = 0.0) -> Advice:
    """Return what follows from a trial on sets of labels; AFL's ridge is beside, no run has it.

    Args:
        twins: as of ``conclude``.
    """
    every = range(len(trial.ids))
    sides = {name: _label_side(trial, name) for name in trial.scores}
    alone = max((sides[n] for n in (NAMES, LOGREG) if n in sides), key=lambda s: s.personal)
    shared, tuned = sides[FEDAVG], sides[DITTO]
    more, doubt = _label_gain(trial, DITTO, FEDAVG)
    together = tuned if more > min(doubt, SMALL) else shared
    points, margin = _label_gain(trial, together.name, alone.name)
    sizes = tuple(float(trial.positives(k)) for k in every)
    each = [trial.gain(together.name, alone.name, k) for k in every]
    margins = tuple(NORMAL * math.sqrt(RETRAINED * (v + (100.0 / (n + 1)) ** 2))
                    for (_, v), n in zip(each, sizes, strict=True))
    verdict, why, lacks = _verdict(points, margin, sizes, twins, POSITIVES)
    if trial.left_out > MOST_LEFT_OUT:
        verdict, why, lacks = UNKNOWN, (
            f"{100 * trial.left_out:.0f} % of the labels that clients have are too rare there to "
            "be judged; more images with these labels would tell"), ""
    return Advice(
        verdict, why, together.name, alone, together, sides[POOLED],
        (sides[AFL], tuned if together is shared else shared), points, margin,
        tuple(gain for gain, _ in each), margins, (None,) * len(each), sizes,
        sides[NAMES].personal if NAMES in sides else None, twins, MAP, trial.chance(),
        tuple(trial.silent), POSITIVES, lacks, _label_gain(trial, POOLED, alone.name)[1],
    )


def _label_side(trial: LabelTrial, name: str) -> MethodReach:
    each = [trial.reached(name, k) for k in range(len(trial.ids))]
    ap = tuple(one for one, _ in each)
    return MethodReach(name, sum(ap) / len(ap), sum(area for _, area in each) / len(ap), min(ap),
                       ap)


def _label_gain(trial: LabelTrial, mine: str, own: str) -> tuple[float, float]:
    """Return the mean over clients of the gain in mAP, and half its 95 % interval."""
    each = [trial.gain(mine, own, k) for k in range(len(trial.ids))]
    floor = (100.0 / (sum(trial.positives(k) for k in range(len(each))) + 1)) ** 2
    variance = max(sum(v for _, v in each) / len(each) ** 2, floor)
    return sum(gain for gain, _ in each) / len(each), NORMAL * math.sqrt(RETRAINED * variance)


def _side(trial: CrossValidation, name: str, reached: Reached) -> MethodReach:
    each = trial.personal(reached).clamp(0, 100)
    return MethodReach(name, float(each.mean()), float(trial.balanced(reached).mean()),
                float(each.min()), tuple(each.tolist()))


def _simplest(trial: CrossValidation, sides: dict[str, MethodReach]) -> MethodReach:
    """Return the way to take (``simplest_way``)."""
    return sides[simplest_way(
        {name: sides[name].personal for name in TOGETHER},
        lambda best, name: _gain(trial, trial.reached[best], trial.reached[name]))]


def _gain(trial: CrossValidation, mine: Reached, own: Reached) -> tuple[float, float]:
    """Return the mean over clients of the gain in points, and half its 95 % interval.

    An image (group) that judges several clients errs at all of them at once.
    """
    apart = [100 * (a - b) for a, b in zip(mine, own, strict=True)]
    ids, errors = (torch.cat(one) for one in zip(*(
        judges.errors(d) for judges, d in zip(trial.judges, apart, strict=True)), strict=True))
    groups, at = ids.unique(return_inverse=True)
    each = torch.zeros(len(groups), dtype=errors.dtype).index_add_(0, at, errors)
    variance = float(each.square().sum()) / len(apart) ** 2
    floor = 100.0**2 / (len(groups) + 1) ** 2  # where all answers agree
    points = sum(judges.mean(d) for judges, d in zip(trial.judges, apart, strict=True))
    return points / len(apart), NORMAL * math.sqrt(RETRAINED * max(variance, floor))


def _own_gain(judges: Judges, apart: Tensor) -> tuple[float, float]:
    """Return a client's gain in points and half its 95 % interval.

    A gain and a loss are added to few images.

    Args:
        apart: differences of right answers of its judges ``[n]``.
    """
    n = judges.size
    variance = float(judges.errors(apart)[1].square().sum())
    spread = 100.0**2 * (n * (n - 1) * variance + 2)
    return 100 * judges.mean(apart), NORMAL * math.sqrt(
        RETRAINED * spread / (n + 1) / (n + 2))


def _verdict(
    points: float, margin: float, sizes: Sequence[float], twins: float, unit: str
) -> tuple[str, str, str]:
    """Return the verdict, why, and what it lacks (``Advice.lacks``).

    Args:
        sizes: of each client, in ``unit``; the median client's decides whether they are enough.
    """
    low, high = points - margin, points + margin
    if twins > TWINS:
        return UNKNOWN, (
            f"{100 * twins:.0f} % of the images have a near-duplicate that is not in their group, "
            "so held-out images are not new; if images belong together (patient, video), name "
            "their column with --groups"), ""
    if sorted(sizes)[len(sizes) // 2] < ENOUGH:
        whose = "all clients" if max(sizes) < ENOUGH else "half of the clients"
        few = f"{whose} have fewer than {ENOUGH} {unit} to judge by"
        if low > FEW:
            return FEDERATE, f"the gain is clear, though {few}", ""
        if high < 0:
            return ALONE_DOES, f"together is clearly worse, though {few}", ""
        return (UNKNOWN, f"{few}, and the gain is not clearly above {FEW:.0f} points", LACKS_EACH)
    if low > 0 and points >= CLEAR:
        return FEDERATE, "the gain is clear", ""
    if high < 0:
        return ALONE_DOES, "together is clearly worse", ""
    if high < SMALL:
        return ALONE_DOES, f"there are less than {SMALL:.0f} points to gain", ""
    return (UNKNOWN, "the gain is smaller than its uncertainty; more images would tell", LACKS)


def _needs(
    trial: CrossValidation, own: MethodReach, together: MethodReach, images: Sequence[int]
) -> tuple[float | None, ...]:
    """Return with how many images each client would reach the same alone.

    Error of logistic regression alone falls as a power of the images; the power is fitted to the
    means over clients with parts of the images, and with all.
    """
    errors = [100 - float(trial.personal(trial.curve[part]).mean()) for part in PARTS]
    logs = [math.log(max(e, 0.5)) for e in (*errors, 100 - own.personal)]
    at = [math.log(part) for part in (*PARTS, 1.0)]
    x, y = sum(at) / len(at), sum(logs) / len(logs)
    slope = -sum((a - x) * (b - y) for a, b in zip(at, logs, strict=True)) / sum(
        (a - x) ** 2 for a in at)
    out: list[float | None] = []
    for mine, there, n in zip(own.clients, together.clients, images, strict=True):
        if there <= mine:
            out.append(None)
            continue
        ratio = max(100 - mine, 0.5) / max(100 - there, 0.5)
        times = ratio ** (1 / slope) if slope > 0.02 else math.inf
        out.append(n * times if times <= BEYOND else math.inf)
    return tuple(out)


def names_sentence(advice: Advice) -> str:
    """Return what prompts could add: whether the backbone knows the class names."""
    zero, chance = advice.names, advice.chance
    method, what = ("FedTV", "classes") if advice.measure == ACCURACY else ("PromptFL", "labels")
    if zero is None:
        return "Prompts: the backbone has no text tower; train a head."
    says = f"the class names alone reach {zero:.1f} (zero-shot; chance {chance:.1f})"
    best = max(advice.together.personal, advice.alone.personal)
    if zero < BLIND * chance:
        return f"Prompts: {says}: the backbone does not know these names; train a head."
    if zero - chance < HARDLY * (best - chance):
        return f"Prompts: {says}: the backbone hardly knows these names; train a head."
    if zero < KNOWN * best:
        return (f"Prompts: {says}: a head reaches more; prompts (--trainer {method}) are for "
                f"{what} without images.")
    return (f"Prompts: {says}: the backbone knows these names, and prompts may reach more than a "
            f"head; try --trainer {method}.")

