"""The page over many runs: tables, figures, what is missing, all runs, how they were made."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fedvlm.core.errors import DataError, plural
from fedvlm.report import PAGE
from fedvlm.report.collect import Collected, as_float
from fedvlm.report.figures import style
from fedvlm.report.figures.selection import FigureRuns
from fedvlm.report.pages import figures
from fedvlm.report.pages.frame import PageSection, page
from fedvlm.report.pages.grid import table
from fedvlm.report.pages.html import (
    Content,
    Html,
    cell,
    decimal,
    element,
    fact_list,
    items,
    join_content,
    lines,
    render_template,
    search,
)
from fedvlm.report.pages.journal import SweepJournal, journals
from fedvlm.report.pages.numbers import box, seeds_content
from fedvlm.report.pages.origin import method_card
from fedvlm.report.pages.svg import COLOURS
from fedvlm.report.pages.tables import groups, of_group
from fedvlm.report.tables.caption import NOT_COMPARABLE, answers_by
from fedvlm.report.tables.facts import RunFacts
from fedvlm.report.tables.layout import spell_names
from fedvlm.report.tables.papers import Paper
from fedvlm.runs.finished import FinishedRun
from fedvlm.runs.names import is_finished

SEED_KEYS = {"SEED", "DATA_SEED"}
MOST_VALUES = 6  # values of a setting shown


def sweep_page(
    collected: Collected, folders: Sequence[Path], here: Path, cards: Mapping[str, str],
    title: str = "", origin: str = "", papers: Mapping[str, Paper] | None = None,
) -> str:
    """Return the page over all runs of some folders as one HTML document.

    Args:
        collected: what lies below ``folders``; at least one finished run.
        here: folder that the page will lie in: links to runs' pages are relative to it.
        cards: method's name -> its card.
        title: instead of one made of methods and data sets.
        origin: the command that makes the page.
        papers: method -> what its card says: how it is spelt, its family.
    """
    selection = FigureRuns(collected.runs, papers=papers or {})
    sweeps, problems = journals(folders)
    tables = [
        join_content([element("h3", name), of_group(runs, origin, papers or {})])
        for name, runs in groups(collected.runs).items()
    ]
    gaps = join_content([_missing(collected, sweeps, here), items(problems)])
    parts = [
        PageSection("answer", "Does federation pay?", seeds_content(selection)),
        PageSection("methods", "Methods", _methods(selection)),
        PageSection("tables", "Tables", join_content(tables)),
        PageSection("figures", "Figures", figures.of_runs(selection)),
        PageSection("matrix", "Methods and data sets", _matrix(collected, sweeps)),
        PageSection("missing", "Missing and failed", gaps),
        PageSection("runs", "Runs", _listing(collected.runs, here, papers or {})),
        PageSection("differences", "What differs in the configs",
                _differences(collected.runs)),
        PageSection("made", "How it was made", _commands(collected.runs, sweeps)),
        PageSection("cards", "Method cards", _cards(cards)),
    ]
    intro = join_content([_introduction(collected.runs), box(_caveats(collected, sweeps))])
    return page(title or _title(collected.runs, sweeps), intro, parts, origin)


def _methods(selection: FigureRuns) -> Html:
    """Return the legend by family, whose boxes hide methods."""
    families: dict[str, list[str]] = {}
    for group in sorted(selection.groups, key=lambda one: one.label.casefold()):
        labels = families.setdefault(group.family, [])
        if group.label not in labels:
            labels.append(group.label)
    order = {name: families[name] for name in style.FAMILIES if name in families}
    colours = {name: COLOURS[style.FAMILIES[name][0].lower()] for name in order}
    return render_template("methods", families=order, colours=colours)


def _title(runs: Sequence[FinishedRun], sweeps: Sequence[SweepJournal]) -> str:
    if len(sweeps) == 1:
        return f"Sweep {sweeps[0].name}"
    methods, data = {run.method for run in runs}, {_dataset(run) for run in runs}
    first = _names(methods) if len(methods) <= 4 else f"{len(methods)} methods"
    return f"{first} on {_names(data) if len(data) <= 4 else f'{len(data)} data sets'}"


def _introduction(runs: Sequence[FinishedRun]) -> Html:
    protocols = [run.protocol for run in runs]
    paid = " ".join(answers_by((run.method, run) for run in runs))
    return fact_list({
        "finished runs": str(len(runs)),
        "methods": str(len({run.method for run in runs})),
        "data sets": _names(map(_dataset, runs)),
        "settings": _names(str(p.get("setting")) for p in protocols),
        "backbones": _names(str(p.get("backbone")) for p in protocols),
        "seeds (model/data)": _seeds(runs),
    } | ({"does federation pay": paid} if paid else {}))


def _caveats(collected: Collected, sweeps: Sequence[SweepJournal]) -> list[Content]:
    """Return what a reader has to know before any number."""
    runs = collected.runs
    notes = [note for run in runs for note in run.notes() if NOT_COMPARABLE in note]
    caveats: list[Content] = [*dict.fromkeys(notes)]
    extra = {run.method: run.protocol["extra_data"] for run in runs
             if run.protocol.get("extra_data")}
    caveats += [f"{method} uses extra data: {what}." for method, what in sorted(extra.items())]
    caveats += collected.bare()
    failed = sum(len(sweep.failed()) for sweep in sweeps)
    lacking = [(failed, "failed"), (len(collected.unfinished), "unfinished"),
               (len(collected.problems), "damaged")]
    words = ", ".join(f"{count} {word}" for count, word in lacking if count)
    if words:
        caveats.append(join_content([f"Not all runs are here ({words}): see ",
                             element("a", "missing and failed", href="#missing"), "."]))
    revisions = {str((run.info.get("git") or {}).get("revision")) for run in runs
                 if isinstance(run.info.get("git") or {}, Mapping)}
    if len(revisions) > 1:
        caveats.append(f"The runs were made by {len(revisions)} revisions of the code.")
    return caveats


def _matrix(collected: Collected, sweeps: Sequence[SweepJournal]) -> Html:
    """Return methods x data sets with finished, failed and missing runs, of sweeps and others."""
    done: Counter[tuple[str, str]] = Counter(
        (run.method, _dataset(run)) for run in collected.runs
    )
    failed: Counter[tuple[str, str]] = Counter()
    methods = dict.fromkeys(sorted({m for m, _ in done}, key=str.casefold))
    columns = dict.fromkeys(sorted({d for _, d in done}, key=str.casefold))
    for sweep in sweeps:
        names = sweep.labels(collected.runs)
        methods |= dict.fromkeys(names["method"][one] for one in sweep.trainers)
        columns |= dict.fromkeys(names["dataset"][one] for one in sweep.datasets)
        for one in sweep.failed():
            method, data = str(one["method"]), str(one["dataset"])
            failed[names["method"].get(method, method), names["dataset"].get(data, data)] += 1
    for method, data in failed:
        methods.setdefault(method)
        columns.setdefault(data)
    most = max([*done.values(), *(sweep.per_cell for sweep in sweeps)], default=0)
    rows = [
        [method, *(_state(done[method, data], failed[method, data], most) for data in columns)]
        for method in methods
    ]
    return table(["method", *columns], rows,
                 caption=f"Finished runs of each method on each data set, of {most}")


def _state(done: int, failed: int, most: int) -> Html:
    parts: list[Content] = [str(done) if done else "none"]
    if failed:
        parts.append(element("span", f", {failed} failed", class_="bad"))
    elif done < most:
        parts = [element("span", f"{done} of {most}" if done else "none", class_="bad")]
    return cell(join_content(parts), done)


def _missing(collected: Collected, sweeps: Sequence[SweepJournal], here: Path) -> Html:
    """Return what is not there: failed attempts with their message, unfinished and damaged runs.

    Args:
        here: folder of the page; paths are shown relative to it.
    """
    failed = [(sweep, one) for sweep in sweeps for one in sweep.failed()]
    gone = {(sweep.output / str(one["cell"])).resolve() for sweep, one in failed}
    rows: list[Sequence[Content]] = [
        [f"{one['dataset']}, {one['method']}", "failed",
         one.get("sentence") or f"exit code {one['code']}", element("code", one["cell"])]
        for _, one in failed
    ]
    rows += [
        [_name(path), "unfinished", "run the same command again to continue",
         element("code", _relative(path, here))]
        for path in collected.unfinished if path.resolve() not in gone
    ]
    parts: list[Content] = []
    for sweep in sweeps:
        there = sum(is_finished(sweep.output / key) for key in sweep.attempts)
        words = (f"Sweep {sweep.name}: the plan has {sweep.cells} cells; its journal names "
                 f"{there} finished and {len(sweep.failed())} failed.")
        parts.append(element("p", words))
    if rows:
        parts.append(table(["run", "state", "why", "folder"], rows,
                           caption="Runs without results"))
    parts.append(items(collected.problems))
    return join_content(parts) if any(parts) else Html("")


def _listing(runs: Sequence[FinishedRun], here: Path, papers: Mapping[str, Paper]) -> Html:
    """Return all runs with their headline; a run that has a page is linked.

    Args:
        here: folder of the page, which links are relative to.
        papers: methods and data sets are spelt as in the tables, whose cells filter this list.
    """
    rows = []
    spelt = spell_names([RunFacts(run) for run in runs], papers) if papers else map(RunFacts, runs)
    for run in (one.run for one in spelt):
        protocol, personal = run.protocol, run.value("personal")
        path = _relative(run.path, here)
        name: Content = run.method
        if (run.path / PAGE).exists():
            name = element("a", run.method, href=quote(f"{path}/{PAGE}"))
        over, seconds = run.value("global"), as_float(run.totals().get("seconds"))
        rows.append([
            name, _dataset(run), protocol.get("shots"), str(protocol.get("partition")),
            protocol.get("seed"), protocol.get("data_seed"), cell(decimal(personal), personal),
            cell(decimal(over), over), cell(decimal(seconds), seconds),
            element("code", path, class_="short"),
        ])
    heads = ("method", "data set", "shots", "partition", "seed", "data seed", "personal (%)",
             "global (%)", "seconds", "folder")
    words = f"{len(rows)} finished runs; those with a page of their own are links"
    return join_content([
        search("run-table", "method, data set ..."),
        table(heads, rows, caption=words, sortable=True, tall=True, key="run-table"),
    ])


def _differences(runs: Sequence[FinishedRun]) -> Html:
    """Return the settings in which the runs differ, seeds apart, and who has which value."""
    configs = [(run, _config(run)) for run in runs]
    keys = sorted({k for _, c in configs for k in c} - SEED_KEYS)
    rows = []
    for key in keys:
        values: dict[str, list[FinishedRun]] = {}
        for run, config in configs:
            if config:
                values.setdefault(repr(config[key]) if key in config else "not a setting of it",
                                  []).append(run)
        if len(values) > 1:
            lists = [join_content([element("code", value), ": ", _who(owners, runs)])
                     for value, owners in list(values.items())[:MOST_VALUES]]
            more = [f"and {len(values) - MOST_VALUES} more values"] \
                if len(values) > MOST_VALUES else []
            rows.append([element("code", key), items([*lists, *more], class_="plain")])
    if not rows:
        return element("p", "The runs' configs differ in their seeds only.")
    words = f"{len(rows)} settings in which the runs differ, seeds apart"
    return table(["setting", "values"], rows, caption=words, tall=True)


def _who(owners: Sequence[FinishedRun], everyone: Sequence[FinishedRun]) -> str:
    """Name runs by their methods or their data sets, whichever they are all of."""
    for name in (attrgetter("method"), _dataset):
        theirs = {name(run) for run in owners}
        if len(theirs) < len({name(run) for run in everyone}) and sum(
            name(run) in theirs for run in everyone
        ) == len(owners):
            return _names(theirs)
    return plural(len(owners), "run")


def _dataset(run: FinishedRun) -> str:
    return str(run.protocol.get("dataset"))


def _config(run: FinishedRun) -> dict[str, Any]:
    try:
        return run.identity_config()
    except DataError:
        return {}


def _name(path: Path) -> str:
    """Return the method and data set of an unfinished run from its place in the tree."""
    parts = path.parts[-6:]
    return f"{parts[0]}, {parts[2]}" if len(parts) == 6 else path.name


def _relative(path: Path, here: Path) -> str:
    return Path(os.path.relpath(path.resolve(), here.resolve())).as_posix()


def _commands(runs: Sequence[FinishedRun], sweeps: Sequence[SweepJournal]) -> Html:
    """Return the plans of the sweeps and the command lines that made the runs, each once."""
    parts: list[Content] = []
    for sweep in sweeps:
        if sweep.plan:
            parts += [element("h3", f"Plan of the sweep {sweep.name}"),
                      element("pre", lines(sweep.plan), class_="plan", tabindex="0", role="region",
                              aria_label=f"Plan of the sweep {sweep.name}")]
    words = dict.fromkeys(str(run.info["command"]) for run in runs if run.info.get("command"))
    if words:
        parts.append(element(
            "details", element("summary", f"{len(words)} commands of the runs"),
            element("ul", *(element("li", element("code", one)) for one in words)),
        ))
    return join_content(parts)


def _cards(cards: Mapping[str, str]) -> Html:
    return join_content(
        element("details", element("summary", name), method_card(text))
        for name, text in sorted(cards.items(), key=lambda one: one[0].casefold()) if text
    )


def _seeds(runs: Sequence[FinishedRun]) -> str:
    pairs = {(run.protocol.get("seed"), run.protocol.get("data_seed")) for run in runs}
    return ", ".join(
        str(a) if a == b else f"{a}/{b}" for a, b in sorted(pairs, key=lambda p: str(p))
    )


def _names(names: Iterable[str]) -> str:
    """Return names in alphabetical order, joined."""
    return ", ".join(sorted(set(names), key=str.casefold))
