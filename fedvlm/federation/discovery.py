"""Trainers by file name: ``trainers/<name>.py`` is loaded by path, never imported by name.

So an installed fedvlm does not claim the top-level name ``trainers``, and
``--trainer ./my.py:MyMethod`` works the same way. A file that was written for another framework is
given to the module of ``fedvlm.compat`` that names one of its imports (``FRAMEWORKS``).

A file that a user names on a command line or in a call is the user's own act. A file that a run
folder or another file names is a program of whoever wrote that folder: ``load_trusted`` loads it
only where this command names it, too.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import importlib.util
import inspect
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from fedvlm.core.errors import ConfigError, FedvlmError, did_you_mean, failure_text, fold, own_line
from fedvlm.core.files import user_path
from fedvlm.core.plugins import Plugins, TextLoader
from fedvlm.federation.cards import card, method_of, split_method, trainer_files, trainer_sources
from fedvlm.federation.trainer import TRAINER_REGISTRY, Trainer

FRAMEWORKS = Plugins("fedvlm.compat", "FRAMEWORKS", "framework")
PACKAGE = Path(__file__).resolve().parents[1]
INSTALLED = (Path(sysconfig.get_path("stdlib")).resolve(), PACKAGE, PACKAGE.parent / "trainers")
SITES = {"site-packages", "dist-packages"}
_executed: set[tuple[tuple[Path, ...], str]] = set()  # files that this process ran, their digest
_texts: dict[Path, bytes] = {}  # user's modules as this process imported them


@dataclass(frozen=True)
class Trust:
    """What a command says of a method's own file that a run folder names.

    Attributes:
        trainer: ``--trainer FILE``: the file is here; it must be the one that the run recorded.
        sha256: ``--trust-code SHA256``: the file that the folder names may run if this is its
            digest.
    """

    trainer: str = ""
    sha256: str = ""


NO_TRUST = Trust()


def load_trusted(
    place: str, spec: str, recorded: str = "", trust: Trust = NO_TRUST
) -> tuple[str, type[Trainer]]:
    """Return name and class of the method that a folder or a file names.

    Methods of fedvlm are loaded by name. A file runs only if the command names it, or if this
    process has run it already.

    Args:
        place: what names the method, for messages: a run folder, a tuned file.
        spec: the name there.
        recorded: SHA-256 of the method's own files as the run recorded it; empty: unknown.

    Raises:
        ConfigError: the method's own file is not trusted; names file, digest and the ways on.
    """
    if ".py" not in spec:
        if trust.trainer and fold(trust.trainer) != fold(spec):
            raise ConfigError(f"--trainer {trust.trainer}: '{place}' was made with {spec}, a "
                              "method of fedvlm; drop --trainer")
        return spec, load_trainer(spec)
    name = _renamed(trust.trainer, spec) if trust.trainer else spec
    files = trainer_sources(name)
    gone = next((path for path in files if not path.is_file()), None)
    if not files or gone:
        raise ConfigError(f"'{place}' names a method's own file, '{spec}', and there is no file "
                          f"'{gone or name}'; give the place of the file: --trainer FILE")
    digest = code_digest(files)
    alone = not framework_of(files[0])  # else its neighbours are imported, too
    seen = (tuple(path.resolve() for path in files), digest) in _executed
    trusts = trust.sha256.strip().lower() == digest
    shown = ", ".join(map(str, files))
    if not (seen or trust.trainer or (trusts and alone)):
        wrong = f"--trust-code {trust.sha256} is not its digest; " if trust.sha256 else ""
        ways = f", or --trust-code {digest} (in Python trust_code=...)" if alone else ""
        raise ConfigError(
            f"'{place}' names a method's own file, {shown} (sha256 {digest}), which is a program: "
            f"it was not run. {wrong}Read it, and to run it give --trainer {files[0]}{ways}"
        )
    if trust.trainer and alone and not trusts and recorded not in ("", digest):
        raise _other_file(place, trust, digest, recorded)
    kind = load_trainer(name)
    if trust.trainer and not alone and recorded not in ("", code_digest(own_sources(name, kind))):
        raise _other_file(place, trust, code_digest(own_sources(name, kind)), recorded)
    return name, kind


def _other_file(place: str, trust: Trust, digest: str, recorded: str) -> ConfigError:
    return ConfigError(
        f"--trainer {trust.trainer} has the digest {digest}, but '{place}' was made with a file of "
        f"the digest {recorded}; give that file, or add --trust-code {digest} to use this one"
    )


def _renamed(file: str, spec: str) -> str:
    """Return ``file`` with class and method of ``spec``, where it names none itself.

    Raises:
        ConfigError: it is no file.
    """
    if ".py" not in file:
        raise ConfigError(f"--trainer {file}: the run was made with a method's own file, {spec}; "
                          "give the place of that file")
    head, suffix, rest = file.partition(".py")
    return file if rest else head + suffix + spec.partition(".py")[2]


def own_sources(spec: str, kind: type[Trainer]) -> Sequence[Path]:
    """Return the files that a method given as a file consists of."""
    return getattr(kind, "sources", None) or trainer_sources(spec)


def code_digest(files: Sequence[Path]) -> str:
    """Return the SHA-256 of a method's own files, one after the other, as a run records it."""
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def own_modules(files: Sequence[Path]) -> list[Path]:
    """Return the user's own modules that files import, and what these import in turn.

    What is installed, Python's own modules and fedvlm do not count. Nothing is run.
    """
    own = [path.resolve() for path in files]
    found, todo = set(own), list(own)
    while todo:
        new = {one.resolve() for one in _modules_of(todo.pop()) if not SITES & {*one.parts}} - found
        new = {one for one in new if not SITES & {*one.parts}  # which may lie there by a link
               and not any(one.is_relative_to(place) for place in INSTALLED)}
        found |= new
        todo += sorted(new)
    return sorted(found - {*own})


