"""The numbers a table can show: what each means, which way is better, and its value of a run."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedvlm.core.errors import ConfigError, DataError, did_you_mean
from fedvlm.report.collect import as_float
from fedvlm.report.tables.facts import RunFacts
from fedvlm.runs.finished import FinishedRun
from fedvlm.runs.metrics import read_metrics
from fedvlm.runs.verify.answer import TOGETHER, UNSHARED, WHO, answer_of
from fedvlm.runs.verify.beside import hurt

SECTIONS = {
    "zero_shot": "of the zero-shot model", "untrained": "of the untrained start",
    "selected": "of the round chosen by validation",
}
TOTALS = "totals"
ROUNDS_TO = "rounds_to:"
PEAKS = ("peak_mib.resident", "peak_mib.gpu")  # of the run's last session
# Derived: name -> (numbers of the totals, summed; divided by this one).
RATIOS = {
    "kb_per_client_round": (("bytes_up", "bytes_down"), "client_rounds"),
    "seconds_per_round": (("seconds",), "rounds"),
}
QUARTILES = {"personal_q1": 0, "personal_median": 1, "personal_q3": 2}
HURT, OWN_REFERENCE = "hurt", "logreg"  # the latter: each client's own classifier, in figures
TOP = {"gain": "points", HURT: "share"}  # sections of the results that are one number, named so
STEPS = "steps"
# A run's answer, as its screen has it: name -> (side, number).
ANSWERED = {side + end: (side, key) for side in WHO
            for end, key in (("", "personal"), ("_balanced", "balanced"))}
DERIVED = (*RATIOS, *PEAKS, *QUARTILES, *TOP, *ANSWERED, STEPS, "bytes")
# Short words for columns that stand beside a table's metric.
COLUMNS = {
    "gain": "gain", "balanced": "personal_balanced", "before": "personal_before_ft",
    "worst": "personal_worst", "hurt": HURT, "ece": "personal_ece", "nll": "personal_nll",
    "steps": STEPS, "final": "spent.final_epochs", "up": "totals.bytes_up",
    "down": "totals.bytes_down", "bytes": "bytes", "sent": "kb_per_client_round",
    "seconds": "totals.seconds", "memory": PEAKS[0], "gpu_memory": PEAKS[1],
    "trainable": "trainable",
}


@dataclass(frozen=True)
class Metric:
    """A number's meaning.

    Attributes:
        name: as ``--metric`` takes it.
        words: its definition.
        unit: as shown, after ``scale``.
        lower: whether smaller is better.
        parts: of a harmonic mean, the numbers that it is of.
        scale: factor from the stored number to the shown one.
        digits: decimals shown; None: the table's.
    """

    name: str
    words: str
    unit: str = "%"
    lower: bool = False
    parts: tuple[str, ...] = ()
    scale: float = 1.0
    digits: int | None = None

    @property
    def counted(self) -> bool:
        """Whether it is a count: of steps, parameters, bytes."""
        return self.unit in ("count", "MB", "kB")

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
    Metric("personal_balanced", "each client's mean over its classes of their accuracy, unweighted "
                                "mean over clients"),
    Metric("personal_q1", "first quartile over clients of personal accuracy"),
    Metric("personal_median", "median over clients of personal accuracy"),
    Metric("personal_q3", "third quartile over clients of personal accuracy"),
    Metric("gain", "collaboration gain: personal minus the best reference without collaboration "
                   "(the run's settings are as they were given, tuned or not)", "points"),
    Metric(HURT, "share of the clients whose personal accuracy is below that of the best "
                 "baseline without collaboration", lower=True),
    Metric("personal_ece", "expected calibration error of the personal models, mean over clients",
           lower=True),
    Metric("personal_ece_calibrated", "personal_ece at temperatures fixed on validation images "
                                      "(TEST.CALIBRATE)", lower=True),
    Metric("personal_auroc", "sets of labels: each client's mean over labels of the AUROC, "
                             "unweighted mean over clients"),
    Metric("personal_sensitivity", "sets of labels: each client's mean over labels of the "
                                   "sensitivity at 90 % specificity, unweighted mean over clients"),
    Metric("global_auroc", "sets of labels: the shared model's mean over labels of the AUROC"),
    *(Metric(f"{whose}_{way}_r{k}", f"captions: share of {words} among the {k} nearest, {model}")
      for whose, model in (("personal", "each client's model on its own test set, mean over "
                            "clients"), ("global", "the shared model on the whole test set"))
      for way, words in (("i2t", "images with a caption of their own"),
                         ("t2i", "captions with their image"))
      for k in (1, 5, 10)),
    Metric("personal_nll", "negative log-likelihood of the personal models, mean over clients",
           "nats", True, digits=3),
    Metric("personal_nll_calibrated", "personal_nll at temperatures fixed on validation images "
                                      "(TEST.CALIBRATE)", "nats", True, digits=3),
    Metric("personal_macro_f1", "macro-F1 of the personal models, mean over clients"),
    *(Metric(f"{side}{end}", f"{who}: {what}, mean over clients")
      for side, who in WHO.items() for end, what in (
          ("", "personal"), ("_balanced", "class-balanced"))),
    Metric("global", "the shared model on the whole test set"),
    Metric("global_macro_f1", "macro-F1 of the shared model on the whole test set"),
    Metric("base_all", "the personal models on the test set of all base classes, mean over "
                       "clients"),
    Metric("base_other", "the personal models on base classes that their client has no training "
                         "image of, mean over clients"),
    Metric("new", "the personal models on unseen classes, mean over clients"),
    Metric("hm2", "harmonic mean of base_all and new", parts=("base_all", "new")),
    Metric("hm3", "harmonic mean of personal, base_all and new",
           parts=("personal", "base_all", "new")),
    Metric("cm", "mean of personal and hm2"),
    Metric("unseen", "the shared model on the domain that no client holds"),
    Metric("unseen_personal", "the personal models on the domain that no client holds, mean over "
                              "clients"),
    Metric("targets", "mean over other data sets of the shared model's accuracy, each with its own "
                      "class names"),
    Metric("unseen_clients", "clients that never worked, personalised after the last round as new "
                             "ones would be, each on its own test split, mean over them"),
    Metric("unseen_clients_std", "population standard deviation of that accuracy", lower=True),
    Metric("unseen_clients_worst", "that accuracy of the worst of them"),
    Metric("accuracy", "accuracy that the log reports last"),
    Metric("error", "error rate that the log reports last", lower=True),
    Metric("macro_f1", "macro-F1 that the log reports last"),
    Metric("seconds", "seconds of the last round's training and aggregation", "s", True),
    Metric("totals.seconds", "seconds of training and aggregation", "s", True),
    Metric("bytes", "bytes up and down of all clients", "MB", True, scale=1e-6, digits=2),
    Metric("totals.bytes_up", "bytes sent by all clients", "MB", True, scale=1e-6, digits=2),
    Metric("totals.bytes_down", "bytes sent to all clients", "MB", True, scale=1e-6, digits=2),
    Metric("kb_per_client_round", "bytes up and down together, per participating client and round",
           "kB", True, scale=1e-3),
    Metric("seconds_per_round", "seconds of training and aggregation, mean over rounds", "s", True,
           digits=2),
    Metric("personal_clients", "clients behind personal, where not all are", "count", digits=0),
    _count(STEPS, "local steps of all clients, the final fine-tuning included"),
    _count("spent.final_epochs", "epochs of the final fine-tuning"),
    _count("totals.rounds", "rounds done"),
    _count("totals.local_steps", "local steps of all clients"),
    _count("totals.samples", "training samples of all clients"),
    _count("totals.image_forwards", "training images through the image tower"),
    _count("totals.text_passes", "passes through the text tower in training"),
    _count("totals.text_tokens", "text tokens through the text tower in training"),
    Metric(PEAKS[0], "resident memory of the process at its peak", "MiB", True),
    Metric(PEAKS[1], "memory of tensors on the GPU at its peak", "MiB", True),
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
        words = (f"first evaluated round with personal >= {target:g} % (before the last round of "
                 "the clients that worked in it)")
        return Metric(name, words, "rounds", lower=True, digits=1)
    section, _, rest = name.partition(".")
    if section == "target":
        return Metric(name, f"the shared model on {rest}'s test images, with its class names")
    if section in SECTIONS and (rest in DEFINED or rest.startswith("target.")):
        inner = metric(rest)
        return replace(inner, name=name, words=f"{inner.words}; {SECTIONS[section]}",
                       parts=tuple(f"{section}.{part}" for part in inner.parts))
    if section == TOTALS:
        return _count(name, f"'{rest}' of the run's totals")
    return Metric(name, f"'{name}' as the results name it", "")


def known_metrics(entries: Sequence[RunFacts]) -> list[str]:
    """Return every number that at least one of the runs has."""
    names: dict[str, None] = {}
    for entry in entries:
        run = entry.run
        for section in ("last", *SECTIONS, "spent", TOTALS):
            numbers = run.totals() if section == TOTALS else run.section(section)
            head = "" if section == "last" else f"{section}."
            names |= {
                f"{head}{k}": None for k, v in numbers.items()
                if as_float(v) is not None and k != "round"
            }
        if as_float(run.info.get("trainable")) is not None:
            names["trainable"] = None
        names |= {name: None for name in DERIVED
                  if name not in names and metric_value(entry, name) is not None}
    return list(names)


def check_metrics(words: Sequence[str], entries: Sequence[RunFacts]) -> tuple[str, ...]:
    """Return the names asked for, ``target.*`` and words of ``COLUMNS`` resolved.

    Raises:
        ConfigError: what no run has, with the nearest known name.
    """
    known, names = known_metrics(entries), list[str]()
    for name in (word if word in known else COLUMNS.get(word, word) for word in words):
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


def check_columns(words: Sequence[str], entries: Sequence[RunFacts]) -> tuple[str, ...]:
    """Return the metrics of ``--columns``: short words of ``COLUMNS``, or metrics by their names.

    Raises:
        ConfigError: neither; with the nearest known word. A short word that no run has a number
            for is no mistake: its column is empty.
    """
    known = [*COLUMNS, *known_metrics(entries)]
    for word in words:
        if word not in known and not word.startswith(ROUNDS_TO):
            raise ConfigError(f"--columns {word}: there is no such column"
                              f"{did_you_mean(word, known)} (known: {', '.join(COLUMNS)}, and "
                              "whatever --metric takes)")
    return tuple(dict.fromkeys(COLUMNS.get(word, word) for word in words))


def metric_value(entry: RunFacts, name: str) -> float | None:
    """Return a number of a run, unscaled; None where it has none such."""
    run = entry.run
    if entry.reference:
        return as_float(entry.numbers.get(name))
    if name.startswith(ROUNDS_TO):
        return _first_round(entry, _target(name))
    if name in ANSWERED:
        return _answered(run, *ANSWERED[name])
    if name == "trainable":
        return as_float(run.info.get(name))
    if name in PEAKS:
        peaks = run.info.get("peak_mib")
        return as_float(peaks.get(name.partition(".")[2])) if isinstance(peaks, Mapping) else None
    if name in RATIOS:
        return _ratio(entry, name)
    if name in QUARTILES or name in TOP:
        return _of_clients(entry, name)
    if name == STEPS:
        return _steps(entry)
    if name == "bytes":
        parts = [as_float(run.totals().get(part)) for part in ("bytes_up", "bytes_down")]
        return None if parts[0] is None or parts[1] is None else parts[0] + parts[1]
    if name.startswith(f"{TOTALS}."):
        return as_float(run.totals().get(name.partition(".")[2]))
    return as_float(run.value(name))


def _answered(run: FinishedRun, side: str, key: str) -> float | None:
    """Return a number of a run's answer; of a run that shares nothing it is not together."""
    answer = answer_of(run.results)
    if not answer or (side == TOGETHER and answer["verdict"] == UNSHARED):
        return None
    return as_float((answer[side] or {}).get(key))


