"""Compare two runs: settings, paired differences, first round that differs.

Differences are B - A. With --over-seeds, two methods over their seeds.
"""

from __future__ import annotations

from argparse import Namespace

from fedvlm.cli.results._pairs import print_pairs
from fedvlm.console.parser import Parser
from fedvlm.report.compare.text import PAIR_FORMATS

EXAMPLES = (
    "fedvlm compare RUN_A RUN_B",
    "fedvlm compare output/FedAvg output/FedTV --over-seeds --format md",
)
ALSO = ("diff", "versus", "significance")


def flags(parser: Parser) -> None:
    """Add what the verb takes."""
    add = parser.add_argument
    add("folders", nargs="*", metavar="RUN", help="two run folders, finished or not, or two "
        "folders with one run each")
    add("--over-seeds", action="store_true", help="compare two folders with one finished run "
        "per seed: pairs by seed and data seed, intervals over seeds")
    add("--format", type=str.lower, choices=list(PAIR_FORMATS), default="text", help="(text)")


def main(args: Namespace) -> int:
    """Print the comparison (``_pairs.print_pairs``)."""
    return print_pairs("compare", args.folders, args.over_seeds, args.format)
