"""What came out, for a reader of one minute: sentences computed from standings and claims."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evidence.results.claims import (
    NOT_RUN,
    REFUTED,
    SUPPORTED,
    UNDECIDED,
    Answer,
)
from evidence.results.standing import PERSONAL, Standing, named
from fedvlm.core.stats import mean
from fedvlm.report.collect import as_float
from fedvlm.report.statistics.contrast import Contrast
from fedvlm.report.statistics.intervals import SEEDS
from fedvlm.report.tables.papers import dataset_name
from fedvlm.runs.finished import FinishedRun

SHOWN = 4  # peers of a best method that are named
MANY = 40  # names in a sentence on claims


@dataclass(frozen=True)
class Winner:
    """A line of the first table: a lane, what is trained, who is best, and how sure that is.

    ``of`` counts the methods; ``absent`` names those that lack runs; ``metric`` as ``Standing``.
    """

    lane: str
    title: str
    best: str
    mean: float
    peers: str
    of: int
    absent: str
    gain: Contrast | None
    over: str
    sets: int
    metric: str = PERSONAL


def winners(standings: Sequence[Standing]) -> list[Winner]:
    """Return a line for each standing of methods that train the same."""
    return [
        Winner(
            one.lane, one.title, one.short(one.best), one.means[one.best], _peers(one),
            len(one.means), _absent(one), one.gains.get(one.best),
            _over(one), one.sets, one.metric,
        ) for one in standings if one.alike
    ]


def counts(facts: Mapping[str, Any]) -> str:
    """Return what was compared.

    Args:
        facts: ``cells``: runs; ``methods``, ``sets``, ``backbones``, ``lanes``: how many there are;
            ``seeds``: the fewest and the most of a method on a data set.
    """
    return (
        f"{facts['cells']:,} runs: {facts['methods']} methods on "
        f"{_number(facts['backbones'], 'frozen backbone')}, {facts['sets']} data sets, "
        f"{_seeds(*facts['seeds'])} and {_number(facts['lanes'], 'experiment')}, called settings, "
        "which differ in how images are dealt and who takes part. Accuracy is personal: each "
        "client's own model on its own test images, mean over clients."
    )


def _seeds(fewest: int, most: int) -> str:
    return _number(most, "seed") if fewest == most else f"{fewest} to {most} seeds of each"


def start(runs: Sequence[FinishedRun]) -> str:
    """Return how much of the data sets' classes the backbone knows by their names.

    Empty where no run says so.
    """
    seen: dict[str, list[tuple[float, float]]] = {}
    for run in runs:
        references = run.section("references")
        zero, chance = (as_float((references.get(key) or {}).get("personal"))
                        for key in ("zero_shot", "chance"))
        if zero is not None and chance is not None:
            seen.setdefault(dataset_name(run.protocol["dataset"]), []).append((zero, chance))
    words = [f"{name} {mean(z for z, _ in pairs):.0f} % (chance {mean(c for _, c in pairs):.0f})"
             for name, pairs in sorted(seen.items())]
    return (f"zero-shot accuracy of the backbone: {', '.join(words)}. Prompts and linear heads "
            "start from these: a head changes each class weight directly, a prompt only through "
            "the frozen text tower. Compare within a row of the table, not between rows."
            ) if words else ""


def _number(many: int, what: str) -> str:
    return f"one {what}" if many == 1 else f"{many} {what}s"


def _peers(one: Standing) -> str:
    names = [one.short(m) for m in one.peers]
    return _listed(names) if names else "none"


def _over(one: Standing) -> str:
    """Return how many of the others are significantly above LocalOnly, where the row has it."""
    if not one.over_local:
        return "-"
    return f"{len(one.above_local(''))} of {len(one.over_local)}"


def _absent(one: Standing) -> str:
    words = [_listed(list(one.lacking))] if one.lacking else []
    return "; ".join([*words, *(f"data set {name}" for name in one.thin)])


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def gains(standings: Sequence[Standing]) -> str:
    """Return how many methods gain over working alone, entry by entry."""
    standings = [one for one in standings if one.alike and one.metric == PERSONAL]
    every = [(one, m, seen) for one in standings for m, seen in one.gains.items()]
    if not every:
        return ""
    up = [e for e in every if e[2].apart > 0]
    down = [e for e in every if e[2].apart < 0]
    new = [e for e in every if e[2].ahead]
    best = max(every, key=lambda e: e[2].mean)
    worst = min(every, key=lambda e: e[2].mean)
    return (
        f"Of {len(every)} entries (a tuned method in a setting, without LocalOnly), {len(up)} are "
        "on their data sets significantly better than the best baseline without collaboration, "
        f"{len(down)} are significantly worse, {len(every) - len(up) - len(down)} are undecided. "
        "Gains range from "
        f"{worst[2].mean:+.1f} points ({worst[0].short(worst[1])}, {worst[0].lane}) to "
        f"{best[2].mean:+.1f} ({best[0].short(best[1])}, {best[0].lane}). On single data sets, "
        f"each by itself: {sum(one.set_by_set[0] for one in standings)} of "
        f"{sum(map(sum, (one.set_by_set for one in standings)))} better, "
        f"{sum(one.set_by_set[2] for one in standings)} worse. Each test is at the 5 % level, "
        "without correction: if federation had no effect, one test in forty would show better "
        "and one in forty worse. Of a new data set (prediction intervals from four sources on): "
        f"{sum(e[2].apart_ahead > 0 for e in new)} of {len(new)} better, "
        f"{sum(e[2].apart_ahead < 0 for e in new)} worse."
    )


def claims_counted(claims: Sequence[Answer], former: int = 0) -> str:
    """Return how many claims are decided, and how sure that is; '' of none.

    Args:
        former: how many of their methods have other defaults today than in these runs.
    """
    if not claims:
        return ""
    number = Counter(a.verdict for a in claims)
    seeds = sorted({a.difference.seeds for a in claims if a.difference})
    firm = sum(a.firm for a in claims)
    return (
        f"Each method's card claims one thing. Of {len(claims)} claims {number[SUPPORTED]} hold on "
        f"these data sets ({firm} with Holm's correction for all), {number[REFUTED]} do not, "
        f"{number[UNDECIDED]} are undecided"
        + (f", with {' to '.join(map(str, dict.fromkeys((seeds[0], seeds[-1]))))} seeds where we "
           f"ask for {SEEDS}" if seeds and seeds[0] < SEEDS else "") + "."
        + (f" {former} of their methods have other defaults today." if former else "")
        + _above_alone(claims))


def _above_alone(claims: Sequence[Answer]) -> str:
    """Say how many claims' methods are significantly above LocalOnly, and above the best alone."""
    local = [a.second for a in claims if a.second is not None and a.second != a.best]
    best = [a.best for a in claims if a.best is not None]
    words = [f"{sum(seen.apart > 0 for seen in some)} of {len(some)} {what}" for some, what in (
        (local, "with LocalOnly of the same parameters beside them are significantly above it"),
        (best, "with a baseline alone are significantly above it")) if some]
    return f" Of the methods with a claim on personal accuracy {', and '.join(words)}." \
        if words else ""


