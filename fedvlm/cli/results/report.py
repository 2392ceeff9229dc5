"""Write one self-contained HTML page for a run or a sweep."""

from __future__ import annotations

import shlex
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from fedvlm.cli.results._papers import papers_of
from fedvlm.console.parser import Parser
from fedvlm.console.screen import complain, say
from fedvlm.core import files
from fedvlm.core.errors import ConfigError
from fedvlm.core.files import user_path
from fedvlm.federation.cards import card_of
from fedvlm.report import PAGE
from fedvlm.report.collect import Collected, collect, no_runs, run_folders
from fedvlm.runs.finished import FinishedRun

EXAMPLES = (
    "fedvlm report output/sweep-demo --title 'Ten clients, 16 shots'",
    "fedvlm report output --into page.html --runs  # also one page per run",
)
ALSO = ("page", "html", "website")


def flags(parser: Parser) -> None:
    """Add what the verb takes."""
    add = parser.add_argument
    add("folders", nargs="+", metavar="RUN_OR_OUTPUT", help="a run folder, or a folder with "
        "runs at any depth (OUTPUT_DIR) for one page about all of them")
    add("--into", default="", metavar="FILE", help=f"output file (default: {PAGE} in the first "
                                                   "folder)")
    add("--title", default="", metavar="TEXT", help="heading of the page")
    add("--runs", action="store_true", help="also write one page per run, linked from the "
        "overall page")


def main(args: Namespace) -> int:
    """Write the page: that of the run where there is one, else that over all runs.

    Raises:
        ConfigError: ``--into`` lies in no folder.
        DataError: no finished run there, or the page cannot be written.
    """
    folders = run_folders(args.folders)
    into = user_path(args.into) if args.into else folders[0] / PAGE
    if into.is_dir():
        into /= PAGE
    elif into.suffix.lower() not in ("", ".html", ".htm"):
        raise ConfigError(f"--into {args.into}: the page is HTML: end the file's name in .html")
    elif args.into and not into.parent.is_dir():
        raise ConfigError(f"--into {args.into}: folder {into.parent} does not exist; create it "
                          "first")
    collected = collect(folders)
    complain(*collected.notes(), prefix="note")
    if not collected.runs:
        raise no_runs(folders, collected)
    origin = shlex.join(["fedvlm", "report", *args.words])
    if len(collected.runs) == 1 and not collected.unfinished:
        text = _page(collected.runs[0], args.title, origin)
    else:
        text = _over_all(args, collected, folders, into, origin)
    files.write_text(into, text)
    say(f"report: {into}")
    return 0


def _over_all(
    args: Namespace, collected: Collected, folders: Sequence[Path], into: Path, origin: str
) -> str:
    from fedvlm.report.pages.sweep import sweep_page  # start-up: 1 s of matplotlib

    if args.runs:
        for run in collected.runs:
            origin_of_run = shlex.join(["fedvlm", "report", str(run.path)])
            files.write_text(run.path / PAGE, _page(run, "", origin_of_run))
        say(f"{len(collected.runs)} pages of runs, {PAGE} in each folder")
    trainers = dict.fromkeys(str(run.protocol["trainer"]) for run in collected.runs)
    cards = {name: card_of(name) for name in trainers}
    return sweep_page(collected, folders, into.parent, cards, args.title, origin,
                      papers_of(collected.runs))


def _page(run: FinishedRun, title: str, origin: str) -> str:
    from fedvlm.report.pages.run import run_page  # start-up: 1 s of matplotlib

    return run_page(run, card_of(str(run.protocol["trainer"])), title, origin)
