"""argparse whose mistakes are one sentence, for the verbs with flags of their own.

The help page: flags by group, then the verbs; and the reference of config keys.
"""

from __future__ import annotations

import argparse
import textwrap
from typing import NoReturn

from fedvlm.config.option import Option, Schema
from fedvlm.core.errors import ConfigError
from fedvlm.job.flags import FLAGS, Flag


class VerbParser(argparse.ArgumentParser):
    """Flags of ``fedvlm VERB``.

    Args:
        verb: named first in a mistake.
        usage: shown by ``--help``, and in a mistake unless there is a ``hint``.
        hint: shown in a mistake instead of a long usage.
    """

    def __init__(self, verb: str, usage: str, hint: str = "") -> None:
        super().__init__(prog=f"fedvlm {verb}", add_help=False, allow_abbrev=False, usage=usage)
        self.verb, self.hint = verb, hint or f"usage: {usage}"

    def error(self, message: str) -> NoReturn:
        """Refuse.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(f"{self.verb}: {message} ({self.hint})")


_WIDTH = 100
_HEAD = (
    "python federated_main.py --root DATA/ --dataset-config-file configs/datasets/eurosat.yaml",
    "python federated_main.py --demo",
)
_TAIL = (
    "Other commands: python -m fedvlm list [METHOD] | config [WORD] | bench | show RUN",
    "Later wins: defaults < dataset file < trainer file < flags < KEY VALUE pairs.",
    "Exit codes: 0 done, 2 config, 3 data, 4 diverged, 130 interrupted.",
)


def help_lines() -> list[str]:
    """Return the page that ``--help`` prints."""
    shown = [flag for flag in FLAGS if flag.group]
    left = {flag: _left(flag) for flag in shown}
    width = max(map(len, left.values()))
    lines = list(_HEAD)
    for group in dict.fromkeys(flag.group for flag in shown):
        lines += ["", group]
        for flag in (f for f in shown if f.group == group):
            first = f"  {left[flag]:<{width}}  "
            lines += textwrap.wrap(flag.help, _WIDTH, initial_indent=first,
                                   subsequent_indent=" " * len(first), break_on_hyphens=False)
    return [*lines, "", *_TAIL]


def _left(flag: Flag) -> str:
    return flag.names[0] + ("" if flag.kind == "switch" else f" {flag.metavar}")


def reference_lines(schema: Schema, word: str = "") -> list[str]:
    """Return one line per config key that something reads: key, default, rule, help.

    Args:
        schema: all keys.
        word: only keys that hold this text, ignoring case.
    """
    keys = [k for k, o in schema.items() if o.used and word.upper() in k]
    width = max((len(f"{k} {schema[k].default!r}") for k in keys), default=0)
    lefts = {k: f"{k} {schema[k].default!r}" for k in sorted(keys)}
    return [f"{left:<{min(width, 48)}}  {_rule(schema[k])}" for k, left in lefts.items()]


def _rule(option: Option) -> str:
    rules = []
    if option.choices:
        rules.append(" | ".join(str(c) or "''" for c in option.choices))
    rules += [text for text in (option.limits(), option.pattern_help) if text]
    return option.help + (f" [{'; '.join(rules)}]" if rules else "")
