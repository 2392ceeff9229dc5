"""Which folder is a file's repository, and which of its files the file imports; nothing is run."""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from fedvlm.core.errors import ConfigError
from fedvlm.core.repository import repository
from fedvlm.federation.discovery import imports_in

MAINS = ("federated_main.py", "train.py")  # the scripts that assign config keys
DASSL = ("dassl", "Dassl")  # always ours


@dataclass(frozen=True)
class Checkout:
    """The folder of a trainer's file.

    Attributes:
        root: the folder with the main script; without one that of the file.
        mains: main scripts, in the order of ``MAINS``; empty for a file by itself.
        beside: the folder of the file.
    """

    root: Path
    mains: tuple[Path, ...]
    beside: Path

    def find(self, words: Sequence[str]) -> Path | None:
        """Return the file or the package's folder that ``import a.b`` means here; None for none."""
        for folder in (self.root, *([] if self.mains else [self.beside])):
            place = folder.joinpath(*words)
            if place.with_suffix(".py").is_file():
                return place.with_suffix(".py")
            if (place / "__init__.py").is_file() or any(place.glob("*.py")):
                return place
        return None


def checkout_of(path: Path) -> Checkout:
    """Return the repository of a file: its folder or the one above, where a main script is."""
    beside = path.resolve().parent
    for root in (beside, beside.parent):
        mains = tuple(root / name for name in MAINS if (root / name).is_file())
        if mains and root != repository():
            return Checkout(root, mains, beside)
    return Checkout(beside, (), beside)


@cache
def syntax_tree(path: Path) -> ast.Module:
    """Return a file's syntax tree.

    Raises:
        ConfigError: it is not Python text.
    """
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        at = path.read_bytes()[: error.start].count(b"\n") + 1
        raise ConfigError(f"{path}:{at}: is not UTF-8 text; save it as UTF-8") from None
    except (SyntaxError, ValueError) as error:
        line = f":{error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        raise ConfigError(f"{path}{line}: is not valid Python: {error}") from None


def imported_files(path: Path, home: Checkout) -> list[Path]:
    """Return a file and all of its repository's files that it imports, in order of discovery.

    What fedvlm gives instead (``dassl``) is left out.
    """
    files, waiting = list[Path](), [path.resolve()]
    while waiting:
        file = waiting.pop(0)
        if file in files or not file.is_file():
            continue
        files.append(file)
        for place in _targets(syntax_tree(file), file, home):
            waiting += [place / "__init__.py"] if place.is_dir() else [place]
    return files


def local_packages(files: Sequence[Path], home: Checkout) -> tuple[str, ...]:
    """Return the top-level names that ``files`` import and that mean files of the repository."""
    tops = {words[0] for file in files for level, words in imports_in(syntax_tree(file))
            if not level}
    return tuple(sorted(
        top for top in tops - {*DASSL, "fedvlm"}
        if home.find([top]) is not None and not _elsewhere(top, home)
    ))


def _elsewhere(top: str, home: Checkout) -> bool:
    """Tell whether a name means an installed package: always, beside a file by itself."""
    if top in sys.stdlib_module_names or top in ("torch", "numpy", "yacs"):
        return True
    return not home.mains and importlib.util.find_spec(top) is not None


def _targets(tree: ast.Module, file: Path, home: Checkout) -> Iterator[Path]:
    for level, words in imports_in(tree):
        if level:
            folder = file.parents[level - 1] if level <= len(file.parents) else file.parent
            found = [_inside(folder, words[:n]) for n in range(1, len(words) + 1)]
        elif words[0] in DASSL or _elsewhere(words[0], home):
            continue
        else:
            found = [home.find(words[:n]) for n in range(1, len(words) + 1)]
        yield from (place for place in found if place is not None)


def _inside(folder: Path, words: Sequence[str]) -> Path | None:
    place = folder.joinpath(*words)
    file = place.with_suffix(".py")
    return file if file.is_file() else place if place.is_dir() else None
