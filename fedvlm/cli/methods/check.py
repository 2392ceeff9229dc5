"""Test a method against the framework's invariants.

One line per invariant: ok, exempt with the method's reason, or broken and where. Exit code 1 if
any is broken. TRAINER.X.Y VALUE pairs set the method's own options.
"""

from __future__ import annotations

from argparse import Namespace

from fedvlm.config.read import find_config
from fedvlm.console.parser import Parser
from fedvlm.console.screen import say

EXAMPLES = (
    "fedvlm check fedtv",
    "fedvlm check ./my.py:MyMethod TRAINER.MYMETHOD.MIX 0.3",
    "fedvlm check --trainer-config-file my.yaml ./my.py:MyMethod",
)
ALSO = ("invariants", "validate")


def flags(parser: Parser) -> None:
    """Add what the verb takes."""
    add = parser.add_argument
    add("trainer", metavar="METHOD", help="a trainer, by name or as ./my.py:MyMethod")
    add("opts", nargs="*", metavar="KEY VALUE", help="the method's own options")
    add("--trainer-config-file", metavar="FILE", help="the method's YAML, a path or a name")


def main(args: Namespace) -> int:
    """Try all invariants on one trainer and print which hold.

    Returns:
        0 if all hold or are exempt, 1 otherwise.

    Raises:
        ConfigError: no such trainer, option or config file, or a mistake in that file.
    """
    from fedvlm.check.invariants import run  # start-up: PyTorch, 2 s

    file = args.trainer_config_file
    yaml = None if file is None else find_config(file, "trainers")
    verdicts = run(args.trainer, args.opts, yaml=yaml)
    for one in verdicts:
        detail = f": {one.detail}" if one.detail else ""
        say(f"{one.name:<4} {one.state:<7} {one.statement}{detail}")
    count = {s: sum(one.state == s for one in verdicts) for s in ("ok", "exempt", "broken")}
    say(f"{args.trainer}: {count['ok']} hold, {count['exempt']} exempt, {count['broken']} broken")
    return 1 if count["broken"] else 0
