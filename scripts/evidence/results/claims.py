"""A card's claim as one testable sentence, and what the runs of its lane say to it.

``Claim: personal is higher than FedAvg's in setting dirichlet.`` The rival is a method's name, with
what it trains in brackets or its tag where that matters, or a reference's name; a bare name is the
run that trains the same parts as the method.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedvlm.core.errors import ConfigError
from fedvlm.core.stats import mean
from fedvlm.report.collect import as_float
from fedvlm.report.statistics.contrast import Contrast, contrast
from fedvlm.report.statistics.images import Answers, ClientAnswers, answers_of
from fedvlm.report.statistics.paired import holm
from fedvlm.report.tables.papers import source_of
from fedvlm.runs.bits import PLACES
from fedvlm.runs.finished import FinishedRun
from fedvlm.runs.verify.answer import BASELINES

NONE = "none"
SUPPORTED, REFUTED, UNDECIDED, NOT_RUN = "supported", "refuted", "undecided", "not run"
UNTRAINED = ("chance", "majority", "zero_shot", "zero_shot_local", "zero_shot_prior")
LOCAL, PERSONAL = "LocalOnly", "personal"
MARGIN = 1.0  # points: an interval within them says that there is no difference worth a name
FALSE = 0.05  # of all claims together, after Holm
_GRAMMAR = re.compile(
    r"(?P<metric>\w+) is higher than (?P<rival>.+)'s in (?:setting|lane) (?P<lane>[\w-]+)\.?"
)
_REFERENCES = {name: key for key, name in BASELINES.items()}
Numbers = dict[Any, dict[Any, float]]  # data set -> seeds -> value
BEST_ALONE = "best alone"
DEAL = ("data_digest", "backbone_digest", "cohort", "unseen_clients")  # beside the seeds


@dataclass(frozen=True)
class Side:
    """A method's numbers by place and seeds, and of a mean over clients their answers."""

    numbers: Numbers
    answers: Mapping[Any, Mapping[Any, Answers]]

    def by_set(
        self, places: Collection[Any], cells: Collection[tuple[Any, Any]]
    ) -> list[dict[Any, Answers]]:
        """Return the answers by data set, as ``by_set`` the numbers.

        Of several columns (shots) the mean of the right answers: their test images are the same.
        """
        out: dict[Any, dict[Any, list[Answers]]] = {}
        for place in sorted(places, key=str):
            for seed, told in self.answers.get(place, {}).items():
                if (place, seed) in cells:
                    out.setdefault(place[0], {}).setdefault(seed, []).append(told)
        return [{seed: _merged(several) for seed, several in seeds.items()}
                for seeds in out.values()]


def _merged(columns: Sequence[Answers]) -> Answers:
    """Return each client's mean number of right answers, all columns alike."""
    if len(columns) == 1:
        return columns[0]
    return {client: ClientAnswers(one.images, math.fsum(c[client].right for c in columns)
                                  / len(columns))
            for client, one in columns[0].items()
            if all(client in c and c[client].images == one.images for c in columns)}


@dataclass(frozen=True)
class Claim:
    """A method's number is higher than a rival's in a lane."""

    metric: str
    rival: str
    lane: str

    def __str__(self) -> str:
        return f"{self.metric} is higher than {self.rival}'s in setting {self.lane}"


@dataclass(frozen=True)
class Label:
    """A method of a lane: its name, what it trains (empty where it has no choice), its tag."""

    trainer: str
    parts: str = ""
    tag: str = ""

    def __str__(self) -> str:
        parts = f" [{self.parts}]" if self.parts else ""
        return f"{self.trainer}{parts}" + (f" ({self.tag})" if self.tag else "")

    @property
    def short(self) -> str:
        """The label without what is trained."""
        return str(replace(self, parts=""))


