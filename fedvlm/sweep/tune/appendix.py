"""The hyper-parameters of a tuning's methods as tables for a paper's appendix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedvlm.config.federation import local_work
from fedvlm.config.option import Value
from fedvlm.core.repository import repository
from fedvlm.report.tables.cells import MISSING, TableCell
from fedvlm.report.tables.papers import GROUPS, Paper
from fedvlm.report.tables.table import ReportTable
from fedvlm.sweep.tune.defaults import file_of
from fedvlm.sweep.tune.space import LR, NAME
from fedvlm.sweep.tune.tuned import read_tuned
from fedvlm.sweep.tune.values import load_schema, parse_value, read_values

METRIC = "hyperparameters"
# Shown too: in a caption where all methods have one value, else as a column. What a method runs
# with, and under which protocol it was tuned, which is not that of the tables.
MORE = {
    "DATALOADER.TRAIN_X.BATCH_SIZE": "batch", "OPTIM.MOMENTUM": "momentum",
    "OPTIM.WEIGHT_DECAY": "weight decay", "OPTIM.LR_SCHEDULER": "schedule",
    "FED.FINETUNE_EPOCHS": "final epochs",
}
PROTOCOL = {"FED.ROUNDS": "rounds", "FED.CLIENTS": "clients", "DATASET.NUM_SHOTS": "shots"}
SAID = {("FED.FINETUNE_EPOCHS", -1): "as the method says", ("DATASET.NUM_SHOTS", -1): "all"}
Config = Mapping[str, Value]


def hyperparameters(
    tuned: Path, command: str = "", papers: Mapping[str, Paper] | None = None
) -> list[ReportTable]:
    """Return two tables: what each method runs with, and what was searched to find it.

    Args:
        tuned: ``tuned.json``; what it did not tune is as the methods' files say today.
        command: that made the tables.
        papers: method -> what its card says; groups and cites methods where there are any.

    Raises:
        ConfigError: a method, or a key of its values, is gone.
        DataError: the file is damaged.
    """
    record = read_tuned(tuned)
    entries = list(record["entries"])
    groups = [(papers or {}).get(e["trainer"], Paper("")).group for e in entries]
    order = sorted(range(len(entries)), key=lambda i: [*GROUPS, groups[i]].index(groups[i]))
    entries, groups = [entries[i] for i in order], [groups[i] for i in order]
    configs = [_config(record, entry) for entry in entries]
    made = f"{command}, from {tuned} ({record['digest'][:12]})" if command else ""
    rows, alike = _with([_values(e, c) for e, c in zip(entries, configs, strict=True)],
                        configs, MORE)
    shared = _shared(entries)
    searches, protocol = _with([_search(entry, shared) for entry in entries], configs, PROTOCOL)
    brief = "Hyper-parameters of every method."
    caption = " ".join([brief, *([f"All: {', '.join(alike)}."] if alike else [])])
    return [
        _table(entries, rows, groups, made, caption, brief),
        _table(entries, searches, groups, made, _searched(record, protocol, shared),
               "What was searched for each method, and the validation score that chose."),
    ]


def _shared(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what was searched for every method that had anything to search."""
    spaces = [entry["space"] for entry in entries if entry["space"]]
    first = spaces[0] if spaces else []
    return [knob for knob in first if not knob.startswith("TRAINER.")
            and all(knob in space for space in spaces)]


def _searched(record: Mapping[str, Any], protocol: Sequence[str], shared: Sequence[str]) -> str:
    """Return the caption of the second table."""
    plan = record["plan"]
    sets = ", ".join(str(dataset["label"]) for dataset in plan["datasets"])
    seeds = f"seeds {', '.join(map(str, plan['seeds']))}"
    where = "; ".join([sets, seeds, *protocol])
    texts = [f"What was searched: {record['budget']} trials per method ({where}), scored on "
             "validation images with one standard error."]
    if shared:
        texts.append(f"For every method with something to search: {'; '.join(shared)}.")
    if any(knob.partition(" ")[0] == LR for e in record["entries"] for knob in e["space"]):
        texts.append("Rates are sgd's; adamw: a tenth of that.")
    return " ".join(texts).replace(" | ", " or ")


