"""The advice as lines of text and as JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedvlm.advise.sets import FEW, LabelTrial
from fedvlm.advise.trial import CrossValidation
from fedvlm.advise.verdict import ENOUGH, IMAGES, Advice, MethodReach, names_sentence
from fedvlm.advise.ways import (
    AFL,
    AFL_PRIOR,
    ALONE_DOES,
    ALONE_FLAGS,
    FEDERATE,
    FLAGS,
    LABEL_ALONE,
    LOGREG,
    SMALL,
    TOGETHER,
    UNKNOWN,
    WORDS,
    cost_words,
    end_lines,
    short_name,
)
from fedvlm.federation.discovery import load_trainer
from fedvlm.runs.verify.answer import ACCURACY, baseline_name
from fedvlm.runs.verify.meaning import meaning_words, shared_classes

BESIDE = " (a baseline: no method runs it on sets of labels)"
BY_ALL = "; each simulated client is judged by the images of all, in its own class shares"
LISTED = 6  # clients that are named
WIDE = 50.0  # points: half of an interval of which nothing is told
RARE = 5.0  # points of class-balanced accuracy that are told
UNLIKE = 5  # times the images of the smallest client: the largest is told on its own


def alone_flags(advice: Advice) -> str:
    """Return the flags of a run of the best alone where that is the advice; empty elsewhere."""
    flags = ALONE_FLAGS if advice.measure == ACCURACY else LABEL_ALONE
    return flags.get(advice.alone.name, "") if advice.verdict == ALONE_DOES else ""


def cost_line(method: str, width: int, classes: int) -> str:
    """Return the bytes that a client sends and gets, and what AFL's sums tell of single images."""
    cost = cost_words(method, width, classes)
    return f"{cost}. {load_trainer(AFL).tells_single}" if method in (AFL, AFL_PRIOR) else cost


@dataclass(frozen=True)
class AdvicePage:
    """An advice with what its page says beside it.

    Attributes:
        images: training images of each client.
        names: of the clients.
        command: to paste.
        cost: see ``cost_line``; empty for a method that was not judged.
        classnames: by class or label.
        alone: the command of a run in which clients share nothing; empty where there is none.
        fewer: to how many clients the same images could be dealt so that each has enough of them;
            0: the clients are not simulated, or none.
    """

    advice: Advice
    trial: CrossValidation | LabelTrial
    images: Sequence[int]
    names: Sequence[str]
    command: str = ""
    cost: str = ""
    classnames: Sequence[str] = ()
    alone: str = ""
    fewer: int = 0

    def lines(self) -> list[str]:
        """Return the page as text, at most 25 lines."""
        advice, images, names = self.advice, self.images, self.names
        sets = advice.measure != ACCURACY
        by_all = isinstance(self.trial, CrossValidation) and self.trial.by_all
        rows = [
            (f"each client alone ({baseline_name(advice.alone.name)})", advice.alone),
            *((f"together: {WORDS[s.name]}{BESIDE if sets and s.name == AFL else ''}", s)
              for s in _in_order(advice)),
            ("all images in one place (pooled)", advice.pooled),
        ]
        wide = max(len(words) for words, _ in rows)
        return [
            f"{len(images)} clients, {_span(images)} training images each, {self.trial.classes} "
            f"{'labels' if sets else 'classes'}; {self.trial.folds} folds of these"
            f"{BY_ALL if by_all else ''}; no test image was opened",
            f"{f'{advice.measure} (%), heads at the end of training':<{wide}}  personal  "
            f"{'AUROC' if sets else 'balanced':>8}  worst client",
            *(f"{words:<{wide}}  {s.personal:>8.1f}  {s.balanced:>8.1f}  {s.worst:>12.1f}"
              for words, s in rows),
            f"Verdict: {advice.verdict}: {advice.why}. {_size(advice)}.",
            *([f"{meaning[0].upper()}{meaning[1:]}."] if (meaning := self.meaning()) else []),
            *(text if text.endswith(".") else f"{text}." for text in (
                *leaning_lines(advice, self.fewer), _clients(advice, names),
                *_largest(advice, images, names), *_needed(advice, images, names),
                *_need_unknown(advice), *_rare(advice, self.classnames), names_sentence(advice))),
            *end_lines(advice.verdict, self.command, self.cost, self.alone, _rare_classes(
                advice, advice.alone if advice.verdict == ALONE_DOES else advice.together)),
        ]

    def meaning(self) -> str:
        """Return whether clients seem to mean different things by the same class names, in words.
        """
        advice, trial = self.advice, self.trial
        counts = [y.sum(0).tolist() for y in trial.truth] if isinstance(trial, LabelTrial) else [
            c.counts(trial.classes).tolist() for c in trial.clients]
        alone, pooled = advice.alone.personal, advice.pooled.personal
        return meaning_words(alone, pooled, advice.chance, shared_classes(counts, self.classnames),
                             alone - pooled > advice.pooled_margin)

    def record(self) -> dict[str, Any]:
        """Return the page as plain JSON.

        ``check`` is there where class names seem to mean different things. Margins above ``WIDE``
        are null. Without ``needs_known`` nothing is told of what a client
        would need alone. Of sets of labels there is ``measure``, ``auroc`` in place of
        ``balanced``, and the labels that are too rare to be judged.
        """
        advice = self.advice
        sides = (advice.alone, *_in_order(advice), advice.pooled)
        sets = advice.measure != ACCURACY
        rare = [self.classnames[i] for i in advice.silent]
        known = advice.alone.name == LOGREG and not sets
        needs = advice.needs if known else (None,) * len(self.names)
        return ({"measure": advice.measure, "not_judged": rare} if sets else {}) | {
            "verdict": advice.verdict, "why": advice.why, "method": advice.method,
            "alone": advice.alone.name, "points": advice.points, "margin": _told(advice.margin),
            "points_to": advice.leaning, "enough_with_clients": self.fewer or None,
            "reached": {
                s.name: {"personal": s.personal, "auroc" if sets else "balanced": s.balanced,
                         "worst": s.worst} for s in sides},
            "clients": [
                {"client": name, "images": n, "judged_by": size, "alone": a, "together": b,
                 "margin": _told(m),
                 "needs_alone": None if need is None or math.isinf(need) else need,
                 "needs_more_than_tried": need is not None and math.isinf(need)}
                for name, n, size, a, b, m, need in zip(
                    self.names, self.images, advice.sizes, advice.alone.clients,
                    advice.together.clients, advice.margins, needs, strict=True)
            ],
            "needs_known": known, "zero_shot": advice.names, "near_duplicates": advice.twins,
            "folds": self.trial.folds, "command": self.command, "cost": self.cost,
        } | ({"alone_command": self.alone} if self.alone else {}) | (
            {"check": meaning} if (meaning := self.meaning()) else {})


