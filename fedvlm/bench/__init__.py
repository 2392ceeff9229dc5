"""Benchmarks: the reference recipe and ours side by side, in one process, on the same batches."""

from __future__ import annotations

from collections.abc import Sequence


def main(argv: Sequence[str]) -> int:
    """Run ``python -m fedvlm bench``; see ``fedvlm.bench.cli.main``."""
    from fedvlm.bench.cli import main as run  # imports torch

    return run(argv)
