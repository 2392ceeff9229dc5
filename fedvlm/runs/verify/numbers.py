"""The one place where a run's numbers are computed again from the rows of its clients.

``DERIVED`` says how each number follows from the rows; a new one is a line there. ``problems``
checks a record of numbers: what follows from the rows does, what is a percentage lies in 0..100,
everything is finite. Nothing here knows who wrote the record, so tables, pages, the API and
``fedvlm verify`` ask the same questions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from fedvlm.config.families import PEFT_KEYS, trained_words
from fedvlm.core.stats import (
    cm,
    harmonic_mean,
    is_number,
    mean,
    pooled_accuracy,
    population_std,
    quartiles,
    worst,
    worst_decile,
)
from fedvlm.runs.identity import CAPTIONS, LABEL, LABELS

PlainRow = Mapping[str, Any]
PlainRows = Sequence[PlainRow]
NumberRecord = Mapping[str, Any]
CLIENTS, UNSEEN_ROWS = "clients", "unseen_clients_rows"
MOST = 2**53  # images of a client, and what a float counts
WIDTH = 60  # characters of a value in a message
CLOSE = 1e-9  # older runs summed in another order


def _over(column: str, summary: Callable[[list[Any]], float | None] = mean) -> Callable[
    [PlainRows, NumberRecord], float | None
]:
    return lambda rows, _: summary([row[column] for row in rows])


def _quartile(which: int) -> Callable[[PlainRows, NumberRecord], float | None]:
    return lambda rows, _: quartiles([row["accuracy"] for row in rows])[which]


def _micro(rows: PlainRows, _: NumberRecord) -> float | None:
    return pooled_accuracy([row["correct"] for row in rows], [row["n"] for row in rows])


#: Recall at 1, 5 and 10: the text of an image, the image of a text.
RECALLS = tuple(f"{way}_r{k}" for way in ("i2t", "t2i") for k in (1, 5, 10))
#: number -> (the rows it is of, how it follows from them and the numbers before it).
DERIVED: Mapping[str, tuple[str, Callable[[PlainRows, NumberRecord], float | None]]] = {
    "personal": (CLIENTS, _over("accuracy")),
    "personal_std": (CLIENTS, _over("accuracy", population_std)),
    "personal_worst": (CLIENTS, _over("accuracy", worst)),
    "personal_worst_decile": (CLIENTS, _over("accuracy", worst_decile)),
    "personal_micro": (CLIENTS, _micro),
    "personal_macro_f1": (CLIENTS, _over("macro_f1")),
    "personal_before_ft": (CLIENTS, _over("accuracy_before_ft")),
    "personal_balanced": (CLIENTS, _over("balanced")),
    "personal_q1": (CLIENTS, _quartile(0)),
    "personal_median": (CLIENTS, _quartile(1)),
    "personal_q3": (CLIENTS, _quartile(2)),
    "personal_nll": (CLIENTS, _over("nll")),
    "personal_ece": (CLIENTS, _over("ece")),
    "personal_nll_calibrated": (CLIENTS, _over("nll_calibrated")),
    "personal_ece_calibrated": (CLIENTS, _over("ece_calibrated")),
    "personal_auroc": (CLIENTS, _over("auroc")),
    "personal_sensitivity": (CLIENTS, _over("sensitivity")),
    "base_all": (CLIENTS, _over("base_all")),
    "base_other": (CLIENTS, _over("base_other")),
    "new": (CLIENTS, _over("new")),
    "unseen_personal": (CLIENTS, _over("unseen")),
    "hm2": (CLIENTS, lambda _, n: harmonic_mean(n["base_all"], n["new"])),
    "hm3": (CLIENTS, lambda _, n: harmonic_mean(n["personal"], n["base_all"], n["new"])),
    "cm": (CLIENTS, lambda _, n: cm(n["personal"], n["hm2"])),
    "unseen_clients": (UNSEEN_ROWS, _over("accuracy")),
    "unseen_clients_std": (UNSEEN_ROWS, _over("accuracy", population_std)),
    "unseen_clients_worst": (UNSEEN_ROWS, _over("accuracy", worst)),
} | {f"personal_{name}": (CLIENTS, _over(name)) for name in RECALLS}
#: Percentages, wherever in the results they stand; ``target.<NAME>`` is one, too.
PERCENT = (frozenset(DERIVED) - {"personal_nll", "personal_nll_calibrated"}) | {
    "global", "global_macro_f1", "unseen", "targets", "accuracy", "macro_f1", "accuracy_before_ft",
    "val", "balanced", "ece", "ece_calibrated", "auroc", "global_auroc", "ap", "f1", "sensitivity",
    *RECALLS, *(f"global_{name}" for name in RECALLS),
}
#: A method's own numbers, by its own names; and counts under the names of percentages.
FREE = ("aggregation", "train", "similarity", "confusion", "named")
#: protocol key -> where the manifest's identity says the same.
PROTOCOL = {
    "dataset": "DATASET.NAME", "trainer": "TRAINER.NAME", "shots": "DATASET.NUM_SHOTS",
    "subsample": "DATASET.SUBSAMPLE_CLASSES", "backbone": "MODEL.BACKBONE.NAME",
    "batch_size": "DATALOADER.TRAIN_X.BATCH_SIZE", "rounds": "FED.ROUNDS",
    "local_epochs": "FED.LOCAL_EPOCHS", "seed": "SEED", "data_seed": "DATA_SEED",
    "selection": "TEST.SELECT", "budget": "FED.BUDGET", "unseen_clients": "FED.UNSEEN_CLIENTS",
}
LOCAL = "local-dir:"  # a backbone that brings its weights
DIGESTS = {"data_digest": "data", "backbone_digest": "backbone"}


def problems(record: Mapping[str, Any], place: str = "") -> Iterator[str]:
    """Yield what cannot be true of a record's numbers, each with its place (``last.personal``).

    Args:
        record: a round's record, a section of the results, or all of them.
    """
    yield from _ranges(record, place)
    yield from _consistency(record, place)


def _consistency(record: Mapping[str, Any], place: str) -> Iterator[str]:
    """Yield what does not follow from the rows, in the record and in what it holds."""
    for rows in (CLIENTS, UNSEEN_ROWS):
        if isinstance(record.get(rows), list):
            yield from _rows(record[rows], f"{place}{rows}")
    yield from _derived(record, place)
    for key, item in record.items():
        if isinstance(item, Mapping) and key not in FREE:
            yield from _consistency(item, f"{place}{key}.")


def _derived(record: Mapping[str, Any], place: str) -> Iterator[str]:
    """Yield the numbers that do not follow from the rows beside them."""
    for name, (rows, formula) in DERIVED.items():
        there = record.get(rows)
        if name not in record or not isinstance(there, list) or not there:
            continue
        try:
            value = formula(there, record)
        except (KeyError, TypeError, ValueError, ArithmeticError):
            continue  # rows of a version that did not have it, or numbers named already
        if not _equal(value, record[name]):
            yield f"{place}{name} is {shorter(record[name])}, its clients' rows give {value}"
    targets = [v for k, v in record.items() if k.startswith("target.")]
    if targets and "targets" in record and all(v is None or is_number(v) for v in targets):
        value = mean(targets)
        if not _equal(value, record["targets"]):
            yield f"{place}targets is {record['targets']}, the data sets give {value}"


def _rows(rows: Sequence[Any], place: str) -> Iterator[str]:
    """Yield the clients' rows in which n, correct and accuracy do not agree."""
    if all(isinstance(row, int) for row in rows):
        return  # ids of clients
    seen: set[Any] = set()
    for at, row in enumerate(rows):
        if not isinstance(row, Mapping):
            yield f"{place}.{at} is not a client row"
            continue
        n: Any = row.get("n")
        correct: Any = row.get("correct")
        who = row.get("client", at)
        if not isinstance(who, int):
            yield f"{place}.{at}: client {who!r} is not a number"
            continue
        if who in seen:
            yield f"{place}: client {who} appears twice"
        seen.add(who)
        if "n" not in row or "correct" not in row:
            continue
        counts = isinstance(n, int) and isinstance(correct, int | float)  # chance: n / classes
        if not counts or not MOST >= n >= correct >= 0:
            yield f"{place}: client {who} has {shorter(correct)} correct of {shorter(n)}"
        elif "accuracy" in row and not _equal(100 * correct / n if n else None, row["accuracy"]):
            yield f"{place}: client {who} has {correct} correct of {n}, accuracy {row['accuracy']}"


