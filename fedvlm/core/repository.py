"""Where ``trainers/``, ``configs/`` and ``scripts/`` lie: beside the package, or inside a wheel.

In a checkout (an editable install too) they stand beside the package. An installed copy carries
them in ``fedvlm/_repo``, where ``setup.py`` puts them.
"""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]


def checkout() -> Path | None:
    """Return the top folder of the checkout that this package is part of; None when installed."""
    top = PACKAGE.parent
    return top if (top / "federated_main.py").is_file() else None


def repository() -> Path:
    """Return the folder that holds ``trainers``, ``configs`` and ``scripts``."""
    return checkout() or PACKAGE / "_repo"
