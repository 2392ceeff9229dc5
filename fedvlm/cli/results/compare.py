"""Two runs beside each other: settings, paired differences, where they part.

Differences are B - A. With --over-seeds, two methods over their seeds.
"""

from __future__ import annotations

from argparse import Namespace

from fedvlm.cli.results._folders import run_folders
from fedvlm.console.parser import Parser
from fedvlm.console.screen import say
from fedvlm.core.errors import ConfigError
from fedvlm.report.compare.runs import compare, compare_seeds
from fedvlm.report.compare.sides import side, sides
from fedvlm.report.compare.text import FORMATS

EXAMPLES = (
    "fedvlm compare RUN_A RUN_B",
    "fedvlm compare output/FedAvg output/FedTV --over-seeds --format md",
)
ALSO = ("diff", "versus", "significance")


def flags(parser: Parser) -> None:
    """Add what the verb takes."""
    add = parser.add_argument
    add("folders", nargs="*", metavar="RUN", help="two run folders, finished or not, or folders "
        "that hold one run each")
    add("--over-seeds", action="store_true", help="two folders with one finished run per seed: "
        "pairs by seed and data seed, intervals over seeds")
    add("--format", type=str.lower, choices=list(FORMATS), default="text", help="(text)")


def main(args: Namespace) -> int:
    """Print the comparison.

    Raises:
        ConfigError: wrong flags, several runs in a folder, or seeds that do not pair.
        DataError: no run there, or it cannot be read.
    """
    if len(args.folders) != 2:
        raise ConfigError(f"compare wants two folders, got {len(args.folders)}: {EXAMPLES[0]}")
    a, b = run_folders(args.folders)
    seen = compare_seeds(sides(a), sides(b)) if args.over_seeds else compare(side(a), side(b))
    say(*FORMATS[args.format](seen).rstrip("\n").splitlines())
    return 0
