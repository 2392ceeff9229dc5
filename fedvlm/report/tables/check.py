"""Which runs may stand in one table: one protocol for all, and in a cell one set of settings.

A table compares the runs' whole identity outside the method's own namespace (``OWN``). What tables
say in words (``shots``, ``rounds``) must agree in the whole table, any other key among the runs of
one data set and data seed; ``FREE`` keys alone may differ in silence.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedvlm.config.families import NOT_OWN, OWN
from fedvlm.core.errors import ConfigError
from fedvlm.report.collect import SEEDS
from fedvlm.report.tables.facts import IDENTITY, METHOD, METRIC, RunFacts
from fedvlm.runs.finished import FinishedRun
from fedvlm.runs.verify.parting import flat_leaves

# Facts of the method, not of the protocol.
OF_METHOD = ("trainer", "extra_data", "proxy", "privacy", *METHOD)
# What may differ in silence: the seeds themselves, the layout of clients over chunks and sites
# (last bits), and what is only recorded.
FREE = (
    "SEED", "DATA_SEED", "FED.CHUNK", "FED.SITES", "TEST.REFERENCES", "TEST.PER_CLASS_RESULT",
    "TEST.COMPUTE_CMAT", "TEST.PER_IMAGE", "TRAIN.KEEP_STATES",
)
# The server's rule, and who attacks it: a variant of a method, which its tag names.
RULE = (
    "FED.WEIGHTING", "FED.AGGREGATOR", "FED.TRIM", "FED.BYZANTINE", "FED.CLIP_NORM",
    "FED.SAA_TEMP", "FED.FAIR_", "FED.SERVER_", "FED.HOSTILE", "FED.ATTACK", "FED.DP.",
)
# Keys that need to agree only among runs that agree in these.
SCOPES = {
    "subsample": ("setting",),
    "weights": ("backbone",),
    "backbone_digest": ("backbone", "weights"),
    "transform": ("backbone",),
    "partition": ("held_out", "server_holdout"),
    "data_digest": (
        "dataset", "data_seed", "partition", "shots", "setting", "subsample", "held_out",
        "server_holdout",
    ),
    "DATASET.TEMPLATE": ("dataset",),
    "DATASET.TEMPLATES": ("dataset",),
    "FED.FINETUNE_EPOCHS": ("tag",),  # a variant of a method that its label names
}
SCOPES["images"] = (*SCOPES["data_digest"], "data_digest")
# One batch size, one augmentation and preprocessing, one precision per table.
WIDE = (
    "DATALOADER.TRAIN_X.BATCH_SIZE", "DATALOADER.TRAIN_X.SAMPLER", "DATASET.TEMPLATE",
    "DATASET.TEMPLATES",
    "FED.FINETUNE_EPOCHS", "MODEL.PREC", "TEST.SPLIT",
)
WIDE_PREFIX = "INPUT."
# Protocol key -> config keys that it stands for: where it differs on request, they do too.
STANDS_FOR: Mapping[str, tuple[str, ...]] = {
    "setting": ("DATASET.SUBSAMPLE_CLASSES", "DATASET.TEST_NEW", "TEST.TARGETS",
                "FED.HELD_OUT_DOMAIN"),
    "subsample": ("DATASET.SUBSAMPLE_CLASSES", "DATASET.TEST_NEW"),
    "shots": ("DATASET.NUM_SHOTS", "DATASET.VAL_SHOTS"),
    "partition": ("FED.PARTITION", "FED.CLIENTS", "FED.FRAC", "FED.FIRST_ROUND_ALL", "FED.BETA",
                  "FED.MIN_SIZE", "FED.CLASSES_PER_CLIENT", "FED.REPEAT_RATE", "FED.LEGACY",
                  "FED.HELD_OUT_DOMAIN", "DATASET.SERVER_HOLDOUT", "DATASET.CORRUPTION"),
    "held_out": ("FED.HELD_OUT_DOMAIN", "DATASET.SOURCE_DOMAINS", "DATASET.TARGET_DOMAINS"),
    "server_holdout": ("DATASET.SERVER_HOLDOUT",),
    "unseen_clients": ("FED.UNSEEN_CLIENTS",), "cohort": ("TEST.COHORT",),
    "targets": ("TEST.TARGETS",), "backbone": ("MODEL.",), "weights": ("MODEL.INIT_WEIGHTS",),
    "batch_size": ("DATALOADER.TRAIN_X.BATCH_SIZE",), "rounds": ("FED.ROUNDS",),
    "local_epochs": ("FED.LOCAL_EPOCHS",), "views": ("INPUT.VIEWS", "INPUT.RRCROP_SCALE"),
    "selection": ("TEST.SELECT",), "budget": ("FED.BUDGET",), "data_digest": ("DATASET.",),
}
# What a run that takes no step does not have; of its config only EVALUATED means anything.
TRAINING = ("batch_size", "rounds", "local_epochs", "views", "budget", "selection")
EVALUATED = ("DATASET.", "MODEL.", "TEST.")
GLOSS = {
    "images": "images (the image files' bytes)", "transform": "transform (of images to pixels)",
    "device": "device (the processor's kind)",
}
VOLATILE = ("seconds", "counters", "notes")  # of results: wall time and what caches spared
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
    protocol = [d for key in _protocol_keys(entries, axes) if (d := _difference(entries, key, ()))]
    stood = tuple(key for d in protocol for key in STANDS_FOR.get(d[0], ()))
    place = ("dataset", *SEEDS[1:], *(k for k in axes if k not in (*OF_METHOD, METRIC)))
    settings = [
        d for key in _config_keys(entries) if key not in axes and not key.startswith(stood)
        and (d := _difference(entries, key, _scope(key, place)))
    ]
    differences = [*protocol, *settings]
    _refuse("these runs cannot share a table", differences, mixed)
    return [f"{d[0]} ({_values(entries, d)})" for d in differences]


def same_config(
    cell: Sequence[RunFacts], place: str, mixed: Sequence[str] | None
) -> tuple[list[RunFacts], list[str], list[str]]:
    """Return a cell's runs, each seed once, words for what differs on request, and the copies.

    Args:
        cell: runs of one row and column.
        place: row and column in words.
        mixed: see ``same_protocol``.

    Returns:
        Runs; words; of each copy dropped, ``PATH (a copy of PATH)``.

    Raises:
        ConfigError: the seeds differ in more than the seed, two different runs have one seed, or
            two runs of one identity have different numbers.
    """
    by_seeds: dict[tuple[Any, ...], RunFacts] = {}
    copies = []
    for entry in cell:
        twin = by_seeds.setdefault(entry.seeds, entry)
        if twin is not entry and not entry.reference:
            _refuse_twins(twin, entry, place)
            copies.append(f"{entry.run.path} (a copy of {twin.run.path})")
    runs = list(by_seeds.values())
    allowed: list[str] = []
    for other in runs[1:]:
        if runs[0].reference or not (runs[0].config and other.config):
            continue
        differences = _config_difference(runs[0], other)
        _refuse(f"{place}: its runs differ in more than the seed", differences, mixed)
        allowed += [d[0] for d in differences]
    return runs, [
        f"{key} ({_listed({_text(e.fact(key)): None for e in runs if e.config})})"
        for key in dict.fromkeys(allowed)
    ], copies


def different_number(a: FinishedRun, b: FinishedRun) -> tuple[str, Any, Any] | None:
    """Return the first number that two results both have with different values; None for none.

    Wall time and what caches spared are no results. Where only one has a number, as a newer
    version's, they are not compared.
    """
    left, right = (dict(flat_leaves(run.results, skip=lambda key: key.startswith(VOLATILE)))
                   for run in (a, b))
    names = sorted((name for name in left if name in right),
                   key=lambda name: (name != "last.personal", not name.startswith("last.")))
    return next(((n, left[n], right[n]) for n in names if left[n] != right[n]), None)


def _refuse_twins(a: RunFacts, b: RunFacts, place: str) -> None:
    """Refuse two runs of one cell and seed unless one is a copy of the other."""
    settings = _config_difference(a, b)
    same = a.config and b.config and not settings and a.run.protocol == b.run.protocol
    if a.run.digest != b.run.digest and not same:
        raise ConfigError(
            f"{place}: {a.run.path} and {b.run.path} have the same seeds"
            f"{f' and differ in {_words(settings, runs=False)}' if settings else ''}; "
            "drop one with --exclude or --where, or tell them apart with rows or columns"
        )
    number = different_number(a.run, b.run)
    if number:
        raise ConfigError(
            f"{place}: {a.run.path} and {b.run.path} are two runs of one identity with different "
            f"numbers ({number[0]} is {_text(number[1])} and {_text(number[2])}): other code, "
            "another machine, or a file that was edited; give the folder of the one that counts, "
            "or move the other away"
        )


def _protocol_keys(entries: Sequence[RunFacts], axes: Sequence[str]) -> list[str]:
    """Return the keys that hold for the whole table: those in the caption, and ``WIDE``."""
    protocol = {k: None for e in entries for k in e.run.protocol}
    wide = {k: None for e in entries for k in e.config if _wide(k)}
    out = (*axes, *SEEDS, *OF_METHOD)
    method = [] if "trainer" in axes else [k for k in METHOD if k not in axes]
    return [*method, *(k for k in (*protocol, *wide) if k not in out)]


def _config_keys(entries: Sequence[RunFacts]) -> list[str]:
    """Return the keys of the identity that are neither a method's own, nor free, nor wide."""
    return [
        *(part for part in IDENTITY if any(part in e.identity for e in entries)),
        *dict.fromkeys(
            k for e in entries for k in e.config
            if k not in FREE and not _wide(k) and (not k.startswith(OWN) or k in NOT_OWN)
        ),
    ]


