"""What stands below a table: its caption, and notes on what it does not refuse but has to say.

The caption: what the numbers mean, under which protocol, of which data, made how. The notes: tuning
per column, keys that old runs lack, clients left out of a mean, the code behind the runs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedvlm.report.collect import as_float
from fedvlm.report.tables.cells import BEST, PEER
from fedvlm.report.tables.check import TRAINING
from fedvlm.report.tables.facts import BEFORE, RunFacts
from fedvlm.report.tables.metrics import metric
from fedvlm.runs.finished import FinishedRun
from fedvlm.runs.identity import CAPTIONS, LABELS
from fedvlm.runs.verify.answer import paid_counts

DIGEST = 8  # characters of a digest shown
MOST_DIGESTS = 9
SPLIT = (  # what names a split
    "setting", "subsample", "shots", "partition", "held_out", "server_holdout",
)
NOT_COMPARABLE = "not comparable with papers"
ROUNDED = "(BANK.PREC)"  # in a run's note: activations were kept in half the digits
FACTS = (  # key -> words; in this order, and only where all runs agree
    ("setting", "setting {}"), ("trainer", "method {}"), ("dataset", "data set {}"),
    ("subsample", "{} classes"), ("shots", "{} shots"), ("partition", "partition {}"),
    ("held_out", "domain {} held out"),
    ("server_holdout", "{} image(s) per class with the server, not with clients"),
    ("unseen_clients", "{} client(s) that never work"),
    ("cohort", "personal models of a cohort of {} clients"),
    ("targets", "targets {}"),
    ("views", "K = {} training view(s) per image"), ("rounds", "{} rounds"),
    ("local_epochs", "{} local epoch(s)"), ("batch_size", "batch size {}"),
    ("budget", "matched by {}"),
)
COUNTED = ("shots", "rounds")  # of 1 the word has no s
AUTO = "auto"  # rounds of runs that flat validation accuracy ends
TUNED = ("OPTIM.", "TRAINER.", "PEFT.", "MODEL.HEAD.", "FED.FINETUNE_")  # a method's own settings
FINAL = "final_epochs"
CODE = ("fedvlm", "torch", "open_clip_torch")
MOST = 4  # values, revisions or notes of one kind named


def caption(
    runs: Sequence[RunFacts], names: Sequence[str], axes: Sequence[str], differing: Sequence[str],
    averaged: bool, ci: bool, n: int, command: str,
    marked: frozenset[int] | None = None, beside: Sequence[str] = (),
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
        marked: the marks that cells have; None where nobody competes.
        beside: metrics of the columns beside.
    """
    parts = [
        "; ".join(_meaning(name) for name in names), _spread(runs, ci, n), _protocol(runs, axes),
        _backbones(runs), _selection(runs), _digests(runs),
    ]
    if any(one.run.protocol.get("target") == LABELS for one in runs):
        parts.insert(1, "An image has a set of labels: the one number of a client, and personal "
                        "and global, are mAP (the mean over labels of the average precision)")
    if any(one.run.protocol.get("target") == CAPTIONS for one in runs):
        parts.insert(1, "Images have captions: the one number of a client, and personal and "
                        "global, are recall@1, mean of finding the text of an image and the image "
                        "of a text, each client's test set searched by itself")
    if "held_out" in axes and not any(name.startswith("unseen") for name in names):
        parts.insert(1, "Names of domains are those left out of training; the accuracy on them is "
                        "unseen (--metric unseen), and not in this table")
    if averaged:
        harmonic = [n for n in names if metric(n).parts]
        order = (f"; {', '.join(harmonic)} twice: H of the averages (as in CoOp's and MaPLe's "
                 "tables) and the mean of the sets' H (as in federated papers)"
                 if harmonic else "")
        what = "domains held out" if "held_out" in axes else "data sets"
        parts.append(f"Average: mean of the cells' means over the {what}; its spread is over the "
                     f"seeds that all {what} have{order}")
    if beside:
        over = "data sets" if {"dataset", "held_out"} & {*axes} else "columns"
        parts.append(f"further columns, means over the {over}: "
                     f"{'; '.join(_meaning(name) for name in beside)}")
    parts.append("" if marked is None else _marks(marked, n))
    if differing:
        parts.append(f"Mixed on request (--mixed), so rows also differ in: "
                     f"{'; '.join(differing)}")
    parts += _remarks(runs)
    if command:
        parts.append(f"Made by: {command}")
    first, *rest = [part for part in parts if part]
    return ". ".join([first, *(part[0].upper() + part[1:] for part in rest)]) + "."


