"""``python -m fedvlm.bench``: the same as ``python -m fedvlm bench``."""

from __future__ import annotations

import sys

from fedvlm.cli import main

if __name__ == "__main__":
    sys.exit(main(["bench", *sys.argv[1:]]))
