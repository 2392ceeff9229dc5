"""The page of published results, its figures and its LaTeX, all of them from packed runs.

No number of the page is written by hand: what stands in the template is words.
"""

from __future__ import annotations

import csv
import io
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from evidence.methods.figure import CELLS
from evidence.results import headline, questions, work
from evidence.results.claims import (
    NOT_RUN,
    Answer,
    Claim,
    answers,
    firmed,
    missing,
    unmeasured,
)
from evidence.results.lanes import (
    CASE,
    Lane,
    case_rows,
    former_defaults,
    groups,
    protocol_rows,
    ranked,
    seeds_each,
    spent_by_folder,
)
from evidence.results.standing import NEW, Standing, sentences, standing_of
from evidence.results.tuning import (
    PLAIN,
    Search,
    about,
    chosen_edges,
    kind_of,
    other_ranges,
    searched_again,
)
from fedvlm.core import files
from fedvlm.core.stats import mean
from fedvlm.federation.cards import fields
from fedvlm.report.collect import Collected
from fedvlm.report.figures import client_gain, few_shot, forest, style
from fedvlm.report.figures.selection import FigureRuns
from fedvlm.report.statistics.intervals import SEEDS
from fedvlm.report.tables.cells import TableCell
from fedvlm.report.tables.papers import Paper, bibliography
from fedvlm.report.tables.render import escape_markdown, table_markdown
from fedvlm.report.tables.table import ReportTable, Spec, tables
from fedvlm.report.tables.tex import Style, tex
from fedvlm.runs.finished import FinishedRun
from fedvlm.runs.verify.answer import BASELINES

FIGURES, TABLES, SETTINGS = "figures", "tables", "settings"
FIRST = "README.md"  # its place on the site
PAGES = (FIRST, "should_we_federate.md", "with_what.md", "wins.md", "at_our_place.md",
         "what_we_take_home.md", "claims.md", "tuning.md", "tuned_values.md")
CASES = "cases.csv"  # every method on every set of every setting; the site filters it
NARROW = "map-all-narrow.png"  # the map for a telephone
MAP = "map"  # folder of map.png, map.csv and perhaps words, made elsewhere; shown where it is
COSTS = "dirichlet"  # the setting whose costs are shown
HOME = ("A model for each client in the form its library reads, a table and figures for the "
        "paper, and runs that anybody can check and repeat.")
UNTRAINED = "without a training step"
DRAWN = (COSTS, "disjoint")  # settings whose clients' gains are drawn on a page of a question
METRICS = ("personal", "base_all", "new", "hm2", "cm")  # of a lane with unseen classes
UNSEEN = ("base_all", "new", "hm2")
ABLATED, RIVALS = "ablation", "rivals"
SIDES = {"image", "text"}  # first words of the tensors whose distances a setting's page has
KINDS_OF_PARTS = 4  # a lane that trains more kinds of parts has one table for all of them
ALL_PARTS = "by what is trained"
# Columns behind the data sets.
BESIDE = ("average", "gain", "balanced", "before", "steps", "trainable", "sent", "bytes", "seconds")


@dataclass(frozen=True)
class Sources:
    """What a page is made of.

    Attributes:
        lanes: in their order.
        claims: method -> its card's claim; None where it makes none.
        papers: by method and title; cards: the text of a method's card.
        tuned: what ``tuned.json`` says; again: the same of a second search of some entries, in
            wider ranges; empty without.
        moved: measured facts on another processor; empty without.
        trains: what each entry of ``tuned`` trained (``sweep.tune.tuned.trains_of``).
        search: its noise, curves and hyper-parameters.
        distances: lane -> run's name -> ``method`` and how far its shared tensors are from their
            start (``runs.distance``).
    """

    lanes: Sequence[Lane]
    claims: Mapping[str, Claim | None]
    papers: Mapping[str, Paper]
    cards: Callable[[str], str]
    tuned: Mapping[str, Any] = field(default_factory=dict)
    moved: Mapping[str, Any] = field(default_factory=dict)
    trains: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    search: Search = field(default_factory=Search)
    distances: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)
    again: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Share:
    """Rows of a lane that train the same: tables, what they say, (words, path) of figures."""

    title: str
    tables: Sequence[str]
    notes: Sequence[str]
    tex: str
    figures: Sequence[tuple[str, str]]
    sentences: Sequence[str]