def _ranges(value: Any, place: str, name: str = "") -> Iterator[str]:
    """Yield numbers that are not finite, and percentages outside 0..100."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            if key in FREE:
                continue
            percent = key in PERCENT or str(key).startswith("target.")
            yield from _ranges(item, f"{place}{key}.", str(key) if percent else "")
    elif isinstance(value, list):
        for at, item in enumerate(value):
            yield from _ranges(item, f"{place}{at}.", name)
    elif isinstance(value, float) and not math.isfinite(value):
        yield f"{place[:-1]} is {value}"
    elif name and value is not None and not (is_number(value) and 0 <= value <= 100):
        yield f"{place[:-1]} is {shorter(value)}: not a percentage"


def protocol_problems(
    protocol: Mapping[str, Any], identity: Mapping[str, Any], tag: str | None = None
) -> Iterator[str]:
    """Yield where the protocol of results and the identity in the manifest disagree.

    ``extra_data`` is the method's own word, which no file has: only a replay compares it.

    Args:
        tag: of ``config.yaml``; None where it cannot be read.
    """
    if tag is not None and protocol.get("tag", tag) != tag:
        yield f"protocol.tag is {protocol['tag']!r}, config.yaml says {tag!r}"
    config = identity.get("config")
    pairs = [(key, identity[other]) for key, other in DIGESTS.items() if other in identity]
    if isinstance(config, Mapping):
        pairs += [(key, config[other]) for key, other in PROTOCOL.items() if other in config]
        if "DATASET.SUBSAMPLE_CLASSES" in config:  # as in every whole config
            pairs += list(_meant(config, protocol))
            if "proxy" in protocol and bool(protocol["proxy"]) != bool(identity.get("proxy")):
                pairs.append(("proxy", "another"))
    for key, wanted in pairs:
        if key in protocol and protocol[key] != wanted:
            yield f"protocol.{key} is {protocol[key]!r}, the manifest says {wanted!r}"


def _meant(
    config: Mapping[str, Any], protocol: Mapping[str, Any]
) -> Iterator[tuple[str, Any]]:
    """Yield what a config means for the protocol; a key that it lacks is at its neutral value."""
    targets, held_out = config.get("TEST.TARGETS"), config.get("FED.HELD_OUT_DOMAIN", "")
    yield "held_out", held_out
    yield "server_holdout", config.get("DATASET.SERVER_HOLDOUT", 0)
    yield "unseen_clients", config.get("FED.UNSEEN_CLIENTS", 0)
    rounds, epochs = config.get("FED.ROUNDS"), config.get("FED.LOCAL_EPOCHS")
    views = config.get("INPUT.VIEWS", 1)
    if views or (isinstance(rounds, int) and isinstance(epochs, int)):
        yield "views", views or int(rounds or 0) * int(epochs or 0)
    if not targets:
        yield "targets", ""
    if protocol.get("cohort"):
        yield "cohort", config.get("TEST.COHORT", 0)
    classes = config.get("DATASET.SUBSAMPLE_CLASSES", "all")
    yield "setting", "leave_one_domain_out" if held_out else "transfer" if targets else (
        "personal" if classes == "all" else "base2new")
    sets = LABELS if config.get("DATASET.LABELS") else LABEL
    yield "target", CAPTIONS if config.get("DATASET.CAPTIONS") else sets
    if protocol.get("peft") and config.keys() >= set(PEFT_KEYS):
        yield "peft", trained_words(config)
    backbone, weights = str(config.get("MODEL.BACKBONE.NAME")), config.get("MODEL.INIT_WEIGHTS")
    if weights or backbone.startswith(LOCAL):  # others: the digest of the weights stands for it
        yield "weights", weights or backbone
    clients, share = config.get("FED.CLIENTS"), config.get("FED.FRAC")
    name = protocol.get("partition")
    if isinstance(name, str) and is_number(clients) and is_number(share):
        size = f"-K{clients}-f{share:g}"
        yield "partition", name if size in name else f"...{size}"


def shorter(value: Any) -> str:
    """Return a value for one message, whatever a file may hold."""
    if isinstance(value, int) and abs(value) > MOST:
        return f"a number of {value.bit_length():,} bits"
    text = repr(value)
    return text if len(text) <= WIDTH else f"{text[:WIDTH]}..."


def _equal(a: Any, b: Any) -> bool:
    if a is None or b is None or not (is_number(a) and is_number(b)):
        return a is b
    if any(isinstance(x, int) and abs(x) > MOST for x in (a, b)):
        return bool(a == b)  # no float holds it
    return math.isclose(a, b, rel_tol=CLOSE, abs_tol=CLOSE)