def claims_held(claims: Sequence[Answer]) -> str:
    """Return how many claims are decided, and how."""
    if not claims:
        return ""
    number = Counter(a.verdict for a in claims)
    answered = [a for a in claims if a.verdict != NOT_RUN]
    if not answered:
        return f"none of {len(claims)} claims was tested: their runs are missing."
    firm = [a.method for a in answered if a.firm]
    early = sum(bool(a.so_far) for a in answered)
    refuted = [a.method for a in answered if a.verdict == REFUTED]
    return (
        f"{number[SUPPORTED]} of {len(answered)} tested claims are supported, {number[REFUTED]} "
        f"refuted{named(refuted, MANY)}, {number[UNDECIDED]} undecided; {number[NOT_RUN]} "
        f"were not run. Each test is at the 5 % level; with Holm's correction for all of them "
        f"{len(firm)} stay supported{named(firm, MANY)}.{_above_alone(answered)}"
    ) + (f" {early} of the tests have fewer pairs than planned and are preliminary."
         if early else "")


def sure(standings: Sequence[Standing], facts: Mapping[str, Any]) -> list[str]:
    """Return what differences can be detected, and what runs are missing or not tuned.

    Args:
        facts: ``cells``, ``wanted``, ``missing``, ``tuned``, ``unranked``: counts of runs.
    """
    standings = [one for one in standings if one.alike]
    seen = [c.detectable for one in standings for c in one.apart.values()
            if c.detectable is not None]
    words = []
    if seen:
        sets = sorted({one.sets for one in standings})
        seeds = max(one.seeds for one in standings)
        words.append(
            f"Up to {seeds} seeds on {' or '.join(map(str, sets))} data sets, paired; a claim "
            f"needs {SEEDS} seeds. A difference to the best method must be at least "
            f"{statistics.median(seen):.1f} points to be detected on these sets with a power of "
            f"80 % (median; {min(seen):.1f} to {max(seen):.1f}), test images counted.")
    wanted, cells, missing = facts["wanted"], facts["cells"], facts["missing"]
    if missing:
        words.append(f"{missing} of {wanted} planned runs are missing.")
    words.append(f"{facts['tuned']:,} of {cells:,} runs use all tuned values of their method; "
                 f"{facts['unranked']:,} use none and are in no ranking; the other "
                 f"{cells - facts['tuned'] - facts['unranked']:,} are variants that change one "
                 "value, or have nothing to tune.")
    return words


def interval(seen: Contrast | None) -> str:
    """Return a difference with its interval on these sets."""
    if seen is None:
        return "-"
    words = f"{seen.mean:+.1f}"
    return words if seen.low is None else f"{words} \\[{seen.low:+.1f}, {seen.high:+.1f}\\]"


def ahead(seen: Contrast | None) -> str:
    """Return the prediction for a new set; of fewer than four sources the range over the sets."""
    if seen is None or seen.sets < 2:
        return "-"
    if seen.ahead:
        return f"\\[{seen.ahead[0]:+.1f}, {seen.ahead[1]:+.1f}\\]"
    return f"{seen.least:+.1f} to {seen.most:+.1f}"