BRIEFLY = {
    "personal": "Personal accuracy", "global": "Accuracy of the shared model",
    "new": "Accuracy on unseen classes", "base_all": "Accuracy on all base classes",
    "personal_worst": "Personal accuracy of the worst client",
    "personal_balanced": "Class-balanced personal accuracy", "hm2": "Harmonic mean of both",
}


def short_caption(
    names: Sequence[str], ci: bool, n: int, marked: frozenset[int] | None, below: bool
) -> str:
    """Return the caption as one sentence, for a paper; the rest is in its comments.

    Args:
        names, ci, n, marked: see ``caption``.
        below: whether a cell is below a reference of its kind.
    """
    said = [BRIEFLY.get(name, name) for name in names]
    what = ", ".join([*said[:1], *(one[0].lower() + one[1:] for one in said[1:])])
    units = {metric(name).unit for name in names}
    unit = f" ({units.pop()})" if len(units) == 1 and "" not in units else ""
    kind = "half the 95% t-interval" if ci else "sample standard deviation"
    words = f"{what}{unit}, mean ± {kind} over {n} seeds" if n > 1 else f"{what}{unit}, one seed"
    test = " (95% interval of paired differences)"
    apart = f"; bold: significantly different from every other method{test}"
    peers = f"; underlined: not significantly different from the best{test}"
    words += apart if marked and BEST in marked else ""
    words += "" if not marked or PEER not in marked else (
        peers.removesuffix(test) if BEST in marked else peers)
    return words + ("; ↓: below a baseline of its kind" if below else "") + "."


def brief_difference(name: str, versus: str, signs: bool) -> str:
    """Return the caption of a table of differences as one sentence.

    Args:
        signs: whether wins, ties and losses and what is detectable have columns.
    """
    more = ("; +/=/-: wins, ties and losses; detectable: the difference detected with "
            "a power of 80%") if signs else ""
    return (f"{BRIEFLY.get(name, name)} minus that of {versus}: mean paired difference and its 95% "
            f"interval{more}.")


def _marks(marked: frozenset[int], n: int) -> str:
    """Say what bold and underlined mean, or why there is neither."""
    if marked:
        return ("bold: significantly different from every other method (paired differences on "
                "these data sets at 5 %, corrected for choosing the best of all methods; seeds "
                "and, of personal accuracy, test images); underlined: the best and those not "
                "significantly different from it; no marks in a column: no significant difference "
                "to its best")
    if n < 2:
        return "nothing is bold: one seed allows no test"
    return ("nothing is bold: no method differs significantly from the best of its column (paired "
            "differences on these data sets at 5 %, corrected for choosing the best of all)")


def version_text(runs: Sequence[RunFacts]) -> str:
    """Return the versions and the code behind the runs: ``fedvlm 0.1.0, torch 2.15; code 1a2b``."""
    parts = []
    for name in CODE:
        every = _distinct([_part(e, "versions").get(name) for e in runs])
        parts += [f"{name} {' and '.join(every)}"] if every else []
    code = _distinct([_part(e, "git").get("revision") for e in runs])
    revisions = f"; code {' and '.join(r[:DIGEST] for r in code[:MOST])}" if code else ""
    return ", ".join(parts) + revisions


def _meaning(name: str) -> str:
    meant = metric(name)
    better = "lower" if meant.lower else "higher"
    unit = f" ({meant.unit}; {better} is better)" if meant.unit else f" ({better} is better)"
    return f"{name}: {meant.words.removeprefix(f'{name}: ')}{unit}"


def _spread(runs: Sequence[RunFacts], ci: bool, n: int) -> str:
    seeds = sorted({e.seeds for e in runs}, key=str)
    words = ", ".join(
        str(s) if s == d else f"{s} (data {d})" for s, d in seeds
    )
    if n < 2:
        return f"one seed per cell (seed {words}), so no spread"
    kind = "half the 95 % t-interval of the mean" if ci else "sample standard deviation"
    return f"mean ± {kind} over n = {n} seeds (seeds {words})"


def _protocol(runs: Sequence[RunFacts], axes: Sequence[str]) -> str:
    words = []
    for key, form in FACTS:
        if key in axes:
            continue
        texts = {_text(e, key, axes) for e in runs if e.trains or key not in TRAINING}
        if len(texts) == 1 and (text := texts.pop()):
            text = f"{AUTO}, {_ended(runs)}" if (key, text) == ("rounds", AUTO) else text
            one = key in COUNTED and text.split()[-1] == "1"
            words.append(form.format(text).removesuffix("s" if one else ""))
    return ", ".join(words)


