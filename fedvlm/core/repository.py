"""Where folders lie: ``trainers/``, ``configs/`` and ``scripts/``, and the cache.

Rendered sets and records of checked images are in the cache: never among the user's files. In a
checkout (an editable install too) the others stand beside the package. An installed copy carries
them in ``fedvlm/_repo``, where ``setup.py`` puts them.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from fedvlm.core.files import user_path

if TYPE_CHECKING:  # start-up: YAML
    from yacs.config import CfgNode

PACKAGE = Path(__file__).resolve().parents[1]


def checkout() -> Path | None:
    """Return the top folder of the checkout that this package is part of; None when installed."""
    top = PACKAGE.parent
    return top if (top / "federated_main.py").is_file() else None


def repository() -> Path:
    """Return the folder that holds ``trainers``, ``configs`` and ``scripts``."""
    return checkout() or PACKAGE / "_repo"


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