@dataclass(frozen=True)
class Answer:
    """What the runs say to a claim.

    Attributes:
        verdict: on the data sets of the claim's setting: ``SUPPORTED`` where the 95 % interval of
            the paired difference lies above zero, ``REFUTED`` where it lies below, or within
            ``MARGIN`` of zero, ``UNDECIDED`` where it holds zero and more; ``NOT_RUN``.
        difference: method minus rival; None where nothing was compared.
        second: of a personal claim, method minus LocalOnly with the same parts, or the best
            baseline without collaboration; ``alone``: which; None of others. best: method minus
            that baseline in any case.
        lane: where they were compared; steps: the method's local steps, in times the rival's, over
            the same pairs; None of a reference.
        planned: how many pairs the lane's plans have; 0 where they are not known.
        why: of ``NOT_RUN``.
        untuned: whether the method's runs have no tuned values.
        firm: whether a supported claim stays so with Holm's correction for all answers.
    """

    method: str
    claim: Claim
    verdict: str
    difference: Contrast | None = None
    rival: str = ""
    lane: str = ""
    steps: float | None = None
    why: str = ""
    firm: bool = False
    planned: int = 0
    second: Contrast | None = None
    alone: str = ""
    best: Contrast | None = None
    untuned: bool = False

    @property
    def so_far(self) -> str:
        """Of an answer that more pairs are planned for: how many there are."""
        pairs = self.difference.pairs if self.difference else 0
        return f"so far: {pairs} of {self.planned} pairs" if 0 < pairs < self.planned else ""


def read_claim(text: str) -> Claim | None:
    """Return the claim of a card's field; None of ``none``, and of no field.

    Raises:
        ConfigError: it is no sentence of this form.
    """
    words = " ".join(text.split())
    if words.rstrip(".") in ("", NONE):
        return None
    match = _GRAMMAR.fullmatch(words)
    if match is None:
        raise ConfigError(
            f"'{words}' is not a claim; the card's field Claim is "
            "'METRIC is higher than METHOD's in setting NAME.' or 'none.'"
        )
    claim = Claim(**match.groupdict())
    if _REFERENCES.get(claim.rival) in UNTRAINED:
        raise ConfigError(f"'{words}': nothing of {claim.rival} is trained; name a method, or "
                          f"{BASELINES['logreg']}")
    return claim


def answers(trainer: str, claim: Claim, runs: Sequence[FinishedRun]) -> list[Answer]:
    """Return what the runs of a lane say, once for each set of parts that the method trains.

    Args:
        trainer: the method's name.
        runs: of the lane.
    """
    every = [r for r in runs if r.protocol["trainer"] == trainer and not r.protocol.get("tag")]
    out = []
    for label in dict.fromkeys(run.method for run in every):
        here = [run for run in every if run.method == label]
        steps = None
        mine = side_of(here, claim.metric)
        if claim.rival in _REFERENCES:
            theirs, rival = side_of(here, claim.metric, _REFERENCES[claim.rival]), claim.rival
        else:
            others, why = _rivals(claim.rival, here[0], runs)
            if claim.metric == "global" and others and not any(
                    run.totals().get("bytes_up") for run in others):
                why = f"{claim.rival} shares nothing, so its shared model is the untrained start"
            if why:
                out.append(Answer(label, claim, NOT_RUN, why=why))
                continue
            theirs = side_of(others, claim.metric)
            rival = others[0].method if others else claim.rival
            steps = steps_ratio(here, others, pairs_of(mine.numbers, theirs.numbers))
        if rival != label:
            second, alone, best = _alone(label, claim, rival, here, runs)
            out.append(replace(_answer(label, claim, rival, mine, theirs), steps=steps,
                               second=second, alone=alone, best=best))
    return out or [Answer(trainer, claim, NOT_RUN, why=f"no finished run of {trainer}")]


def _alone(
    label: str, claim: Claim, rival: str, here: Sequence[FinishedRun], runs: Sequence[FinishedRun]
) -> tuple[Contrast | None, str, Contrast | None]:
    """Return a personal claim's ``second``, ``alone`` and ``best`` of ``Answer``."""
    if claim.metric != PERSONAL or label.startswith(LOCAL):
        return None, "", None
    best = difference(side_of(here, PERSONAL), side_of(here, PERSONAL, BEST_ALONE))
    others = [run for run in runs if label_of(run) == replace(label_of(here[0]), trainer=LOCAL)]
    if others and others[0].method != rival:
        local = difference(side_of(here, PERSONAL), side_of(others, PERSONAL))
        return local, others[0].method, best
    return best, "best baseline without collaboration", best