@dataclass(frozen=True)
class Section:
    """A lane on the page; ``choices``: what is trained, its rows and sentences (``work``)."""

    lane: Lane
    protocol: Sequence[Mapping[str, Any]]
    shares: Sequence[Share]
    standings: Sequence[Standing]
    distances: Sequence[str] = ()
    choices: Sequence[tuple[str, Sequence[work.Choice], Sequence[str]]] = ()


def write_page(sources: Sources, into: Path, name: str = FIRST) -> list[Path]:
    """Write the pages, their figures and LaTeX below ``into``; return the paths.

    Raises:
        ConfigError: runs of a lane cannot share a table.
        DataError: the folder cannot be written.
    """
    with files.explain_errors(into):
        for folder in (into, into / TABLES, into / SETTINGS):
            folder.mkdir(parents=True, exist_ok=True)
    every = [run for lane in sources.lanes for run in lane.runs]
    untuned = _untuned(sources, every)
    sections = [_section(sources, lane, into, untuned) for lane in sources.lanes if lane.runs]
    entries = bibliography(list({p.key: p for p in sources.papers.values() if p.key}.values()))
    files.write_text(into / TABLES / "results.bib", entries)
    files.write_text(into / CASES, _csv(
        [row for lane in sources.lanes for row in case_rows(lane, sources.cards, untuned)]))
    facts = _facts(sources, sections, every, untuned, into)
    for page in PAGES:
        _write(into / (name if page == FIRST else page), page, facts)
    curve = _few_shot(sources, every, into)
    for section in sections:
        _write(into / SETTINGS / f"{section.lane.name}.md", "setting.md", {
            "section": section, "former": former_defaults(section.lane.runs),
            "curve": curve if section.lane.name == "few-shot" else ""})
    return [into / name, into / SETTINGS, into / TABLES, into / FIGURES]


