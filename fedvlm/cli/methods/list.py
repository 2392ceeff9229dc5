"""List the methods, or show one method's card."""

from __future__ import annotations

from argparse import Namespace
from itertools import groupby
from pathlib import Path

from fedvlm.cli.methods._lines import method_rows, piece_rows, sizes
from fedvlm.cli.verbs import verbs
from fedvlm.config.families import CHOICE, ORDER, families_in, family_heading, place
from fedvlm.console.parser import Parser
from fedvlm.console.rows import table_lines
from fedvlm.console.screen import say
from fedvlm.core.errors import ConfigError, did_you_mean, fold
from fedvlm.core.files import user_path
from fedvlm.federation.cards import card, headline, method_of, trainer_files, year

EXAMPLES = (
    "fedvlm list  # by what is trained",
    "fedvlm list --family prompt lora  # methods that train a prompt or LoRA",
    "fedvlm list FedTV Ditto  # their cards",
    "fedvlm list ./my.py  # the card of a file; ./my.py:Mine: its options, too",
    "fedvlm list --lines  # lines of code per method, and what each shares",
)
ALSO = ("trainers", "methods", "algorithms", "ls", "cards", "info")
FAMILIES = (CHOICE, *ORDER)
_ALL = ("trainers", "methods", "all")  # what is not needed: the verb alone lists them


def flags(parser: Parser) -> None:
    """Add what the verb takes."""
    parser.add_argument("methods", nargs="*", metavar="METHOD", help="a method's name or its file")
    parser.add_argument(
        "--family", nargs="+", default=[], choices=FAMILIES, metavar="WORD",
        help=f"only methods that train one of: {', '.join(FAMILIES)} "
             f"({CHOICE}: what --peft sets)",
    )
    parser.add_argument("--flat", action="store_true", help="one list by name, without headings")
    parser.add_argument(
        "--lines", action="store_true",
        help="lines of code per method (without docstrings, comments, blank lines) and the "
             "shared modules it uses",
    )


def main(args: Namespace) -> int:
    """List all methods, or print the card (the module docstring) and options of each named one.

    With ``--lines`` how long they are, and what they share.

    Raises:
        ConfigError: unknown method.
    """
    files = trainer_files()
    every = [fold(word) for word in args.methods] in ([w] for w in _ALL)
    if args.family and args.methods and not every:
        raise ConfigError(f"--family filters the list of all methods; drop it or {args.methods[0]}")
    if args.family:
        files = {stem: path for stem, path in files.items()
                 if set(families_in(card(path))) & set(args.family)}
        if not files:
            raise ConfigError(f"--family {' '.join(args.family)}: no method trains that")
    if args.lines:
        if args.methods and not every:
            files = {path.stem: path for path in (_file(word, files) for word in args.methods)}
        long = sizes(files)
        total = f"{len(long)} methods, {sum(s.lines for s in long):,} lines of code"
        say(*table_lines(method_rows(long)), "", total, "", *table_lines(piece_rows(long)))
        return 0
    if not args.methods or every:
        say(*_rows(files, args.flat))
        return 0
    for word in args.methods:
        say(*card(_file(word, files)).splitlines(), *_options(word))
    return 0


def _options(word: str) -> list[str]:
    """Return where a method's own options stand; of a class in a file, the options."""
    if word.endswith(".py"):  # its card is read as text, nothing of it runs
        return []
    stem = method_of(word)
    if stem:
        return ["", f"Its options: fedvlm config {stem}"]
    from fedvlm.cli.methods.config import reference_lines  # start-up: PyTorch, 2 s
    from fedvlm.config.option import declare  # start-up: PyTorch, 2 s
    from fedvlm.federation.discovery import load_trainer  # start-up: PyTorch, 2 s

    trainer = load_trainer(word)
    lines = reference_lines(declare({}, f"TRAINER.{trainer.name.upper()}", trainer.options))
    return ["", "Options (--opts KEY VALUE): key, default, meaning [values]", *lines] \
        if lines else ["", "Options: none of its own"]


def _file(word: str, files: dict[str, Path]) -> Path:
    """Return the file of a method."""
    name = word.partition(":")[0]
    if name.endswith(".py"):
        return user_path(name)
    stem = method_of(word)
    if stem:
        return files[stem]
    from fedvlm.job.kinds import dataset_of  # start-up: NumPy, for a mistake only

    near = did_you_mean(word, files, 2)
    if fold(word) in ("datasets", "data", "sets") or dataset_of(word):
        near = (f"; '{word}' is about data: fedvlm data list shows the data sets, fedvlm doctor "
                "checks them")
    elif fold(word) in ("verbs", "commands", *map(fold, verbs())):
        near = f"; '{word}' is about commands: fedvlm help lists them"
    known = "" if near else f" (known: {', '.join(files) or 'none'})"
    raise ConfigError(f"unknown trainer '{word}'{near}{known}")


def _rows(files: dict[str, Path], flat: bool) -> list[str]:
    """Return a line for each method, below headings that say what is trained unless ``flat``."""
    rows, parts = [], []
    for stem, path in files.items():
        text = card(path)
        name, line = headline(text, stem)
        rows.append({"name": name, "year": year(text), "method": line})
        parts.append(families_in(text))
    head, *lines = table_lines(rows) or ["no trainers/ folder found"]
    if flat or not lines:
        return [head, *lines]
    out = [head]
    by_place = sorted(zip(parts, lines, strict=True), key=lambda one: place(one[0]))
    for own, members in groupby(by_place, key=lambda one: one[0]):
        group = [f"  {line}" for _, line in members]
        out += ["", f"{family_heading(own) or 'not stated in the card'}: {len(group)}", *group]
    return ["  " + head, *out[1:]]
