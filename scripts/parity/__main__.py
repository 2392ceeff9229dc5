"""Compare a method with its authors' code, or write the page of all comparisons.

    python scripts/parity promptfolio ~/PromptFolio            # prints the largest deviations
    python scripts/parity promptfolio ~/PromptFolio --write    # and stores the figures
    python scripts/parity --page docs/authors.md               # the table of stored figures
    fedvlm sweep scripts/parity/points.yaml                    # both values of each such option
    python scripts/parity --points output/points --page docs/authors.md
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

from parity.figures import BOUND, compare  # noqa: E402
from parity.page import write_page  # noqa: E402
from parity.points import write_points  # noqa: E402


def main() -> int:
    """Return 1 where a deviation is above the bound."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("method", nargs="?", help="a file beside this one, without .py")
    parser.add_argument("folder", nargs="?", type=Path, help="where its authors' repository lies")
    parser.add_argument("--write", action="store_true", help="store the figures in tests/golden")
    parser.add_argument("--page", type=Path, help="a page whose table is written again")
    parser.add_argument("--points", type=Path, help="runs of points.yaml: their table instead")
    args = parser.parse_args()
    if args.page and args.points:
        write_points(args.page, args.points)
        return 0
    if args.page:
        write_page(args.page)
        return 0
    here = sorted(p.stem for p in Path(__file__).parent.glob("*.py"))
    if args.method not in here or args.folder is None or not args.folder.is_dir():
        parser.error(f"name one of {', '.join(here)} and the folder of its repository")
    torch.set_num_threads(1)
    module = importlib.import_module(f"parity.{args.method}")
    return int(compare(module, args.folder.resolve(), args.write) > BOUND)


if __name__ == "__main__":
    raise SystemExit(main())
