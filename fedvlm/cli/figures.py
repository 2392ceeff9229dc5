"""``fedvlm figures``: figures of a run or of several, as PNG and SVG with the CSV behind each."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from fedvlm.cli.parser import VerbParser
from fedvlm.console.screen import complain, say
from fedvlm.core.errors import ConfigError, DataError
from fedvlm.report.collect import Collected, collect

USAGE = "fedvlm figures RUN_OR_OUTPUT ... [--into FOLDER] [--metric personal] [--column]"


def parser() -> argparse.ArgumentParser:
    """Return the parser of the flags."""
    made = VerbParser("figures", USAGE)
    add = made.add_argument
    add("folders", nargs="*", metavar="RUN_OR_OUTPUT", help="run folders, or folders with runs at "
        "any depth; one run gets its own figures besides")
    add("--into", default="", metavar="FOLDER", help="where to write (figures/ in the first "
        "folder)")
    add("--metric", default="personal", metavar="NAME", help="accuracy of a round: personal, "
        "global, new, ... (personal)")
    add("--column", action="store_true", help="one column of a paper wide (3.3 in), else two (6.8)")
    add("-h", "--help", action="store_true", help="this page")
    return made


def main(argv: Sequence[str]) -> int:
    """Write the figures and say which were made and which could not be, and why.

    Returns:
        0 if any was made; 3 if none could be.

    Raises:
        ConfigError: wrong flags, or no run has the metric.
        DataError: no finished run there, or ``--into`` cannot be written.
    """
    asked = parser().parse_args(list(argv))
    if asked.help:
        say(*parser().format_help().rstrip().splitlines())
        return 0
    if not asked.folders:
        raise ConfigError(f"figures wants a run folder or OUTPUT_DIR: {USAGE}")
    folders = [Path(word).expanduser() for word in asked.folders]
    found = collect(folders)
    complain(*found.problems, prefix="note")
    if not found.runs:
        raise DataError(_nothing(asked.folders, found))
    from fedvlm.report.figures import style  # start-up: 1 s of matplotlib
    from fedvlm.report.figures.catalog import write_figures  # start-up: 1 s of matplotlib
    from fedvlm.report.figures.selection import Selection  # start-up: 1 s of matplotlib

    into = Path(asked.into).expanduser() if asked.into else folders[0] / "figures"
    width = style.COLUMN if asked.column else style.PAGE
    names, missing = write_figures(Selection(found.runs, asked.metric), into, width)
    if found.unfinished:
        complain(f"{len(found.unfinished)} unfinished runs are left out", prefix="note")
    complain(*(f"not made: {why}" for why in missing), prefix="note")
    say(*(f"{into / name}.png .svg .csv" for name in names))
    return 0 if names else DataError.exit_code


def _nothing(words: Sequence[str], found: Collected) -> str:
    """Say why there is nothing to draw."""
    left = f"; {len(found.unfinished)} unfinished" if found.unfinished else ""
    return f"no finished run in {', '.join(words)}{left}; give a run folder or OUTPUT_DIR"
