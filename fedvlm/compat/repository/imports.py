"""Modules of a trainer's repository under their own names, apart from everybody else's.

``trainers``, ``utils`` or ``clip`` of the repository are in ``sys.modules`` only while
its file is loaded or run, as ``dassl`` is (``fedvlm.compat.surface``).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from fedvlm.compat.surface import loaded_below, replace_modules

Mend = Callable[[ModuleType], None]


def leave(module: ModuleType) -> None:
    """Change nothing of a module."""


@dataclass
class Imports:
    """The modules that a file may import beside the installed ones.

    Attributes:
        modules: by full name; grows while the file imports lazily.
        packages: top-level names that are looked for in ``folders``.
        folders: of the repository.
        inside: the package that stands for the file's own folder (``from .other import x``).
        mend: what is done to each of the repository's modules right after it was executed.
    """

    modules: dict[str, ModuleType]
    packages: Sequence[str] = ()
    folders: Sequence[Path] = ()
    inside: str = ""
    mend: Mend = leave
    roots: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        """Settle which top-level names are replaced."""
        self.roots = frozenset(self.packages) | {n.partition(".")[0] for n in self.modules}

    @contextmanager
    def active(self) -> Iterator[None]:
        """Have the modules in ``sys.modules`` for a while, and find the repository's."""
        finder = _Finder(self)
        with replace_modules(self.modules, self.roots):
            sys.meta_path.insert(0, finder)
            try:
                yield
            finally:
                sys.meta_path.remove(finder)
                first = next(iter(self.modules), "")  # see ``replace_modules``
                self.modules.update(loaded_below(self.packages, first))


class _Finder(MetaPathFinder):
    def __init__(self, imports: Imports) -> None:
        self.imports = imports

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """See ``importlib``: names of the repository are found in its folders."""
        top, _, below = name.partition(".")
        ours = self.imports.inside and name.startswith(f"{self.imports.inside}.")
        if top in self.imports.packages:
            places = list(path or ()) if below else [str(f) for f in self.imports.folders]
        elif ours:
            places = list(path or ())
        else:
            return None
        spec = PathFinder.find_spec(name, places, target)
        if spec is not None and spec.loader is not None:
            _mend_after(spec.loader, self.imports.mend)
        return spec


def _mend_after(loader: Any, mend: Mend) -> None:
    execute = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        execute(module)
        mend(module)

    loader.exec_module = exec_module
