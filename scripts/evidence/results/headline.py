"""What came out, for a reader of one minute: sentences computed from standings and claims."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scipy.special import stdtrit

from evidence.results.claims import (
    NOT_RUN,
    REFUTED,
    SUPPORTED,
    UNDERPOWERED,
    Answer,
)
from evidence.results.lanes import bare
from evidence.results.standing import Standing, named
from fedvlm.core.stats import mean
from fedvlm.report.collect import as_float
from fedvlm.report.statistics.contrast import contrast
from fedvlm.report.tables.papers import dataset_name
from fedvlm.runs.finished import FinishedRun

ALONE = "LocalOnly"
SHOWN = 4  # peers of a best method that are named
MANY = 40  # names in a sentence on claims


@dataclass(frozen=True)
class Winner:
    """A line of the first table: a lane, what is trained, who is best, and how sure that is.

    ``of`` counts the methods; ``absent`` names those that lack runs.
    """

    lane: str
    title: str
    best: str
    mean: float
    peers: str
    of: int
    absent: str
    gain: str
    sets: int


def winners(standings: Sequence[Standing]) -> list[Winner]:
    """Return a line for each standing of methods that train the same."""
    return [
        Winner(
            one.lane, one.title, one.short(one.best), one.means[one.best], _peers(one),
            len(one.means), _absent(one), _gain(one), one.sets,
        ) for one in standings if one.alike
    ]


def sentences(
    standings: Sequence[Standing], claims: Sequence[Answer], facts: Mapping[str, Any]
) -> list[tuple[str, str]]:
    """Return (question, answer) pairs: what was compared, what came out of it, how sure that is.

    Args:
        facts: ``cells``, ``wanted``, ``missing``, ``tuned``: counts of runs; ``methods``, ``sets``,
            ``backbones``, ``lanes``: how many there are; ``seeds``: which; ``start``: see
            ``start``.
    """
    return [pair for pair in (
        ("What was compared", _compared(facts)), ("What came out", _outcome(standings)),
        ("What federation gains", _gains(standings)), ("Whom it hurts", _hurt(standings)),
        ("What of the papers' claims held", _claims(claims)),
        ("How sure", _sure(standings, facts)), ("Where it starts", facts["start"]),
    ) if pair[1]]


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


def _compared(facts: Mapping[str, Any]) -> str:
    return (
        f"{facts['methods']} methods on {_number(facts['backbones'], 'frozen backbone')}, "
        f"{facts['sets']} data sets, {len(facts['seeds'])} seeds and {facts['lanes']} settings "
        "(partition, number of images, participation). The metric is personal accuracy: each "
        "client's own model on its own test images, mean over clients. A row of the table compares "
        "the methods of a setting that train the same parameters, on the same clients and images."
    )


def _number(many: int, what: str) -> str:
    return f"one {what}" if many == 1 else f"{many} {what}s"


def _outcome(standings: Sequence[Standing]) -> str:
    every = [one for one in standings if one.alike]
    with_local = [(one, local) for one in every if (local := next(
        (m for m in one.means if bare(m) == ALONE), ""))]
    first = sum(one.best == local for one, local in with_local)
    won = sum(local in one.beaten for one, local in with_local)
    some = sum(any((c := contrast(one.values[local], one.values[m])) and c.apart > 0
                   for m in one.means if m != local) for one, local in with_local)
    gains = [one.gains[one.best].apart for one in every if one.best in one.gains]
    if not with_local or not gains:
        return ""
    return (
        f"in {won} of {len(with_local)} rows the best method is significantly better than {ALONE} "
        f"(the same parameters, each client trained alone); in {first} {ALONE} is best; "
        f"{len(with_local) - won - first} are undecided. At least one method is significantly "
        f"better than {ALONE} in {some} rows. Compared with the best baseline without "
        f"collaboration, usually logistic regression on the same features, the best method "
        f"that communicates is significantly better in {gains.count(1)} of {len(gains)} "
        f"rows and significantly worse in {gains.count(-1)}."
    )


def _peers(one: Standing) -> str:
    names = [one.short(m) for m in one.peers]
    above = ("; significantly better than it in pairs: "
             f"{', '.join(map(one.short, one.above))}") if one.above else ""
    return (_listed(names) if names else "none") + above


def _absent(one: Standing) -> str:
    words = [_listed(list(one.lacking))] if one.lacking else []
    return "; ".join([*words, *(f"data set {name}" for name in one.thin)])


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def _gain(one: Standing) -> str:
    seen = one.gains.get(one.best)
    if seen is None:
        return "-" if one.best in one.senders else "no communication"
    words = f"{seen.mean:+.1f}"
    return words if seen.low is None else f"{words} [{seen.low:+.1f}, {seen.high:+.1f}]"


def _gains(standings: Sequence[Standing]) -> str:
    every = [(one, m, seen) for one in standings for m, seen in one.gains.items()]
    if not every:
        return ""
    up = [e for e in every if e[2].apart > 0]
    down = [e for e in every if e[2].apart < 0]
    best = max(every, key=lambda e: e[2].mean)
    worst = min(every, key=lambda e: e[2].mean)
    return (
        f"of {len(every)} entries (a method in a setting, without LocalOnly), {len(up)} are "
        f"significantly better than the best baseline without collaboration, {len(down)} are "
        f"significantly worse, {len(every) - len(up) - len(down)} are undecided. Gains range from "
        f"{worst[2].mean:+.1f} points ({worst[0].short(worst[1])}, {worst[0].lane}) to "
        f"{best[2].mean:+.1f} ({best[0].short(best[1])}, {best[0].lane}). On single data sets, "
        f"with intervals over seeds alone: {sum(one.set_by_set[0] for one in standings)} of "
        f"{sum(map(sum, (one.set_by_set for one in standings)))} better, "
        f"{sum(one.set_by_set[2] for one in standings)} worse. Each test is at the 5 % level, "
        "without correction: if federation had no effect, one test in forty would show better "
        "and one in forty worse."
    )


def _hurt(standings: Sequence[Standing]) -> str:
    shares = [(value, one.short(m), one.lane)
              for one in standings for m, value in one.hurt.items()]
    if not shares:
        return ""
    middle = statistics.median(value for value, _, _ in shares)
    least, most = min(shares), max(shares)
    return (
        f"in the median entry {middle:.0f} % of the clients do worse than with their own local "
        f"logistic regression; minimum {least[0]:.0f} % ({least[1]}, {least[2]}), "
        f"maximum {most[0]:.0f} % ({most[1]}, {most[2]})."
    )


def _claims(claims: Sequence[Answer]) -> str:
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
        f"refuted{named(refuted, MANY)}, {number[UNDERPOWERED]} underpowered; {number[NOT_RUN]} "
        f"were not run. Each test is at the 5 % level; with Holm's correction for all of them "
        f"{len(firm)} stay supported{named(firm, MANY)}."
    ) + (f" {early} of the tests have fewer pairs than planned and are preliminary."
         if early else "")


def _sure(standings: Sequence[Standing], facts: Mapping[str, Any]) -> str:
    standings = [one for one in standings if one.alike]
    seen = [c.detectable for one in standings for c in one.apart.values()
            if c.detectable is not None]
    words = []
    if seen:
        sets = sorted({one.sets for one in standings})
        seeds = max(one.seeds for one in standings)
        words.append(
            f"up to {seeds} seeds on {' or '.join(map(str, sets))} data sets, paired. A "
            "difference to the best method must be at least "
            f"{statistics.median(seen):.1f} points to be detected with a power of 80 % "
            f"(median; {min(seen):.1f} to {max(seen):.1f})."
        )
        few = sum(one.sets == 2 for one in standings)
        if few:
            words.append(f"{few} of {len(standings)} rows have two data sets: their interval "
                         f"extends {float(stdtrit(1, 0.975)):.1f} standard errors to each side, so "
                         "only differences that agree on both sets are significant.")
        if 1 in sets:
            words.append("An interval from one data set does not generalise to others.")
    wanted, cells, missing = facts["wanted"], facts["cells"], facts["missing"]
    if missing:
        words.append(f"{missing} of {wanted} planned runs are missing.")
    words.append(f"{facts['tuned']} of {cells} runs use all tuned values of their method.")
    return " ".join(words)
