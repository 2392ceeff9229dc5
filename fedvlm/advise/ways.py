"""Ways to train together: names, the rule that takes one, the command to type, what it sends.

Both advices share them, that on images and that of the map (``like``). Nothing here loads PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

MAJORITY, LOGREG, NAMES = "majority", "logreg", "zero_shot"
OWN_NAMES, NAME_SHARES, FROM_NAMES = "zero_shot_local", "zero_shot_prior", "logreg_names"
FEDAVG, DITTO, AFL, AFL_PRIOR, POOLED = "FedAvg", "Ditto", "AFL", "afl_prior", "pooled"
ALONE = (MAJORITY, NAMES, OWN_NAMES, NAME_SHARES, LOGREG, FROM_NAMES)
TOGETHER = (AFL, AFL_PRIOR, FEDAVG, DITTO)  # the simplest first
FEDERATE, ALONE_DOES, UNKNOWN = "federate", "do not federate", "cannot say"
CLEAR, SMALL = 1.0, 2.0  # points: least mean gain, largest that is none
FACTORS = 8  # of class shares, which clients count right answers for (``moments.TEMPERS``)
WORDS = {
    AFL: "AFL, ridge regression in one round", AFL_PRIOR: "AFL plus own class shares, two rounds",
    FEDAVG: "FedAvg, one shared linear head", DITTO: "Ditto, personal heads",
}
FLAGS = {  # what comes near the fixed point in a run
    AFL: "--trainer AFL --rounds 1",
    AFL_PRIOR: "--trainer AFL --rounds 2 TRAINER.AFL.SHARES True",
    FEDAVG: "--trainer FedAvg --peft head --lr 0.5 --rounds 50",
    DITTO: "--trainer Ditto --peft head --lr 0.05 --rounds 50 TRAINER.DITTO.LAMBDA 0.3",
}
NAMED = "--trainer FedAvg --peft head --lr 0.1 --rounds 50"  # of a head held to class names
LABEL_FLAGS = {  # the same of sets of labels, whose loss is flat where labels are rare
    FEDAVG: "--trainer FedAvg --peft head --lr 0.1 --rounds 100 OPTIM.NAME adam",
    DITTO: "--trainer Ditto --peft head --lr 0.1 --rounds 100 OPTIM.NAME adam "
           "TRAINER.DITTO.LAMBDA 0.3",
}
_OWN_HEAD = "--trainer LocalOnly --peft head --lr 0.5 --rounds 50"
ALONE_FLAGS = {  # of a run in which each client does what is best alone
    LOGREG: _OWN_HEAD, FROM_NAMES: _OWN_HEAD, NAMES: "--trainer ZeroShot",
}
LABEL_ALONE = {
    LOGREG: "--trainer LocalOnly --peft head --lr 0.1 --rounds 100 OPTIM.NAME adam",
    NAMES: "--trainer ZeroShot",
}


def short_name(way: str) -> str:
    """Return a way in a few words."""
    return WORDS[way].split(",")[0]


def simplest_way(
    reached: Mapping[str, float], lead: Callable[[str, str], tuple[float, float]]
) -> str:
    """Return the first of ``TOGETHER`` that is neither clearly nor much below the best of them.

    Less than ``CLEAR`` points are no reason for a costlier one, however sure they are.

    Args:
        reached: by way, in points.
        lead: of two ways how much the first is above the second, and half its 95 % interval.
    """
    best = max(TOGETHER, key=lambda way: reached[way])
    for way in TOGETHER:
        points, margin = lead(best, way)
        if points <= min(max(margin, CLEAR), SMALL):
            return way
    return best


def method_flags(
    method: str, keep: float | None = None, sets: bool = False, pull: float | None = None,
    hold: float = 0.0,
) -> str:
    """Return the flags of a run of a method.

    Args:
        keep: AFL's ridge.
        sets: of labels.
        pull: of Ditto's personal heads; by default the one of ``FLAGS``.
        hold: of the shared head to the class names (``CrossValidation.hold``). A run's head starts
            from them, and shorter steps leave it nearer to them.
    """
    if sets:
        return LABEL_FLAGS[method]
    if method == FEDAVG and hold:
        return NAMED
    if method == DITTO and pull:
        return f"{FLAGS[DITTO].rpartition(' ')[0]} {pull:.3g}"
    return FLAGS[method] + (f" TRAINER.AFL.KEEP {keep:.3g}" if method == AFL and keep else "")


def cost_words(method: str, width: int, classes: int) -> str:
    """Return the bytes that a client sends and gets in a round."""
    head, sums = 4 * width * classes, 8 * width * (width + classes)
    if method == AFL:
        return f"{sums:,} bytes up and {head:,} down per client, once (sums in float64)"
    if method == AFL_PRIOR:
        return (f"{sums + 8 * FACTORS:,} bytes up and {head + 8 * (width**2 + 1):,} down per "
                "client and round, two rounds (sums in float64)")
    return f"{head:,} bytes up and {head:,} down per client and round"


def end_lines(
    verdict: str, command: str, cost: str, alone: str, rare: Sequence[str] = ()
) -> list[str]:
    """Return what to type after a verdict, and what it costs.

    Args:
        command: of a run together.
        cost: see ``cost_words``; may be empty.
        alone: command of a run in which clients share nothing; may be empty.
        rare: what serves rare classes better.
    """
    if verdict == ALONE_DOES:
        return [f"Next: each client uses only its own images{f': {alone}' if alone else '.'}",
                *rare, f"To check that sharing does not pay: {command}",
                *([f"That run would cost {cost}."] if cost else [])]
    start = "Next" if verdict == FEDERATE else "To try it all the same"
    return [f"{start}: {command}", *rare, *([f"It costs {cost}."] if cost else [])]
