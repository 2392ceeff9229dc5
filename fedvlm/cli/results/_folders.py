"""What cards say of runs' methods, and what a folder without results is instead."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from fedvlm.core.files import read_json
from fedvlm.federation.cards import card_of
from fedvlm.report.tables.papers import Paper, paper_of
from fedvlm.runs.finished import FinishedRun
from fedvlm.runs.names import RESULTS


def papers_of(runs: Iterable[FinishedRun]) -> dict[str, Paper]:
    """Return what the cards say of the runs' methods, by the methods' names and by their titles."""
    papers = papers_by_name(str(run.protocol["trainer"]) for run in runs)
    return papers | {paper.title: paper for paper in papers.values()}


def papers_by_name(names: Iterable[str]) -> dict[str, Paper]:
    """Return what the cards of methods say, by the methods' names."""
    return {name: paper_of(card_of(name), name) for name in sorted(set(names))}


def describe_unfinished(folder: Path) -> str:
    """Return what a folder without ``results.json`` is, and the command for it; '' for none."""
    if (folder / "plan.yaml").is_file():
        return f"; this is a sweep's journal: fedvlm table {folder.parent.parent} reads its runs"
    if (folder / "manifest.json").is_file():
        told = read_json(folder / "manifest.json")
        command = told.get("command") if isinstance(told, dict) else ""
        return f"; to resume it: {command}" if command else ""
    finished = sorted(path.parent for path in folder.rglob(RESULTS))
    if not finished:
        return ""
    what = "a run" if len(finished) == 1 else f"{len(finished)} runs"
    return f"; {what} below it: fedvlm show {finished[0]}, or fedvlm table {folder}"
