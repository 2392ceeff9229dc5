"""The file that makes a run finished: its name, and whether it is there."""

from __future__ import annotations

from pathlib import Path

RESULTS = "results.json"  # of a run folder, written last (docs/files.md)


def is_finished(folder: Path) -> bool:
    """Return whether a run folder has results; ``runs.finished`` reads and checks them."""
    return (folder / RESULTS).is_file()
