"""How often the intervals of tables and pages hold the truth, by simulation, and how wide they are.

Two methods are simulated image by image: seeds move the better one, images are shared by all seeds
of a data set, and half of all answers depend on the image alone. Then equal methods: how often the
best of them is called better. Numbers are percent; the same draws every time.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedvlm.console.parser import Parser
from fedvlm.console.screen import say
from fedvlm.report.statistics.contrast import Contrast, contrast, leaders
from fedvlm.report.statistics.images import ClientAnswers

EXAMPLES = ("python scripts/evidence coverage  # about a minute",)
SPREADS = (0.5, 1.0, 2.0, 4.0)  # points: standard deviation over seeds, a data set each
GAINS = (3.0, -1.0, 0.0, 5.0)  # points: the true difference of each
IMAGES, CLIENTS = 300, 3
DESIGNS = [(sets, seeds) for sets in (1, 2, 4) for seeds in (3, 5, 10, 20)]
EQUAL = 16  # methods


@dataclass(frozen=True)
class Coverage:
    """Shares in percent of intervals that hold the truth, and their median width in points.

    Attributes:
        held, width: ``seeds``: of intervals that hold seeds alone; ``named``, ``bits``, ``counts``:
            of those with test images, by what is known of them.
    """

    held: dict[str, float]
    width: dict[str, float]


def flags(parser: Parser) -> None:
    """Add what the verb takes."""
    parser.add_argument("--draws", type=int, default=400, metavar="N",
                        help="experiments simulated for each line (400)")


def main(args: Namespace) -> int:
    """Print coverage and widths of each design, and false winners among equal methods."""
    say("these sets: share of 95 % intervals that hold the true difference, median width in points",
        f"{'sets':>5}{'seeds':>6}  " + "".join(
            f"{word:>16}" for word in ("seeds alone", "images, named", "bits", "counts")))
    for sets, seeds in DESIGNS:
        seen = coverage(sets, seeds, args.draws)
        words = (f"{seen.held[kind]:.1f} ({seen.width[kind]:.1f})" for kind in
                 ("seeds", "named", "bits", "counts"))
        say(f"{sets:>5}{seeds:>6}  " + "".join(f"{word:>16}" for word in words))
    say("a new set: share of 95 % prediction intervals that hold it, median width",
        *(f"{sets:>5} sets, 5 seeds: {held:.1f} ({width:.1f})" for sets in (4, 6, 10)
          for held, width in [new_set(sets, 5, args.draws)]))
    say(f"{EQUAL} equal methods: share of experiments in which somebody is called better or worse",
        *(f"{sets:>5} sets, {seeds} seeds: " + ", ".join(
            f"{name} {share:.1f}" for name, share in
            false_winners(sets, seeds, args.draws).items())
          for sets, seeds in ((1, 5), (2, 5), (4, 3), (4, 5), (4, 10))))
    return 0


def coverage(sets: int, seeds: int, draws: int) -> Coverage:
    """Return how often intervals on these sets hold the mean of the true differences."""
    stream = np.random.default_rng([sets, seeds])
    truth = float(np.mean(GAINS[:sets]))
    kinds = ("seeds", "named", "bits", "counts")
    held: dict[str, list[bool]] = {kind: [] for kind in kinds}
    width: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in range(draws):
        right = [_answers(stream, gain, spread, seeds)
                 for gain, spread in zip(GAINS[:sets], SPREADS[:sets], strict=True)]
        a, b = ([dict(enumerate(100 * one[at].mean(axis=(1, 2)))) for one in right]
                for at in (0, 1))
        for kind in kinds:
            answers = None if kind == "seeds" else tuple(
                [{s: _clients(one[at][s], kind) for s in range(seeds)} for one in right]
                for at in (0, 1))
            seen = contrast(a, b, answers=(answers[0], answers[1]) if answers else None)
            if seen is None or seen.low is None or seen.high is None:
                continue
            held[kind].append(seen.low <= truth <= seen.high)
            width[kind].append(seen.high - seen.low)
    return Coverage({k: 100 * float(np.mean(v)) for k, v in held.items()},
                    {k: float(np.median(v)) for k, v in width.items()})


def new_set(sets: int, seeds: int, draws: int, spread: float = 2.0) -> tuple[float, float]:
    """Return how often prediction intervals hold the difference seen on one more set, and width."""
    stream = np.random.default_rng([sets, seeds, 7])
    held, width = [], []
    for _ in range(draws):
        effects = stream.normal(1.0, spread, sets + 1)
        numbers = [dict(enumerate(effect + stream.normal(0, 1.0, seeds))) for effect in effects]
        *seen, new = numbers
        ahead = _against_zero(seen).ahead
        if ahead:
            held.append(ahead[0] <= float(np.mean(list(new.values()))) <= ahead[1])
            width.append(ahead[1] - ahead[0])
    return 100 * float(np.mean(held)), float(np.median(width))


def false_winners(sets: int, seeds: int, draws: int, methods: int = EQUAL) -> dict[str, float]:
    """Return by question how often one of several equal methods is called better, in percent.

    ``rival``: the best than a rival that is no better, uncorrected and by max-t; ``worse``:
    somebody than the best; ``new set``: the best than none on a new set, where methods and sets
    interact (standard deviation 2 points, of seeds 1).
    """
    stream = np.random.default_rng([sets, seeds, methods])
    seen: dict[str, list[bool]] = {"rival, uncorrected": [], "rival, max-t": [], "worse": [],
                                   "new set": []}
    for _ in range(draws):
        numbers = stream.normal(0, 1.0, (methods + 1, sets, seeds))
        rows = [[dict(enumerate(one)) for one in row] for row in numbers]
        *many, rival = rows
        means = numbers[:-1].mean(axis=(1, 2))
        best = contrast(rival, many[int(means.argmax())])
        if best is None:
            continue
        seen["rival, uncorrected"].append(best.apart > 0)
        seen["rival, max-t"].append(best.apart_among(methods) > 0)
        verdict = leaders(many)
        seen["worse"].append(bool(verdict and verdict.beaten))
        numbers = numbers[:-1] + stream.normal(0, 2.0, (methods, sets, 1))
        top = numbers[int(numbers.mean(axis=(1, 2)).argmax())]
        seen["new set"].append(
            _against_zero([dict(enumerate(one)) for one in top]).apart_ahead > 0)
    return {name: 100 * float(np.mean(each)) for name, each in seen.items()}


def _against_zero(numbers: Sequence[dict[int, float]]) -> Contrast:
    seen = contrast([dict.fromkeys(one, 0.0) for one in numbers], numbers)
    if seen is None:
        raise ValueError("no numbers")
    return seen


def _answers(
    stream: np.random.Generator, gain: float, spread: float, seeds: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return right or wrong of two methods, each seeds x clients x images of a client.

    The second's rate on an image is the first's plus gain, a part of the image and one of the seed.
    """
    shape = (CLIENTS, IMAGES // CLIENTS)
    rates = stream.uniform(0.55, 0.75, shape)
    own = stream.uniform(-0.1, 0.1, shape)
    moved = np.clip(stream.normal(0, spread / 100, (seeds, 1, 1)), -0.1, 0.1)
    hardness = stream.random(shape)
    sides = []
    for rate in (np.broadcast_to(rates, (seeds, *shape)), rates + gain / 100 + own + moved):
        fresh = stream.random((seeds, *shape))
        by_image = stream.random((seeds, *shape)) < 0.5
        sides.append(np.where(by_image, hardness, fresh) < rate)
    return sides[0], sides[1]


def _clients(right: np.ndarray, kind: str) -> dict[str, ClientAnswers]:
    return {str(at): ClientAnswers(
        len(row), float(row.sum()), () if kind == "counts" else tuple(row.tolist()),
        tuple((at, place) for place in range(len(row))) if kind == "named" else (),
    ) for at, row in enumerate(right)}
