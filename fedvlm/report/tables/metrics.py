"""The numbers a table can show: what each means, which way is better, and its value of a run.

What a table sorts runs by: protocol keys, config keys, the method's name; and filters.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fedvlm.core.errors import ConfigError, DataError, did_you_mean
from fedvlm.report.collect import SEEDS, Run
from fedvlm.runs.metrics import read_metrics

METRIC = "metric"  # the axis that is no property of a run
METHOD = ("trainer", "peft", "tag")  # what makes a method's name
REFERENCES = {"zero-shot": "zero_shot", "untrained": "untrained"}  # flag -> section of the results

Pair = tuple[str, str]


@dataclass(frozen=True)
class Entry:
    """A run, or the reference numbers that stand in its results.

    Attributes:
        run: where the numbers come from.
        config: the identity's config, flat (``OPTIM.LR`` -> 0.005); empty where unreadable.
        reference: empty for the run itself, else a name in ``REFERENCES``.
    """

    run: Run
    config: Mapping[str, Any] = field(default_factory=dict)
    reference: str = ""

    @property
    def seeds(self) -> tuple[Any, ...]:
        """Model seed and data seed."""
        return tuple(self.run.protocol.get(key) for key in SEEDS)

    @property
    def trains(self) -> bool:
        """Whether the run took a step; a zero-shot run's rounds and batches mean nothing."""
        totals = self.run.info.get("totals")
        return not (isinstance(totals, Mapping) and totals.get("local_steps") == 0)

    def fact(self, key: str) -> Any:
        """Return a protocol or config value; None where the run has none such, or an empty one."""
        found = self.config.get(key) if key.isupper() else self.run.protocol.get(key)
        return None if found == "" else found

    def names(self, key: str) -> bool:
        """Whether the run says anything of ``key``; one of an older version may not."""
        return bool(self.config) if key.isupper() else key in self.run.protocol

    def label(self, key: str, axes: Sequence[str]) -> str:
        """Return what stands in a table's header for ``key``.

        Args:
            key: any key but ``metric``.
            axes: all row and column keys: a part of the method's name that has an axis of its
                own is left out of ``trainer``.
        """
        if key == "trainer":
            return self._method(axes)
        found = self.fact(key)
        if key == "shots" and found == -1:
            return "all shots"
        if isinstance(found, int | float) and not isinstance(found, bool):
            return f"{key} {found:g}" if isinstance(found, float) else f"{key} {found}"
        return "none" if found is None else str(found)

    def _method(self, axes: Sequence[str]) -> str:
        if self.reference == "zero-shot":
            return "zero-shot"
        own = {key: "" for key in METHOD[1:] if key in axes}
        name = replace(self.run, protocol={**self.run.protocol, **own}).method
        return f"{name}, untrained" if self.reference else name


def entries(runs: Iterable[Run]) -> tuple[list[Entry], list[str]]:
    """Return the runs with their configs, and a note per config that cannot be read."""
    found, notes = [], []
    for run in runs:
        config: Any = None
        try:
            config = run.manifest()["identity"]["config"]
        except (DataError, KeyError, TypeError) as error:
            why = str(error) if isinstance(error, DataError) else "the manifest names no config"
            notes.append(f"{run.path}: {why}; its hyper-parameters were not compared")
        found.append(Entry(run, config if isinstance(config, dict) else {}))
    return found, notes


def known_keys(found: Sequence[Entry]) -> list[str]:
    """Return every key that a row, column or filter may name, ``metric`` last."""
    keys = {k: None for e in found for k in (*e.run.protocol, *e.config)}
    return [*keys, METRIC]


def check_keys(keys: Iterable[str], found: Sequence[Entry], flag: str) -> None:
    """Refuse keys that no run has.

    Raises:
        ConfigError: with the nearest known key.
    """
    known = known_keys(found)
    for key in keys:
        if key not in known:
            short = ", ".join(k for k in known if not k.isupper())
            raise ConfigError(
                f"{flag} {key}: these runs have no such key{did_you_mean(key, known)} "
                f"(known: {short}, and config keys such as OPTIM.LR)"
            )


def chosen(found: Sequence[Entry], where: Sequence[Pair], exclude: Sequence[Pair]) -> list[Entry]:
    """Return the entries that match every ``where`` and no ``exclude``.

    Values are compared as text; ``trainer`` takes the class name or the whole label, a digest its
    first characters; several ``where`` of one key are alternatives.

    Raises:
        ConfigError: an unknown key, or nothing is left.
    """
    check_keys((k for k, _ in where), found, "--where")
    check_keys((k for k, _ in exclude), found, "--exclude")
    wanted = {key: [v for k, v in where if k == key] for key, _ in where}
    kept = [
        e for e in found
        if all(any(_is(e, k, v) for v in values) for k, values in wanted.items())
        and not any(_is(e, k, v) for k, v in exclude)
    ]
    if found and not kept:
        key, value = (*where, *exclude)[0]
        have = sorted({str(e.fact(key)) for e in found})
        raise ConfigError(
            f"--where and --exclude leave none of {len(found)} runs: {key} {value}"
            f"{did_you_mean(value, have)} (the runs have {key} {', '.join(have[:8])})"
        )
    return kept


