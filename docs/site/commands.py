"""The pages of commands and config keys, generated from the parsers and the schema."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator

from docs.site.tables import code, escape_markup, row, table
from fedvlm.cli.methods.config import meaning
from fedvlm.cli.verbs import Verb, sections, verbs
from fedvlm.config.keys import default_schema
from fedvlm.config.option import Schema

COMMANDS, KEYS = "cli.md", "keys.md"
WORDS = "positional arguments"  # argparse's own heading
NODES = {
    "DATASET": "Data", "FED": "Federation", "OPTIM": "Local training", "PEFT": "What is trained",
    "MODEL": "Backbone", "TEST": "Evaluation", "TRAIN": "Checkpoints", "INPUT": "Images",
    "DATALOADER": "Loading",
}


def pages() -> dict[str, str]:
    """Return both pages: path in the site -> Markdown."""
    return {COMMANDS: _commands(), KEYS: _keys(default_schema())}


def _commands() -> str:
    lines = [
        "# Commands and flags", "`fedvlm COMMAND --help` prints the same text. The command `run` "
        "may be left out: `fedvlm --demo` is `fedvlm run --demo`. `python federated_main.py` "
        "takes the same flags. Flags ignore case, and dash and underscore are the same. Exit "
        "codes: 0 done, 2 wrong config or usage, 3 wrong data, 4 training diverged, 6 below "
        "quorum, 130 interrupted.",
    ]
    table_of = verbs()
    for section, heading in sections().items():
        lines.append(f"## {heading}")
        for verb in (v for v in table_of.values() if v.section == section):
            lines += _verb(verb)
    return "\n\n".join(line for line in lines if line) + "\n"


def _verb(verb: Verb) -> Iterator[str]:
    parser = verb.parser()
    usage = parser.format_help().partition("\n\n")[0].removeprefix("usage: ")
    yield f"### fedvlm {verb.name}"
    head, _, rest = (parser.description or "").strip().partition("\n\n")
    yield f"**{' '.join(head.split())}**"
    # "word: what it does" is an item of a list.
    yield re.sub(r"^([a-z]+): ", r"\n- **\1**: ", rest, flags=re.MULTILINE).strip()
    yield code("sh", usage if not parser.examples else "\n".join(parser.examples))
    for group in parser._action_groups:
        actions = [a for a in group._group_actions
                   if a.help is not argparse.SUPPRESS and a.dest != "help"]
        if actions:
            head = "argument" if group.title == WORDS else (group.title or "flag")
            yield table((head.replace("options", "flag"), "meaning"), [
                row(f"`{_spelling(a)}`", _help(a)) for a in actions
            ])


def _spelling(action: argparse.Action) -> str:
    name = action.metavar if isinstance(action.metavar, str) else (action.metavar or [""])[0]
    value = "" if action.nargs == 0 else name or action.dest.upper()
    if action.choices and not action.metavar:
        value = "{" + ",".join(str(c) for c in action.choices) + "}"
    if action.nargs in ("*", "+"):
        value += " ..."
    names = ", ".join(n for n in action.option_strings if n.startswith("--"))
    return f"{names or ', '.join(action.option_strings)} {value}".strip()


def _help(action: argparse.Action) -> str:
    return (action.help or "").replace("%%", "%").replace("*", "\\*")


def _keys(schema: Schema) -> str:
    lines = [
        "# Config keys", "Set a key with `--opts KEY VALUE`, in a YAML file, or with its flag. "
        "`fedvlm config WORD` searches the keys; `--print-config` prints the values of a run "
        "and where each comes from. The keys of a method are on its [page](methods/index.md).",
    ]
    used = {k: o for k, o in schema.items() if o.used}
    others = sorted(k for k in used if k.partition(".")[0] not in NODES)
    groups = {NODES[n]: sorted(k for k in used if k.partition(".")[0] == n) for n in NODES}
    for heading, keys in [*groups.items(), ("Run, seeds, output", others)]:
        lines += [f"## {heading}", table(("key", "default", "meaning"), [
            row(f"`{k}`", f"`{used[k].default!r}`", escape_markup(meaning(used[k])))
            for k in keys
        ])]
    return "\n\n".join(lines) + "\n"