def _csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a table of all cases (``lanes.case_rows``) as CSV."""
    out = io.StringIO()
    writer = csv.DictWriter(out, CASE, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def _write(path: Path, template: str, facts: Mapping[str, Any]) -> None:
    text = _environment().get_template(template).render(**facts)
    files.write_text(path, re.sub(r"\n{3,}", "\n\n", text).strip("\n") + "\n")


def _untuned(sources: Sources, every: Sequence[FinishedRun]) -> frozenset[str]:
    """Return the digests of the runs that are in no ranking: none without a tuning.

    What takes no step and has no knob on its card has nothing to tune.
    """
    if not sources.tuned:
        return frozenset()

    def tunable(run: FinishedRun) -> bool:
        knobs = fields(sources.cards(str(run.protocol["trainer"]))).get("Knobs", "")
        return bool(run.totals().get("local_steps")) or not knobs.startswith(("none", "fixed"))

    return frozenset(run.digest for run in every if tunable(run)
                     and kind_of(run, sources.tuned, sources.trains) == PLAIN)


def _facts(
    sources: Sources, sections: Sequence[Section], every: Sequence[FinishedRun],
    untuned: frozenset[str], into: Path,
) -> dict[str, Any]:
    """Return what the pages' templates show."""
    claims, tuned = _claims(sources), about(sources.tuned, sources.lanes, sources.trains)
    standings = [one for section in sections for one in section.standings]
    cases = questions.cases(standings, sources.lanes)
    first = questions.first_cases(cases)
    unplanned, waiting = _absent(sources, every)
    numbers = {"cells": len(every), "wanted": sum(lane.wanted for lane in sources.lanes),
               "missing": sum(lane.absent for lane in sources.lanes),
               "tuned": sum(row["tuned"] for row in tuned.get("lanes", ())),
               "unranked": len(untuned),
               "lanes": len(sections), "methods": len({r.protocol["trainer"] for r in every}),
               "backbones": len({str(r.protocol["backbone"]) for r in every}),
               "sets": len({r.protocol["dataset"] for r in every}),
               "seeds": seeds_each(sources.lanes)}
    held = headline.claims_held(claims)
    gained = [(section.lane.title, path) for section in sections if section.lane.name in DRAWN
              for share in section.shares for _, path in share.figures if "client-gain" in path]
    shown, by_card = _map(into), {(a.lane, a.method) for a in claims}
    former = former_defaults([run for lane in sources.lanes for run in lane.runs
                              if (lane.name, run.method) in by_card])
    ditto, shares = (questions.scanner_gains(shown["cells"]) or [0.0, 0.0])[:2]
    wider = {str(entry["label"]): entry["score"] for entry in sources.again.get("entries", ())}
    edges = chosen_edges(sources.tuned)
    hours = {row["label"]: row["hours"] for row in tuned.get("rows", ())}
    cost_lane = next((s.lane for s in sections if s.lane.name == COSTS), sections[0].lane)
    return numbers | {
        "tuned": tuned, "sections": sections, "claims": claims, "summary": held,
        "counts": headline.counts(numbers), "cases": first, "every": cases,
        "federate": questions.federate(first), "beside": questions.beside(cases, first),
        "own": questions.own_cases(
            cases, standings, shown["cells"], shown["drawn"], sources.lanes),
        "scanned": ditto > shares,
        "useless": questions.useless(cases, standings, sources.lanes),
        "shared": questions.shared_deals(
            [lane for lane in sources.lanes if lane.name not in questions.NO_WINS]),
        "commonest": {beta: questions.commonest(beta) for beta in (0.1, 0.3, 1.0)},
        "wide": questions.how_wide(cases),
        "many": max((c.of for c in first), default=0),
        "words": list(filter(None, [headline.gains(standings)])),
        "methods": questions.with_what(standings, len(untuned)),
        "place": questions.at_our_place(standings, sources.lanes, first),
        "ranges": other_ranges(sources.tuned, sources.cards),
        "former": former,
        "unreliable": questions.unreliable(cases, shown["drawn"]), "cost_lane": cost_lane.name,
        "costs": _costs(sources, cost_lane, untuned), "remembered": _has_memory(cost_lane),
        "home": HOME, "claimed": headline.claims_counted(
            claims, len({line.partition(":")[0] for line in former})),
        "sure": [*headline.sure(standings, numbers), *filter(None, [headline.start(every)])],
        "figure": next((path for _, path in gained if COSTS in path), ""), "figures": gained,
        "figure_words": client_gain.CAPTION, "map": shown,
        "winners": headline.winners(standings), "needs": SEEDS,
        "unranked": [(lane.name, sorted({run.method for run in lane.runs
                                         if run.digest in untuned})) for lane in sources.lanes
                     if any(run.digest in untuned for run in lane.runs)],
        "matrices": questions.win_rates(
            (lane.name, title, runs) for lane in sources.lanes if lane.name not in questions.NO_WINS
            for title, runs in groups(lane, sources.cards, untuned).items() if ranked(title)),
        "edges": edges, "wider": wider, "again": searched_again(sources.tuned, sources.again),
        "scores": {row["label"]: row["score"] for row in tuned.get("rows", ())},
        "edge_hours": [hours.get(label, 0.0) for label in {edge[0] for edge in edges} - set(wider)],
        "hours": [(s.lane.name, sum(float(row["seconds"]) for row in s.protocol) / 3600)
                  for s in sections],
        "by_folder": spent_by_folder(sources.lanes), "search": sources.search,
        "machines": sorted({str(r.info.get("machine", {}).get("processor", "")) for r in every}),
        "names_of_backbones": sorted({str(r.protocol["backbone"]) for r in every}),
        "moved": sources.moved, "unplanned": unplanned, "waiting": waiting,
        "notes": [n for lane in sources.lanes for n in lane.collected.problems],
    }