def _is(entry: Entry, key: str, value: str) -> bool:
    found = entry.fact(key)
    names = {"" if found is None else str(found)}
    if key == "trainer":
        names.add(entry.run.method)
    if key.endswith("_digest"):
        return bool(value) and any(name.startswith(value) for name in names)
    return value in names


def with_references(found: Sequence[Entry], names: Sequence[str]) -> list[Entry]:
    """Return the entries and, for each name, the reference numbers that their results hold."""
    extra = [
        replace(e, reference=name)
        for name in names for e in found if isinstance(e.run.results.get(REFERENCES[name]), Mapping)
    ]
    return [*extra, *found]


SECTIONS = {
    "zero_shot": "of the zero-shot model", "untrained": "of the untrained start",
    "selected": "of the round chosen by validation",
}
TOTALS = "totals"
ROUNDS_TO = "rounds_to:"
# Derived: name -> (numbers of the totals, summed; divided by this one).
RATIOS = {
    "kb_per_client_round": (("bytes_up", "bytes_down"), "client_rounds"),
    "seconds_per_round": (("seconds",), "rounds"),
}


@dataclass(frozen=True)
class Metric:
    """A number's meaning.

    Attributes:
        name: as ``--metric`` takes it.
        words: its definition.
        unit: as shown, after ``scale``.
        lower: whether smaller is better.
        harmonic: whether it is a harmonic mean, so that an average is a mean of such means.
        scale: factor from the stored number to the shown one.
        digits: decimals shown; None: the table's.
    """

    name: str
    words: str
    unit: str = "%"
    lower: bool = False
    harmonic: bool = False
    scale: float = 1.0
    digits: int | None = None

    @property
    def title(self) -> str:
        """Name and unit for a header; percent goes without saying."""
        return self.name if self.unit == "%" else f"{self.name} ({self.unit})"


def _count(name: str, words: str) -> Metric:
    return Metric(name, words, "count", lower=True, digits=0)


DEFINED = {m.name: m for m in (
    Metric("personal", "each client's own model on its own test split, unweighted mean over "
                       "clients"),
    Metric("personal_before_ft", "as personal, before the final fine-tuning"),
    Metric("personal_std", "population standard deviation of personal accuracy over "
                           "clients", lower=True),
    Metric("personal_worst", "personal accuracy of the worst client"),
    Metric("personal_worst_decile", "mean personal accuracy of the worst tenth of the clients"),
    Metric("personal_micro", "personal accuracy over the pooled test images of all clients"),
    Metric("personal_macro_f1", "macro-F1 of the personal models, mean over clients"),
    Metric("global", "the shared model on the whole test set"),
    Metric("global_macro_f1", "macro-F1 of the shared model on the whole test set"),
    Metric("base_all", "the personal models on the test set of all base classes, mean over "
                       "clients"),
    Metric("base_other", "the personal models on base classes that their client has no training "
                         "image of, mean over clients"),
    Metric("new", "the personal models on unseen classes, mean over clients"),
    Metric("hm2", "harmonic mean of base_all and new", harmonic=True),
    Metric("hm3", "harmonic mean of personal, base_all and new", harmonic=True),
    Metric("cm", "mean of personal and hm2"),
    Metric("unseen", "the shared model on the domain that no client holds"),
    Metric("unseen_personal", "the personal models on the domain that no client holds, mean over "
                              "clients"),
    Metric("targets", "mean over other data sets of the shared model's accuracy, each with its own "
                      "class names"),
    Metric("accuracy", "accuracy that the log reports last"),
    Metric("error", "error rate that the log reports last", lower=True),
    Metric("macro_f1", "macro-F1 that the log reports last"),
    Metric("seconds", "seconds of the last round's training and aggregation", "s", True),
    Metric("totals.seconds", "seconds of training and aggregation", "s", True),
    Metric("totals.bytes_up", "bytes sent by all clients", "MB", True, scale=1e-6, digits=2),
    Metric("totals.bytes_down", "bytes sent to all clients", "MB", True, scale=1e-6, digits=2),
    Metric("kb_per_client_round", "bytes up and down together, per participating client and round",
           "kB", True, scale=1e-3),
    Metric("seconds_per_round", "seconds of training and aggregation, mean over rounds", "s", True,
           digits=2),
    _count("totals.rounds", "rounds done"),
    _count("totals.local_steps", "local steps of all clients"),
    _count("totals.samples", "training samples of all clients"),
    _count("totals.image_forwards", "training images through the image tower"),
    _count("totals.text_passes", "passes through the text tower in training"),
    _count("totals.text_tokens", "text tokens through the text tower in training"),
    _count("trainable", "trainable parameters of a client"),
)}


