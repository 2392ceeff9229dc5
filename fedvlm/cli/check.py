"""``python -m fedvlm check fedtv``: which invariants a method keeps."""

from __future__ import annotations

from collections.abc import Sequence

from fedvlm.console.screen import say
from fedvlm.core.errors import ConfigError

USAGE = "check wants a trainer: fedvlm check fedtv, or check ./my.py:MyMethod [KEY VALUE ...]"


def main(argv: Sequence[str]) -> int:
    """Try all invariants on one trainer and print which hold.

    Args:
        argv: a name or ``path.py:Class``, then ``TRAINER.X.Y value`` pairs for its own options.

    Returns:
        0 if all hold or are exempt, 1 otherwise.

    Raises:
        ConfigError: no trainer given, or no such trainer or option.
    """
    words = list(argv)
    if words in (["-h"], ["--help"]):
        say(USAGE)
        return 0
    if not words or words[0].startswith("-"):
        raise ConfigError(USAGE)
    from fedvlm.check.invariants import run

    found = run(words[0], words[1:])
    for one in found:
        detail = f": {one.detail}" if one.detail else ""
        say(f"{one.name:<4} {one.state:<7} {one.statement}{detail}")
    count = {s: sum(one.state == s for one in found) for s in ("ok", "exempt", "broken")}
    say(f"{words[0]}: {count['ok']} hold, {count['exempt']} exempt, {count['broken']} broken")
    return 1 if count["broken"] else 0
