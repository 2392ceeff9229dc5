"""Trainers by file name: ``trainers/<name>.py`` is loaded by path, never imported by name.

So an installed fedvlm does not claim the top-level name ``trainers``, and
``--trainer ./my.py:MyMethod`` works the same way. A file that was written for another framework is
given to the module of ``fedvlm.compat`` that names one of its imports (``FRAMEWORKS``).
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import sys
from pathlib import Path
from types import ModuleType

from fedvlm.core.errors import (
    ConfigError,
    FedvlmError,
    did_you_mean,
    failure_text,
    fold,
    own_line,
)
from fedvlm.core.files import user_path
from fedvlm.core.plugins import Plugins
from fedvlm.federation.cards import card, split_method, trainer_files
from fedvlm.federation.trainer import TRAINER_REGISTRY, Trainer

FRAMEWORKS = Plugins("fedvlm.compat", "FRAMEWORKS", "framework")


def load_trainer(spec: str) -> type[Trainer]:
    """Return the trainer class for a name, ``path.py:Class``, or a file of the CoOp family.

    ``path.py:Net+FedAS`` is a method over the network of a ``ModuleTrainer`` (``networks.over``).

    Raises:
        ConfigError: no such file, class or name; the message gives the nearest. Or a file of
            another framework that cannot run here.
    """
    if ".py" in spec:
        own, method = split_method(spec)
        found = _from_path(own)
        return _over(found, load_trainer(method)) if method else found
    if spec in TRAINER_REGISTRY:
        return TRAINER_REGISTRY.get(spec)
    files = trainer_files()
    stem = next((s for s in files if fold(s) == fold(spec)), None)
    if stem is None:
        names = [card(path).partition(":")[0] for path in files.values()]
        raise ConfigError(
            f"unknown trainer '{spec}'{did_you_mean(spec, names)} "
            f"(fedvlm list shows all {len(files)}; your own: ./my.py:MyMethod)"
        )
    return _only_trainer(_load(files[stem]), files[stem])


def _over(net: type[Trainer], method: type[Trainer]) -> type[Trainer]:
    from fedvlm.federation.toolbox.networks import over  # start-up: torch.fx, for networks only

    return over(net, method)


def _from_path(spec: str) -> type[Trainer]:
    file, _, name = spec.partition(":")
    path = user_path(file)
    if not path.is_file():
        raise ConfigError(f"--trainer {spec}: no file '{path}'")
    foreign = framework_of(path) if path.suffix == ".py" else ""
    if foreign:
        cls: type[Trainer] = FRAMEWORKS.load(foreign).load_foreign(path, name)
        return cls
    module = _load(path)
    if not name:
        return _only_trainer(module, path)
    found = getattr(module, name, None)
    if not (inspect.isclass(found) and issubclass(found, Trainer)):
        names = [c.__name__ for c in _trainers_in(module)]
        raise ConfigError(
            f"--trainer {spec}: '{path}' has no Trainer class '{name}'"
            f"{did_you_mean(name, names)} (it has: {', '.join(names) or 'none'})"
        )
    found.name = found.name or found.__name__
    return found


def framework_of(path: Path) -> str:
    """Return the other framework that a file imports, '' for none; it is read, not run."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, UnicodeDecodeError, ValueError):
        return ""  # loading it says what is wrong
    known = FRAMEWORKS.names()
    for node in ast.walk(tree):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else (
            [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else [])
        tops = [n.partition(".")[0] for n in names if n.partition(".")[0] in known]
        if tops:
            return tops[0]
    return ""


def _load(path: Path) -> ModuleType:
    name = f"fedvlm_trainers.{path.stem}_{abs(hash(str(path.resolve())))}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"'{path}' cannot be loaded as a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        if isinstance(error, FedvlmError | SyntaxError | ModuleNotFoundError):
            raise  # they say where
        raise ConfigError(
            f"'{path}' cannot be loaded: {failure_text(error)}{own_line(error)}"
        ) from error
    return module


def _trainers_in(module: ModuleType) -> list[type[Trainer]]:
    return [
        c for c in vars(module).values()
        if inspect.isclass(c) and issubclass(c, Trainer) and c.__module__ == module.__name__
    ]


def _only_trainer(module: ModuleType, path: Path) -> type[Trainer]:
    classes = [c for c in _trainers_in(module) if c.name]
    if len(classes) != 1:
        raise ConfigError(
            f"'{path}' must define exactly one named Trainer, it has {len(classes)}; "
            "give --trainer path.py:Class"
        )
    return classes[0]
