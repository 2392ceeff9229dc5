"""The page over many runs: tables, figures, what is missing, all runs, how they were made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from fedvlm.report import (
    sections_figures,
    sections_journal,
    sections_numbers,
    sections_origin,
    sections_runs,
    sections_tables,
)
from fedvlm.report.caption import NOT_COMPARABLE
from fedvlm.report.collect import Collected, Run
from fedvlm.report.html import Content, Html, element, facts, items, join, lines
from fedvlm.report.page import Section, page


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
    known, problems = sections_journal.sweeps(folders)
    parted = sections_tables.groups(found.runs)
    tables = [
        join([element("h3", name), sections_tables.of_group(runs, origin)])
        for name, runs in parted.items()
    ]
    gaps = join([sections_runs.gaps(found, known, here), items(problems)])
    parts = [
        Section("tables", "Tables", join(tables)),
        Section("figures", "Figures", sections_figures.of_runs(found.runs)),
        Section("matrix", "Methods and data sets", sections_runs.matrix(found, known)),
        Section("missing", "Missing and failed", gaps),
        Section("runs", "Runs", sections_runs.listing(found.runs, here)),
        Section("differences", "What differs in the configs",
                sections_runs.differences(found.runs)),
        Section("made", "How it was made", _made(found, known)),
        Section("cards", "Method cards", _cards(cards)),
    ]
    warned = sections_numbers.box(_caveats(found, known))
    return page(title or _title(found, known), join([_intro(found), warned]), parts, origin)


def _title(found: Collected, known: Sequence[sections_journal.Sweep]) -> str:
    if len(known) == 1:
        return f"Sweep {known[0].name}"
    methods = {run.method for run in found.runs}
    data = {str(run.protocol.get("dataset")) for run in found.runs}
    few = len(methods) <= 4
    first = sections_runs.names(methods) if few else f"{len(methods)} methods"
    return f"{first} on {sections_runs.names(data) if len(data) <= 4 else f'{len(data)} data sets'}"


def _intro(found: Collected) -> Html:
    runs = found.runs
    said = [run.protocol for run in runs]
    return facts({
        "finished runs": str(len(runs)),
        "methods": str(len({run.method for run in runs})),
        "data sets": sections_runs.names(str(p.get("dataset")) for p in said),
        "settings": sections_runs.names(str(p.get("setting")) for p in said),
        "backbones": sections_runs.names(str(p.get("backbone")) for p in said),
        "seeds (model/data)": _seeds(runs),
    })


def _caveats(found: Collected, known: Sequence[sections_journal.Sweep]) -> list[Content]:
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


def _made(found: Collected, known: Sequence[sections_journal.Sweep]) -> Html:
    parts: list[Content] = []
    for sweep in known:
        if sweep.plan:
            parts += [element("h3", f"Plan of the sweep {sweep.name}"),
                      element("pre", lines(sweep.plan), class_="plan")]
    said = sections_runs.commands(found.runs)
    inside = element("ul", *(element("li", element("code", one)) for one in said))
    if said:
        parts.append(element("details", element("summary", f"{len(said)} commands of the runs"),
                             inside))
    return join(parts)


def _cards(cards: Mapping[str, str]) -> Html:
    return join(
        element("details", element("summary", name), sections_origin.card(text))
        for name, text in sorted(cards.items(), key=lambda one: one[0].casefold()) if text
    )


def _seeds(runs: Sequence[Run]) -> str:
    pairs = {(run.protocol.get("seed"), run.protocol.get("data_seed")) for run in runs}
    return ", ".join(
        str(a) if a == b else f"{a}/{b}" for a, b in sorted(pairs, key=lambda p: str(p))
    )