def _map(into: Path) -> dict[str, Any]:
    """Return the map's figure and its words, where somebody made them; see ``MAP``."""
    folder = into / MAP
    there = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    if not {"map.png", "map.csv"} <= there:
        return {"png": "", "words": (), "page": "", "methods": "", "cases": "", "best": (),
                "cells": (), "drawn": (), "scope": "", "ran": 0, "narrow": ""}

    def told(name: str) -> str:
        return (folder / name).read_text(encoding="utf-8").strip() if name in there else ""

    def rows(name: str) -> list[dict[str, str]]:
        return list(csv.DictReader(told(name).splitlines()))

    plain = "What federation gains, by clients, images of a client, skew and feature shift."
    cells, drawn = rows("map.csv"), rows("methods.csv")
    sizes = [int(row["clients"]) * int(row["images"]) for row in cells]
    scope = (f"It rests on {len({row['set'] for row in cells})} public data sets, one small image "
             f"tower and cells of at most {max(sizes):,} training images, all clients together."
             if sizes else "")
    return {"png": next(name for name in ("map-all.png", "map.png") if name in there),
            "narrow": NARROW if NARROW in there else "",
            "page": "map/README.md" if "README.md" in there else "",
            "methods": "map/methods.md" if "methods.md" in there else "",
            "words": (told("words.txt") or plain).splitlines(),
            "cases": told("cases.txt"), "best": told("methods.txt").splitlines(),
            "cells": cells, "drawn": drawn, "scope": scope,
            "ran": len({(row["set"], row["case"]) for row in drawn if row["plan"] in CELLS})}


def _costs(
    sources: Sources, lane: Lane, untuned: frozenset[str]
) -> list[tuple[str, str]]:
    """Return a table for each set of trained parameters: accuracy beside bytes, steps, seconds."""
    flat = {name: replace(paper, group="") for name, paper in sources.papers.items()}
    spec = Spec(mixed=(), order=("best",), names=True, papers=flat,
                columns=("gain", "sent", "bytes", "steps", "trainable", "seconds",
                         *(["memory"] if _has_memory(lane) else [])))
    out = []
    by_title = {title: runs for title, runs in groups(lane, sources.cards, untuned).items()
                if ranked(title)}
    once = [run for run in lane.runs if run.totals().get("bytes_up")
            and not run.totals().get("local_steps") and not run.protocol.get("tag")]
    for title, runs in (by_title | {UNTRAINED: once}).items():
        if runs:
            made = replace(tables(lane.only(runs), spec)[0], caption="", notes=())
            out.append((title, table_markdown([made]).rstrip("\n")))
    return out


def _section(
    sources: Sources, lane: Lane, into: Path, untuned: frozenset[str]
) -> Section:
    by_parts = groups(lane, sources.cards, untuned)
    widest = max(by_parts.values(), key=len)
    figures = {title: _figures(sources, lane, title, runs, into, runs is widest)
               for title, runs in by_parts.items() if ranked(title)}
    standings = {title: standing_of(lane.name, title, runs, ranked(title))
                 for title, runs in by_parts.items()}
    if lane.name == RIVALS or len(by_parts) > KINDS_OF_PARTS:
        words = [s for title, runs in by_parts.items()
                 for s in _titled(title, sentences(standings[title], runs))]
        drawn = [figure for several in figures.values() for figure in several]
        shares = [_all_parts(sources, lane, by_parts, into, words, drawn)]
    else:
        shares = [
            _share(sources, lane, title, tables(
                lane.only(runs), _spec(sources, lane, runs), _command(lane)),
                into, sentences(standings[title], runs), figures.get(title, ()))
            for title, runs in by_parts.items()
        ]
    before = list(itertools.takewhile(lambda other: other is not lane, sources.lanes))
    chosen = {row.method: row for row in work.choices(lane, before)}
    by_title = {title: [chosen[m] for m in chosen if m in {run.method for run in runs}]
                for title, runs in by_parts.items()}
    choices = [(title, rows, work.sentences(rows)) for title, rows in by_title.items() if rows]
    return Section(lane, protocol_rows(lane), shares, [s for s in standings.values() if s],
                   moved(sources.distances.get(lane.name, {}), lane.runs), choices)


