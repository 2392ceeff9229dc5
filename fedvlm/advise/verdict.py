"""Whether to federate, and with what: what follows from a cross-validation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedvlm.advise.trial import (
    AFL_PRIOR,
    ALONE,
    LOGREG,
    NAMES,
    PARTS,
    POOLED,
    TOGETHER,
    CrossValidation,
    Reached,
)

FEDERATE, ALONE_DOES, UNKNOWN = "federate", "do not federate", "cannot say"
ENOUGH = 30  # images (groups) of a client to judge by
CLEAR, SMALL, FEW = 1.0, 2.0, 5.0  # points: least mean gain, largest that is none, least of few
TWINS = 0.2  # share of images with a near-duplicate above which nothing is said
NORMAL = 1.96
RETRAINED = 2.0  # variance over that of independent judges: folds share most of their training
BEYOND = 4.0  # times its images: what is needed beyond is not extrapolated
KNOWN, BLIND = 0.9, 1.5  # zero-shot: of what a head reaches; of chance


@dataclass(frozen=True)
class MethodReach:
    """What a method reaches: means over clients in percent, and each client's."""

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
        alone, together, pooled, prior: the best alone, the method, all images in one place, and the
            ridge with class shares.
        others: the other methods together.
        points, margin: mean gain over alone, and half its 95 % interval.
        gains, margins: of each client.
        needs: images with which each client would reach the same alone; None: no more than it has,
            inf: more than ``BEYOND`` times as many.
        sizes: images (groups) of each client to judge by.
        names: zero-shot accuracy of the class names in percent; None without text tower.
        twins: share of images with a near-duplicate.
    """

    verdict: str
    why: str
    method: str
    alone: MethodReach
    together: MethodReach
    pooled: MethodReach
    prior: MethodReach
    others: tuple[MethodReach, ...]
    points: float
    margin: float
    gains: tuple[float, ...]
    margins: tuple[float, ...]
    needs: tuple[float | None, ...]
    sizes: tuple[float, ...]
    names: float | None
    twins: float

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
        """Clients with at least ``ENOUGH`` images to judge by."""
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
    gains, margins = zip(*(_own_gain(trial, k, mine, own) for k in range(len(trial.clients))),
                         strict=True)
    sizes = tuple(c.size for c in trial.clients)
    verdict, why = _verdict(points, margin, sorted(sizes)[len(sizes) // 2], twins)
    return Advice(
        verdict, why, together.name, alone, together, sides[POOLED], sides[AFL_PRIOR],
        tuple(sides[n] for n in TOGETHER if n != together.name), points, margin, gains, margins,
        _needs(trial, sides[LOGREG], together, images), sizes,
        sides[NAMES].personal if NAMES in sides else None, twins,
    )


def _side(trial: CrossValidation, name: str, reached: Reached) -> MethodReach:
    each = trial.personal(reached).clamp(0, 100)
    return MethodReach(name, float(each.mean()), float(trial.balanced(reached).mean()),
                float(each.min()), tuple(each.tolist()))


def _simplest(trial: CrossValidation, sides: dict[str, MethodReach]) -> MethodReach:
    """Return the first of ``TOGETHER`` that is neither clearly nor much below the best of them."""
    best = max((sides[n] for n in TOGETHER), key=lambda side: side.personal)
    for name in TOGETHER:
        points, margin = _gain(trial, trial.reached[best.name], trial.reached[name])
        if points <= min(margin, SMALL):
            return sides[name]
    return best


def _differences(trial: CrossValidation, k: int, mine: Reached, own: Reached) -> Tensor:
    """Return the mean difference of each group of a client ``[G]``, in points."""
    client, apart = trial.clients[k], 100 * (mine.right[k] - own.right[k])
    if client.groups is None:
        return apart
    _, at = client.groups.unique(return_inverse=True)
    return torch.zeros(int(at.max()) + 1, dtype=apart.dtype).index_add_(
        0, at, client.w.double() * apart)


def _gain(trial: CrossValidation, mine: Reached, own: Reached) -> tuple[float, float]:
    """Return the mean over clients of the gain, and half its 95 % interval."""
    each = [_differences(trial, k, mine, own) for k in range(len(trial.clients))]
    variance = sum(float(d.var() / len(d)) for d in each if len(d) > 1) / len(each) ** 2
    floor = 100.0**2 / (sum(map(len, each)) + 1) ** 2  # where all answers agree
    margin = NORMAL * math.sqrt(RETRAINED * max(variance, floor))
    return sum(float(d.mean()) for d in each) / len(each), margin


def _own_gain(trial: CrossValidation, k: int, mine: Reached, own: Reached) -> tuple[float, float]:
    """Return a client's gain and half its 95 % interval; a gain and a loss are added to few."""
    d = _differences(trial, k, mine, own)
    spread = float((d - d.mean()).square().sum()) + 2 * 100.0**2
    return float(d.mean()), NORMAL * math.sqrt(RETRAINED * spread / (len(d) + 1) / (len(d) + 2))


def _verdict(points: float, margin: float, middle: float, twins: float) -> tuple[str, str]:
    """Return the verdict and why.

    Args:
        middle: images (groups) of the median client.
    """
    low, high = points - margin, points + margin
    if twins > TWINS:
        return UNKNOWN, (
            f"{100 * twins:.0f} % of the images have a near-duplicate that is not in their group, "
            "so held-out images are not new; if images belong together (patient, video), name "
            "their column with --groups")
    if middle < ENOUGH:
        few = f"half of the clients have fewer than {ENOUGH} images to judge by"
        if low > FEW:
            return FEDERATE, f"the gain is clear, though {few}"
        if high < 0:
            return ALONE_DOES, f"together is clearly worse, though {few}"
        return UNKNOWN, f"{few}, and the gain is not clearly above {FEW:.0f} points"
    if low > 0 and points >= CLEAR:
        return FEDERATE, "the gain is clear"
    if high < SMALL:
        return ALONE_DOES, f"there are less than {SMALL:.0f} points to gain"
    return UNKNOWN, "the gain is smaller than its uncertainty; more images would tell"


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


def names_sentence(advice: Advice, classes: int) -> str:
    """Return what prompts could add: whether the backbone knows the class names."""
    zero, chance = advice.names, 100.0 / classes
    if zero is None:
        return "Prompts: the backbone has no text tower; train a head."
    says = f"the class names alone reach {zero:.1f} (zero-shot; chance {chance:.1f})"
    best = max(advice.together.personal, advice.alone.personal)
    if zero < BLIND * chance:
        return f"Prompts: {says}: the backbone does not know these names; train a head."
    if zero < KNOWN * best:
        return (f"Prompts: {says}: a head reaches more; prompts (--trainer FedTV) are for classes "
                "without images.")
    return (f"Prompts: {says}: the backbone knows these names, and prompts may reach more than a "
            "head; try --trainer FedTV.")

