"""Draw the figures of one run or many (PDF, PNG, SVG, and CSV of the values).

With images, also what a client's model weighs in them, for methods that have such maps: transport
plans (FedOTP), or attention and fusion weights (FedTV, VPT and others).
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedvlm.cli.models._run import add_model_flags
from fedvlm.cli.results._papers import papers_of
from fedvlm.console.parser import Parser, amount, whole_number
from fedvlm.console.screen import complain, progress, say
from fedvlm.core.errors import ConfigError, DataError
from fedvlm.core.files import user_path
from fedvlm.report.collect import collect, no_runs, run_folders

EXAMPLES = (
    "fedvlm figures output/sweep-demo",
    "fedvlm figures output --into figures/ --width 5.5 --font serif  # for a NeurIPS paper",
    "fedvlm figures output --metric global --column  # one column of a paper wide",
    "fedvlm figures RUN --test-images 4 --client 3  # where the prompts of FedOTP look",
    "fedvlm figures RUN --features 500 --client global",
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
    add("--images", nargs="+", default=[], metavar="IMAGE", help="of one run: draw what its model "
        "weighs in these images, or folders of them")
    add("--test-images", type=whole_number(1), default=0, metavar="N", help="the same in N of the "
        "client's test images")
    add("--features", type=whole_number(1), default=0, metavar="N", help="t-SNE of the features "
        "of N of its test images")
    add("--client", default="", metavar="N", help="whose model: a client's number or name, or "
        "global (0)")
    add("--root", default="", metavar="DATA/", help="where the test images are now")
    add_model_flags(parser)
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
    if args.images and args.test_images:
        raise ConfigError("--images and --test-images both choose the images; drop one of them")
    folders = run_folders(args.folders)
    collected = collect(folders)
    complain(*collected.notes(), prefix="note")
    if not collected.runs:
        raise no_runs(folders, collected)
    seen = _seen(args, [run.path for run in collected.runs])
    from fedvlm.report.figures import style  # start-up: 1 s of matplotlib
    from fedvlm.report.figures.catalog import write_figures  # start-up: 1 s of matplotlib
    from fedvlm.report.figures.selection import FigureRuns  # start-up: 1 s of matplotlib

    into = user_path(args.into) if args.into else folders[0] / "figures"
    width = style.COLUMN if args.column else args.width or style.PAGE
    papers = papers_of(collected.runs) if args.names == "paper" else {}
    selection = FigureRuns(collected.runs, args.metric, papers, **seen)
    names, missing = write_figures(selection, into, width, args.font)
    if collected.unfinished:
        complain(f"{len(collected.unfinished)} unfinished runs were skipped", prefix="note")
    complain(*(f"not made: {why}" for why in missing), prefix="note")
    say(*(f"{into / name}.pdf .png .svg .csv" for name in names))
    return 0 if names else DataError.exit_code


def _seen(args: Namespace, paths: Sequence[Path]) -> dict[str, Any]:
    """Return what the run's model weighs and sees in images; nothing where nobody asks."""
    if not (args.images or args.test_images or args.features):
        if args.client:
            raise ConfigError(f"--client {args.client} chooses the model for --images, "
                              "--test-images or --features; add one of them")
        return {}
    if len(paths) > 1:
        raise ConfigError("--images, --test-images and --features are of one run, and there are "
                          f"{len(paths)} here; give the folder of one")
    progress("loading PyTorch")
    from fedvlm.cli.results._looks import seen_of  # start-up: PyTorch, 2 s

    return dict(seen_of(args, paths[0]))