def _ended(runs: Sequence[RunFacts]) -> str:
    """Return after how many rounds runs ended: ``14 to 32``."""
    counts = [int(e.run.last.get("round", 0)) for e in runs if e.trains]
    low, high = min(counts), max(counts)
    return f"{low}" if low == high else f"{low} to {high}"


def _text(entry: RunFacts, key: str, axes: Sequence[str]) -> str:
    value: Any = entry.run.method if key == "trainer" else entry.fact(key)
    if entry.fact("FED.PATIENCE") and key == "rounds":
        return AUTO
    if entry.fact("FED.PATIENCE") and (key, value) == ("budget", "rounds"):
        return ""  # each run has rounds of its own
    if key == "shots" and value == -1:
        return "all"
    if key in BEFORE and not value:
        return ""
    return "" if value is None else str(value)


def _backbones(runs: Sequence[RunFacts]) -> str:
    names = {
        f"{e.fact('backbone')} ({e.fact('weights') or 'no tag'}, digest "
        f"{str(e.fact('backbone_digest'))[:DIGEST]})": None
        for e in runs
    }
    return f"backbone {'; '.join(names)}"


def _selection(runs: Sequence[RunFacts]) -> str:
    rules = {str(e.fact("selection")) for e in runs}
    beside = "; the round chosen by validation is in selected.*" if "val" in rules else ""
    return f"last round; nothing is selected on the test set{beside}"


def _digests(runs: Sequence[RunFacts]) -> str:
    """Name each split by the first characters of its digest; many by one digest over all."""
    names = {str(e.fact("dataset")) for e in runs}
    parts = [  # what is not the same in all splits of one data set
        key for key in SPLIT
        if len({(str(e.fact("dataset")), str(e.fact(key))) for e in runs}) > len(names)
    ]
    digests = sorted({
        (" ".join([str(e.fact("dataset")), *(e.label(key, ()) for key in parts)]),
         str(e.fact("data_seed")), str(e.fact("data_digest"))) for e in runs
    })
    if len(digests) > MOST_DIGESTS:
        whole = hashlib.sha256("\n".join(" ".join(one) for one in digests).encode()).hexdigest()
        return f"{len(digests)} data splits, digest of their digests {whole[:DIGEST]}"
    splits = [f"{name} seed {seed} {digest[:DIGEST]}" for name, seed, digest in digests]
    return f"data digests: {', '.join(splits)}"


def _remarks(runs: Sequence[RunFacts]) -> list[str]:
    """Return what the runs say of themselves: ``not comparable with papers`` above all."""
    notes = [note for entry in runs for note in entry.run.notes() if NOT_COMPARABLE in note]
    rounded = list(dict.fromkeys(e.run.method for e in runs if any(
        ROUNDED in note for note in e.run.notes())))
    if rounded:
        notes.append("activations of frozen blocks kept in bf16 (BANK.PREC), so numbers differ "
                     f"from full precision: {_several(rounded)}")
    return list(dict.fromkeys(notes))


def _several(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST} more" if len(names) > MOST else ""
    return ", ".join(names[:MOST]) + more


def notes_on(entries: Sequence[RunFacts], axes: Sequence[str]) -> list[str]:
    """Return the notes on the runs of a table.

    Args:
        axes: row and column keys; what stands there needs no note.
    """
    return [*_paid(entries, axes), *_finetuned(entries, axes), *_tuned(entries, axes),
            *_unknown(entries), *_left_out(entries), *_made_with(entries)]


def _paid(entries: Sequence[RunFacts], axes: Sequence[str]) -> list[str]:
    """Return a note on the runs' answers: for each method, in how many of them federation pays."""
    return answers_by((entry.label("trainer", axes), entry.run) for entry in entries
                      if not entry.reference)


def answers_by(runs: Iterable[tuple[str, FinishedRun]]) -> list[str]:
    """Return in how many of its runs each method pays, in a line; none where no run answers that.

    Args:
        runs: each with its method; copies of a run count once.
    """
    several: dict[str, dict[tuple[Any, ...], Mapping[str, Any]]] = {}
    for name, run in runs:
        key = (run.digest, run.protocol.get("seed"), run.protocol.get("data_seed"),
               "" if run.digest else run.path)
        several.setdefault(name, {})[key] = run.results
    told = {name: paid_counts(list(some.values())) for name, some in several.items()}
    words = "; ".join(f"{name}: {counts}" for name, counts in told.items() if counts)
    return ["whether federation pays, run by run against the best alone (95 % margin of the run's "
            f"test images): {words}"] if words else []


