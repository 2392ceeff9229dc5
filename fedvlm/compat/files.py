"""``--trainer ./coop.py:CoOp``: a file written for Dassl, loaded and made a method.

``federation.discovery`` imports this module for a file that imports one of ``FRAMEWORKS``.
"""

from __future__ import annotations

import importlib.util
import inspect
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from fedvlm.compat import dassl
from fedvlm.compat.engine import TrainerBase, TrainerX
from fedvlm.compat.repository.defaults import assigned_keys
from fedvlm.compat.repository.find import (
    Checkout,
    checkout_of,
    imported_files,
    local_packages,
)
from fedvlm.compat.repository.imports import Imports
from fedvlm.compat.repository.loop import kept_by_loop
from fedvlm.compat.repository.own_clip import clip_models, open_doors
from fedvlm.compat.settings import schema_of
from fedvlm.compat.trainer import DasslTrainer
from fedvlm.compat.world import redirect_prints
from fedvlm.core.errors import ConfigError, did_you_mean, failure_text, own_line
from fedvlm.core.plugins import TextLoader

FRAMEWORKS = ("dassl", "Dassl")  # packages whose import marks such a file
LOOPS = ("train", "run_epoch")  # a file may not bring its own
PACKAGE = "fedvlm_foreign"
CLIP = "clip"
EXEMPT = re.compile(r"^\s*#\s*fedvlm:\s*exempt\s+(G\d+)\b[:,]?[ \t]*(.*)$", re.MULTILINE)
_loaded: dict[tuple[Path, bytes], Loaded] = {}
_made: dict[type, type[DasslTrainer]] = {}


@dataclass(frozen=True)
class Loaded:
    """A trainer's file in memory.

    Attributes:
        module: the file.
        imports: what it may import.
        home: its repository.
        sources: it and what it imports from there: part of a run's identity.
        own_clip: files of the repository that build a CLIP of their own.
    """

    module: ModuleType
    imports: Imports
    home: Checkout
    sources: Sequence[Path]
    own_clip: Sequence[Path]


def load_foreign(path: Path, name: str = "") -> type[DasslTrainer]:
    """Return the method of a class in a file; ``name`` may be empty where it has only one.

    Raises:
        ConfigError: no such class, a loop of its own, or an import that is not there.
    """
    loaded = _module(path)
    module = loaded.module
    classes = {
        n: c for n, c in vars(module).items()
        if inspect.isclass(c) and issubclass(c, TrainerBase) and c.__module__ == module.__name__
    }
    if not name and len(classes) == 1:
        name = next(iter(classes))
    if name not in classes:
        raise ConfigError(
            f"--trainer {path}:{name}: the file has no trainer class '{name}'"
            f"{did_you_mean(name, classes)} (it has: {', '.join(classes) or 'none'})"
        )
    inner = classes[name]
    if inner not in _made:
        _made[inner] = _method(inner, path, loaded)
    return _made[inner]


def _method(inner: type, path: Path, loaded: Loaded) -> type[DasslTrainer]:
    loops = [n for n in LOOPS if getattr(inner, n) is not getattr(TrainerBase, n)]
    if loops or not issubclass(inner, TrainerX):
        why = f"defines its own {loops[0]}" if loops else "does not derive from TrainerX"
        raise ConfigError(
            f"{path}: {inner.__name__} {why}, but fedvlm runs the rounds and calls build_model, "
            "forward_backward and model_inference"
        )
    texts = [file.read_text(encoding="utf-8") for file in loaded.sources]
    options, foreign = schema_of(texts, inner.__name__.upper(), assigned_keys(loaded.home))
    kept = kept_by_loop(loaded.home, inner.__name__)
    sources = [*loaded.sources, *(loaded.home.mains if kept is not None else ())]
    attributes: dict[str, Any] = {
        "__doc__": inner.__doc__, "__module__": loaded.module.__name__, "name": inner.__name__,
        "file": path.resolve(), "sources": sources, "inner": inner,
        "module": loaded.module, "imports": loaded.imports, "home": loaded.home,
        "own_clip": loaded.own_clip, "options": options, "foreign": foreign,
        "kept": kept, "exempt": comment_exemptions(texts[0]),
    }
    return type(inner.__name__, (DasslTrainer,), attributes)


def comment_exemptions(text: str) -> dict[str, str]:
    """Return the invariants that comments of a file exempt: ``# fedvlm: exempt G5: a teacher``."""
    return {name: reason.strip() for name, reason in EXEMPT.findall(text)}


def _module(path: Path) -> Loaded:
    """Return the loaded file and the modules it was given; loaded once per path and text."""
    key = path.resolve(), path.read_bytes()
    if key in _loaded:
        return _loaded[key]
    folder = f"{PACKAGE}.p{abs(hash(key))}"
    name = f"{folder}.{path.stem}"
    for place in (PACKAGE, folder):  # so that `from .other import x` finds its neighbour
        package = sys.modules.setdefault(place, ModuleType(place))
        package.__path__ = [str(path.resolve().parent)] if place == folder else []
    spec = importlib.util.spec_from_file_location(name, path, loader=TextLoader(name, str(path)))
    if spec is None or spec.loader is None:
        raise ConfigError(f"'{path}' cannot be loaded as a Python file")
    loaded = _surroundings(path, importlib.util.module_from_spec(spec), folder)
    sys.modules[name] = loaded.module
    try:
        with loaded.imports.active(), redirect_prints():
            spec.loader.exec_module(loaded.module)
    except ImportError as error:
        del sys.modules[name]
        raise ConfigError(
            f"{path}: {failure_text(error).replace(folder, '')}{own_line(error)}"
            f"{_way_out(error, loaded, folder)}"
        ) from error
    except Exception as error:
        del sys.modules[name]
        raise ConfigError(
            f"{path} cannot be loaded: {failure_text(error)}{own_line(error)}"
        ) from error
    _loaded[key] = loaded
    return loaded


def _way_out(error: ImportError, loaded: Loaded, folder: str) -> str:
    """Return what to do about an import that failed."""
    name = (error.name or "").removeprefix(folder)
    if not isinstance(error, ModuleNotFoundError):
        return ""
    if name.startswith(".") or name.partition(".")[0] in loaded.imports.packages:
        beside = name.startswith(".")
        place = loaded.home.beside if beside else loaded.home.root
        way = "put the needed file next to it" if beside else "is the checkout complete?"
        return f"; there is no {place.joinpath(*name.strip('.').split('.'))}.py: {way}"
    return ("; install the missing package, or put the needed file next to it (dassl and clip are "
            "provided)")


def _surroundings(path: Path, module: ModuleType, folder: str) -> Loaded:
    """Return a file that is not executed yet, with what its repository has for it."""
    home = checkout_of(path)
    files = imported_files(path, home)
    packages, own = local_packages(files, home), clip_models(files)
    modules = dassl.dassl_modules() | dassl.old_setuptools()
    theirs = home.find([CLIP])
    if theirs is not None and any(f.is_relative_to(theirs) for f in own):
        modules = {n: m for n, m in modules.items() if n.partition(".")[0] != CLIP}
    else:  # fedvlm's gives the same numbers, from cached features where it can
        packages = tuple(p for p in packages if p != CLIP)
        files = [f for f in files if theirs is None or not f.is_relative_to(theirs)]
    places = [home.root] if home.mains else [home.beside]
    imports = Imports(modules, packages, places, folder, open_doors)
    return Loaded(module, imports, home, files, own)