def _wide(key: str) -> bool:
    return key in WIDE or key.startswith(WIDE_PREFIX)


def _scope(key: str, place: tuple[str, ...]) -> tuple[str, ...]:
    """Return the keys among whose equals a key of the identity has to agree."""
    if key in IDENTITY and key in SCOPES:
        return (*SCOPES[key], *place)
    return (*place, "tag") if key.startswith(RULE) else place


def _difference(
    entries: Sequence[RunFacts], key: str, scope: tuple[str, ...]
) -> Clash | None:
    bound = _bound(entries, key)
    if len({_plain(e.fact(key)) for e in bound}) < 2:
        return None
    first: dict[tuple[str, ...], RunFacts] = {}
    for entry in bound:
        other = first.setdefault(_group(entry, key, scope), entry)
        if _plain(other.fact(key)) != _plain(entry.fact(key)):
            return key, other.fact(key), other, entry.fact(key), entry
    return None


def _plain(value: Any) -> str:
    """Return a value as text, a tuple as the list that JSON makes of it."""
    return repr(list(value) if isinstance(value, tuple) else value)


def _bound(entries: Sequence[RunFacts], key: str) -> list[RunFacts]:
    """Return the entries that ``key`` means anything to."""
    config = key.isupper() and (not key.startswith(EVALUATED) or key == "TEST.SELECT")
    training = key in TRAINING or config or _wide(key)
    return [
        e for e in entries
        if e.reference != "zero-shot" and e.names(key) and (e.trains or not training)
    ]


