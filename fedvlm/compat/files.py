"""``--trainer ./coop.py:CoOp``: a file written for Dassl, loaded and made a method.

``federation.discovery`` imports this module for a file that imports one of ``FRAMEWORKS``.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from fedvlm.compat import dassl
from fedvlm.compat.engine import TrainerBase, TrainerX
from fedvlm.compat.settings import neighbours, schema_of
from fedvlm.compat.surface import replace_modules
from fedvlm.compat.trainer import DasslTrainer
from fedvlm.compat.world import redirect_prints
from fedvlm.core.errors import ConfigError, did_you_mean, failure_text

FRAMEWORKS = ("dassl", "Dassl")  # packages whose import marks such a file
LOOPS = ("train", "run_epoch")  # a file may not bring its own
PACKAGE = "fedvlm_foreign"
_loaded: dict[tuple[Path, bytes], tuple[ModuleType, Mapping[str, ModuleType]]] = {}
_made: dict[type, type[DasslTrainer]] = {}


def load_foreign(path: Path, name: str = "") -> type[DasslTrainer]:
    """Return the method of a class in a file; ``name`` may be empty where it has only one.

    Raises:
        ConfigError: no such class, a loop of its own, or an import that is not there.
    """
    module, names = _module(path)
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
        _made[inner] = _method(inner, path, module, names)
    return _made[inner]


def _method(
    inner: type, path: Path, module: ModuleType, names: Mapping[str, ModuleType]
) -> type[DasslTrainer]:
    loops = [n for n in LOOPS if getattr(inner, n) is not getattr(TrainerBase, n)]
    if loops or not issubclass(inner, TrainerX):
        why = f"defines its own {loops[0]}" if loops else "does not derive from TrainerX"
        raise ConfigError(
            f"{path}: {inner.__name__} {why}, but fedvlm runs the rounds and calls build_model, "
            "forward_backward and model_inference"
        )
    files = neighbours(path)
    texts = [file.read_text(encoding="utf-8") for file in files]
    options, foreign = schema_of(texts, inner.__name__.upper())
    attributes: dict[str, Any] = {
        "__doc__": inner.__doc__, "__module__": module.__name__, "name": inner.__name__,
        "file": path.resolve(), "sources": files, "inner": inner, "module": module,
        "modules": names,
        "options": options, "foreign": foreign,
    }
    return type(inner.__name__, (DasslTrainer,), attributes)


def _module(path: Path) -> tuple[ModuleType, Mapping[str, ModuleType]]:
    """Return the loaded file and the modules it was given; loaded once per path and text."""
    key = path.resolve(), path.read_bytes()
    if key in _loaded:
        return _loaded[key]
    folder = f"{PACKAGE}.p{abs(hash(key))}"
    name = f"{folder}.{path.stem}"
    for place in (PACKAGE, folder):  # so that `from .other import x` finds its neighbour
        package = sys.modules.setdefault(place, ModuleType(place))
        package.__path__ = [str(path.resolve().parent)] if place == folder else []
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"'{path}' cannot be loaded as a Python file")
    module, modules = importlib.util.module_from_spec(spec), dassl.dassl_modules()
    sys.modules[name] = module
    try:
        with replace_modules(modules), redirect_prints():
            spec.loader.exec_module(module)
    except ImportError as error:
        del sys.modules[name]
        raise ConfigError(
            f"{path}: {failure_text(error)}; install the missing package, or put the needed file "
            "next to it (dassl and clip are provided)"
        ) from error
    except Exception as error:
        del sys.modules[name]
        raise ConfigError(f"{path} cannot be loaded: {failure_text(error)}") from error
    _loaded[key] = module, modules
    return module, modules
