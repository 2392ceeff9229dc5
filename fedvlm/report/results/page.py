"""The page of published results, its figures and its LaTeX, all of them from packed runs.

No number of the page is written by hand: what stands in the template is words.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from fedvlm.core import files
from fedvlm.report.collect import Run
from fedvlm.report.figures import few_shot, forest, style
from fedvlm.report.figures.selection import Selection
from fedvlm.report.results.claims import Answer, Claim, answers
from fedvlm.report.results.lanes import Lane, below, groups, protocol_rows
from fedvlm.report.results.tuning import about
from fedvlm.report.statistics.contrast import contrast
from fedvlm.report.tables.papers import Paper, bibliography
from fedvlm.report.tables.render import escape_markdown, markdown
from fedvlm.report.tables.table import Spec, Table, tables
from fedvlm.report.tables.tex import Style, tex

FIGURES, TABLES = "figures", "tables"
CONTROLS = ("LocalOnly", "FedAvg", "PromptFL")
METRICS = ("personal", "new", "hm2", "cm")  # of a lane with unseen classes
ABLATED = "ablation"
LOGREG = "logreg"


@dataclass(frozen=True)
class Sources:
    """What a page is made of.

    Attributes:
        lanes: in their order.
        claims: method -> its card's claim; None where it makes none.
        papers: by method and title; cards: the text of a method's card.
        tuned: what ``tuned.json`` says; empty without.
        moved: measured facts on another processor; empty without.
        command: that makes the page.
    """

    lanes: Sequence[Lane]
    claims: Mapping[str, Claim | None]
    papers: Mapping[str, Paper]
    cards: Callable[[str], str]
    tuned: Mapping[str, Any] = field(default_factory=dict)
    moved: Mapping[str, Any] = field(default_factory=dict)
    command: str = ""


@dataclass(frozen=True)
class Share:
    """Rows of a lane that train the same: their table, what came out, their figure."""

    title: str
    table: str
    tex: str
    figure: str
    sentences: Sequence[str]


@dataclass(frozen=True)
class Section:
    """A lane on the page."""

    lane: Lane
    protocol: Sequence[Mapping[str, Any]]
    shares: Sequence[Share]


def write_page(sources: Sources, into: Path, name: str = "README.md") -> list[Path]:
    """Write the page, its figures and LaTeX below ``into``; return the paths.

    Raises:
        ConfigError: runs of a lane cannot share a table.
        DataError: the folder cannot be written.
    """
    with files.explain_errors(into):
        for folder in (into, into / TABLES):
            folder.mkdir(parents=True, exist_ok=True)
    sections = [_section(sources, lane, into) for lane in sources.lanes]
    entries = bibliography(list({p.key: p for p in sources.papers.values() if p.key}.values()))
    files.write_text(into / TABLES / "results.bib", entries)
    every = [run for lane in sources.lanes for run in lane.runs]
    text = _environment().get_template("results.md").render(
        sections=sections, claims=_claims(sources), curve=_few_shot(sources, every, into),
        tuned=about(sources.tuned, sources.lanes), moved=sources.moved, command=sources.command,
        cells=len(every), seeds=sorted({r.protocol["data_seed"] for r in every}),
        backbones=sorted({str(r.protocol["backbone"]) for r in every}),
        hours=sum(float(r.info.get("seconds_this_session") or 0) for r in every) / 3600,
        machines=sorted({str(r.info.get("machine", {}).get("processor", "")) for r in every}),
        absent=_absent(sources, every), wanted=sum(lane.wanted for lane in sources.lanes),
        notes=[n for lane in sources.lanes for n in lane.collected.problems],
    )
    files.write_text(into / name, re.sub(r"\n{3,}", "\n\n", text).rstrip("\n") + "\n")
    return [into / name, into / TABLES, into / FIGURES]


def _section(sources: Sources, lane: Lane, into: Path) -> Section:
    by_parts = groups(lane, sources.cards)
    shares = [_share(sources, lane, title, runs, into) for title, runs in by_parts.items()]
    return Section(lane, protocol_rows(lane), shares)


def _share(sources: Sources, lane: Lane, title: str, runs: list[Run], into: Path) -> Share:
    slug = re.sub(r"[^a-z0-9]+", "-", f"{lane.name} {title}".lower()).strip("-")
    command = f"fedvlm table docs/results/cells/{lane.name}.cells.xz"
    made = tables(lane.only(runs), _spec(sources, lane, runs), command)
    style_ = Style(f"tab:{slug}", sources.papers, 5.5, "results")
    files.write_text(into / TABLES / f"{slug}.tex", tex(made, False, style_))
    figure = ""
    if len({run.method for run in runs}) > 2:
        figure = _draw(forest, runs, sources.papers, into, f"forest-{slug}")
    return Share(title, markdown(made[:1]), f"{TABLES}/{slug}.tex", figure,
                 _sentences(runs, made[0]))


def _spec(sources: Sources, lane: Lane, runs: Sequence[Run]) -> Spec:
    unseen = any(run.value("new") is not None for run in runs)
    if unseen:
        return Spec(cols=("dataset", "metric"), metrics=METRICS, reference=("alone", "together"),
                    mixed=(), order=("name",), papers=sources.papers, names=True)
    versus = "FedTV" if lane.name == ABLATED else ""
    return Spec(reference=("alone", "together", "bound"), mixed=(), order=("best",),
                columns=("gain", "balanced", "worst", "before", "steps", "bytes"), versus=versus,
                papers={} if versus else sources.papers, names=not versus)


def _sentences(runs: Sequence[Run], table: Table) -> list[str]:
    """Return what came out, computed: the best, what it is told apart from, who is below what."""
    by_method = _numbers(runs)
    if len(by_method) < 2:
        return []
    places = sorted({p for numbers in by_method.values() for p in numbers}, key=str)
    whole = {m: [n[p] for p in places] for m, n in by_method.items() if all(p in n for p in places)}
    if len(whole) < 2:
        return []
    centre = {m: sum(sum(v.values()) / len(v) for v in n) / len(n) for m, n in whole.items()}
    best = max(centre, key=lambda m: centre[m])
    seen = {m: contrast(n, whole[best]) for m, n in whole.items() if m != best}
    apart = [m for m, c in seen.items() if c is not None and c.apart > 0]
    out = [f"The highest mean is {best}'s, {centre[best]:.1f}; its paired 95 % interval tells it "
           f"apart from {len(apart)} of the {len(seen)} others."]
    for control in CONTROLS:
        name = next((m for m in whole if re.fullmatch(rf"{control}( \[.*\])?", m)), None)
        if name is None or name == best:
            continue
        up = [m for m in whole if m != name and (c := contrast(whole[name], whole[m])) is not None
              and c.apart > 0]
        down = [m for m in whole if m != name and (c := contrast(whole[name], whole[m])) is not None
                and c.apart < 0]
        out.append(f"Told apart from {name} ({centre[name]:.1f}): {len(up)} above"
                   f"{_named(up)}, {len(down)} below{_named(down)}.")
    names, of = below(runs, LOGREG)
    if of:
        out.append(f"{len(names)} of {of} are on average below a logistic regression that each "
                   f"client fits to its own images{_named(names)}.")
    return out


def _named(names: Sequence[str]) -> str:
    return f" ({', '.join(names)})" if 0 < len(names) <= 6 else ""


def _numbers(runs: Sequence[Run]) -> dict[str, dict[Any, dict[Any, float]]]:
    out: dict[str, dict[Any, dict[Any, float]]] = {}
    for run in runs:
        value = run.value("personal")
        if value is not None:
            place = (run.protocol.get("dataset"), run.protocol.get("shots"))
            seeds = (run.protocol.get("seed"), run.protocol.get("data_seed"))
            out.setdefault(run.method, {}).setdefault(place, {})[seeds] = value
    return out


def _few_shot(sources: Sources, every: Sequence[Run], into: Path) -> str:
    """Draw the few-shot curve of the methods and sets that have one; '' where none has."""
    keys: dict[tuple[Any, ...], set[Any]] = {}
    for run in every:
        key = (run.method, run.protocol["dataset"], run.protocol["partition"])
        keys.setdefault(key, set()).add(run.protocol["shots"])
    curve = [run for run in every if len(keys[
        run.method, run.protocol["dataset"], run.protocol["partition"]]) > 2]
    return _draw(few_shot, curve, sources.papers, into, "few-shot") if curve else ""


def _draw(
    figure: Any, runs: Sequence[Run], papers: Mapping[str, Paper], into: Path, name: str
) -> str:
    data = figure.select(Selection(list(runs), "personal", papers))
    if data is None or isinstance(data, str):
        return ""
    style.write(into / FIGURES, name, figure.draw(data, "", 5.5), figure.rows(data))
    (into / FIGURES / f"{name}.png").unlink()  # the page shows the SVG, papers take the PDF
    return f"{FIGURES}/{name}.svg"


def _claims(sources: Sources) -> list[Answer]:
    by_name = {lane.name: lane for lane in sources.lanes}
    out: list[Answer] = []
    for method, claim in sources.claims.items():
        if claim is not None:
            lane = by_name.get(claim.lane)
            out += answers(method, claim, lane.runs if lane else [])
    return out


def _absent(sources: Sources, every: Sequence[Run]) -> list[str]:
    there = {str(run.protocol["trainer"]) for run in every}
    return sorted(name for name in sources.claims if name not in there)


@cache
def _environment() -> Environment:
    environment = Environment(  # noqa: S701 (Markdown; names are escaped by the filter `text`)
        loader=PackageLoader("fedvlm.report", "templates"), undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
    )
    environment.filters["text"] = lambda value: escape_markdown(str(value))
    return environment