def _with(
    rows: Sequence[Mapping[str, str]], configs: Sequence[Config], names: Mapping[str, str]
) -> tuple[list[dict[str, str]], list[str]]:
    """Return rows with the keys in which methods differ, and words on those they share."""
    alike = [key for key in names if len({config[key] for config in configs}) == 1]
    wider = [
        {**row, **{names[key]: _said(key, config) for key in names if key not in alike}}
        for row, config in zip(rows, configs, strict=True)
    ]
    return wider, [f"{names[key]} {_said(key, configs[0])}" for key in alike]


def _config(record: Mapping[str, Any], entry: Mapping[str, Any]) -> Config:
    """Return all values of a method: its file's, the plan's, the tuned ones, its own settings."""
    trainer, schema = load_schema(str(entry["trainer"]))
    path = file_of(repository() / "configs" / "trainers", trainer.name)
    config = read_values(path, schema)
    label, values = str(entry["label"]), entry["values"]
    plan = record["plan"]["common"] | entry["settings"]
    if record["plan"]["shots"]:
        plan["DATASET.NUM_SHOTS"] = str(record["plan"]["shots"][0])
    plan = {key: word for key, word in plan.items() if key in schema}
    return config | {k: parse_value(schema, k, w, label) for k, w in (values | plan).items()}


def _values(entry: Mapping[str, Any], config: Config) -> dict[str, str]:
    """Return a method's row: optimiser, rates, local work, its own."""
    keys = [knob.partition(" ")[0] for knob in entry["space"]]
    roles = [key for key in keys if key.startswith("OPTIM.") and key not in (NAME, LR)]
    trained = any(key.startswith("OPTIM.") for key in keys) or entry["values"]
    own = [key for key in keys if key.startswith("TRAINER.")]
    return {
        "optimiser": _word(config[NAME]) if trained else MISSING,
        "rate": _word(config[LR]) if trained else MISSING,
        **{f"rate, {key.split('.')[1].lower()}": _word(config[key] or config[LR])
           for key in roles},
        "local work": local_work(config) if trained else MISSING,
        "its own": ", ".join(f"{_last(key)} {_word(config[key])}" for key in own) or MISSING,
    }


def _search(entry: Mapping[str, Any], shared: Sequence[str]) -> dict[str, str]:
    own = [knob for knob in entry["space"] if knob not in shared]
    texts = [f"{_short(knob.partition(' ')[0])} {knob.partition(' ')[2]}" for knob in own]
    return {
        "tuned hyper-parameters": ", ".join(texts).replace(" | ", " or ") or MISSING,
        "trials": str(len(entry["trials"])), "chosen": str(entry["trial"]),
        "defaults": _first(entry), "validation": f"{entry['score']:.1f} ± {entry['error']:.1f}",
    }


def _first(entry: Mapping[str, Any]) -> str:
    score = entry["trials"][0].get("score")
    return MISSING if score is None else f"{score:.1f}"


def _table(
    entries: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, str]],
    groups: Sequence[str], made: str, caption: str, brief: str,
) -> ReportTable:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    columns.sort(key=_place)
    cells = tuple(
        tuple(TableCell(METRIC, words=row.get(name, MISSING)) for name in columns) for row in rows
    )
    return ReportTable(
        (METRIC,), "trainer", tuple(str(entry["label"]) for entry in entries), tuple(columns),
        cells, caption, brief=brief, made=made,
        groups=tuple(groups) if any(groups) else (),
        methods=tuple(str(entry["trainer"]) for entry in entries),
    )


def _place(column: str) -> int:
    """Return where a column stands: rates side by side, the widest last."""
    return {"optimiser": 0, "rate": 1, "its own": 3}.get(column.partition(",")[0], 2)


def _short(key: str) -> str:
    """Return a method's own key by its last word, another one in full."""
    return _last(key) if key.startswith("TRAINER.") else key


def _last(key: str) -> str:
    return key.rpartition(".")[2]


def _said(key: str, config: Config) -> str:
    return SAID.get((key, config[key]), _word(config[key]))


def _word(value: Value) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
