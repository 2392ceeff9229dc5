"""List all settings, or show the resolved config of given flags.

fedvlm config WORD shows the keys that contain the word, with default, range and help; fedvlm config
METHOD shows the options of a method. With flags of a run it shows the resulting config and the
source of each value.
"""

from __future__ import annotations

from argparse import Namespace

from fedvlm.cli.run import run
from fedvlm.config.keys import default_schema, method_schema
from fedvlm.config.option import Option, Schema
from fedvlm.console.parser import Parser
from fedvlm.console.screen import say
from fedvlm.core.errors import ConfigError, did_you_mean
from fedvlm.federation.cards import method_of
from fedvlm.job.flags import add_flags, pairs

EXAMPLES = (
    "fedvlm config",
    "fedvlm config FED  # the keys that contain a word",
    "fedvlm config fedtv  # a method's own options",
    "fedvlm config --dataset eurosat --shots 4",
)
ALSO = ("settings", "options", "keys", "defaults", "flags")


def flags(parser: Parser) -> None:
    """Add what the verb takes."""
    parser.add_argument("opts", nargs="*", metavar="WORD",
                        help="part of a key, a method's name, or KEY VALUE pairs")
    add_flags(parser, shown=False)
    parser.checks.append(lambda args: pairs(args) if args.spelling else [])


def main(args: Namespace) -> int:
    """Print the reference of keys, or a run's config.

    Raises:
        ConfigError: no key holds the word; or whatever is wrong with a run's flags.
    """
    if args.spelling:
        args.print_config = True
        return run.main(args)
    word = args.opts[0] if args.opts else ""
    schema = _schema_for(word)
    lines = reference_lines(schema, word)
    if not lines:
        raise ConfigError(f"no config key contains '{word}'{did_you_mean(word, schema)}")
    say(*lines)
    return 0


def reference_lines(schema: Schema, word: str = "") -> list[str]:
    """Return one line per config key that something reads: key, default, rule, help.

    Args:
        schema: all keys.
        word: only keys that hold this text, ignoring case.
    """
    keys = [k for k, o in schema.items() if o.used and word.upper() in k]
    width = max((len(f"{k} {schema[k].default!r}") for k in keys), default=0)
    lefts = {k: f"{k} {schema[k].default!r}" for k in sorted(keys)}
    return [f"{left:<{min(width, 48)}}  {meaning(schema[k])}" for k, left in lefts.items()]


def meaning(option: Option) -> str:
    """Return an option's help and what it may hold, in words."""
    rules = []
    if option.choices:
        rules.append(" | ".join(str(c) or "''" for c in option.choices))
    rules += [text for text in (option.limits(), option.pattern_help) if text]
    return option.help + (f" [{'; '.join(rules)}]" if rules else "")


def _schema_for(word: str) -> Schema:
    """Return all keys, and a method's own options where ``word`` names it."""
    schema = default_schema()
    name = word.upper().removeprefix("TRAINER.").split(".")[0]
    if not name or any(key.split(".")[0] == name for key in schema):
        return schema
    if not method_of(name):
        return schema
    from fedvlm.federation.discovery import load_trainer  # start-up: PyTorch, 2 s

    return method_schema(load_trainer(name))
