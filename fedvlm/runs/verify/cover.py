"""What ``results.json`` vouches for besides itself, as it is written and as it is checked.

``covers`` in it names the last seal of the metrics' chain, the newest state, whose own seal stands
for its tensors and the clients' rows, and the hashes of the files that say what the run was and
what came of it. Pictures, pages and what other programs write are not covered: they are made again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedvlm.core.errors import DataError
from fedvlm.runs.metrics import read_chain
from fedvlm.runs.names import PACKED, RESULTS, is_packable

METRICS, FILES, ROUNDS, BARE = "metrics", "files", "rounds", "bare"
TOLD = (  # what readers read
    "config.yaml", "partition.json", "partition.csv", "log.txt", "released.json",
    "forgotten.json",
)
KEPT = ("models", "state")  # folders that may be deleted as a whole to save space
LOGITS = "logits.safetensors"


def cover(folder: Path) -> dict[str, Any]:
    """Return what the results of a run that ends now are to vouch for.

    Raises:
        DataError: a file of the run cannot be read.
    """
    chain = read_chain(folder / "metrics.jsonl")
    newest = _below(folder, "state", "*.json")[-1:]
    names = [*TOLD, LOGITS, *_below(folder, "models", "*.*"), *newest]
    return {
        METRICS: chain.last, ROUNDS: len(chain.seals), BARE: chain.bare,
        FILES: {name: file_digest(folder / name) for name in names if (folder / name).exists()},
    }


def file_digest(path: Path) -> str:
    """Return the sha256 of a file's bytes.

    Raises:
        DataError: it cannot be read.
    """
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise DataError(f"cannot read '{path}': {why}; make it readable") from error


def damage(folder: Path, covers: Mapping[str, Any], whole: bool) -> Iterator[str]:
    """Yield what is not as ``covers`` says, file by file.

    Args:
        whole: tensors too; else the files that tables, pages and the API read.
    """
    if is_packable(folder):
        covers = {FILES: {n: h for n, h in dict(covers.get(FILES, {})).items()
                          if (folder / n).exists()}}
    else:
        yield from _chain(folder, covers)
    for name, wanted in dict(covers.get(FILES, {})).items():
        path, room = folder / name, name.partition("/")[0]
        if (not whole and name not in TOLD) or (room in KEPT and not (folder / room).is_dir()):
            continue
        if not path.exists():
            if name not in (LOGITS, "log.txt"):
                yield f"{name} is missing"
        elif file_digest(path) != wanted:
            yield f"{name} is damaged (its hash differs from the one in {RESULTS})"


def _chain(folder: Path, covers: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong with the metrics' chain."""
    chain = read_chain(folder / "metrics.jsonl")
    if chain.broken or chain.last != covers.get(METRICS):
        fewer = len(chain.seals) < int(covers.get(ROUNDS, 0))
        told = chain.cut or ("lines are missing" if fewer else "its last checksum differs")
        there = (folder / "metrics.jsonl").exists()
        yield f"metrics.jsonl: {chain.broken or told}" if there else "metrics.jsonl is missing"


def missing_files(folder: Path, covers: Mapping[str, Any]) -> list[str]:
    """Return what was deleted of what may be: ``models``, ``state``, logits, the log."""
    if is_packable(folder):
        return [PACKED]
    names = dict(covers.get(FILES, {}))
    rooms = [room for room in KEPT
             if not (folder / room).is_dir() and any(n.startswith(f"{room}/") for n in names)]
    return rooms + [n for n in (LOGITS, "log.txt") if n in names and not (folder / n).exists()]


def _below(folder: Path, room: str, pattern: str) -> list[str]:
    """Return the files in a room of a run folder; of ``state/`` rounds ascending, no index."""
    paths = [p for p in (folder / room).glob(pattern) if p.name != "index.json"]
    return [f"{room}/{p.name}" for p in sorted(paths, key=lambda p: (len(p.name), p.name))]