def _group(entry: RunFacts, key: str, scope: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(str(entry.fact(k)) for k in scope or SCOPES.get(key, ()))


def _values(entries: Sequence[RunFacts], difference: Clash) -> str:
    """Return a key's values; where each data set has one of them, with the data sets."""
    key, first = difference[0], difference[2]
    scope = SCOPES.get(key, ())
    alike = [e for e in _bound(entries, key) if _group(e, key, scope) == _group(first, key, scope)]
    sets: dict[str, dict[str, None]] = {}
    for e in alike:
        sets.setdefault(str(e.fact("dataset")), {})[_text(e.fact(key))] = None
    if len(sets) > 1 and all(len(values) == 1 for values in sets.values()):
        by_value: dict[str, list[str]] = {}
        for name, values in sets.items():
            by_value.setdefault(next(iter(values)), []).append(name)
        return "; ".join(f"{value}: {', '.join(names)}" for value, names in by_value.items())
    return _listed(dict.fromkeys(_text(e.fact(key)) for e in alike))


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
    keys = [k for k in dict.fromkeys((*IDENTITY[1:], *a.config, *b.config)) if k not in FREE]
    return [
        (k, a.fact(k), a, b.fact(k), b) for k in keys
        if a.names(k) and b.names(k) and _plain(a.fact(k)) != _plain(b.fact(k))
    ]


def _words(differences: Sequence[Clash], runs: bool = True) -> str:
    parts = [
        f"{GLOSS.get(key, key)} is {_text(a)} in {x.run.path} and {_text(b)} in {y.run.path}"
        if runs and not at else f"{GLOSS.get(key, key)} {_text(a)} and {_text(b)}"
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
