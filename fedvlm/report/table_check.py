"""Which runs may stand in one table: the same protocol, and in a cell the same hyper-parameters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from fedvlm.errors import ConfigError
from fedvlm.report.collect import SEEDS
from fedvlm.report.table_facts import METHOD, Entry

OWN = ("trainer", "extra_data", *METHOD)  # facts of the method, not of the protocol
# Keys that need to agree only among runs that agree in these.
SCOPES = {
    "subsample": ("setting",),
    "weights": ("backbone",),
    "backbone_digest": ("backbone", "weights"),
    "partition": ("held_out",),
    "data_digest": (
        "dataset", "data_seed", "partition", "shots", "setting", "subsample", "held_out",
    ),
    "DATASET.TEMPLATE": ("dataset",),
    "FED.FINETUNE_EPOCHS": ("tag",),  # a variant of a method that its label names
}
# One batch size, one augmentation and preprocessing, one precision per table.
WIDE = (
    "DATALOADER.TRAIN_X.BATCH_SIZE", "DATALOADER.TRAIN_X.SAMPLER", "DATASET.TEMPLATE",
    "FED.FINETUNE_EPOCHS", "MODEL.PREC", "TEST.SPLIT",
)
WIDE_PREFIX = "INPUT."
# What a run that takes no step does not have.
TRAINING = ("batch_size", "rounds", "local_epochs", "views", "budget", "selection")
SHOWN = 4
MOST_VALUES = 8

Difference = tuple[str, Any, Entry, Any, Entry]


def same_protocol(
    found: Sequence[Entry], axes: Sequence[str], mixed: Sequence[str] | None
) -> list[str]:
    """Return what differs on request, as words for the caption.

    Args:
        axes: row and column keys, in which the runs may differ.
        mixed: keys in which they may differ on request; empty: any; None: nothing may.

    Raises:
        ConfigError: the runs differ otherwise; the keys, two values and two runs are named.
    """
    differences = [d for key in _keys(found, axes) if (d := _difference(found, key, axes))]
    if mixed is None:
        refused = differences
    else:
        refused = [d for d in differences if mixed and d[0] not in mixed]
    if refused:
        key, value = refused[0][:2]
        raise ConfigError(
            f"these runs cannot share a table: {_words(refused)}; choose with --where "
            f"{key}={_text(value)}, make {key} a row or column, or allow it with --mixed "
            f"{_all_keys(refused, mixed)} (the caption then says so)"
        )
    return [f"{d[0]} ({_listed(_values(found, d))})" for d in differences]


def same_config(
    cell: Sequence[Entry], place: str, mixed: Sequence[str] | None
) -> tuple[list[Entry], list[str]]:
    """Return a cell's runs, each seed once, and words for what differs on request.

    Args:
        cell: runs of one row and column.
        place: row and column in words.
        mixed: see ``same_protocol``.

    Raises:
        ConfigError: the seeds differ in more than the seed, or two different runs have one seed.
    """
    kept: dict[tuple[Any, ...], Entry] = {}
    for entry in cell:
        twin = kept.setdefault(entry.seeds, entry)
        if twin.run.digest != entry.run.digest and not entry.reference:
            own = _config_difference(twin, entry)
            raise ConfigError(
                f"{place}: {twin.run.path} and {entry.run.path} have the same seeds"
                f"{f' and differ in {_words(own, runs=False)}' if own else ''}; "
                "drop one with --exclude or --where, or tell them apart with rows or columns"
            )
    runs = list(kept.values())
    allowed: list[str] = []
    for other in runs[1:]:
        if runs[0].reference or not (runs[0].config and other.config):
            continue
        differences = _config_difference(runs[0], other)
        refused = differences if mixed is None else [
            d for d in differences if mixed and d[0] not in mixed
        ]
        if refused:
            key, value = refused[0][:2]
            raise ConfigError(
                f"{place}: its runs differ in more than the seed: {_words(refused)}; choose with "
                f"--where {key}={_text(value)}, make {key} a row or column, or allow it with "
                f"--mixed {_all_keys(refused, mixed)}"
            )
        allowed += [d[0] for d in differences]
    return runs, [
        f"{key} ({_listed({_text(e.config.get(key)): None for e in runs if e.config})})"
        for key in dict.fromkeys(allowed)
    ]


def unknown(found: Sequence[Entry]) -> list[str]:
    """Return a note per protocol key that some runs do not name, as those of an older version."""
    notes = []
    for key in {k: None for e in found for k in e.run.protocol}:
        lacking = [e for e in found if not e.names(key)]
        if lacking:
            notes.append(f"{len(lacking)} run(s) name no {key}, which was not compared there: "
                         f"{lacking[0].run.path}{' and others' if len(lacking) > 1 else ''}")
    return notes


def finetuned(found: Sequence[Entry], axes: Sequence[str]) -> list[str]:
    """Return a note where the final fine-tuning of some methods was set by hand."""
    own, key = -1, "FED.FINETUNE_EPOCHS"  # -1: the method's own number
    epochs = {e.label("trainer", axes): e.fact(key) for e in found if e.trains and e.names(key)}
    if len(set(epochs.values())) < 2:
        return []
    words = "; ".join(f"{name} {n}" for name, n in sorted(epochs.items()) if n != own)
    return [f"final fine-tuning (epochs) as {key} says: {words}; of all others the method's own"]


def _keys(found: Sequence[Entry], axes: Sequence[str]) -> list[str]:
    protocol = {k: None for e in found for k in e.run.protocol}
    config = {k: None for e in found for k in e.config if k in WIDE or k.startswith(WIDE_PREFIX)}
    out = (*axes, *SEEDS, *OWN)
    method = [] if "trainer" in axes else [k for k in METHOD if k not in axes]
    return [*method, *(k for k in (*protocol, *config) if k not in out)]


def _difference(found: Sequence[Entry], key: str, axes: Sequence[str]) -> Difference | None:
    first: dict[tuple[str, ...], Entry] = {}
    for entry in _bound(found, key):
        other = first.setdefault(_group(entry, key), entry)
        if other.fact(key) != entry.fact(key):
            return key, other.fact(key), other, entry.fact(key), entry
    return None


def _bound(found: Sequence[Entry], key: str) -> list[Entry]:
    """Return the entries that ``key`` means anything to."""
    training = key in TRAINING or key in WIDE or key.startswith(WIDE_PREFIX)
    return [
        e for e in found
        if e.reference != "zero-shot" and e.names(key) and (e.trains or not training)
    ]


def _group(entry: Entry, key: str) -> tuple[str, ...]:
    return tuple(str(entry.fact(k)) for k in SCOPES.get(key, ()))


def _values(found: Sequence[Entry], difference: Difference) -> list[str]:
    """Return every value of a key among the entries that should agree with the first."""
    key, first = difference[0], difference[2]
    alike = [e for e in _bound(found, key) if _group(e, key) == _group(first, key)]
    return list(dict.fromkeys(_text(e.fact(key)) for e in alike))


def _all_keys(refused: Sequence[Difference], mixed: Sequence[str] | None) -> str:
    """Return the keys that ``--mixed`` would have to name."""
    return " ".join(dict.fromkeys([*(mixed or ()), *(d[0] for d in refused)]))


def _config_difference(a: Entry, b: Entry) -> list[Difference]:
    skipped = tuple(key.upper() for key in SEEDS)
    keys = [k for k in dict.fromkeys((*a.config, *b.config)) if k not in skipped]
    return [
        (k, a.config.get(k), a, b.config.get(k), b) for k in keys
        if a.config.get(k) != b.config.get(k)
    ]


def _words(differences: Sequence[Difference], runs: bool = True) -> str:
    parts = [
        f"{key} is {_text(a)} in {x.run.path} and {_text(b)} in {y.run.path}" if runs and not at
        else f"{key} {_text(a)} and {_text(b)}"
        for at, (key, a, x, b, y) in enumerate(differences[:SHOWN])
    ]
    more = len(differences) - SHOWN
    return ", ".join(parts) + (f", and {more} more" if more > 0 else "")


def _listed(words: Iterable[str]) -> str:
    found = list(words)
    more = len(found) - MOST_VALUES
    return ", ".join(found[:MOST_VALUES]) + (f", and {more} more" if more > 0 else "")


def _text(found: Any) -> str:
    text = "''" if found is None else str(found)
    whole = len(text) == 64 and all(c in "0123456789abcdef" for c in text)
    return text[:8] if whole else text
