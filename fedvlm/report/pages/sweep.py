"""The page over many runs: tables, figures, what is missing, all runs, how they were made.

What sweeps say of themselves: their plan, and the attempts that ended in no result.

What runs a page is made of: how many of which, what is missing, where they are, what differs.

The tables of a page over many runs: methods x data sets, one per number.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import yaml

from fedvlm.core.errors import ConfigError, DataError, fold
from fedvlm.report.collect import Collected, Run
from fedvlm.report.pages import figures as sections_figures
from fedvlm.report.pages import run as sections_numbers
from fedvlm.report.pages.html import (
    Content,
    Html,
    Section,
    cell,
    element,
    facts,
    items,
    join,
    lines,
    page,
    search,
    table,
)
from fedvlm.report.pages.run import number, shown
from fedvlm.report.tables.check import NOT_COMPARABLE
from fedvlm.report.tables.metrics import entries, known_metrics, metric
from fedvlm.report.tables.table import BEST, SECOND, Cell, Spec, Table, tables
from fedvlm.runs.metrics import read_metrics

INTERRUPTED = 130  # an attempt that was stopped is no failure


@dataclass(frozen=True)
class Sweep:
    """A sweep's folder below an OUTPUT_DIR.

    Attributes:
        name: of the sweep.
        output: OUTPUT_DIR.
        plan: text of its ``plan.yaml``; empty where it has none.
        datasets, trainers: labels of the plan.
        cells: how many runs the plan asks for; per_cell: for each method on each data set.
        attempts: run folder below OUTPUT_DIR -> its last attempt.
    """

    name: str
    output: Path
    plan: str = ""
    datasets: tuple[str, ...] = ()
    trainers: tuple[str, ...] = ()
    cells: int = 0
    per_cell: int = 0
    attempts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def failed(self) -> list[Mapping[str, Any]]:
        """Return the last attempts that failed and left no results."""
        return [
            one for key, one in self.attempts.items()
            if one["code"] not in (0, INTERRUPTED)
            and not (self.output / key / "results.json").exists()
        ]

    def labels(self, runs: Iterable[Run]) -> dict[str, dict[str, str]]:
        """Return, for data sets and for methods, the plan's label -> the name in the results."""
        found: dict[str, dict[str, str]] = {"dataset": {}, "method": {}}
        names = {}
        for run in runs:
            names[run.path.resolve()] = (str(run.protocol.get("dataset")), run.method)
        for key, one in self.attempts.items():
            known = names.get((self.output / key).resolve())
            if known:
                found["dataset"][str(one["dataset"])] = known[0]
                found["method"][str(one["method"])] = known[1]
        for at, (kind, labels) in enumerate((("dataset", self.datasets),
                                             ("method", self.trainers))):
            folded = {fold(pair[at]): pair[at] for pair in names.values()}
            for label in labels:
                found[kind].setdefault(label, folded.get(fold(label), label))
        return found


def sweeps(folders: Sequence[Path]) -> tuple[list[Sweep], list[str]]:
    """Return the sweeps of the OUTPUT_DIRs given, and a sentence per plan that cannot be read."""
    found, problems = [], []
    for output in folders:
        for folder in sorted((output / "sweeps").glob("*/")):
            plan, text = {}, ""
            try:
                text = (folder / "plan.yaml").read_text(encoding="utf-8")
                plan = yaml.safe_load(text)
            except (OSError, ValueError, yaml.YAMLError) as error:
                problems.append(f"cannot read {folder / 'plan.yaml'}: "
                                f"{' '.join(str(error).split())}")
            found.append(_sweep(folder, output, plan if isinstance(plan, dict) else {}, text))
    return found, problems


def _sweep(folder: Path, output: Path, plan: Mapping[str, Any], text: str) -> Sweep:
    labels = [
        tuple(str(one.get("label", "")) for one in plan.get(part) or () if isinstance(one, dict))
        for part in ("datasets", "trainers")
    ]
    axes = plan.get("axes")
    sizes = [len(labels[0]), len(labels[1]), len(plan.get("seeds") or ())]
    sizes += [len(plan.get("shots") or ()) or 1]
    sizes += [len(v) for v in axes.values()] if isinstance(axes, dict) else []
    return Sweep(
        str(plan.get("name") or folder.name), output, text, labels[0], labels[1],
        math.prod(sizes), math.prod(sizes[2:]), _attempts(folder),
    )


def _attempts(folder: Path) -> dict[str, Mapping[str, Any]]:
    records = []
    for file in sorted(folder.glob("cells*.jsonl")):
        try:
            records += read_metrics(file)[0]
        except DataError:  # damaged: the run folders still say what is done
            continue
    good = [r for r in records if {"cell", "code", "dataset", "method"} <= set(r)]
    good.sort(key=lambda r: str(r.get("ended", "")))
    return {str(r["cell"]): r for r in good}


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


