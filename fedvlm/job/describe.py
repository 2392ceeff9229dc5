"""The partition in a run's path: everything that changes it shows, so that folders differ."""

from __future__ import annotations

from yacs.config import CfgNode

from fedvlm.config.option import default_schema
from fedvlm.data.index_file import read_index_file

_HASH = 8  # digits of an index file's hash


def partition_name(cfg: CfgNode) -> str:
    """Return the partition as the path has it: ``dirichlet-0.3-K20-f0.25``.

    What the kind uses and is not at its default is appended (``-fine1``, ``-min10``,
    ``-repeat0.2``, ``-legacy``), then ``-without-<domain>`` for a held-out domain. An index file
    stands by the first digits of its hash: ``index-1a2b3c4d-K20-f0.25``.

    Raises:
        DataError: an index file that cannot be read.
    """
    fed = cfg.FED
    held_out = "_".join(fed.HELD_OUT_DOMAIN.split())
    out = f"-without-{held_out}" if held_out else ""
    tail = f"{out}-K{fed.CLIENTS}-f{fed.FRAC:g}"
    if fed.INDEX_FILE:
        return f"index-{read_index_file(fed.INDEX_FILE)['sha256'][:_HASH]}{tail}"
    kind, marks = fed.PARTITION, ""
    if "dirichlet" in kind or kind == "quantity":
        marks = f"-{fed.BETA:g}"
        if kind == "superclass_dirichlet" and _changed(cfg, "BETA_FINE"):
            marks += f"-fine{fed.BETA_FINE:g}"
        if _changed(cfg, "MIN_SIZE"):
            marks += f"-min{fed.MIN_SIZE}"
    elif kind == "n_classes":
        marks = f"-{fed.CLASSES_PER_CLIENT}"
    elif kind == "disjoint" and fed.REPEAT_RATE:
        marks = f"-repeat{fed.REPEAT_RATE:g}"
    legacy = "-legacy" if fed.LEGACY else ""
    return f"{kind}{marks}{legacy}{tail}"


def _changed(cfg: CfgNode, key: str) -> bool:
    return bool(cfg.FED[key] != default_schema()[f"FED.{key}"].default)
