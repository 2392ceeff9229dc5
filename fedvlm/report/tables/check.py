"""Which runs may stand in one table: the same protocol, and in a cell the same hyper-parameters.

What a table does not refuse but has to say: tuning per column, and the code behind its runs.

A table's caption: what the numbers mean, under which protocol, of which data, made how.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedvlm.core.errors import ConfigError
from fedvlm.report.collect import SEEDS
from fedvlm.report.tables.metrics import METHOD, Entry, metric

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


TUNED = ("OPTIM.", "TRAINER.", "PEFT.", "MODEL.HEAD.", "FED.FINETUNE_")  # a method's own settings
CODE = ("fedvlm", "torch", "open_clip_torch")
MOST, DIGEST = 4, 8


def tuned(found: Sequence[Entry], axes: Sequence[str]) -> list[str]:
    """Return a note per method whose own settings are not the same in all its cells.

    Args:
        axes: row and column keys; what stands there needs no note.
    """
    notes = []
    methods: dict[str, list[Entry]] = {}
    for entry in found:
        if entry.config and entry.trains:
            methods.setdefault(entry.label("trainer", axes), []).append(entry)
    for name, mine in methods.items():
        keys = dict.fromkeys(k for e in mine for k in e.config if k.startswith(TUNED))
        values = {k: list(dict.fromkeys(str(e.fact(k)) for e in mine)) for k in keys
                  if k not in axes and k != "TRAINER.NAME"}
        words = [f"{k} ({', '.join(v[:MOST])}{', ...' if len(v) > MOST else ''})"
                 for k, v in values.items() if len(v) > 1]
        if words:
            notes.append(f"{name} has not the same settings in all cells: {'; '.join(words)}")
    return notes


def made_with(found: Sequence[Entry]) -> list[str]:
    """Return notes where the runs are of several versions, or of code that no commit holds."""
    notes = []
    for name in CODE:
        versions = _distinct([_part(e, "versions").get(name) for e in found])
        if len(versions) > 1:
            notes.append(f"made with several versions of {name}: {', '.join(versions)}")
    revisions = _distinct([_part(e, "git").get("revision") for e in found])
    if len(revisions) > 1:
        shown = ", ".join(r[:DIGEST] for r in revisions[:MOST])
        notes.append(f"made by {len(revisions)} revisions of the code: {shown}"
                     f"{', ...' if len(revisions) > MOST else ''}")
    changed = sum(bool(_part(e, "git").get("changed")) for e in found)
    if changed:
        notes.append(f"{changed} of {len(found)} runs were made by code with changes that are in "
                     "no commit")
    return notes


def left_out(found: Sequence[Entry]) -> list[str]:
    """Return a note where a run's means are not over all its clients."""
    said: dict[str, list[Entry]] = {}
    for entry in found:
        notes = entry.run.last.get("notes")
        for note in notes if isinstance(notes, list) else ():
            if "left out of" in str(note):
                said.setdefault(str(note), []).append(entry)
    return [
        f"{note} ({len(runs)} run(s), first {runs[0].run.path})"
        for note, runs in list(said.items())[:MOST]
    ] + ([f"and {len(said) - MOST} more such notes in the runs' results"] if len(said) > MOST
         else [])


def _part(entry: Entry, name: str) -> Mapping[str, Any]:
    found = entry.run.info.get(name)
    return found if isinstance(found, Mapping) else {}


def _distinct(values: Sequence[Any]) -> list[str]:
    return sorted({str(v) for v in values if v is not None})


DIGEST = 8  # characters of a digest shown
MOST_DIGESTS = 9
SPLIT = ("setting", "subsample", "shots", "partition", "held_out")  # what names a split
NOT_COMPARABLE = "not comparable with papers"
FACTS = (  # key -> words; in this order, and only where all runs agree
    ("setting", "setting {}"), ("trainer", "method {}"), ("dataset", "data set {}"),
    ("subsample", "{} classes"), ("shots", "{} shots"), ("partition", "partition {}"),
    ("held_out", "domain {} held out"), ("targets", "targets {}"),
    ("views", "K = {} training view(s) per image"), ("rounds", "{} rounds"),
    ("local_epochs", "{} local epoch(s)"), ("batch_size", "batch size {}"),
    ("budget", "matched by {}"),
)