def _ratio(entry: RunFacts, name: str) -> float | None:
    """Return a number of ``RATIOS``; None where the totals lack a part or count nothing."""
    totals, (names, count) = entry.run.totals(), RATIOS[name]
    parts = [part for n in names if (part := as_float(totals.get(n))) is not None]
    whole = as_float(totals.get(count))
    return sum(parts) / whole if whole and len(parts) == len(names) else None


def _steps(entry: RunFacts) -> float | None:
    """Return all local steps; of an older run its totals', to which final phases are added."""
    spent = as_float(entry.run.section("spent").get("local_steps"))
    if spent is not None:
        return spent
    totals = entry.run.totals()
    steps = as_float(totals.get("local_steps"))
    return None if steps is None else steps + (as_float(totals.get("finetune_steps")) or 0.0)


def _of_clients(entry: RunFacts, name: str) -> float | None:
    """Return a number of ``QUARTILES`` or ``TOP``: as the run says it, else from clients' rows.

    Whom it hurts always follows from the rows: older runs counted from another baseline.
    """
    run = entry.run
    if name == HURT:
        found = hurt(run.last.get("clients") or (), run.section("references"))
        return None if found is None else float(found["share"])
    told = run.section(name).get(TOP[name]) if name in TOP else run.last.get(name)
    if name in TOP or as_float(told) is not None:
        return as_float(told)
    rows = accuracies(run.last)
    return statistics.quantiles(rows.values(), method="inclusive")[QUARTILES[name]] \
        if len(rows) > 1 else None


