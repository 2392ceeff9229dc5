"""What the cards of runs' methods say of their papers."""

from __future__ import annotations

from collections.abc import Iterable

from fedvlm.federation.cards import card_of
from fedvlm.report.tables.papers import Paper, paper_of
from fedvlm.runs.finished import FinishedRun


def papers_of(runs: Iterable[FinishedRun]) -> dict[str, Paper]:
    """Return what the cards say of the runs' methods, by the methods' names and by their titles."""
    papers = papers_by_name(str(run.protocol["trainer"]) for run in runs)
    return papers | {paper.title: paper for paper in papers.values()}


def papers_by_name(names: Iterable[str]) -> dict[str, Paper]:
    """Return what the cards of methods say, by the methods' names."""
    return {name: paper_of(card_of(name), name) for name in sorted(set(names))}
