"""Flags that several commands take: folders, and names of a list that is known."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from fedvlm.console.parser import Parser
from fedvlm.core.errors import did_you_mean
from fedvlm.core.files import user_path

RUNS = "output/map"


def add_folder(parser: Parser, name: str, text: str, default: str = "") -> None:
    """Add a folder that the command makes where it is not there; a file is a mistake.

    Args:
        name: ``folder``, a word of the command, or a flag such as ``--runs``.
    """
    more: dict[str, Any] = {"default": default} if name.startswith("-") else {}
    parser.add_argument(name, metavar="FOLDER", help=text, **more)
    dest = name.lstrip("-")

    def files(args: Namespace) -> list[str]:
        path = user_path(getattr(args, dest) or ".")
        file = next((one for one in (path, *path.parents) if one.exists() and not one.is_dir()),
                    None)
        return [] if file is None else [f"{name if default else 'FOLDER'} {path}: {file} is a file"]

    parser.checks.append(files)


def add_names(
    parser: Parser, flag: str, known: Sequence[str], word: str = "NAME", text: str = "",
    default: Iterable[str] = (),
) -> None:
    """Add a flag that takes some of ``known``; another name is a mistake that says the nearest."""
    parser.add_argument(flag, nargs="+", default=list(default), metavar=word,
                        help=f"{text}of {', '.join(known)} (all)")
    dest = flag.lstrip("-")

    def strangers(args: Namespace) -> list[str]:
        return [f"{flag} has no '{name}'{did_you_mean(name, known)} ({', '.join(known)})"
                for name in getattr(args, dest) if name not in known]

    parser.checks.append(strangers)


def add_map_runs(parser: Parser, *needed: str) -> None:
    """Add what both pages of the map take: ``--runs``, and ``--table-only``.

    Args:
        needed: flags without which nothing can be run.
    """
    add_folder(parser, "--runs", f"where packs, features and runs are ({RUNS})", RUNS)
    parser.add_argument("--table-only", action="store_true",
                        help="run nothing: the page of what is there")

    def absent(args: Namespace) -> list[str]:
        if args.table_only or all(getattr(args, flag.lstrip("-")) for flag in needed):
            return []
        return [f"give {' and '.join(needed)}, or --table-only"]

    parser.checks.append(absent)


def make_folder(word: str) -> Path:
    """Return a folder as a path, made where it is not there."""
    path = user_path(word)
    path.mkdir(parents=True, exist_ok=True)
    return path
