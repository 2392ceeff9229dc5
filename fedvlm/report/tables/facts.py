"""What a table sorts runs by: protocol keys, config keys, the method's name; and filters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from fedvlm.config.keys import default_schema
from fedvlm.config.option import Schema
from fedvlm.core.errors import ConfigError, DataError, did_you_mean, fold
from fedvlm.core.stats import is_number
from fedvlm.report.collect import SEEDS
from fedvlm.runs.finished import FinishedRun
from fedvlm.runs.verify.answer import ALONE, POOLED, TOGETHER, WHO, baseline_name

METRIC = "metric"  # the axis that is no property of a run
METHOD = ("trainer", "peft", "tag")  # what makes a method's name
SECTIONS_AS_ROWS = {"zero-shot": "zero_shot", "untrained": "untrained"}  # flag -> section
# Kinds of the references that a run holds (docs/references.md) -> a group's heading.
KINDS = {
    "alone": WHO[ALONE], "together": f"{WHO[TOGETHER]}, in one round", "bound": WHO[POOLED],
}
REFERENCES = (*SECTIONS_AS_ROWS, *KINDS)
UNSEEN = ("base_all", "base_other", "new", "hm2", "hm3", "cm")  # of personal models, too
IDENTITY = ("images", "transform", "device")  # parts of an identity that a table compares

# Protocol keys that came later: what older runs did.
BEFORE = {"server_holdout": 0, "unseen_clients": 0, "cohort": 0, "target": "label"}

Pair = tuple[str, str]


@dataclass(frozen=True)
class RunFacts:
    """A run as a table sees it, or the reference numbers that stand in its results.

    Attributes:
        run: where the numbers come from.
        config: the identity's config, flat (``OPTIM.LR`` -> 0.005); empty where unreadable.
        identity: the parts of it in ``IDENTITY``.
        reference: empty for the run itself, else the name of its reference.
        kind: the reference's, one of ``KINDS``; empty for a section that stands among methods.
    """

    run: FinishedRun
    config: Mapping[str, Any] = field(default_factory=dict)
    identity: Mapping[str, Any] = field(default_factory=dict)
    reference: str = ""
    kind: str = ""

    @property
    def seeds(self) -> tuple[Any, ...]:
        """Model seed and data seed."""
        return tuple(self.run.protocol.get(key) for key in SEEDS)

    @property
    def trains(self) -> bool:
        """Whether the run took a step; a zero-shot run's rounds and batches mean nothing."""
        return self.run.totals().get("local_steps") != 0

    @property
    def collaborates(self) -> bool:
        """Whether anything was sent; LocalOnly and ZeroShot are no federated methods."""
        totals = self.run.totals()
        return any(totals.get(name) != 0 for name in ("bytes_up", "bytes_down"))

    @property
    def numbers(self) -> Mapping[str, Any]:
        """A reference's numbers; empty for the run itself."""
        if self.kind:
            numbers = self.run.section("references").get(self.reference)
            if not isinstance(numbers, Mapping):
                return {}
            more = self.run.section(self.reference)  # zero_shot: on classes not trained on, too
            same = numbers.get("personal") == more.get("personal") is not None
            return {**{k: more[k] for k in UNSEEN if k in more}, **numbers} if same else numbers
        return self.run.section(SECTIONS_AS_ROWS.get(self.reference, ""))

    def fact(self, key: str) -> Any:
        """Return a protocol, config or identity value; None where there is none, or an empty one.

        A config key that an identity leaves out because it changes nothing has its neutral value.
        """
        if key.isupper():
            value = self.config[key] if key in self.config else _neutral(key)
        elif key in self.run.protocol:
            value = self.run.protocol[key]
        else:
            value = self.identity.get(key, BEFORE.get(key))
        return None if value == "" else value

    def names(self, key: str) -> bool:
        """Whether the run says anything of ``key``; one of an older version may not."""
        if key.isupper():
            return key in self.config or (bool(self.config) and _neutral(key) is not None)
        return key in self.run.protocol or key in self.identity or key in BEFORE

    def label(self, key: str, axes: Sequence[str]) -> str:
        """Return what stands in a table's header for ``key``.

        Args:
            key: any key but ``metric``.
            axes: all row and column keys: a part of the method's name that has an axis of its
                own is left out of ``trainer``.
        """
        if key == "trainer":
            return self._method(axes)
        value = self.fact(key)
        if key == "shots" and value == -1:
            return "all shots"
        if is_number(value):
            return f"{key} {value:g}" if isinstance(value, float) else f"{key} {value}"
        return "none" if value is None else str(value)

    def _method(self, axes: Sequence[str]) -> str:
        if self.kind:
            return baseline_name(self.reference)
        if self.reference == "zero-shot":
            return "zero-shot"
        apart = {key: "" for key in METHOD[1:] if key in axes}
        if "tag" not in axes:
            apart["tag"] = self._tag(axes)
        name = replace(self.run, protocol={**self.run.protocol, **apart}).method
        return f"{name}, untrained" if self.reference else name

    def _tag(self, axes: Sequence[str]) -> str:
        """Return the run's tag without what a sweep put there of values that the axes say."""
        words = str(self.fact("tag") or "").split("-")
        for key in axes:
            last = key.rpartition(".")[2].lower()
            spans = [(i, j) for i in range(len(words)) for j in range(i + 1, len(words) + 1)
                     if any(_says("-".join(words[i:j]), name, self.fact(key))
                            for name in (last, key.lower()))]
            for i, j in spans[:1]:
                words[i:j] = []
        return "-".join(words)