def metric(name: str) -> Metric:
    """Return what a number means; one without definition is named as such.

    Raises:
        ConfigError: ``rounds_to:`` without a number.
    """
    if name in DEFINED:
        return DEFINED[name]
    if name.startswith(ROUNDS_TO):
        target = _target(name)
        words = f"first evaluated round with personal >= {target:g} %"
        return Metric(name, words, "rounds", lower=True, digits=1)
    section, _, rest = name.partition(".")
    if section == "target":
        return Metric(name, f"the shared model on {rest}'s test images, with its class names")
    if section in SECTIONS and (rest in DEFINED or rest.startswith("target.")):
        inner = metric(rest)
        return replace(inner, name=name, words=f"{inner.words}; {SECTIONS[section]}")
    if section == TOTALS:
        return _count(name, f"'{rest}' of the run's totals")
    return Metric(name, f"'{name}' as the results name it", "")


def known_metrics(found: Sequence[Entry]) -> list[str]:
    """Return every number that at least one of the runs has."""
    names: dict[str, None] = {}
    for entry in found:
        run = entry.run
        for section in ("last", *SECTIONS, TOTALS):
            numbers = run.info.get(TOTALS) if section == TOTALS else run.results.get(section)
            if isinstance(numbers, Mapping):
                head = "" if section == "last" else f"{section}."
                names |= {
                    f"{head}{k}": None for k, v in numbers.items()
                    if _number(v) is not None and k != "round"
                }
        if _number(run.info.get("trainable")) is not None:
            names["trainable"] = None
        names |= {name: None for name in RATIOS if _ratio(entry, name) is not None}
    return list(names)


def check_metrics(asked: Sequence[str], found: Sequence[Entry]) -> tuple[str, ...]:
    """Return the names asked for, ``target.*`` and the like resolved; refuse what no run has.

    Raises:
        ConfigError: with the nearest known name.
    """
    known, names = known_metrics(found), list[str]()
    for name in asked:
        metric(name)
        names += [k for k in known if name.endswith(".*") and k.startswith(name[:-1])] or [name]
    for name in names:
        if name not in known and not name.startswith(ROUNDS_TO):
            short = [k for k in known if "." not in k]
            raise ConfigError(
                f"--metric {name}: none of these runs has it{did_you_mean(name, known)} (known: "
                f"{', '.join(short)}, zero_shot.*, untrained.*, totals.*, {ROUNDS_TO}70)"
            )
    return tuple(dict.fromkeys(names))


def value(entry: Entry, name: str) -> float | None:
    """Return a number of a run, unscaled; None where it has none such."""
    run = entry.run
    if entry.reference:
        return _number(run.results[REFERENCES[entry.reference]].get(name))
    if name.startswith(ROUNDS_TO):
        return _first_round(entry, _target(name))
    if name == "trainable":
        return _number(run.info.get(name))
    if name in RATIOS:
        return _ratio(entry, name)
    if name.startswith(f"{TOTALS}."):
        totals = run.info.get(TOTALS)
        return _number(totals.get(name.partition(".")[2])) if isinstance(totals, Mapping) else None
    found = run.value(name)
    return found if found is None or math.isfinite(found) else None


def _ratio(entry: Entry, name: str) -> float | None:
    """Return a number of ``RATIOS``; None where the totals lack a part or count nothing."""
    totals = entry.run.info.get(TOTALS)
    if not isinstance(totals, Mapping):
        return None
    parts, count = [_number(totals.get(part)) for part in RATIOS[name][0]], RATIOS[name][1]
    whole = _number(totals.get(count))
    known = [part for part in parts if part is not None]
    return sum(known) / whole if whole and len(known) == len(parts) else None


def metrics_problems(names: Sequence[str], found: Sequence[Entry]) -> list[str]:
    """Return what ``rounds_to`` cannot read or compare.

    Runs without whole ``metrics.jsonl``; runs that were not evaluated at the same rounds.
    """
    if not any(name.startswith(ROUNDS_TO) for name in names):
        return []
    problems, evaluated = [], set[tuple[Any, ...]]()
    for entry in found:
        path = entry.run.path / "metrics.jsonl"
        try:
            records, notes = read_metrics(path)
        except DataError as error:
            records, notes = [], [str(error)]
        problems += [f"{path}: {note}" for note in notes]
        if not records and not notes:
            problems.append(f"{path} is missing or empty, so {ROUNDS_TO} knows nothing of that run")
        elif records and entry.trains:
            evaluated.add(tuple(r.get("round") for r in records if "personal" in r))
    if len(evaluated) > 1:
        problems.append(f"{ROUNDS_TO} is coarser in some runs than in others: they were not "
                        "evaluated at the same rounds")
    return problems


def _first_round(entry: Entry, target: float) -> float | None:
    try:
        records = entry.run.rounds()
    except DataError:
        return None
    for record in records:
        found = _number(record.get("personal"))
        if found is not None and found >= target:
            return _number(record.get("round"))
    return None


def _target(name: str) -> float:
    try:
        found = float(name.removeprefix(ROUNDS_TO))
    except ValueError:
        found = math.nan
    if not math.isfinite(found):
        raise ConfigError(f"--metric {name}: {ROUNDS_TO} wants an accuracy in %: {ROUNDS_TO}70")
    return found


def _number(found: Any) -> float | None:
    good = isinstance(found, int | float) and not isinstance(found, bool)
    return float(found) if good and math.isfinite(found) else None
