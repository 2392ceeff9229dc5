"""Show this overview, or the help of one command.

fedvlm help COMMAND is the same as fedvlm COMMAND --help.
"""

from __future__ import annotations

from argparse import Namespace

from fedvlm.cli.verbs import sections, verbs
from fedvlm.console.parser import Parser
from fedvlm.console.screen import say
from fedvlm.core.errors import fold

EXAMPLES = ("fedvlm help", "fedvlm help sweep  # = fedvlm sweep --help")
ALSO = ("usage", "man", "commands")
_HEAD = (
    "fedvlm: federated parameter-efficient fine-tuning of vision-language models",
    "",
    "  fedvlm --demo      a first run: needs no data and downloads nothing",
    "  fedvlm --root DATA/ --dataset-config-file configs/datasets/eurosat.yaml --trainer FedTV",
    "                     train a method; the same as python federated_main.py with these flags",
)
_TAIL = (
    "fedvlm COMMAND --help lists the flags of a command, fedvlm run --help those of a run.",
    "Precedence, lowest to highest: defaults, dataset file, trainer file, flags, KEY VALUE pairs.",
    "Exit codes: 0 done, 2 config or usage, 3 data, 4 diverged, 6 below quorum, 130 interrupted.",
)


def flags(parser: Parser) -> None:
    """Add what the verb takes."""
    parser.add_argument("verb", nargs="?", default="", metavar="COMMAND", help="a command")


def main(args: Namespace) -> int:
    """Print the page.

    Raises:
        ConfigError: no such verb.
    """
    if not args.verb:
        say(*overview())
        return 0
    table = verbs()
    name = next((name for name in table if fold(name) == fold(args.verb)), "")
    if not name:
        from fedvlm.cli.unknown import unknown_verb  # start-up: NumPy, for a mistake only

        raise unknown_verb(args.verb, table)
    say(*table[name].parser().format_help().splitlines())
    return 0


def overview() -> list[str]:
    """Return every verb with its sentence, section by section."""
    lines, table = list(_HEAD), verbs()
    width = max(map(len, table))
    for section, heading in sections().items():
        lines += ["", heading]
        lines += [f"  {verb.name:<{width}}  {verb.sentence}"
                  for verb in table.values() if verb.section == section]
    return [*lines, "", *_TAIL]