def _modules_of(file: Path) -> Iterator[Path]:
    """Yield the files of the modules that a file imports and of the packages around them."""
    for level, parts in imports_in(_syntax(file)):
        places = [str(one) for one in file.parents[level - 1 : level]] if level else []
        if not level:
            with contextlib.suppress(ValueError):  # a module that was made by hand
                spec = importlib.util.find_spec(parts.pop(0))
                places = list(spec.submodule_search_locations or ()) if spec else []
                yield from [Path(spec.origin)] if spec and spec.has_location and spec.origin else ()
        for at in range(len(parts)):
            for place in places:
                there = Path(place, *parts[: at + 1])
                yield from (one for one in (there.with_suffix(".py"), there / "__init__.py")
                            if one.is_file())


def _syntax(file: Path) -> ast.Module:
    """Return a file's syntax tree, an empty one of no Python: loading it says what is wrong."""
    try:
        return ast.parse(file.read_text(encoding="utf-8", errors="replace"))
    except (OSError, SyntaxError, ValueError):
        return ast.Module([], [])


def imports_in(tree: ast.Module) -> Iterator[tuple[int, list[str]]]:
    """Yield the dots before and the words of every import; of ``from a import b`` they are a b."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((0, alias.name.split(".")) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            words = node.module.split(".") if node.module else []
            yield from ((node.level, [*words, alias.name]) for alias in node.names)


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
        own_files = trainer_sources(spec)
        _executed.add((tuple(path.resolve() for path in own_files), code_digest(own_files)))
        if not method:
            return found
        from fedvlm.federation.toolbox.networks import over  # start-up: torch.fx, for networks only

        return over(found, load_trainer(method))
    if spec in TRAINER_REGISTRY:
        return TRAINER_REGISTRY.get(spec)
    files, stem = trainer_files(), method_of(spec)
    if not stem:
        names = [card(path).partition(":")[0] for path in files.values()]
        raise ConfigError(
            f"unknown trainer '{spec}'{did_you_mean(spec, names, 2)} "
            f"(fedvlm list shows all {len(files)}; your own: ./my.py:MyMethod)"
        )
    return _only_trainer(load_module(files[stem]), files[stem])


def _from_path(spec: str) -> type[Trainer]:
    file, _, name = spec.partition(":")
    path = user_path(file)
    if not path.is_file():
        raise ConfigError(f"--trainer {spec}: no file '{path}'")
    foreign = framework_of(path) if path.suffix == ".py" else ""
    if foreign:
        cls: type[Trainer] = FRAMEWORKS.load(foreign).load_foreign(path, name)
        return cls
    module = load_module(path, own_modules([path]))
    if not name:
        return _only_trainer(module, path)
    found = getattr(module, name, None)
    if inspect.isclass(found) and issubclass(found, nn.Module):
        from fedvlm.federation.module_trainer import train_network  # start-up: for networks only

        kind: Any = found  # a class is hashable, whatever PyTorch's stubs say of its objects
        return train_network(kind)
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
    tops = [words[0] for level, words in imports_in(_syntax(path)) if not level]
    known = FRAMEWORKS.names() if tops else ()  # else compat would be loaded for a method's name
    return next((top for top in tops if top in known), "")


def load_module(path: Path, own: Sequence[Path] = ()) -> ModuleType:
    """Run a user's file and return its module; the same text of a file is run once.

    A file that was edited since is run again: what a notebook trains is what its run records.

    Args:
        own: the user's modules that it imports (``own_modules``), each of them as its text is now.

    Raises:
        ConfigError: it cannot be loaded.
    """
    source = [file.read_bytes() for file in (path, *own)]
    name = f"fedvlm_trainers.{path.stem}_{abs(hash((path.resolve(), *source)))}"
    if name in sys.modules:
        return sys.modules[name]
    _drop_edited(dict(zip(own, source[1:], strict=True)))
    spec = importlib.util.spec_from_file_location(name, path, loader=TextLoader(name, str(path)))
    if spec is None or spec.loader is None:
        raise ConfigError(f"'{path}' cannot be loaded as a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        if isinstance(error, ValueError) and "null bytes" in str(error):  # Python before 3.11.4
            raise SyntaxError(str(error), (str(path), None, None, None)) from None
        if isinstance(error, SyntaxError):
            error.filename = error.filename or str(path)
        if isinstance(error, FedvlmError | SyntaxError | ModuleNotFoundError):
            raise  # they say where
        raise ConfigError(
            f"'{path}' cannot be loaded: {failure_text(error)}{own_line(error)}"
        ) from error
    return module


def _drop_edited(texts: Mapping[Path, bytes]) -> None:
    """Have a user's modules imported anew if one was edited after this process imported it."""
    names = {file.name for file in texts}
    files = {name: file for name, module in list(sys.modules.items())
             if (file := Path(getattr(module, "__dict__", {}).get("__file__") or "")).name in names}
    loaded = {name: place for name, file in files.items() if (place := file.resolve()) in texts}
    if any(_texts[file] != texts[file] if file in _texts else _other_cached(file)
           for file in loaded.values()):
        for name in loaded:
            del sys.modules[name]
    _texts.update(texts)


def _other_cached(file: Path) -> bool:
    """Return whether what Python keeps of a module's text is of another size or time than it."""
    try:
        head = Path(importlib.util.cache_from_source(str(file))).read_bytes()[4:16]
    except (OSError, NotImplementedError):  # nothing is kept
        return False
    numbers = (0, int(file.stat().st_mtime), file.stat().st_size)
    return not any(head[:4]) and head != b"".join(n.to_bytes(4, "little") for n in numbers)


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