def _says(mark: str, name: str, value: Any) -> bool:
    """Whether a tag's part is ``NAMEvalue``, as ``lr1e-3`` of 0.001."""
    text = mark.removeprefix(name)
    try:
        return text != mark and (text == str(value) or float(text) == value)
    except ValueError:
        return False


def facts_of(runs: Iterable[FinishedRun]) -> tuple[list[RunFacts], list[str]]:
    """Return the runs with their configs, and a note per config that cannot be read."""
    entries, notes = [], []
    for run in runs:
        config: dict[str, Any] = {}
        identity: dict[str, Any] = {}
        try:
            config = run.identity_config()
            whole = run.manifest()["identity"]
            identity = {key: whole[key] for key in IDENTITY if key in whole}
        except DataError as error:
            notes.append(f"{run.path}: {error}; its hyper-parameters were not compared")
        entries.append(RunFacts(run, config, identity))
    return entries, notes


@cache
def _neutral(key: str) -> Any:
    option = _schema().get(key)
    return None if option is None else option.neutral


@cache
def _schema() -> Schema:
    return default_schema()


def check_keys(keys: Iterable[str], entries: Sequence[RunFacts], flag: str) -> None:
    """Refuse keys that no run has, ``metric`` apart.

    Raises:
        ConfigError: with the nearest known key.
    """
    known = [*dict.fromkeys(
        k for e in entries for k in (*e.run.protocol, *e.config, *e.identity)
    ), METRIC]
    for key in keys:
        if key not in known:
            short = ", ".join(k for k in known if not k.isupper())
            raise ConfigError(
                f"{flag} {key}: these runs have no such key{did_you_mean(key, known)} "
                f"(known: {short}, and config keys such as OPTIM.LR)"
            )


def filter_runs(
    entries: Sequence[RunFacts], where: Sequence[Pair], exclude: Sequence[Pair]
) -> list[RunFacts]:
    """Return the entries that match every ``where`` and no ``exclude``.

    Values are compared as text; ``trainer`` takes the class name or the whole label, both it and
    ``dataset`` in any spelling that a run's flag takes; a digest its first characters;
    several ``where`` of one key are alternatives.

    Raises:
        ConfigError: an unknown key, or nothing is left.
    """
    check_keys((k for k, _ in where), entries, "--where")
    check_keys((k for k, _ in exclude), entries, "--exclude")
    wanted = {key: [v for k, v in where if k == key] for key, _ in where}
    rest = [
        e for e in entries
        if all(any(_is(e, k, v) for v in values) for k, values in wanted.items())
        and not any(_is(e, k, v) for k, v in exclude)
    ]
    if entries and not rest:
        key, value = (*where, *exclude)[0]
        first, *more = value.split(",")
        several = f"; several values: {key}={first} {key}={more[0].strip()}" if more else ""
        have = sorted({str(e.fact(key)) for e in entries})
        raise ConfigError(
            f"--where and --exclude leave none of {len(entries)} runs: {key} {value}"
            f"{did_you_mean(value, have)} (the runs have {key} {', '.join(have[:8])}{several})"
        )
    return rest


def _is(entry: RunFacts, key: str, value: str) -> bool:
    fact = entry.fact(key)
    names = {"" if fact is None else str(fact)}
    if key == "trainer":
        names.add(entry.run.method)
    if key in ("trainer", "dataset"):  # spelt as flags take them: eurosat, dtd
        names |= {str(entry.fact("DATASET.DIR") or "")} if key == "dataset" else set()
        return fold(value) in map(fold, names)
    if key.endswith("_digest") or key in IDENTITY:
        return bool(value) and any(name.startswith(value) for name in names)
    return value in names


def add_references(entries: Sequence[RunFacts], names: Sequence[str]) -> list[RunFacts]:
    """Return the entries and the reference numbers in their results that ``names`` asks for.

    Args:
        names: of ``REFERENCES``. What has a row of its own among the methods (``zero-shot``)
            comes first, the kinds come last.
    """
    extra = [
        replace(e, reference=name)
        for name in names if name in SECTIONS_AS_ROWS for e in entries
        if isinstance(e.run.results.get(SECTIONS_AS_ROWS[name]), Mapping)
    ]
    twice = {SECTIONS_AS_ROWS[name] for name in names if name in SECTIONS_AS_ROWS}
    kinds = [
        one for one in references_of(entries)
        if one.kind in names and one.reference not in twice
    ]
    return [*extra, *entries, *kinds]


def references_of(entries: Iterable[RunFacts]) -> list[RunFacts]:
    """Return the references that the entries' results hold, by kind and as the runs order them."""
    every = [
        replace(e, reference=str(name), kind=str(numbers.get("kind")))
        for e in entries for name, numbers in e.run.section("references").items()
        if isinstance(numbers, Mapping) and numbers.get("kind") in KINDS
    ]
    return sorted(every, key=lambda one: list(KINDS).index(one.kind))
