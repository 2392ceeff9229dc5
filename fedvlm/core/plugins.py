"""Names to modules and classes, whatever their case and dashes; an unknown one gets the nearest.

Modules are found by listing a folder, and imported when a word names one: a plugin is a module of
the folder that sets the folder's mark, a constant with its name or names::

    ENGINE = "workers"
    LOADERS = ("timm", "transformers-vit")

The mark is read without importing the file, so that a list of names costs no import. A module
without it is a helper of the others.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Generic, TypeVar

from fedvlm.core.errors import ConfigError, fold, unknown_word

T = TypeVar("T")


@dataclass(frozen=True)
class Plugins:
    """The plugins of one folder.

    Attributes:
        package: dotted name of the folder, whose ``__init__`` imports nothing slow.
        mark: the constant that a plugin sets.
        kind: what a plugin is called in an error message: ``engine``.
        first: names that a list shows before the others.
    """

    package: str
    mark: str
    kind: str
    first: Sequence[str] = ()

    def names(self) -> tuple[str, ...]:
        """Return the names of all plugins: ``first``, then by file."""
        found = _marked(self.package, self.mark)
        return tuple(dict.fromkeys([*(n for n in self.first if n in found), *found]))

    def load(self, name: str) -> ModuleType:
        """Import the module of a name; case, dash and underscore do not matter.

        Raises:
            ConfigError: no plugin has it; the message gives the nearest and the list.
        """
        word = _known(name, self.names(), self.kind)
        return importlib.import_module(f"{self.package}.{_marked(self.package, self.mark)[word]}")


class TextLoader(SourceFileLoader):
    """Runs a file as its text is now; Python's own cache does not see some edits of one second.

    It leaves no ``__pycache__`` beside the file, which would have this machine's path and time.
    """

    def get_code(self, fullname: str) -> CodeType:
        """Return the compiled text."""
        return self.source_to_code(self.get_data(self.path), self.path)


def own_class(module: ModuleType, base: type[T]) -> type[T]:
    """Return the one class of a module that derives from ``base``; imported ones do not count.

    Raises:
        TypeError: it has none, or several.
    """
    own = [c for c in vars(module).values() if inspect.isclass(c) and issubclass(c, base)
           and c.__module__ == module.__name__]
    if len(own) != 1:
        raise TypeError(f"{module.__name__} must have one {base.__name__}, it has {len(own)}")
    return own[0]


class Registry(Generic[T]):
    """A named table of classes or functions (Dassl's ``Registry``, with forgiving look-up).

    Args:
        kind: what is registered, for messages: ``"trainer"``, ``"dataset"``.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._table: dict[str, T] = {}

    def register(self, name: str | None = None, *, force: bool = False) -> Callable[[T], T]:
        """Return a decorator that registers its object under ``name`` (default: its own name).

        Raises:
            KeyError: the folded name is taken and ``force`` is not set.
        """

        def add(obj: T) -> T:
            key = name or obj.__name__  # type: ignore[attr-defined]
            taken = _spelled(key, self._table)
            if taken is not None and not force:
                raise KeyError(f"{self.kind} '{key}' is already registered as '{taken}'")
            self._table[taken or key] = obj
            return obj

        return add

    def get(self, name: str) -> T:
        """Return the object called ``name``.

        Raises:
            ConfigError: no such name; the message gives the nearest and the list.
        """
        return self._table[_known(name, self.registered_names(), self.kind)]

    def registered_names(self) -> list[str]:
        """Return all names, sorted."""
        return sorted(self._table)

    def __contains__(self, name: str) -> bool:
        return _spelled(name, self._table) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(self.registered_names())


def _spelled(name: str, known: Iterable[str]) -> str | None:
    """Return the known spelling of a name; None where there is none."""
    return next((k for k in known if fold(k) == fold(name)), None)


def _known(name: str, known: Sequence[str], kind: str) -> str:
    """Return the known spelling of a name (see ``Plugins.load`` for errors)."""
    key = _spelled(name, known)
    if key is None:
        raise ConfigError(unknown_word(name, known, kind))
    return key


@cache
def _marked(package: str, mark: str) -> dict[str, str]:
    """Return name -> module of the plugins of a folder.

    Raises:
        TypeError: two of them have one name.
    """
    constant = re.compile(rf'^{mark} = ("[^"]*"|\([^)]*\))', re.MULTILINE)
    found: dict[str, str] = {}
    folders = importlib.import_module(package).__path__
    for path in sorted(path for folder in folders for path in Path(folder).glob("*.py")):
        match = constant.search(path.read_text(encoding="utf-8"))
        value = ast.literal_eval(match[1]) if match else ()
        for name in (value,) if isinstance(value, str) else value:
            if name in found:
                raise TypeError(f"{path} and {found[name]} of {package} are both named '{name}'")
            found[name] = path.stem
    return found