def caption(
    runs: Sequence[Entry], names: Sequence[str], axes: Sequence[str], differing: Sequence[str],
    averaged: bool, ci: bool, n: int, command: str,
) -> str:
    """Return the caption as plain sentences.

    Args:
        runs: the entries shown, without reference numbers.
        names: the metrics shown.
        axes: row and column keys.
        differing: what differs on request (``--mixed``).
        averaged: whether there is an average over data sets.
        ci: whether the spread is the 95 % t-interval.
        n: the most seeds of a cell.
        command: what made the table; empty for unknown.
    """
    parts = [
        "; ".join(_meaning(name) for name in names), _spread(runs, ci, n), _protocol(runs, axes),
        _backbones(runs), _selection(runs), _digests(runs),
    ]
    if averaged:
        harmonic = [n for n in names if metric(n).harmonic]
        order = f"; of {', '.join(harmonic)} a mean of harmonic means" if harmonic else ""
        what = "domains held out" if "held_out" in axes else "data sets"
        parts.append(f"Average: mean over the {what} of the cells' means, without a spread{order}")
    if differing:
        parts.append(f"Mixed on request, so rows may differ by more than they say: "
                     f"{'; '.join(differing)}")
    parts += _remarks(runs)
    if command:
        parts.append(f"Made by: {command}")
    first, *rest = [part for part in parts if part]
    return ". ".join([first, *(part[0].upper() + part[1:] for part in rest)]) + "."


def _meaning(name: str) -> str:
    found = metric(name)
    better = "lower" if found.lower else "higher"
    unit = f" ({found.unit}; {better} is better)" if found.unit else f" ({better} is better)"
    return f"{name}: {found.words}{unit}"


def _spread(runs: Sequence[Entry], ci: bool, n: int) -> str:
    seeds = sorted({e.seeds for e in runs}, key=str)
    words = ", ".join(
        str(s) if s == d else f"{s} (data {d})" for s, d in seeds
    )
    if n < 2:
        return f"one seed per cell (seed {words}), so no spread"
    kind = "half the 95 % t-interval of the mean" if ci else "sample standard deviation"
    return f"mean ± {kind} over n = {n} seeds (seeds {words})"


def _protocol(runs: Sequence[Entry], axes: Sequence[str]) -> str:
    words = []
    for key, form in FACTS:
        if key in axes:
            continue
        texts = {_text_caption(e, key, axes) for e in runs if e.trains or key not in TRAINING}
        if len(texts) == 1 and (text := texts.pop()):
            words.append(form.format(text))
    return ", ".join(words)


def _text_caption(entry: Entry, key: str, axes: Sequence[str]) -> str:
    found: Any = entry.run.method if key == "trainer" else entry.fact(key)
    if key == "shots" and found == -1:
        return "all"
    return "" if found is None else str(found)


def _backbones(runs: Sequence[Entry]) -> str:
    found = {
        f"{e.fact('backbone')} ({e.fact('weights') or 'no tag'}, digest "
        f"{str(e.fact('backbone_digest'))[:DIGEST]})": None
        for e in runs
    }
    return f"backbone {'; '.join(found)}"


def _selection(runs: Sequence[Entry]) -> str:
    chosen = {str(e.fact("selection")) for e in runs}
    beside = "; a round chosen by validation stands beside it as selected.*" if "val" in chosen \
        else ""
    return f"last round; the test set chooses nothing{beside}"


def _digests(runs: Sequence[Entry]) -> str:
    """Name each split by the first characters of its digest; many by one digest over all."""
    names = {str(e.fact("dataset")) for e in runs}
    parts = [  # what is not the same in all splits of one data set
        key for key in SPLIT
        if len({(str(e.fact("dataset")), str(e.fact(key))) for e in runs}) > len(names)
    ]
    found = sorted({
        (" ".join([str(e.fact("dataset")), *(e.label(key, ()) for key in parts)]),
         str(e.fact("data_seed")), str(e.fact("data_digest"))) for e in runs
    })
    if len(found) > MOST_DIGESTS:
        whole = hashlib.sha256("\n".join(" ".join(one) for one in found).encode()).hexdigest()
        return f"{len(found)} data splits, digest over their digests {whole[:DIGEST]}"
    splits = [f"{name} seed {seed} {digest[:DIGEST]}" for name, seed, digest in found]
    return f"data digests: {', '.join(splits)}"


def _remarks(runs: Sequence[Entry]) -> list[str]:
    """Return what the runs say of themselves: ``not comparable with papers`` above all."""
    found: dict[str, None] = {}
    for entry in runs:
        notes = entry.run.info.get("notes", [])
        if isinstance(notes, Mapping) or not isinstance(notes, Sequence):
            continue
        found |= {str(n): None for n in notes if NOT_COMPARABLE in str(n)}
    return list(found)
