"""``python scripts/evidence COMMAND ...``, from any folder."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])  # so that this folder is a package

from evidence.commands import console_script  # noqa: E402

if __name__ == "__main__":
    sys.exit(console_script())
