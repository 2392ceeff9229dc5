"""Reading sets in a process of its own: imported there without PyTorch, 2 s of CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from yacs.config import CfgNode

from fedvlm.config.build import build_config
from fedvlm.config.keys import default_schema
from fedvlm.data.datasets import load_dataset


def cfg_of(root: str, name: str) -> CfgNode:
    """The config of a known set below a root."""
    flags = {"DATASET.ROOT": root, "DATASET.NAME": name, "CACHE_DIR": f"{root}/cache"}
    return build_config(None, None, flags, [], default_schema())[0]


def order_of(root: str, names: Sequence[str]) -> list[list[Any]]:
    """The classes of sets, and their images with labels, in order; as JSON has them."""
    sets = [load_dataset(cfg_of(root, name)) for name in names]
    return [[type(s.classnames).__name__, s.classnames, {str(k): v for k, v in s.lab2cname.items()},
             [[d.key, d.label] for d in s.all()]] for s in sets]