def accuracies(record: Any) -> dict[Any, float]:
    """Return the clients' accuracies in percent of a record with rows ``clients``; empty of none.

    Clients without a test image are left out.
    """
    rows = record.get("clients") if isinstance(record, Mapping) else None
    if not isinstance(rows, list):
        return {}
    counts = {r.get("client"): (as_float(r.get("correct")), as_float(r.get("n"))) for r in rows
              if isinstance(r, Mapping)}
    return {client: 100 * correct / n for client, (correct, n) in counts.items()
            if correct is not None and n}


def rounds_to_problems(names: Sequence[str], entries: Sequence[RunFacts]) -> list[str]:
    """Return what ``rounds_to`` cannot read or compare.

    Runs without whole ``metrics.jsonl``; runs that were not evaluated at the same rounds.
    """
    if not any(name.startswith(ROUNDS_TO) for name in names):
        return []
    problems, evaluated = [], set[tuple[Any, ...]]()
    for entry in entries:
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


def _first_round(entry: RunFacts, target: float) -> float | None:
    try:
        records = entry.run.rounds()
    except DataError:
        return None
    for record in records:
        personal = as_float(record.get("personal"))
        if personal is not None and personal >= target:
            return as_float(record.get("round"))
    return None


def _target(name: str) -> float:
    try:
        target = float(name.removeprefix(ROUNDS_TO))
    except ValueError:
        target = math.nan
    if not math.isfinite(target):
        raise ConfigError(f"--metric {name}: {ROUNDS_TO} wants an accuracy in %: {ROUNDS_TO}70")
    return target