def _answer(label: str, claim: Claim, rival: str, mine: Side, theirs: Side) -> Answer:
    seen = difference(mine, theirs)
    if seen is None:
        why = f"no run of {label} has {claim.metric}" if not mine.numbers else \
            f"no run of {rival} has {claim.metric}" if not theirs.numbers else \
            f"{label} and {rival} have no data set and seed in common"
        return Answer(label, claim, NOT_RUN, None, rival, why=why)
    return Answer(label, claim, verdict(seen), seen, rival)


def verdict(seen: Contrast) -> str:
    """Return what an interval of differences says to ``higher``; see ``Answer``."""
    if seen.apart > 0:
        return SUPPORTED
    if seen.low is None or seen.high is None:
        same = seen.mean == 0 and seen.pairs > 1
        return REFUTED if same else UNDECIDED
    within = seen.low > -MARGIN and seen.high < MARGIN
    return REFUTED if seen.apart < 0 or within else UNDECIDED


def firmed(every: Sequence[Answer]) -> list[Answer]:
    """Return the answers, ``firm`` where they hold for all of them together (Holm, at 5 %)."""
    chances = holm([a.difference.chance if a.difference else None for a in every])
    return [replace(a, firm=a.verdict == SUPPORTED and p is not None and p < FALSE)
            for a, p in zip(every, chances, strict=True)]


def labels_of(trainer: str, peft: str = "", tag: str = "") -> set[str]:
    """Return the names by which a claim may call a plan's entry."""
    label = Label(trainer, peft, tag)
    return {str(label), label.short}


def missing(trainer: str, claim: Claim, planned: Collection[str]) -> list[str]:
    """Return who of a claim's two is among no names (``labels_of``) of its lane's plans."""
    names = [trainer] if claim.rival in _REFERENCES else [trainer, claim.rival]
    return [name for name in names if name not in planned]


def unmeasured(metric: str, runs: Sequence[FinishedRun]) -> int:
    """Return how many data sets and seeds have a finished run without a metric.

    No pair is missing there: a set whose classes are all trained on has no unseen ones.
    """
    return len({(run.protocol["dataset"], run.protocol["seed"]) for run in runs
                if run.value(metric) is None})


def rivals_of(name: str, parts: str, labels: Collection[Label]) -> list[Label]:
    """Return whom a claim's rival is of a lane's methods; one, unless the name says too little.

    By its whole label, else by its name and tag: that which trains the same ``parts``, else all.
    """
    whole = [one for one in labels if str(one) == name]
    bare = [one for one in labels if one.short == name]
    return whole or [one for one in bare if one.parts == parts] or bare


def _rivals(
    name: str, mine: FinishedRun, runs: Sequence[FinishedRun]
) -> tuple[list[FinishedRun], str]:
    """Return the runs of a rival, and why there are none where the name is several methods'."""
    labels = {label_of(run) for run in runs}
    chosen = rivals_of(name, label_of(mine).parts, labels)
    if len(chosen) > 1:
        several = ", ".join(sorted(map(str, chosen)))
        return [], f"{name} is ambiguous here: {several}; the claim must name one of them"
    return [run for run in runs if label_of(run) in chosen], ""


def label_of(run: FinishedRun) -> Label:
    """Return a run's method, what it trains and its tag."""
    return Label(str(run.protocol["trainer"]), str(run.protocol.get("peft") or ""),
                 str(run.protocol.get("tag") or ""))


def by_set(numbers: Numbers, cells: Collection[tuple[Any, Any]]) -> Numbers:
    """Return a method's numbers by data set: the mean over its columns (shots), seed by seed.

    The data set is the unit of an interval; its columns share classes and images.

    Args:
        cells: the (place, seeds) that count, alike for all that is compared; of a data set the
            seeds that all of its columns have.
    """
    places: dict[Any, list[Any]] = {}
    for place in sorted(numbers, key=str):
        places.setdefault(place[0], []).append(place)
    out: Numbers = {}
    for dataset, columns in places.items():
        common = set.intersection(*({s for s in numbers[p] if (p, s) in cells} for p in columns))
        out[dataset] = {s: mean(numbers[p][s] for p in columns) or 0.0
                        for s in sorted(common, key=str)}
    return out