def leaning_lines(advice: Advice, fewer: int = 0) -> list[str]:
    """Return which way an open verdict points, and what would settle it; see ``AdvicePage``."""
    if not advice.lacks:
        return []
    low, high = advice.points - advice.margin, advice.points + advice.margin
    way = {
        FEDERATE: f"This points to federating: the whole interval, {low:+.1f} to {high:+.1f}, is "
                  "above 0",
        ALONE_DOES: f"This points to working alone: the interval ends at {high:+.1f}, below "
                    f"{SMALL:.0f} points",
        None: "This points neither way",
    }[advice.leaning]
    return [way + fewer_words(fewer, advice.own_size, advice.unit)]


def fewer_words(fewer: int, size: float, unit: str = IMAGES) -> str:
    """Return how many simulated clients have enough images, as the end of a sentence; '' of none.

    Args:
        size: of all clients together, in ``unit``.
    """
    return (f"; fewer simulated clients, --num-users {fewer}, have about {size / fewer:.0f} {unit} "
            "each, enough to be judged, but sharing adds less there") if fewer else ""


def _told(margin: float) -> float | None:
    """Return a margin where it says something."""
    return None if margin > WIDE else margin


def _size(advice: Advice) -> str:
    """Return the mean gain or loss with its interval."""
    points, margin = advice.points, advice.margin
    name = short_name(advice.method)
    if margin > WIDE:
        return f"{name} against working alone: too few {advice.unit} to tell the difference"
    told = f"95 % interval {points - margin:+.1f} to {points + margin:+.1f}"
    even = advice.together.balanced - advice.alone.balanced
    beside = f"{'class-balanced' if advice.measure == ACCURACY else 'AUROC'} {even:+.1f}"
    if points >= 0:
        return f"{name} gains {points:+.1f} points over working alone ({told}), {beside}"
    down = "loses" if points + margin < 0 else "seems to lose"
    return f"{name} {down} {-points:.1f} points against working alone ({told}), {beside}"


def _in_order(advice: Advice) -> list[MethodReach]:
    sides = {s.name: s for s in (advice.together, *advice.others)}
    return [sides[name] for name in TOGETHER if name in sides]


def _span(images: Sequence[int]) -> str:
    low, high = min(images), max(images)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _name(client: str) -> str:
    """Return a client's name in a sentence; a number would pass for one of images."""
    return f"client {client}" if client.isdecimal() else client


def _some(clients: Sequence[int], names: Sequence[str], values: Sequence[float]) -> str:
    some = sorted(clients, key=lambda k: -abs(values[k]))[:LISTED]
    words = ", ".join(f"{_name(names[k])} {values[k]:+.0f}" for k in some)
    return f"{words}{', ...' if len(clients) > LISTED else ''}"


def _listed(clients: Sequence[int], names: Sequence[str], values: Sequence[float]) -> str:
    return f" ({_some(clients, names, values)})" if clients else ""


