"""Where rendered sets and records of checked images are kept: never among the user's files."""

from __future__ import annotations

import os
from pathlib import Path

from yacs.config import CfgNode

from fedvlm.core.files import user_path


def cache_dir(cfg: CfgNode | None = None) -> Path:
    """Return CACHE_DIR of the config, else ``$FEDVLM_CACHE``, ``$XDG_CACHE_HOME``, ``~/.cache``."""
    setting = cfg.get("CACHE_DIR", "") if cfg is not None else ""
    for value in (setting, os.environ.get("FEDVLM_CACHE"), os.environ.get("XDG_CACHE_HOME")):
        if value and value.strip():
            return user_path(value.strip())
    return Path.home() / ".cache"


def builtin_root(cfg: CfgNode | None = None) -> Path:
    """Return the folder the built-in sets are rendered into."""
    return cache_dir(cfg) / "fedvlm-data"


def records_dir(cfg: CfgNode | None = None) -> Path:
    """Return the folder of the JSON records of checked images."""
    return cache_dir(cfg) / "fedvlm" / "images"