def moved(distances: Mapping[str, Mapping[str, Any]], runs: Sequence[FinishedRun]) -> list[str]:
    """Return how far each method's tensors of the towers' sides are from their start, a line each.

    A head is not of a side: AFL's, solved for in one round, did not move there in 20.

    Args:
        distances: of ``Sources``, of one lane; runs: of the lane: no others count.
    """
    numbers: dict[str, dict[str, list[float]]] = {}
    rounds = {run.digest: run.protocol.get("rounds") for run in runs}
    names = {run.digest: run.method for run in runs}
    for digest, told in distances.items():
        for part in told.keys() & SIDES if digest in names else ():
            name = f"{names[digest]}, {rounds[digest]} rounds"
            numbers.setdefault(name, {}).setdefault(part, []).append(100 * float(told[part]))
    return [f"{name}: " + ", ".join(
        f"{part} {mean(several):.0f} % ({min(several):.0f} to {max(several):.0f})"
        for part, several in sorted(parts.items())
    ) + f", {len(next(iter(parts.values())))} runs" for name, parts in sorted(numbers.items())]


def _titled(title: str, words: Sequence[str]) -> list[str]:
    return [f"{title}: {words[0]}", *words[1:]] if words else []


def _command(lane: Lane) -> str:
    return f"fedvlm table docs/results/cells/{lane.name}.cells.xz"


def _share(
    sources: Sources, lane: Lane, title: str, made: Sequence[ReportTable], into: Path,
    words: Sequence[str], figures: Sequence[tuple[str, str]],
) -> Share:
    slug = _slug(lane.name, title)
    style_ = Style(f"tab:{slug}", sources.papers, 5.5, "results")
    files.write_text(into / TABLES / f"{slug}.tex", tex(made, False, style_))
    shown = made[:2] if title == ALL_PARTS else made[:1]
    bare = [replace(table, caption="", notes=()) for table in shown]
    said = [note for table in shown for note in (table.caption, *table.notes)]
    return Share(title, [table_markdown([table]).rstrip("\n") for table in bare],
                 list(dict.fromkeys(said)), f"{TABLES}/{slug}.tex", figures, words)


def _has_memory(lane: Lane) -> bool:
    """Return whether a run says what memory it took."""
    return any(run.info.get("peak_mib") for run in lane.runs)


def _all_parts(
    sources: Sources, lane: Lane, by_parts: Mapping[str, list[FinishedRun]], into: Path,
    words: Sequence[str], figures: Sequence[tuple[str, str]],
) -> Share:
    """Return one table of all that a lane has, grouped by what is trained.

    Rows compete inside their group; a second table has accuracies on classes not trained on.
    """
    flat = {name: replace(paper, group="") for name, paper in sources.papers.items()}
    spec = Spec(reference=("alone", "together", "bound"), mixed=(), order=("best",), names=True,
                columns=("gain", "balanced", "before", "steps", "trainable", "sent", "bytes",
                         "seconds"),
                papers=flat)
    made = [stacked(_by_group(lane, by_parts, spec), tables(
        lane.collected, spec, _command(lane))[0])]
    unseen = {title: [run for run in runs if run.value("new") is not None]
              for title, runs in by_parts.items()}
    if any(unseen.values()):
        spec = Spec(reference=("alone",), cols=("dataset", "metric"), metrics=UNSEEN, mixed=(),
                    order=("name",), names=True, papers=flat)
        every = [run for runs in unseen.values() for run in runs]
        made.append(stacked(_by_group(lane, unseen, spec), known(tables(
            lane.only(every), spec, _command(lane))[0])))
    return _share(sources, lane, ALL_PARTS, made, into, words, figures)