def _clients(advice: Advice, names: Sequence[str]) -> str:
    """Return who gains and who loses."""
    judged, gain, lose = advice.judged, advice.gaining, advice.losing
    few = len(advice.sizes) - len(judged)
    unit = advice.unit
    rest = f"; {few} have fewer than {ENOUGH} {unit}, too few to tell one by one" if few else ""
    if not judged:
        up = sum(g > 0 for g in advice.gains)
        return (f"Clients: all have fewer than {ENOUGH} {unit}, too few to tell one by one; {up} "
                f"of {len(advice.gains)} did better together")
    unclear = [k for k in judged if k not in (*gain, *lose)]
    up = sum(advice.gains[k] > 0 for k in unclear)
    more = (f" ({_some(unclear, names, advice.gains)}; {up} of these did better together)"
            if unclear else "")
    return (f"Clients: {len(gain)} gain clearly{_listed(gain, names, advice.gains)}, {len(lose)} "
            f"lose clearly{_listed(lose, names, advice.gains)}, {len(unclear)} not clear one by "
            f"one{more}{rest}")


def _largest(advice: Advice, images: Sequence[int], names: Sequence[str]) -> list[str]:
    """Return what the largest client gains where clients differ much, as the mean hides it."""
    k = max(range(len(images)), key=lambda at: images[at])
    if images[k] < UNLIKE * min(images) or k not in advice.judged:
        return []
    points, margin = advice.gains[k], advice.margins[k]
    clear = "a clear " + ("gain" if points > 0 else "loss") if abs(points) > margin else "not clear"
    return [f"The largest client, {_name(names[k])} ({images[k]:,} images), reaches "
            f"{advice.alone.clients[k]:.1f} alone and {advice.together.clients[k]:.1f} together: "
            f"{points:+.1f} points, {clear} (95 % interval {points - margin:+.1f} to "
            f"{points + margin:+.1f}); for this client that counts, not the mean gain"]


def _needed(advice: Advice, images: Sequence[int], names: Sequence[str]) -> list[str]:
    """Return how many images alone would take."""
    if advice.verdict == ALONE_DOES or advice.alone.name != LOGREG:
        return []
    alike: dict[tuple[str, int], list[str]] = {}  # those of whom the same is told
    for k, n in enumerate(advice.needs):
        if n is not None:
            much = f"more than {4 * images[k]}" if math.isinf(n) else f"about {round(n)}"
            alike.setdefault((much, images[k]), []).append(_name(names[k]))
    if not alike:
        return []
    some = ", ".join(
        f"{_who(clients, len(names))} {much} ({'has' if len(clients) == 1 else 'have'} {has})"
        for (much, has), clients in list(alike.items())[:4])
    return [f"To reach the same alone a client would need, in images: {some}"
            f"{', ...' if len(alike) > 4 else ''}"]


def _who(clients: Sequence[str], of: int) -> str:
    """Return clients by name, or where they are more than two by number."""
    if len(clients) <= 2:
        return " and ".join(clients)
    return f"{'all ' if len(clients) == of else ''}{len(clients)} clients"


def _need_unknown(advice: Advice) -> list[str]:
    """Return that it is not known how many images alone would take, where that is a question."""
    sets = advice.measure != ACCURACY
    if advice.points <= 0 or advice.verdict == ALONE_DOES or (
            advice.alone.name == LOGREG and not sets):
        return []
    why = "it is not fitted for sets of labels" if sets else (
        f"it is fitted for {baseline_name(LOGREG)} only, and "
        f"{baseline_name(advice.alone.name)} is better alone here")
    return [f"How many images a client would need to reach the same alone is not known: {why}"]


def _rare(advice: Advice, classnames: Sequence[str]) -> list[str]:
    """Return which labels are too rare to be judged."""
    if not advice.silent:
        return []
    some = ", ".join(classnames[i] for i in advice.silent[:LISTED])
    more = f" and {len(advice.silent) - LISTED} more" if len(advice.silent) > LISTED else ""
    return [f"Labels: cannot say of {some}{more}: no client has {FEW} images with and {FEW} "
            "without it"]


def _rare_classes(advice: Advice, taken: MethodReach) -> list[str]:
    """Return which way serves rare classes much better than the one that is advised, if one does.

    Nothing where held-out images do not tell.
    """
    sides = [s for s in (advice.together, *advice.others, advice.alone) if s is not taken]
    best = max(sides, key=lambda s: s.balanced, default=taken)
    more = best.balanced - taken.balanced
    if more <= RARE or advice.measure != ACCURACY or (
            advice.verdict == UNKNOWN and not advice.lacks):
        return []
    who = "working alone" if best is advice.alone else (
        f"{short_name(best.name)} ({FLAGS[best.name]})")
    return [f"If rare classes matter more than own shares: {who}, class-balanced {more:+.1f}."]
