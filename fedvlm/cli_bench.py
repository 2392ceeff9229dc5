"""``bench``: gives the benchmarks the main job's own way of building a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedvlm.federation.rounds import Federation


def main(argv: Sequence[str]) -> int:
    """Run a benchmark; see ``bench.cli.main``."""
    from fedvlm.bench.cli import main as bench

    return bench(argv, build)


def build(words: Sequence[str]) -> Federation:
    """Return the federation that ``fedvlm run`` would start with ``words``.

    Raises:
        FedvlmError: anything that is wrong with them.
    """
    from fedvlm.cli_build import build as build_run  # imports torch
    from fedvlm.cli_config import resolve
    from fedvlm.cli_flags import parse

    return build_run(resolve(parse(words)).jobs[0].cfg).federation
