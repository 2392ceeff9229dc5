"""What runs a page is made of: how many of which, what is missing, where they are, what differs."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fedvlm.errors import DataError
from fedvlm.report.collect import Collected, Run
from fedvlm.report.html import Content, Html, cell, element, items, join, search, table
from fedvlm.report.sections_journal import Sweep
from fedvlm.report.sections_numbers import number, shown

PAGE = "report.html"
SEED_KEYS = {"SEED", "DATA_SEED"}
MOST_VALUES = 6  # values of a setting shown


def matrix(found: Collected, known: Sequence[Sweep]) -> Html:
    """Return methods x data sets with finished, failed and missing runs, of sweeps and others."""
    done: Counter[tuple[str, str]] = Counter(
        (run.method, str(run.protocol.get("dataset"))) for run in found.runs
    )
    failed: Counter[tuple[str, str]] = Counter()
    methods = dict.fromkeys(sorted({m for m, _ in done}, key=str.casefold))
    columns = dict.fromkeys(sorted({d for _, d in done}, key=str.casefold))
    for sweep in known:
        names = sweep.labels(found.runs)
        methods |= dict.fromkeys(names["method"][one] for one in sweep.trainers)
        columns |= dict.fromkeys(names["dataset"][one] for one in sweep.datasets)
        for one in sweep.failed():
            method, data = str(one["method"]), str(one["dataset"])
            failed[names["method"].get(method, method), names["dataset"].get(data, data)] += 1
    for method, data in failed:
        methods.setdefault(method)
        columns.setdefault(data)
    most = max([*done.values(), *(sweep.per_cell for sweep in known)], default=0)
    rows = [
        [method, *(_state(done[method, data], failed[method, data], most) for data in columns)]
        for method in methods
    ]
    return table(["method", *columns], rows,
                 caption=f"Finished runs of each method on each data set, of {most}")


def gaps(found: Collected, known: Sequence[Sweep], here: Path) -> Html:
    """Return what is not there: failed attempts with their sentence, unfinished and damaged runs.

    Args:
        here: folder of the page; paths are shown relative to it.
    """
    failed = [(sweep, one) for sweep in known for one in sweep.failed()]
    gone = {(sweep.output / str(one["cell"])).resolve() for sweep, one in failed}
    rows: list[Sequence[Content]] = [
        [f"{one['dataset']}, {one['method']}", "failed",
         one.get("sentence") or f"exit code {one['code']}", element("code", one["cell"])]
        for _, one in failed
    ]
    rows += [
        [_name(path), "unfinished", "the same command goes on there",
         element("code", _relative(path, here))]
        for path in found.unfinished if path.resolve() not in gone
    ]
    parts: list[Content] = []
    for sweep in known:
        there = sum((sweep.output / key / "results.json").exists() for key in sweep.attempts)
        words = (f"Sweep {sweep.name}: the plan has {sweep.cells} cells; its journal names "
                 f"{there} finished and {len(sweep.failed())} failed.")
        parts.append(element("p", words))
    if rows:
        parts.append(table(["run", "state", "why", "folder"], rows,
                           caption="Runs without results"))
    parts.append(items(found.problems))
    return join(parts) if any(parts) else Html("")


def listing(runs: Sequence[Run], here: Path) -> Html:
    """Return all runs with their headline; a run that has a page is linked.

    Args:
        here: folder of the page, which links are relative to.
    """
    rows = []
    for run in runs:
        said, personal = run.protocol, run.value("personal")
        path = _relative(run.path, here)
        name: Content = run.method
        if (run.path / PAGE).exists():
            name = element("a", run.method, href=quote(f"{path}/{PAGE}"))
        over = run.value("global")
        totals = run.info.get("totals")
        seconds = number(totals.get("seconds")) if isinstance(totals, Mapping) else None
        rows.append([
            name, str(said.get("dataset")), said.get("shots"), str(said.get("partition")),
            said.get("seed"), said.get("data_seed"), cell(shown(personal), personal),
            cell(shown(over), over), cell(shown(seconds), seconds),
            element("code", path, class_="short"),
        ])
    heads = ("method", "data set", "shots", "partition", "seed", "data seed", "personal (%)",
             "global (%)", "seconds", "folder")
    words = f"{len(rows)} finished runs; those with a page of their own are links"
    return join([
        search("run-table", "method, data set ..."),
        table(heads, rows, caption=words, sortable=True, tall=True, key="run-table"),
    ])


def differences(runs: Sequence[Run]) -> Html:
    """Return the settings in which the runs differ, seeds apart, and who has which value."""
    configs = [(run, _config(run)) for run in runs]
    keys = sorted({k for _, c in configs for k in c} - SEED_KEYS)
    rows = []
    for key in keys:
        values: dict[str, list[Run]] = {}
        for run, config in configs:
            if config:
                values.setdefault(repr(config[key]) if key in config else "not a setting of it",
                                  []).append(run)
        if len(values) > 1:
            said = [join([element("code", value), ": ", _who(owners, runs)])
                    for value, owners in list(values.items())[:MOST_VALUES]]
            more = [f"and {len(values) - MOST_VALUES} more values"] \
                if len(values) > MOST_VALUES else []
            rows.append([element("code", key), items([*said, *more], class_="plain")])
    if not rows:
        return element("p", "The runs' configs differ in their seeds only.")
    words = f"{len(rows)} settings in which the runs differ, seeds apart"
    return table(["setting", "values"], rows, caption=words, tall=True)


def commands(runs: Sequence[Run]) -> list[str]:
    """Return the command lines that made the runs, each once."""
    found: dict[str, None] = {}
    for run in runs:
        word = run.info.get("command")
        if word:
            found[str(word)] = None
    return list(found)


def _state(done: int, failed: int, most: int) -> Html:
    parts: list[Content] = [str(done) if done else "none"]
    if failed:
        parts.append(element("span", f", {failed} failed", class_="bad"))
    elif done < most:
        parts = [element("span", f"{done} of {most}" if done else "none", class_="bad")]
    return cell(join(parts), done)


def _who(owners: Sequence[Run], everyone: Sequence[Run]) -> str:
    """Name runs by their methods or their data sets, whichever they are all of."""
    for name in (_method, _dataset):
        own = {name(run) for run in owners}
        if len(own) < len({name(run) for run in everyone}) and sum(
            name(run) in own for run in everyone
        ) == len(owners):
            return names(own)
    return f"{len(owners)} runs"


def _method(run: Run) -> str:
    return run.method


def _dataset(run: Run) -> str:
    return str(run.protocol.get("dataset"))


def _config(run: Run) -> dict[str, Any]:
    try:
        found = run.manifest()["identity"]["config"]
    except (DataError, KeyError, TypeError):
        return {}
    return found if isinstance(found, dict) else {}


def _name(path: Path) -> str:
    """Return the method and data set of an unfinished run from its place in the tree."""
    parts = path.parts[-6:]
    return f"{parts[0]}, {parts[2]}" if len(parts) == 6 else path.name


def _relative(path: Path, here: Path) -> str:
    return Path(os.path.relpath(path.resolve(), here.resolve())).as_posix()


def names(found: Iterable[str]) -> str:
    """Return names in alphabetical order, joined."""
    return ", ".join(sorted(set(found), key=str.casefold))