def pairs_of(a: Numbers, b: Numbers) -> set[tuple[Any, Any]]:
    """Return the (data set, seeds) that both have."""
    return {(place, seeds) for place in a for seeds in a[place] if seeds in b.get(place, {})}


def steps_ratio(
    mine: Sequence[FinishedRun], theirs: Sequence[FinishedRun], pairs: Collection[tuple[Any, Any]]
) -> float | None:
    """Return a method's local steps, final phases included, in times its rival's, over pairs."""
    a, b = (numbers_of([run for run in runs if (place_of(run), seeds_of(run)) in pairs], _spent)
            for runs in (mine, theirs))
    both = pairs_of(a, b)
    own, other = (mean(one[place][seeds] for place, seeds in sorted(both, key=str))
                  for one in (a, b))
    return own / other if own is not None and other else None


def _spent(run: FinishedRun) -> float | None:
    steps = run.section("spent").get("local_steps", run.totals().get("local_steps"))
    return float(steps) if isinstance(steps, int | float) else None


def numbers_of(
    runs: Sequence[FinishedRun], value_of: Callable[[FinishedRun], float | None]
) -> Numbers:
    """Return a number of the runs that have it, by place and seeds."""
    out: Numbers = {}
    for run in runs:
        value = value_of(run)
        if value is not None:
            out.setdefault(place_of(run), {})[seeds_of(run)] = value
    return out


def side_of(runs: Sequence[FinishedRun], metric: str, reference: str = "") -> Side:
    """Return a metric of some runs, or of a reference of theirs, with the clients' answers.

    Args:
        reference: its key, or ``BEST_ALONE``: the one that a run's gain is measured from. A number
            that references lack (``new``) is that of the run's section of the same name.
    """
    numbers: Numbers = {}
    answers: dict[Any, dict[Any, Answers]] = {}
    for run in runs:
        key = str(run.section("gain").get("reference", "")) if reference == BEST_ALONE else \
            reference
        record: Mapping[str, Any] = run.last if not reference else \
            run.section("references").get(key) or {}
        value = run.value(metric) if not reference else as_float(
            record.get(metric, run.section(key).get(metric)))
        if value is not None:
            numbers.setdefault(place_of(run), {})[seeds_of(run)] = value
            if metric == PERSONAL:
                told = answers_of(record, run.section(PLACES))
                answers.setdefault(place_of(run), {})[seeds_of(run)] = told
    return Side(numbers, answers)


def difference(mine: Side, theirs: Side) -> Contrast | None:
    """Return what the pairs of two sides say: the first minus the second; None of no pair."""
    both = [place for place in mine.numbers if place in theirs.numbers]
    cells = pairs_of(mine.numbers, theirs.numbers)
    if not both or not cells:
        return None
    b, a = (list(by_set({p: one.numbers[p] for p in both}, cells).values())
            for one in (mine, theirs))
    told = [one.by_set(both, cells) for one in (theirs, mine)]
    sources = [source_of(dataset) for dataset in by_set({p: mine.numbers[p] for p in both}, cells)]
    whole = all(len(one) == len(a) for one in told)
    return contrast(a, b, sources=sources, answers=(told[0], told[1]) if whole else None)


def place_of(run: FinishedRun) -> tuple[Any, ...]:
    """Return what makes a column of a lane: the data set and how much of it."""
    return run.protocol.get("dataset"), run.protocol.get("shots"), run.protocol.get("subsample")


def seeds_of(run: FinishedRun) -> tuple[Any, Any]:
    """Return model seed and data seed."""
    return run.protocol.get("seed"), run.protocol.get("data_seed")


def deal_of(run: FinishedRun) -> tuple[Any, ...]:
    """Return what a baseline is computed from: images, clients, seeds; no method's settings."""
    return (place_of(run), seeds_of(run), *(run.protocol.get(key) for key in DEAL))
