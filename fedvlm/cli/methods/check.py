"""Test a method against the framework's invariants.

One line per invariant: ok, exempt with the method's reason, or broken and where. Exit code 1 if
any is broken. TRAINER.X.Y VALUE pairs set the method's own options. A method exempts an invariant
by its attribute exempt; a file written for another framework by a comment, # fedvlm: exempt G5:
the reason, or for this check by --exempt.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence

from fedvlm.config.read import find_config
from fedvlm.console.parser import Parser
from fedvlm.console.screen import say
from fedvlm.core.errors import ConfigError

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
    add("--exempt", metavar='"G5: REASON"', action="append", default=[],
        help="an invariant that does not hold, with the reason; may be given several times")
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
    verdicts = run(args.trainer, args.opts, yaml=yaml, exempt=_exemptions(args.exempt))
    first: dict[str, str] = {}  # a method that fails at once fails in each of them
    for one in verdicts:
        told = first.setdefault(one.detail, one.name)
        same = one.state == "broken" and told != one.name
        detail = f": as {told}" if same else f": {one.detail}" if one.detail else ""
        say(f"{one.name:<4} {one.state:<7} {one.statement}{detail}")
    count = {s: sum(one.state == s for one in verdicts) for s in ("ok", "exempt", "broken")}
    say(f"{args.trainer}: {count['ok']} hold, {count['exempt']} exempt, {count['broken']} broken")
    return 1 if count["broken"] else 0


def _exemptions(words: Sequence[str]) -> dict[str, str]:
    """Return {"G5": "reason"} of ``--exempt`` (``ConfigError``: no reason)."""
    parts = [word.partition(":") for word in words]
    bare = [word for word, (_, _, reason) in zip(words, parts, strict=True) if not reason.strip()]
    if bare:
        raise ConfigError(f"--exempt '{bare[0]}' has no reason: write --exempt \"G5: the reason\"")
    return {name.strip(): reason.strip() for name, _, reason in parts}