def known(table: ReportTable) -> ReportTable:
    """Return a table without the rows of references that have no number in it."""
    kept = [at for at, (cells, method) in enumerate(zip(table.cells, table.methods, strict=True))
            if method or any(cell.mean is not None for cell in cells)]
    groups = tuple(table.groups[at] for at in kept) if table.groups else ()
    return replace(table, rows=tuple(table.rows[at] for at in kept), groups=groups,
                   cells=tuple(table.cells[at] for at in kept),
                   methods=tuple(table.methods[at] for at in kept))


def _by_group(
    lane: Lane, by_parts: Mapping[str, list[FinishedRun]], spec: Spec
) -> dict[str, ReportTable]:
    made = {title: tables(lane.only(runs), replace(spec, reference=()), _command(lane))[0]
            for title, runs in by_parts.items() if runs}
    for title in [one for one in made if not ranked(one)]:  # no mark says who is best
        cells = tuple(tuple(replace(c, rank=0) for c in row) for row in made[title].cells)
        made[f"{title}, not compared"] = replace(made.pop(title), cells=cells)
    return made


def stacked(
    by_group: Mapping[str, ReportTable], references: ReportTable | None = None
) -> ReportTable:
    """Return tables as one, each below its heading; of ``references`` its rows of references.

    Columns are those of all of them; the caption is the first one's, the notes are everybody's.
    """
    every = [*by_group.items(), *([("", references)] if references else [])]
    heads = list(dict.fromkeys(c.removesuffix("*") for _, table in every for c in table.columns))
    last = [c for c in heads if c in BESIDE or c.endswith(")")]
    heads = [c for c in heads if c not in last] + last
    rows: list[tuple[str, tuple[TableCell, ...], str, str]] = []
    for title, table in every:
        titles = table.groups or ("",) * len(table.rows)
        places = [c.removesuffix("*") for c in table.columns]
        for row, cells, group, method in zip(
            table.rows, table.cells, titles, table.methods, strict=True,
        ):
            if method or not title:
                by_head = dict(zip(places, cells, strict=True))
                none = TableCell(table.metrics[0])
                if bool(method) == bool(title):
                    rows.append((row, tuple(by_head.get(c, none) for c in heads),
                                 title or group, method))
    first = every[0][1]
    return replace(
        first, rows=tuple(r[0] for r in rows), columns=tuple(heads),
        cells=tuple(r[1] for r in rows), groups=tuple(r[2] for r in rows),
        methods=tuple(r[3] for r in rows), n=max(table.n for _, table in every),
        notes=tuple(dict.fromkeys(n for _, table in every[:len(by_group)] for n in table.notes)),
    )


def _spec(sources: Sources, lane: Lane, runs: Sequence[FinishedRun]) -> Spec:
    unseen = any(run.value("new") is not None for run in runs)
    if unseen:
        return Spec(cols=("dataset", "metric"), metrics=METRICS, reference=("alone", "together"),
                    mixed=(), order=("name",), papers=sources.papers, names=True)
    curve = len({run.protocol["shots"] for run in runs if run.protocol["dataset"] ==
                 runs[0].protocol["dataset"]}) > 1
    ablated = lane.name == ABLATED
    whole = any(run.protocol["trainer"] == "FedTV" and not run.protocol.get("tag") for run in runs)
    versus = "FedTV" if ablated and whole else ""  # other methods' variants stand by themselves
    return Spec(cols=("dataset", "shots") if curve else ("dataset",),
                reference=("alone", "together", "bound"), mixed=(), order=("best",),
                columns=("gain", "balanced", "worst", "before", "steps", "bytes"), versus=versus,
                papers={} if ablated else sources.papers, names=True)


