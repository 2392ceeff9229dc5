"""The folders that the verbs of this section are given, and what to say of the wrong ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from fedvlm.cli.nearest import nearest_path
from fedvlm.core.errors import DataError
from fedvlm.core.files import read_json, user_path
from fedvlm.federation.cards import card_of
from fedvlm.report.collect import Collected
from fedvlm.report.tables.papers import Paper, paper_of
from fedvlm.runs.cells import ENDING, folders_of
from fedvlm.runs.finished import FinishedRun
from fedvlm.runs.names import RESULTS


def run_folders(words: Iterable[str]) -> list[Path]:
    """Return the folders that words name; packs (``runs.cells``) stand for what they hold.

    Raises:
        DataError: one is no folder; the nearest there is gets named. A pack is damaged.
    """
    paths = [user_path(word) for word in words]
    for path in paths:
        if not (path.is_dir() or path.name.endswith(ENDING) and path.is_file()):
            raise DataError(f"{path} is not a folder that contains runs{nearest_path(path)}")
    return [folder for path in paths for folder in folders_of(path)]


def papers_of(runs: Iterable[FinishedRun]) -> dict[str, Paper]:
    """Return what the cards say of the runs' methods, by the methods' names and by their titles."""
    papers = papers_by_name(str(run.protocol["trainer"]) for run in runs)
    return papers | {paper.title: paper for paper in papers.values()}


def papers_by_name(names: Iterable[str]) -> dict[str, Paper]:
    """Return what the cards of methods say, by the methods' names."""
    return {name: paper_of(card_of(name), name) for name in sorted(set(names))}


def no_runs(folders: Sequence[Path], collected: Collected) -> DataError:
    """Return the error for folders without a finished run: what lies there instead."""
    journal = next((f for f in folders if (f / "plan.yaml").is_file()), None)
    if journal is not None:
        return DataError(f"{journal} is a sweep's journal, not its runs; give the "
                         f"OUTPUT_DIR of the sweep, {journal.parent.parent}")
    left = collected.unfinished
    there = [f"{len(left)} unfinished, first {left[0]}"] if left else []
    there += collected.problems[:2]
    seen = f" ({'; '.join(there)})" if there else ""
    return DataError(f"no finished run below {', '.join(map(str, folders))}{seen}; give a run "
                     "folder or OUTPUT_DIR")


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
