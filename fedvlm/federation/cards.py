"""Trainer files by name and their cards: the module docstrings, read without running a file.

Imports no PyTorch: ``fedvlm list`` and the pages need names and cards only.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

from fedvlm.core.errors import ConfigError, fold
from fedvlm.core.files import user_path
from fedvlm.core.repository import repository

_YEAR = re.compile(r"\b(?:19|20)\d\d\b")


def trainer_files() -> dict[str, Path]:
    """Return file stem -> path for fedvlm's own trainers, else those of the current folder.

    Its own come first: the current folder may be another project's checkout (CoOp has a
    ``trainers`` folder too).
    """
    for base in (repository(), Path.cwd()):
        folder = base / "trainers"
        if folder.is_dir():
            return {p.stem: p for p in sorted(folder.glob("*.py")) if not p.stem.startswith("_")}
    return {}


def method_of(word: str) -> str:
    """Return the file stem of the method that a word names; '' where it names none."""
    return next((stem for stem in trainer_files() if fold(stem) == fold(word)), "")


def card(path: Path) -> str:
    """Return a trainer file's module docstring, read without running the file.

    Raises:
        ConfigError: the file is not Python.
    """
    try:
        return ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None
    except (SyntaxError, UnicodeDecodeError, ValueError) as error:
        raise ConfigError(f"{path}: is not a Python file ({error})") from None


def headline(text: str, stem: str) -> tuple[str, str]:
    """Return the method's name and sentence, a card's first line; its file's stem if it has none.
    """
    name, colon, sentence = text.partition("\n")[0].partition(":")
    return (name if colon else stem), sentence.strip()


def fields(text: str) -> dict[str, str]:
    """Return the ``Field: text`` parts of a card, line breaks as they are.

    A field's further lines are indented. The first line (name and sentence) is one like them.
    """
    parts = re.findall(r"^([A-Z][^:\n]*):[ \t]*(.*(?:\n[ \t]+.*)*)", text, flags=re.MULTILINE)
    return dict(parts)


def year(text: str) -> str:
    """Return the year in the ``Paper:`` field of a card, or an empty string."""
    match = _YEAR.search(fields(text).get("Paper", ""))
    return match.group() if match else ""


def split_method(trainer: str) -> tuple[str, str]:
    """Return a trainer's name, and the method that runs over it: ``./net.py:Net+FedAS``."""
    head, file, rest = trainer.partition(".py")
    name, plus, method = rest.partition("+")
    return (f"{head}{file}{name}", method) if plus else (trainer, "")


def trainer_sources(trainer: str) -> list[Path]:
    """Return the files of the user's own that a trainer's name names, the network's first."""
    parts = [part for part in split_method(trainer) if ".py" in part]
    return [user_path(part.partition(":")[0]) for part in parts]


def card_of(trainer: str) -> str:
    """Return the card of a method by the name in its results; empty where its file is gone."""

    path = user_path(split_method(trainer)[0].partition(":")[0])
    if path.suffix != ".py":
        stem = method_of(trainer)
        if not stem:
            return ""
        path = trainer_files()[stem]
    try:
        return card(path)
    except ConfigError:
        return ""
