"""Create the files of a new method: a trainer and its YAML.

A working method to change and its YAML: inside a checkout of fedvlm trainers/mymethod.py and
configs/trainers/mymethod.yaml, anywhere else both in the working folder. Without --kind it trains
what PEFT sets. The next commands are printed.
"""

from __future__ import annotations

import builtins
import keyword
import re
import shlex
from argparse import Namespace
from pathlib import Path

from fedvlm.cli.methods._pfllib import pfllib_kind
from fedvlm.cli.methods._templates import KINDS, OWN
from fedvlm.config.keys import default_schema
from fedvlm.console.parser import Parser
from fedvlm.console.screen import say
from fedvlm.core import files
from fedvlm.core.errors import ConfigError, fold
from fedvlm.core.files import user_path
from fedvlm.core.repository import checkout
from fedvlm.federation.cards import method_of, trainer_files

EXAMPLES = (
    "fedvlm new-trainer MyMethod",
    "fedvlm new-trainer MyMethod --into .  # both files into this folder, in a checkout too",
    "fedvlm new-trainer MyAMP --from ./clientamp.py --into .  # from a client file of PFLlib",
    "fedvlm new-trainer MyPrompt --kind prompt --into .  # a context in front of the class names",
)
ALSO = ("create", "scaffold", "template", "init", "new")
LONGEST = 30


def flags(parser: Parser) -> None:
    """Add what the verb takes."""
    parser.add_argument("name", metavar="NAME", help="a class name, such as MyMethod")
    parser.add_argument("--into", metavar="DIR", help="a folder for both files (default: "
                        "those of the checkout you are in, else the working folder)")
    about = "; ".join(f"{name}: {kind.about}" for name, kind in KINDS.items())
    parser.add_argument("--from", metavar="FILE", dest="source", default="",
                        help="a client file of PFLlib (clientx.py), whose settings, phases and "
                             "further models the new file gets; or pfllib, for the skeleton alone")
    parser.add_argument("--kind", metavar="KIND", type=_spelt, choices=list(KINDS), default="",
                        help=f"what is trained: {about}")


def main(args: Namespace) -> int:
    """Write the two files and print what to do next; return the exit code.

    Raises:
        ConfigError: a bad name, or a file that is there already; nothing is written then.
        DataError: the folder cannot be written.
    """
    name, into = args.name, _folder(args.into)
    check_method_name(name)
    code, yaml = _paths(name, into)
    for path in (code, yaml):
        if path.exists():
            raise ConfigError(f"'{path}' already exists and is not overwritten: choose another "
                              "name, or move the file")
    spec = name if into is None else f"{_typed(code)}:{name}"
    if args.source and args.kind:
        raise ConfigError(f"--from {args.source} and --kind {args.kind}: give one of them")
    code_text, yaml_text = texts(
        name, registered=into is None, kind=args.kind, source=args.source)
    for path, text in ((code, code_text), (yaml, yaml_text)):
        with files.explain_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        files.write_text(path, text)
    say(f"wrote {code.absolute()}", f"wrote {yaml.absolute()}", "next:",
        *_next(name, spec, yaml, into is None))
    return 0


def texts(
    name: str, *, registered: bool, kind: str = "", source: str = ""
) -> tuple[str, str]:
    """Return the Python file and the YAML of a method.

    Args:
        registered: of the repository's own.
        kind: of ``KINDS``; empty: whatever PEFT says.
        source: a client file of PFLlib, or ``pfllib``.

    Raises:
        ConfigError: ``source`` is no such file.
    """
    spec = name if registered else f"./{name.lower()}.py:{name}"
    if source:
        return pfllib_kind(source).texts(name, spec, registered=registered)
    return KINDS.get(kind, OWN).texts(name, spec, registered=registered)


def check_method_name(name: str) -> None:
    """Refuse a name that cannot be a class, a file and a config node at once, or is taken.

    Raises:
        ConfigError: with the reason and a name that would do.
    """
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name) or len(name) > LONGEST:
        bare = re.sub(r"[^A-Za-z0-9_]", "", name).lstrip("0123456789_")[:LONGEST]
        near = f", such as {bare[0].upper()}{bare[1:]}" if bare else ", such as MyMethod"
        raise ConfigError(
            f"'{name}' is not a valid method name: use a letter, then up to {LONGEST - 1} "
            f"letters, digits or underscores{near}"
        )
    node = f"TRAINER.{name.upper()}"
    keys = [k for k in default_schema() if k == node or k.startswith(f"{node}.")]
    every = set().union(*(kind.names() for kind in (OWN, *KINDS.values())))
    reserved = {fold(word) for word in every} | {"trainer"}
    bad = keyword.iskeyword(name) or hasattr(builtins, name) or fold(name) in reserved
    if bad or keys:
        why = f"the config key {keys[0]}" if keys else "a Python keyword or a name used in the file"
        raise ConfigError(f"'{name}' is already {why}; choose another name, such as "
                          f"My{name.title()}")
    taken = method_of(name)
    if taken:
        raise ConfigError(f"a method '{taken}' already exists ({trainer_files()[taken]}); "
                          f"choose another name, such as My{name}")


def _spelt(kind: str) -> str:
    """Return a kind as ``KINDS`` spells it."""
    return kind.lower().replace("_", "-")


def _folder(into: str | None) -> Path | None:
    """Return the folder for both files; None: those of the checkout that one works in."""
    if into is not None:
        return user_path(into)
    root = checkout()
    return None if root and Path.cwd().is_relative_to(root.resolve()) else Path()


def _paths(name: str, into: Path | None) -> tuple[Path, Path]:
    stem = name.lower()
    if into is not None:
        if into.exists() and not into.is_dir():
            raise ConfigError(f"--into {into}: is a file, not a folder")
        return into / f"{stem}.py", into / f"{stem}.yaml"
    root = checkout() or Path()
    return root / "trainers" / f"{stem}.py", root / "configs" / "trainers" / f"{stem}.yaml"


def _typed(path: Path) -> str:
    """Return a path as it is typed: ``./my.py`` for a file in the current folder."""
    return str(path) if len(path.parts) > 1 or path.is_absolute() else f"./{path}"


def _next(name: str, spec: str, yaml: Path, registered: bool) -> list[str]:
    """Return the three next commands."""
    word = shlex.quote(spec)
    config = "" if registered else f" --trainer-config-file {shlex.quote(_typed(yaml))}"
    tests = "tests/check/test_invariants.py tests/trainers/test_every_trainer.py"
    return [
        f"  python -m fedvlm run --demo --rounds 2 --trainer {word}{config}",
        f"  python -m fedvlm check {word}{config}",
        f"  python -m pytest {tests} -k {name.lower()}" if registered
        else f"  python -m fedvlm list {word}",
    ]
