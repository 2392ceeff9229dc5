"""Who still knows what is forgotten: runs, choices, exports, packs and caches on this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from yacs.config import CfgNode

from fedvlm.core.errors import ConfigError, DataError
from fedvlm.core.files import user_path
from fedvlm.core.repository import cache_dir, records_dir
from fedvlm.data.datum import PARTS
from fedvlm.data.locate import PACK_SUFFIX
from fedvlm.data.packs.file import read_container
from fedvlm.data.packs.pack import Pack
from fedvlm.data.partition.index_file import read_index_file
from fedvlm.job.sources import store_dir
from fedvlm.models.features.store import default_dir
from fedvlm.runs.cells import ENDING, run_names, runs_below
from fedvlm.runs.finished import FinishedRun

Known = list[tuple[Path, str]]
UNREAD = "cannot be read: look at it yourself"
DEPTH = 3  # folders below the working folder in which copies are looked for
CARD_BYTES = 1 << 20  # of a model card, where its run is named


def list_known(
    path: Path, output: Path, run: FinishedRun, cfg: CfgNode, names: frozenset[str],
    look: Sequence[str] = (),
) -> Known:
    """Return what in known places still knows images, with what it is.

    Args:
        path, run, cfg: the old run; its output folder is ``output``.
        names: the images.
        look: more folders in which exports and packs may lie.

    Raises:
        ConfigError: one of ``look`` is no folder.
    """
    found = [(path, "the old run: models, rows, partition")]
    others = [one / "partition.json" for one in runs_below(output) if one != path]
    for file in (*others, *sorted((output / "forget").glob("*.json"))):
        try:
            held = read_index_file(file)["clients"] if file.is_file() else []
        except DataError:
            found.append((file, f"a partition that {UNREAD}"))
            continue
        if any(not names.isdisjoint(c[p]) for c in held for p in PARTS):
            is_run = file in others
            found.append((file.parent if is_run else file, "another run on these images" if is_run
                          else "a partition with them, of an earlier forget"))
    found += [(file, "an approximate model, without any guarantee, of an earlier forget")
              for file in sorted((output / "forget").glob("*/*.safetensors"))]
    found += _copies(path, run, names, _places(output, cfg, look))
    caches = cache_dir(cfg)
    for place, what in (
        (store_dir(cfg) or default_dir(), "cached features of images (fedvlm features)"),
        (records_dir(cfg), "records of checked images"),
        (caches / "fedvlm" / "unpacked", "images that were unpacked from tables"),
        (cache_dir() / "fedvlm" / "cells", "packs of runs, unpacked: results of clients"),
        (caches / "fedvlm-data", "built-in sets"),
    ):
        if place.is_dir():
            found.append((place, what))
    return found


def _places(output: Path, cfg: CfgNode, look: Sequence[str]) -> list[tuple[Path, int]]:
    """Return folders to look in, and how deep; -1: all of it."""
    more = [user_path(word) for word in look]
    for word, place in zip(look, more, strict=True):
        if not place.is_dir():
            raise ConfigError(f"--look {word}: there is no such folder")
    root = user_path(str(cfg.DATASET.ROOT)) if cfg.DATASET.ROOT else None
    beside = [(root.parent if root.is_file() else root, 0)] if root and root.exists() else []
    return [*((p, -1) for p in (output, *more)), *beside, (Path.cwd(), DEPTH)]


def _files(places: Sequence[tuple[Path, int]]) -> Iterator[tuple[Path, bool]]:
    """Yield the files of some folders, each once, and whether all of their folder is looked at."""
    seen = set[Path]()
    for place, depth in places:
        for here, below, names in os.walk(place):
            level = len(Path(here).relative_to(place).parts)
            below[:] = sorted(b for b in below if not b.startswith(".") and b != "state"
                              ) if depth < 0 or level < depth else []
            for file in (Path(here).resolve() / name for name in sorted(names)):
                if file not in seen:
                    seen.add(file)
                    yield file, depth < 0


def _copies(
    path: Path, run: FinishedRun, names: frozenset[str], places: Sequence[tuple[Path, int]]
) -> Known:
    """Return what was made of the run, or of its images, and lies elsewhere."""
    found: Known = []
    tail = "/".join(path.parts[-2:])
    for file, whole in _files(places):
        try:
            if file.name == "README.md" and run.digest in _text(file):
                found.append((file.parent, "a model that was exported from the run"))
            elif file.name.endswith(PACK_SUFFIX) and not names.isdisjoint(
                    Pack(read_container(file)).keys):
                found.append((file, "a feature pack with these images"))
            elif whole and file.name.endswith(ENDING) and any(
                    name.endswith(tail) for name in run_names(file)):
                found.append((file, "a pack of runs with one of this name: clients' results"))
            elif whole and file.name in ("plan.yaml", "tuned.json"):
                found.append((file if file.name == "tuned.json" else file.parent,
                              "a sweep or a tuning: its choices may rest on runs on these images"))
        except (DataError, OSError):
            found.append((file, f"a file that {UNREAD}"))
    return found


def _text(file: Path) -> str:
    with file.open(encoding="utf-8", errors="replace") as card:
        return card.read(CARD_BYTES)
