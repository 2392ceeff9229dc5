"""Draw the figures of one run or many (PDF, PNG, SVG, and CSV of the values)."""

from __future__ import annotations

from argparse import Namespace

from fedvlm.cli.results._folders import no_runs, papers_of, run_folders
from fedvlm.console.parser import Parser, amount
from fedvlm.console.screen import complain, say
from fedvlm.core.errors import ConfigError, DataError
from fedvlm.core.files import user_path
from fedvlm.report.collect import collect

EXAMPLES = (
    "fedvlm figures output/sweep-demo",
    "fedvlm figures output --into figures/ --width 5.5 --font serif  # for a NeurIPS paper",
    "fedvlm figures output --metric global --column  # one column of a paper wide",
)
ALSO = ("plot", "plots", "draw", "curves", "chart")


def flags(parser: Parser) -> None:
    """Add what the verb takes."""
    add = parser.add_argument
    add("folders", nargs="+", metavar="RUN_OR_OUTPUT", help="a run folder, or a folder with "
        "runs at any depth (OUTPUT_DIR); a single run gets additional figures")
    add("--into", default="", metavar="FOLDER", help="output folder (default: figures/ in "
        "the first folder)")
    add("--metric", default="personal", metavar="NAME", help="accuracy to plot: personal, "
        "global, new, ... (personal)")
    add("--width", type=amount("inches", 2, 20), default=0.0, metavar="INCHES",
        help="width of the figures "
        "(6.8); text has at least 7 points at that width")
    add("--column", action="store_true", help="width of one column of a paper (3.3 in)")
    add("--font", choices=("sans", "serif"), default="sans",
        help="serif: STIX, matches Times (default: sans)")
    add("--names", choices=("paper", "run"), default="paper", help="names of methods: as papers "
        "spell them, or as in the results of runs (paper)")


def main(args: Namespace) -> int:
    """Write the figures and say which were made and which could not be, and why.

    Returns:
        0 if any was made; 3 if none could be.

    Raises:
        ConfigError: no run has the metric, or both ``--width`` and ``--column``.
        DataError: no finished run there, or ``--into`` cannot be written.
    """
    if args.width and args.column:
        raise ConfigError("--column is --width 3.3; drop one of them")
    folders = run_folders(args.folders)
    collected = collect(folders)
    complain(*collected.notes(), prefix="note")
    if not collected.runs:
        raise no_runs(folders, collected)
    from fedvlm.report.figures import style  # start-up: 1 s of matplotlib
    from fedvlm.report.figures.catalog import write_figures  # start-up: 1 s of matplotlib
    from fedvlm.report.figures.selection import FigureRuns  # start-up: 1 s of matplotlib

    into = user_path(args.into) if args.into else folders[0] / "figures"
    width = style.COLUMN if args.column else args.width or style.PAGE
    papers = papers_of(collected.runs) if args.names == "paper" else {}
    selection = FigureRuns(collected.runs, args.metric, papers)
    names, missing = write_figures(selection, into, width, args.font)
    if collected.unfinished:
        complain(f"{len(collected.unfinished)} unfinished runs were skipped", prefix="note")
    complain(*(f"not made: {why}" for why in missing), prefix="note")
    say(*(f"{into / name}.pdf .png .svg .csv" for name in names))
    return 0 if names else DataError.exit_code