def what_lacks(found: Collected, known: Sequence[Sweep], here: Path) -> Html:
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


ACCURACIES = (
    "personal", "global", "base_all", "base_other", "new", "hm2", "hm3", "cm", "unseen",
    "unseen_personal", "targets", "personal_before_ft", "personal_worst",
)
COSTS = ("totals.bytes_up", "totals.seconds", "trainable")
PLACE = ("shots", "partition", "held_out", "subsample", "targets")  # may differ between data sets


def groups(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Return the runs by setting and backbone: no table holds two of them."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        said = run.protocol
        name = f"{said.get('setting', '')}, {said.get('backbone', '')}"
        found.setdefault(name, []).append(run)
    return found


def of_group(runs: Sequence[Run], command: str) -> Html:
    """Return all tables of one setting and backbone, with what they mix and what they mean."""
    found, known = Collected(runs=list(runs)), known_metrics(entries(runs)[0])
    targets = tuple(n for n in known if n.startswith("target."))
    scores, costs = (
        tuple(n for n in names if n in known) for names in ((*ACCURACIES, *targets), COSTS)
    )
    inside = tuple(key for key in PLACE if _varies_inside(runs, key))
    between = tuple(key for key in PLACE if key not in inside and _values(runs, key) > 1)
    spec = Spec(mixed=between or None, reference=() if _has_zero_shot(runs) else ("zero-shot",))
    if inside or _values(runs, "dataset") > 1:
        spec = replace(spec, cols=("dataset", *inside), metrics=(*scores, *costs))
        return join(_made_tables(found, spec, command))
    parts = [_made_tables(found, replace(spec, cols=("metric",), metrics=names), command)
             for names in (scores, costs) if names]
    return join(join(part) for part in parts)


def _made_tables(found: Collected, spec: Spec, command: str) -> list[Html]:
    """Return the tables; those that mix protocols come with a warning."""
    if not spec.metrics:
        return [element("p", "None of these runs has a number to show.")]
    try:
        return [_one(made) for made in tables(found, spec, command)]
    except ConfigError as error:
        why = f"These numbers are of more than one protocol, compare with care: {error}"
    try:
        made = tables(found, replace(spec, mixed=()), command)
    except ConfigError as error:
        return [element("p", f"No table: {error}", class_="caveats")]
    return [element("p", why, class_="caveats"), *map(_one, made)]


def _one(made: Table) -> Html:
    several = len(made.metrics) > 1
    what = [metric(name) for name in made.metrics]
    heads = [made.corner, *made.columns]
    rows = [[row, *(_cell(one, made.ci) for one in line)]
            for row, line in zip(made.rows, made.cells, strict=True)]
    better = "lower is better" if what[0].lower else "higher is better"
    spread = ("mean and sample standard deviation over up to "
              f"{made.n} seeds" if made.n > 1 else "one seed")
    said = spread if several else f"{what[0].words} ({what[0].unit}, {better}; {spread})"
    return join([
        element("h4", "Costs" if made.metrics[0] in COSTS and several else
                "Accuracy (%)" if several else what[0].title),
        table(heads, rows, caption=said, sortable=True),
        element("details", element("summary", "meaning, protocol, data and notes"),
                element("p", made.caption), items(made.notes)),
    ])


def _cell(found: Cell, ci: bool) -> Html:
    """Return a number with its spread: the best bold, the second underlined."""
    mark = {BEST: "strong", SECOND: "u"}.get(found.rank)
    spread = found.spread(ci)
    shown = join([
        element(mark, found.text) if mark else found.text, f" ± {spread}" if spread else None,
        found.suffix,
    ])
    count = "mean over data sets" if found.average else f"n = {found.n}"
    return cell(shown, found.mean, title=count)


def _value(run: Run, key: str) -> str:
    return str(run.protocol.get(key, ""))


def _values(runs: Sequence[Run], key: str) -> int:
    return len({_value(run, key) for run in runs})


def _varies_inside(runs: Sequence[Run], key: str) -> bool:
    """Say whether the runs of one data set differ in ``key``."""
    parted: dict[str, set[str]] = {}
    for run in runs:
        parted.setdefault(_value(run, "dataset"), set()).add(_value(run, key))
    return any(len(found) > 1 for found in parted.values())


def _has_zero_shot(runs: Sequence[Run]) -> bool:
    """Say whether zero-shot numbers need no row of their own: a method has them, or none does."""
    every = {_value(run, "dataset") for run in runs}
    own = {_value(run, "dataset") for run in runs if _value(run, "trainer") == "ZeroShot"}
    return own == every or not any(run.results.get("zero_shot") for run in runs)


def sweep_page(
    found: Collected, folders: Sequence[Path], here: Path, cards: Mapping[str, str],
    title: str = "", origin: str = "",
) -> str:
    """Return the page over all runs of some folders as one HTML document.

    Args:
        found: what lies below ``folders``; at least one finished run.
        here: folder that the page will lie in: links to runs' pages are relative to it.
        cards: method's name -> its card.
        title: instead of one made of methods and data sets.
        origin: the command that makes the page.
    """
    known, problems = sweeps(folders)
    parted = groups(found.runs)
    tables = [
        join([element("h3", name), of_group(runs, origin)])
        for name, runs in parted.items()
    ]
    gaps = join([what_lacks(found, known, here), items(problems)])
    parts = [
        Section("tables", "Tables", join(tables)),
        Section("figures", "Figures", sections_figures.of_runs(found.runs)),
        Section("matrix", "Methods and data sets", matrix(found, known)),
        Section("missing", "Missing and failed", gaps),
        Section("runs", "Runs", listing(found.runs, here)),
        Section("differences", "What differs in the configs",
                differences(found.runs)),
        Section("made", "How it was made", _made(found, known)),
        Section("cards", "Method cards", _cards(cards)),
    ]
    warned = sections_numbers.box(_caveats(found, known))
    return page(title or _title(found, known), join([_intro(found), warned]), parts, origin)


def _title(found: Collected, known: Sequence[Sweep]) -> str:
    if len(known) == 1:
        return f"Sweep {known[0].name}"
    methods = {run.method for run in found.runs}
    data = {str(run.protocol.get("dataset")) for run in found.runs}
    few = len(methods) <= 4
    first = names(methods) if few else f"{len(methods)} methods"
    return f"{first} on {names(data) if len(data) <= 4 else f'{len(data)} data sets'}"


def _intro(found: Collected) -> Html:
    runs = found.runs
    said = [run.protocol for run in runs]
    return facts({
        "finished runs": str(len(runs)),
        "methods": str(len({run.method for run in runs})),
        "data sets": names(str(p.get("dataset")) for p in said),
        "settings": names(str(p.get("setting")) for p in said),
        "backbones": names(str(p.get("backbone")) for p in said),
        "seeds (model/data)": _seeds(runs),
    })


def _caveats(found: Collected, known: Sequence[Sweep]) -> list[Content]:
    """Return what a reader has to know before any number."""
    notes = {str(n): None for run in found.runs for n in run.info.get("notes") or []
             if NOT_COMPARABLE in str(n)}
    warned: list[Content] = list(notes)
    extra = {run.method: run.protocol["extra_data"] for run in found.runs
             if run.protocol.get("extra_data")}
    warned += [f"{method} uses extra data: {what}." for method, what in sorted(extra.items())]
    failed = sum(len(sweep.failed()) for sweep in known)
    lacking = [(failed, "failed"), (len(found.unfinished), "unfinished"),
               (len(found.problems), "damaged")]
    words = ", ".join(f"{count} {word}" for count, word in lacking if count)
    if words:
        warned.append(join([f"Not all runs are here ({words}): see ",
                            element("a", "missing and failed", href="#missing"), "."]))
    revisions = {str((run.info.get("git") or {}).get("revision")) for run in found.runs
                 if isinstance(run.info.get("git") or {}, Mapping)}
    if len(revisions) > 1:
        warned.append(f"The runs were made by {len(revisions)} revisions of the code.")
    return warned


def _made(found: Collected, known: Sequence[Sweep]) -> Html:
    parts: list[Content] = []
    for sweep in known:
        if sweep.plan:
            parts += [element("h3", f"Plan of the sweep {sweep.name}"),
                      element("pre", lines(sweep.plan), class_="plan")]
    said = commands(found.runs)
    inside = element("ul", *(element("li", element("code", one)) for one in said))
    if said:
        parts.append(element("details", element("summary", f"{len(said)} commands of the runs"),
                             inside))
    return join(parts)


def _cards(cards: Mapping[str, str]) -> Html:
    return join(
        element("details", element("summary", name), sections_numbers.method_card(text))
        for name, text in sorted(cards.items(), key=lambda one: one[0].casefold()) if text
    )


def _seeds(runs: Sequence[Run]) -> str:
    pairs = {(run.protocol.get("seed"), run.protocol.get("data_seed")) for run in runs}
    return ", ".join(
        str(a) if a == b else f"{a}/{b}" for a, b in sorted(pairs, key=lambda p: str(p))
    )
