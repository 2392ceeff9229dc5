"""What a ``tuned.json`` says of published runs: which ran with its values, by their configs.

Nothing is believed of the file's being there: a run counts as tuned when its own config has the
values that were chosen for its method, on its backbone and for what it trains. What it trains must
be the same both ways: a run that trains more than the entry has none of its values.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from statistics import fmean
from typing import Any

from evidence.results.lanes import Lane
from fedvlm.config.federation import WORK
from fedvlm.config.keys import default_schema
from fedvlm.config.option import Schema
from fedvlm.core.errors import ConfigError, fold
from fedvlm.federation.cards import fields
from fedvlm.runs.finished import FinishedRun
from fedvlm.sweep.tune.space import ADAPTIVE

EDGE = 0.1  # of a range, to each side
TUNED, PART, PLAIN = "tuned", "in part", "defaults"
CHOICE, RATE = "OPTIM.NAME", "OPTIM.LR"
BACKBONE, OPTIMISER = "MODEL.BACKBONE.NAME", "OPTIM."
SAME = ("PEFT.", "FED.FINETUNE_")  # what a run must share with the entry that it took values of
Trains = Mapping[str, Mapping[str, Any]]  # entry's label -> its keys of ``SAME``, as identities


@dataclass(frozen=True)
class Search:
    """What a page shows of a tuning besides ``tuned.json`` itself.

    Attributes:
        tables: of hyper-parameters, as Markdown; captions: theirs; tex: path of them as LaTeX.
        figures: paths of the best score so far over trials, local steps, processor seconds.
        noise: entry's label -> ``error`` (over clients), ``seeds``, ``repeat``: standard errors in
            percent, ``alike``: trials not clearly below the best, ``first``: score of defaults,
            ``steps`` and ``cpu`` (seconds) of all trials; None where nothing tells.
    """

    tables: Sequence[str] = ()
    captions: Sequence[str] = ()
    tex: str = ""
    figures: Sequence[str] = ()
    noise: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)


def searched(record: Mapping[str, Any]) -> list[str]:
    """Return what was searched for every entry, and whose search was another, in sentences.

    Empty of a record whose entries do not say.
    """
    entries = [e for e in record["entries"] if e.get("space")]
    keys = {str(e["label"]): [knob.partition(" ")[0] for knob in e["space"]] for e in entries}
    if not keys:
        return []

    def those(test: Callable[[str], bool]) -> list[str]:
        return [label for label, knobs in keys.items() if any(map(test, knobs))]

    every, rates = len(keys), those(lambda k: k.startswith(OPTIMISER) and k.endswith(".LR")
                                    and k != RATE)
    plain = [label for label, knobs in keys.items() if CHOICE not in knobs]
    out = [f"Each of {every} entries had {record['budget']} trials; the first one has the method's "
           f"defaults. Searched: a learning rate ({len(those(lambda k: k == RATE))} of {every})"
           f", the optimiser, sgd or adamw ({every - len(plain)}), a separate rate for a second "
           f"part ({len(rates)}), and at most two hyper-parameters of the method "
           f"({len(those(lambda k: k.startswith('TRAINER.')))})."]
    if plain:
        out.append(f"Exceptions: {', '.join(plain)} had a fixed optimiser (plain SGD steps "
                   "are part of the method) and one rate.")
    work = those(lambda k: k in WORK)
    common: Mapping[str, Any] = record["plan"]["common"]
    fixed = Counter(f"{key} {value}" for e in entries if str(e["label"]) not in work
                    for key, value in (common | e["settings"]).items() if key in WORK)
    words = ", ".join(f"{what} for {n}" for what, n in sorted(fixed.items()))
    held = (f"the plan sets it ({words}), so that the methods of a table do the same work. "
            "More or fewer local steps may suit an entry better.")
    before = "; for the others " if work else ": "
    out.append(f"Local work was tuned for {len(work) or 'none'} of {every}"
               + (before + held if words else "."))
    return out


def about(record: Mapping[str, Any], lanes: Sequence[Lane], trains: Trains) -> dict[str, Any]:
    """Return what tuning cost, on what it looked, and how many runs of each lane have its values.

    Empty without a record.

    Args:
        trains: what each entry trained, resolved as a run's config is (``tuned.trains_of``).

    Raises:
        ConfigError: it is not what fedvlm tune writes.
        DataError: a run's manifest cannot be read.
    """
    if not record:
        return {}
    try:
        plan = record["plan"]
        rows = [
            {"label": entry["label"], "trials": len(entry["trials"]), "score": entry["score"],
             "hours": sum(trial["seconds"] for trial in entry["trials"]) / 3600}
            for entry in record["entries"]
        ]
        seeds = [int(seed) for seed in plan["seeds"]]
        sets = [str(dataset["label"]) for dataset in plan["datasets"]]
        told = searched(record)
        counts = [_count(lane, record, trains) for lane in lanes if lane.runs]
    except (KeyError, TypeError, ValueError):
        raise ConfigError("tuned.json has no entries; make it again with fedvlm tune") from None
    runs = [run.protocol for lane in lanes for run in lane.runs]
    return {
        "rows": rows, "searched": told, "seeds": seeds, "sets": sets, "lanes": counts,
        "seeds_in_common": sorted({int(p["data_seed"]) for p in runs} & set(seeds)),
        "sets_in_common": sorted({str(p["dataset"]) for p in runs
                                  if fold(str(p["dataset"])) in map(fold, sets)}),
    }


def _count(lane: Lane, record: Mapping[str, Any], trains: Trains) -> dict[str, Any]:
    kinds = [(kind_of(run, record, trains), run.method) for run in lane.runs]
    number = {kind: sum(k == kind for k, _ in kinds) for kind in (TUNED, PART, PLAIN)}
    plain = sorted({method for kind, method in kinds if kind == PLAIN})
    loans = {run.method: lender for run, (kind, _) in zip(lane.runs, kinds, strict=True)
             if kind == PLAIN and (lender := lender_of(run, record))}
    methods = [f"{m} (optimiser of {loans[m]})" if m in loans else m for m in plain]
    return {"lane": lane.name, "methods": methods, "tuned": number[TUNED], "part": number[PART],
            "plain": number[PLAIN]}


def chosen_edges(record: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    """Return (entry, key, range, value) of each chosen value in the outer tenth of its range."""
    out = []
    for entry in record.get("entries", ()):
        for words in entry.get("space", ()):
            key, _, span = str(words).partition(" ")
            ends = span.removesuffix(" log").split(" to ")
            try:
                low, high, value = (float(x) for x in (*ends, entry["values"][key]))
            except (ValueError, KeyError):
                continue  # a choice of words, or not chosen
            if not high > low:
                continue
            if entry["values"].get(CHOICE) == "adamw" and key.endswith(".LR"):
                value /= ADAPTIVE  # ranges are sgd's
            if span.endswith(" log"):
                low, high, value = (math.log(x) for x in (low, high, value))
            place = (value - low) / (high - low)
            if place < EDGE or place > 1 - EDGE:
                out.append((str(entry["label"]), key, span,
                            f"{float(entry['values'][key]):.3g}"))
    return out


def searched_again(record: Mapping[str, Any], again: Mapping[str, Any]) -> str:
    """Return what a second search in wider ranges found, in sentences; '' of none.

    Args:
        record: what ``tuned.json`` says; again: the same of the second search. An entry whose
            values are equal in both was taken from it.
    """
    first = {str(entry["label"]): entry for entry in record.get("entries", ())}
    pairs = [(first[label], entry) for entry in again.get("entries", ())
             if (label := str(entry["label"])) in first]
    if not pairs:
        return ""
    taken = [str(new["label"]) for old, new in pairs if old["values"] == new["values"]]
    gains = {str(new["label"]): new["score"] - old["score"] for old, new in pairs
             if str(new["label"]) not in taken}
    most = max(gains, key=lambda label: gains[label], default="")
    words = [f"{len(pairs)} entries were searched again in the wider ranges, with as many trials "
             "again."]
    if taken:
        words.append(f"{', '.join(taken)} reached more and {'has' if len(taken) == 1 else 'have'} "
                     "the values of that search.")
    if most:
        words.append(f"The other {len(gains)} keep theirs: at most {gains[most]:+.1f} points "
                     f"({most}), on average {fmean(gains.values()):+.1f}; the edge did not hold "
                     "them back.")
    return " ".join(words)


def other_ranges(record: Mapping[str, Any], cards: Callable[[str], str]) -> list[str]:
    """Return which knobs of methods were searched in another range than their cards have now.

    Args:
        record: what ``tuned.json`` says.
        cards: the text of a method's card.
    """
    out = []
    for entry in record.get("entries", ()):
        trainer = str(entry["trainer"])
        now = fields(cards(trainer)).get("Knobs", "").rstrip(".")
        spans = dict(part.strip().split(" ", 1) for part in now.split(";") if " " in part.strip())
        for knob in entry.get("space", ()):
            key, _, span = str(knob).partition(" ")
            name = key.rpartition(".")[2]
            if key.startswith("TRAINER.") and spans.get(name, span) != span:
                out.append(f"{entry['label']}: {name} was searched in {span}; the method's range "
                           f"is now {spans[name]}. What these pages say of {entry['label']} rests "
                           "on the range that was searched.")
    return list(dict.fromkeys(out))


def lender_of(run: FinishedRun, record: Mapping[str, Any]) -> str:
    """Return the entry, of another method, whose optimiser's values a run has; '' of none.

    A plan may give those of a common ancestor to methods that were not tuned.
    """
    config = run.identity_config()
    for entry in record["entries"]:
        values = {k: v for k, v in entry["values"].items() if k.startswith(OPTIMISER)}
        other = fold(entry["trainer"]) != fold(str(run.protocol["trainer"]))
        if other and values and all(_same(k, v, config) for k, v in values.items()):
            return str(entry["label"])
    return ""


def kind_of(run: FinishedRun, record: Mapping[str, Any], trains: Trains) -> str:
    """Return whether a run has all tuned values of its method, those of the optimiser, or none."""
    config = run.identity_config()
    common: Mapping[str, str] = record["plan"]["common"]
    kinds = {PLAIN}
    for entry in record["entries"]:
        if fold(entry["trainer"]) != fold(str(run.protocol["trainer"])):
            continue
        asked = common | entry["settings"]
        if BACKBONE in asked and _name(asked[BACKBONE]) != _name(config.get(BACKBONE, "")):
            continue
        here = {key: value for key, value in config.items() if key.startswith(SAME)}
        if _plain(here) != _plain(trains.get(entry["label"], {})):
            continue
        values: Mapping[str, str] = entry["values"]
        agree = {key for key, word in values.items() if _same(key, word, config)}
        optimiser = {key for key in values if key.startswith(OPTIMISER)}
        if agree == set(values):
            kinds.add(TUNED)
        elif optimiser and optimiser <= agree:
            kinds.add(PART)
    return next(kind for kind in (TUNED, PART, PLAIN) if kind in kinds)


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values as JSON gives them back."""
    return {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}


@cache
def _schema() -> Schema:
    return default_schema()


def _name(backbone: object) -> str:
    """Return a backbone without the place of its folder, which differs between machines."""
    return str(backbone).rstrip("/").replace(":", "/").rpartition("/")[2]


def _same(key: str, word: str, config: Mapping[str, Any]) -> bool:
    """Return whether a config has at ``key`` what ``word`` says; left out, it has the default."""
    option = _schema().get(key)
    if option is not None:
        try:
            return bool(config.get(key, option.default) == option.parse(word))
        except ValueError:
            return False
    value = config.get(key)
    if isinstance(value, bool):
        return word.lower() in (("true", "yes", "on", "1") if value else
                                ("false", "no", "off", "0"))
    try:
        return isinstance(value, int | float) and float(word) == float(value) or word == str(value)
    except ValueError:
        return word == str(value)