def _finetuned(entries: Sequence[RunFacts], axes: Sequence[str]) -> list[str]:
    """Return a note on final fine-tuning: whose was set by hand, and how long the others' is."""
    usual, key = -1, "FED.FINETUNE_EPOCHS"  # -1: the method's own number
    epochs = {e.label("trainer", axes): e.fact(key) for e in entries if e.trains and e.names(key)}
    spent: dict[str, set[float]] = {}
    for entry in entries:
        name, n = entry.label("trainer", axes), as_float(entry.run.section("spent").get(FINAL))
        if n and epochs.get(name, usual) == usual:
            spent.setdefault(name, set()).add(n)
    own = ", ".join(f"{name} {' or '.join(f'{n:g}' for n in sorted(several))}"
                    for name, several in sorted(spent.items()))
    if len(set(epochs.values())) < 2:
        return [f"final fine-tuning (epochs) by the method's default: {own}; others have none"] \
            if own and usual in epochs.values() else []
    words = "; ".join(f"{name} {n}" for name, n in sorted(epochs.items()) if n != usual)
    return [f"final fine-tuning (epochs) set by {key}: {words}; all others use the method's default"
            + (f" ({own}; the rest 0)" if own else "")]


def _tuned(entries: Sequence[RunFacts], axes: Sequence[str]) -> list[str]:
    """Return a note per method whose own settings are not the same in all its cells."""
    notes = []
    methods: dict[str, list[RunFacts]] = {}
    for entry in entries:
        if entry.config and entry.trains:
            methods.setdefault(entry.label("trainer", axes), []).append(entry)
    for name, mine in methods.items():
        keys = dict.fromkeys(k for e in mine for k in e.config if k.startswith(TUNED))
        values = {k: list(dict.fromkeys(str(e.fact(k)) for e in mine)) for k in keys
                  if k not in axes and k != "TRAINER.NAME"}
        words = [f"{k} ({', '.join(v[:MOST])}{', ...' if len(v) > MOST else ''})"
                 for k, v in values.items() if len(v) > 1]
        if words:
            notes.append(f"{name}: hyper-parameters differ between cells: {'; '.join(words)}")
    return notes


def _unknown(entries: Sequence[RunFacts]) -> list[str]:
    """Return a note per protocol key that some runs do not name, as those of an older version."""
    notes = []
    for key in {k: None for e in entries for k in (*e.run.protocol, *e.identity)}:
        lacking = [e for e in entries if not e.names(key)]
        if lacking:
            methods = list(dict.fromkeys(e.run.method for e in lacking))
            notes.append(f"{len(lacking)} run(s) do not record {key}, so it was not compared: "
                         f"{', '.join(methods[:MOST])}{', ...' if len(methods) > MOST else ''}")
    return notes


def _left_out(entries: Sequence[RunFacts]) -> list[str]:
    """Return a note where a run's means are not over all its clients."""
    by_note: dict[str, list[RunFacts]] = {}
    for entry in entries:
        notes = entry.run.last.get("notes")
        for note in notes if isinstance(notes, list) else ():
            if "left out of" in str(note):
                by_note.setdefault(str(note), []).append(entry)
    return [
        f"{note} ({len(runs)} run(s), first {runs[0].run.path})"
        for note, runs in list(by_note.items())[:MOST]
    ] + ([f"and {len(by_note) - MOST} more such notes in the runs' results"]
         if len(by_note) > MOST else [])


def _made_with(entries: Sequence[RunFacts]) -> list[str]:
    """Return notes where the runs are of several versions, or of code that no commit holds."""
    notes = []
    for name in CODE:
        versions = _distinct([_part(e, "versions").get(name) for e in entries])
        if len(versions) > 1:
            notes.append(f"made with several versions of {name}: {', '.join(versions)}")
    revisions = _distinct([_part(e, "git").get("revision") for e in entries])
    if len(revisions) > 1:
        first = ", ".join(r[:DIGEST] for r in revisions[:MOST])
        notes.append(f"made by {len(revisions)} revisions of the code: {first}"
                     f"{', ...' if len(revisions) > MOST else ''}")
    changed = sum(bool(_part(e, "git").get("changed")) for e in entries)
    if changed:
        notes.append(f"{changed} of {len(entries)} runs were made by code with uncommitted "
                     "changes")
    return notes


def _part(entry: RunFacts, name: str) -> Mapping[str, Any]:
    part = entry.run.info.get(name)
    return part if isinstance(part, Mapping) else {}


def _distinct(values: Sequence[Any]) -> list[str]:
    return sorted({str(v) for v in values if v is not None})
