"""Which runs may stand in one table: the same protocol, and in a cell the same hyper-parameters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from fedvlm.core.errors import ConfigError
from fedvlm.report.collect import SEEDS
from fedvlm.report.tables.facts import METHOD, RunFacts

OF_METHOD = ("trainer", "extra_data", "proxy", *METHOD)  # facts of the method, not of the protocol
# Keys that need to agree only among runs that agree in these.
SCOPES = {
    "subsample": ("setting",),
    "weights": ("backbone",),
    "backbone_digest": ("backbone", "weights"),
    "partition": ("held_out", "server_holdout"),
    "data_digest": (
        "dataset", "data_seed", "partition", "shots", "setting", "subsample", "held_out",
        "server_holdout",
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
MOST = 4  # differences named
MOST_VALUES = 8

Clash = tuple[str, Any, RunFacts, Any, RunFacts]


def same_protocol(
    entries: Sequence[RunFacts], axes: Sequence[str], mixed: Sequence[str] | None
) -> list[str]:
    """Return what differs on request, as words for the caption.

    Args:
        axes: row and column keys, in which the runs may differ.
        mixed: keys in which they may differ on request; empty: any; None: nothing may.

    Raises:
        ConfigError: the runs differ otherwise; the keys, two values and two runs are named.
    """
    differences = [d for key in _keys(entries, axes) if (d := _difference(entries, key))]
    _refuse("these runs cannot share a table", differences, mixed)
    return [f"{d[0]} ({_listed(_values(entries, d))})" for d in differences]


def same_config(
    cell: Sequence[RunFacts], place: str, mixed: Sequence[str] | None
) -> tuple[list[RunFacts], list[str]]:
    """Return a cell's runs, each seed once, and words for what differs on request.

    Args:
        cell: runs of one row and column.
        place: row and column in words.
        mixed: see ``same_protocol``.

    Raises:
        ConfigError: the seeds differ in more than the seed, or two different runs have one seed.
    """
    by_seeds: dict[tuple[Any, ...], RunFacts] = {}
    for entry in cell:
        twin = by_seeds.setdefault(entry.seeds, entry)
        if twin.run.digest != entry.run.digest and not entry.reference:
            settings = _config_difference(twin, entry)
            raise ConfigError(
                f"{place}: {twin.run.path} and {entry.run.path} have the same seeds"
                f"{f' and differ in {_words(settings, runs=False)}' if settings else ''}; "
                "drop one with --exclude or --where, or tell them apart with rows or columns"
            )
    runs = list(by_seeds.values())
    allowed: list[str] = []
    for other in runs[1:]:
        if runs[0].reference or not (runs[0].config and other.config):
            continue
        differences = _config_difference(runs[0], other)
        _refuse(f"{place}: its runs differ in more than the seed", differences, mixed)
        allowed += [d[0] for d in differences]
    return runs, [
        f"{key} ({_listed({_text(e.config.get(key)): None for e in runs if e.config})})"
        for key in dict.fromkeys(allowed)
    ]


def _keys(entries: Sequence[RunFacts], axes: Sequence[str]) -> list[str]:
    protocol = {k: None for e in entries for k in e.run.protocol}
    config = {k: None for e in entries for k in e.config if k in WIDE or k.startswith(WIDE_PREFIX)}
    out = (*axes, *SEEDS, *OF_METHOD)
    method = [] if "trainer" in axes else [k for k in METHOD if k not in axes]
    return [*method, *(k for k in (*protocol, *config) if k not in out)]


def _difference(entries: Sequence[RunFacts], key: str) -> Clash | None:
    first: dict[tuple[str, ...], RunFacts] = {}
    for entry in _bound(entries, key):
        other = first.setdefault(_group(entry, key), entry)
        if other.fact(key) != entry.fact(key):
            return key, other.fact(key), other, entry.fact(key), entry
    return None


def _bound(entries: Sequence[RunFacts], key: str) -> list[RunFacts]:
    """Return the entries that ``key`` means anything to."""
    training = key in TRAINING or key in WIDE or key.startswith(WIDE_PREFIX)
    return [
        e for e in entries
        if e.reference != "zero-shot" and e.names(key) and (e.trains or not training)
    ]


def _group(entry: RunFacts, key: str) -> tuple[str, ...]:
    return tuple(str(entry.fact(k)) for k in SCOPES.get(key, ()))


def _values(entries: Sequence[RunFacts], difference: Clash) -> list[str]:
    """Return every value of a key among the entries that should agree with the first."""
    key, first = difference[0], difference[2]
    alike = [e for e in _bound(entries, key) if _group(e, key) == _group(first, key)]
    return list(dict.fromkeys(_text(e.fact(key)) for e in alike))


def _refuse(what: str, differences: Sequence[Clash], mixed: Sequence[str] | None) -> None:
    """Refuse the differences that ``mixed`` does not allow; name the keys that it would need."""
    refused = [d for d in differences if mixed is None or (mixed and d[0] not in mixed)]
    if refused:
        key, value = refused[0][:2]
        every = " ".join(dict.fromkeys([*(mixed or ()), *(d[0] for d in refused)]))
        raise ConfigError(
            f"{what}: {_words(refused)}; choose with --where {key}={_text(value)}, make {key} a "
            f"row or column, or allow it with --mixed {every} (the caption then says so)"
        )


def _config_difference(a: RunFacts, b: RunFacts) -> list[Clash]:
    skipped = tuple(key.upper() for key in SEEDS)
    keys = [k for k in dict.fromkeys((*a.config, *b.config)) if k not in skipped]
    return [
        (k, a.config.get(k), a, b.config.get(k), b) for k in keys
        if a.config.get(k) != b.config.get(k)
    ]


def _words(differences: Sequence[Clash], runs: bool = True) -> str:
    parts = [
        f"{key} is {_text(a)} in {x.run.path} and {_text(b)} in {y.run.path}" if runs and not at
        else f"{key} {_text(a)} and {_text(b)}"
        for at, (key, a, x, b, y) in enumerate(differences[:MOST])
    ]
    more = len(differences) - MOST
    return ", ".join(parts) + (f", and {more} more" if more > 0 else "")


def _listed(words: Iterable[str]) -> str:
    every = list(words)
    more = len(every) - MOST_VALUES
    return ", ".join(every[:MOST_VALUES]) + (f", and {more} more" if more > 0 else "")


def _text(value: Any) -> str:
    text = "''" if value is None else str(value)
    whole = len(text) == 64 and all(c in "0123456789abcdef" for c in text)
    return text[:8] if whole else text
