"""``fedvlm report``: one self-contained HTML page of a run, or of all runs below a folder."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path

from fedvlm.cli.parser import VerbParser
from fedvlm.console.screen import complain, say
from fedvlm.core import files as atomic
from fedvlm.core.errors import ConfigError, DataError
from fedvlm.federation.cards import card_of
from fedvlm.report.collect import Collected, Run, collect
from fedvlm.report.pages import PAGE

USAGE = "fedvlm report RUN_OR_OUTPUT ... [--into FILE] [--title TEXT] [--runs]"


def parser() -> argparse.ArgumentParser:
    """Return the parser of the flags."""
    made = VerbParser("report", USAGE)
    add = made.add_argument
    add("folders", nargs="*", metavar="RUN_OR_OUTPUT", help="a run folder for its page, or folders "
        "with runs at any depth (OUTPUT_DIR of a sweep) for a page over all of them")
    add("--into", default="", metavar="FILE", help=f"where to write ({PAGE} in the first folder)")
    add("--title", default="", metavar="TEXT", help="heading of the page")
    add("--runs", action="store_true", help="also each run's own page, which the page over all "
        "links to")
    add("-h", "--help", action="store_true", help="this page")
    return made


def main(argv: Sequence[str]) -> int:
    """Write the page: that of the run where there is one, else that over all runs.

    Raises:
        ConfigError: wrong flags.
        DataError: no finished run there, or the page cannot be written.
    """
    asked = parser().parse_args(list(argv))
    if asked.help:
        say(*parser().format_help().rstrip().splitlines())
        return 0
    if not asked.folders:
        raise ConfigError(f"report wants a run folder or OUTPUT_DIR: {USAGE}")
    folders = [Path(word).expanduser() for word in asked.folders]
    into = Path(asked.into).expanduser() if asked.into else folders[0] / PAGE
    if into.is_dir():
        into /= PAGE
    elif asked.into and not into.parent.is_dir():
        raise ConfigError(f"--into {asked.into}: there is no folder {into.parent}; make it first")
    found = collect(folders)
    complain(*found.problems, prefix="note")
    if not found.runs:
        raise DataError(_nothing(folders, found))
    origin = shlex.join(["fedvlm", "report", *argv])
    if len(found.runs) == 1 and not found.unfinished:
        text = _page(found.runs[0], asked.title, origin)
    else:
        text = _over_all(asked, found, folders, into, origin)
    atomic.write_text(into, text)
    say(f"report: {into}")
    return 0


def _over_all(
    asked: argparse.Namespace, found: Collected, folders: Sequence[Path], into: Path, origin: str
) -> str:
    from fedvlm.report.pages.sweep import sweep_page  # start-up: 1 s of matplotlib

    if asked.runs:
        for run in found.runs:
            atomic.write_text(run.path / PAGE, _page(run, "", _command(run)))
        say(f"{len(found.runs)} pages of runs, {PAGE} in each folder")
    trainers = dict.fromkeys(str(run.protocol["trainer"]) for run in found.runs)
    cards = {name: card_of(name) for name in trainers}
    return sweep_page(found, folders, into.parent, cards, asked.title, origin)


def _page(run: Run, title: str, origin: str) -> str:
    from fedvlm.report.pages.run import run_page  # start-up: 1 s of matplotlib

    return run_page(run, card_of(str(run.protocol["trainer"])), title, origin)


def _command(run: Run) -> str:
    return shlex.join(["fedvlm", "report", str(run.path)])


def _nothing(folders: Sequence[Path], found: Collected) -> str:
    """Say what lies there instead of finished runs."""
    first = folders[0]
    if (first / "plan.yaml").exists():
        return (f"{first} is a sweep's journal, its runs lie elsewhere; give its OUTPUT_DIR, "
                f"{first.parent.parent}")
    left = f" ({len(found.unfinished)} unfinished)" if found.unfinished else ""
    return (f"no finished run below {', '.join(map(str, folders))}{left}; give a run folder or "
            "OUTPUT_DIR")
