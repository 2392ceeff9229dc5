"""Digests of code: of a method's source, and of the rooms of this package that compute."""

from __future__ import annotations

import hashlib
import inspect
import json
import sys
from functools import lru_cache
from pathlib import Path
from types import ModuleType

PACKAGE = Path(__file__).resolve().parents[2]


def trainer_text(trainer: type) -> str:
    """Return a digest of a method's source: its classes' files and what they import beside them.

    A class without a file counts by its own text; empty where there is none either.
    """
    own = {
        f for c in trainer.__mro__ if (f := _file(sys.modules.get(c.__module__))) and not _ours(f)
    }
    files = set(own)
    names = tuple(f.name for f in own)
    waiting = [  # by name first: a look at the disk for each of 5,000 modules costs 0.1 s
        m for m in list(sys.modules.values())
        if str(getattr(m, "__file__", None)).endswith(names) and _file(m) in own
    ]
    seen = set[int]()
    while waiting:
        for value in list(vars(waiting.pop()).values()):
            module = value if inspect.ismodule(value) else sys.modules.get(
                str(getattr(value, "__module__", ""))
            )
            if id(module) in seen:
                continue
            seen.add(id(module))
            file = _file(module)
            near = file is not None and any(file.is_relative_to(f.parent) for f in own)
            if near and module and file and file not in files and not _ours(file):
                files.add(file)
                waiting.append(module)
    texts = [(f.name, hashlib.sha256(f.read_bytes()).hexdigest()) for f in files]
    if not own:
        try:
            texts = [("", inspect.getsource(trainer))]
        except (OSError, TypeError):
            return ""
    return hashlib.sha256(json.dumps(sorted(texts)).encode()).hexdigest()


def _file(module: ModuleType | None) -> Path | None:
    name = getattr(module, "__file__", None)
    path = Path(name) if name else None
    return path if path is not None and path.is_file() else None


def _ours(file: Path) -> bool:
    return file.is_relative_to(PACKAGE)


@lru_cache(maxsize=1)
def package_text() -> str:
    """Return a digest of the code of ``fedvlm/models`` and ``fedvlm/federation``."""
    digest = hashlib.sha256()
    for room in ("models", "federation"):
        for file in sorted((PACKAGE / room).rglob("*.py")):
            digest.update(str(file.relative_to(PACKAGE)).encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()
