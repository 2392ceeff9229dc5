"""``fedvlm compare A B``: two runs, or two methods over seeds, as text, Markdown or JSON."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from fedvlm.cli.parser import VerbParser
from fedvlm.console.screen import say
from fedvlm.core.errors import ConfigError, did_you_mean
from fedvlm.report.compare.runs import compare, compare_seeds
from fedvlm.report.compare.sides import side, sides
from fedvlm.report.compare.text import FORMATS

USAGE = "fedvlm compare RUN_A RUN_B [--over-seeds] [--format text|md|json]"


def parser() -> argparse.ArgumentParser:
    """Return the parser of the flags."""
    made = VerbParser("compare", USAGE)
    add = made.add_argument
    add("folders", nargs="*", metavar="RUN", help="two run folders, finished or not, or folders "
        "that hold one run each; differences are B - A")
    add("--over-seeds", action="store_true", help="two folders with one finished run per seed: "
        "pairs by seed and data seed, intervals over seeds")
    add("--format", default="text", help=f"{', '.join(FORMATS)} (text)")
    add("-h", "--help", action="store_true", help="this page")
    return made


def main(argv: Sequence[str]) -> int:
    """Print the comparison.

    Raises:
        ConfigError: wrong flags, several runs in a folder, or seeds that do not pair.
        DataError: no run there, or it cannot be read.
    """
    asked = parser().parse_intermixed_args(list(argv))
    if asked.help:
        say(*parser().format_help().rstrip().splitlines())
        return 0
    form = asked.format.lower()
    if form not in FORMATS:
        raise ConfigError(f"--format {asked.format}: no such format{did_you_mean(form, FORMATS)} "
                          f"(known: {', '.join(FORMATS)})")
    if len(asked.folders) != 2:
        raise ConfigError(f"compare wants two folders, got {len(asked.folders)}: {USAGE}")
    a, b = (Path(word).expanduser() for word in asked.folders)
    found = compare_seeds(sides(a), sides(b)) if asked.over_seeds else compare(side(a), side(b))
    say(*FORMATS[form](found).rstrip("\n").splitlines())
    return 0