def _slug(*names: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", " ".join(names).lower()).strip("-")


def _figures(
    sources: Sources, lane: Lane, title: str, runs: list[FinishedRun], into: Path, whole: bool
) -> list[tuple[str, str]]:
    """Draw the intervals and, of ``whole``, the clients' gains; return (words, path) of each."""
    if len({run.method for run in runs}) < 3:
        return []
    kinds: list[tuple[Any, str]] = [(forest, "forest")]
    kinds += [(client_gain, "client-gain")] if whole else []
    drawn = [(figure.CAPTION,
              _draw(figure, runs, sources.papers, into, f"{name}-{_slug(lane.name, title)}"))
             for figure, name in kinds]
    return [(words, path) for words, path in drawn if path]


def _few_shot(sources: Sources, every: Sequence[FinishedRun], into: Path) -> str:
    """Draw the few-shot curve of the methods and sets that have one; '' where none has."""
    keys: dict[tuple[Any, ...], set[Any]] = {}
    for run in every:
        key = (run.method, run.protocol["dataset"], run.protocol["partition"])
        keys.setdefault(key, set()).add(run.protocol["shots"])
    curve = [run for run in every if len(keys[
        run.method, run.protocol["dataset"], run.protocol["partition"]]) > 2]
    return _draw(few_shot, curve, sources.papers, into, "few-shot") if curve else ""


def _draw(
    figure: Any, runs: Sequence[FinishedRun], papers: Mapping[str, Paper], into: Path, name: str
) -> str:
    if len({run.protocol.get("peft") for run in runs}) == 1:  # a label need not repeat it
        runs = [replace(run, protocol={**run.protocol, "peft": ""}) for run in runs]
    new = figure is forest and all(run.value(NEW) is not None for run in runs)  # as it is ranked
    data = figure.select(FigureRuns(list(runs), NEW if new else "personal", papers))
    if data is None or isinstance(data, str):
        return ""
    style.write_figure(into / FIGURES, name, figure.draw(data, "", 5.5), figure.rows(data))
    (into / FIGURES / f"{name}.png").unlink()  # the page shows the SVG, papers take the PDF
    return f"{FIGURES}/{name}.svg"


def _claims(sources: Sources) -> list[Answer]:
    """Return the answers to all cards' claims; one that was not run says why."""
    by_name = {lane.name: lane for lane in sources.lanes}
    out: list[Answer] = []
    for method, claim in sources.claims.items():
        if claim is None:
            continue
        lane = by_name.get(claim.lane, Lane(claim.lane, Collected()))
        gone = missing(method, claim, lane.planned)
        rivals = by_name.get(RIVALS)
        if gone and rivals and not missing(method, claim, rivals.planned):
            lane, gone = rivals, []
        for answer in answers(method, claim, lane.runs):
            here = [run for run in lane.runs if run.method == answer.method]
            answer = replace(answer, untuned=bool(sources.tuned) and any(
                kind_of(run, sources.tuned, sources.trains) == PLAIN for run in here))
            if answer.verdict == NOT_RUN and gone:
                answer = replace(answer, why=f"{' and '.join(gone)}: in no plan of this setting")
            rival = answer.method if claim.rival in BASELINES.values() else answer.rival
            planned = lane.pairs(answer.method, rival) - unmeasured(claim.metric, here)
            out.append(replace(answer, lane=lane.name, planned=planned))
    return firmed(out)


def _absent(sources: Sources, every: Sequence[FinishedRun]) -> tuple[list[str], list[str]]:
    """Return the methods without a run: those in no plan, and those whose runs have not ended."""
    there = {str(run.protocol["trainer"]) for run in every}
    planned = {name for lane in sources.lanes for name in lane.planned}
    absent = sorted(name for name in sources.claims if name not in there)
    return ([name for name in absent if name not in planned],
            [name for name in absent if name in planned])


@cache
def _environment() -> Environment:
    environment = Environment(  # noqa: S701 (Markdown; names are escaped by the filter `text`)
        loader=FileSystemLoader(Path(__file__).parent / "pages"), undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
    )
    environment.filters["points"] = lambda value: "-" if value is None else f"{value:.1f}"
    environment.filters["text"] = lambda value: escape_markdown(str(value))
    environment.filters["text_cells"] = lambda value: escape_markdown(str(value)).replace(
        "\\|", "|")
    environment.filters["interval"] = headline.interval
    environment.filters["ahead"] = headline.ahead
    return environment
