"""Splits that ``fedvlm data prepare`` made: where they lie, and the layouts that find them.

They are tried after a set's published layouts. The name is never CoOp's, so that no later run
takes such a split for the published one. Of the two places the one beside the images goes first;
the one in the cache is bound to the folder it was made of, so two roots never share a split.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

from yacs.config import CfgNode

from fedvlm.data.cachedir import cache_dir
from fedvlm.data.facts import Facts
from fedvlm.data.layouts import Layout
from fedvlm.data.readers import Tree
from fedvlm.data.split_file import read_split


def prepared_name(name: str) -> str:
    """Return the file name of a prepared split: ``split_fedvlm_<Name>.json``."""
    return f"split_fedvlm_{name}.json"


def prepared_in_cache(name: str, folder: Path, cfg: CfgNode | None = None) -> Path:
    """Return where the cache keeps the split prepared of a set's folder (``ROOT/<folder>``)."""
    place = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]
    return cache_dir(cfg) / "fedvlm" / "splits" / place / prepared_name(name)


def prepared_layouts(facts: Facts, root: Path, folder: str, cfg: CfgNode) -> tuple[Layout, ...]:
    """Return the layouts of a prepared split: beside the images, then in the cache.

    Args:
        root: DATASET.ROOT.
        folder: DATASET.DIR; empty for the set's own.
        cfg: says where the cache is.
    """
    if not facts.split_file or facts.builtin:
        return ()
    home = root / (folder or facts.folder)
    beside = Layout(
        "prepared split beside the images", facts.folder,
        tuple(n for n in (facts.image_dir, prepared_name(facts.name)) if n),
        _read_beside, published=False,
    )  # fmt: skip
    file = prepared_in_cache(facts.name, home, cfg)

    def read_cached(place: Path, row: Facts) -> Tree:
        return _read(file, place, row)

    cached = replace(
        beside, name="prepared split in the cache", read=read_cached,
        needs=tuple(n for n in (facts.image_dir, str(file)) if n),
    )  # fmt: skip
    return beside, cached


def _read_beside(folder: Path, facts: Facts) -> Tree:
    return _read(folder / prepared_name(facts.name), folder, facts)


def _read(file: Path, folder: Path, facts: Facts) -> Tree:
    return read_split(file, folder / facts.image_dir).tree()
