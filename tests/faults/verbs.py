"""What the grids of killed commands run in a child; each returns an exit code."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from fedvlm.cli.main import main


def download(words: list[str], url: str, checksum: str, puts: Sequence[Sequence[str]]) -> int:
    """``fedvlm data download`` where EuroSAT is a file of the test."""
    from fedvlm.data.get.offers import OFFERS, Offer, Piece

    piece = Piece(url, checksum, tuple((inner, place) for inner, place in puts))
    OFFERS["EuroSAT"] = Offer("none", "a page", 0.1, lambda: (piece,))
    return main(words)


def features(words: list[str]) -> int:
    """``fedvlm features`` of a built-in set with eight images of a class and part."""
    from fedvlm.data.builtin import sets

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sets, "_PER_CLASS", (8, 2, 8))
        return main(words)


def publish(words: list[str]) -> int:
    """``scripts/evidence publish``, without the drawings, which are most of its seconds."""
    from evidence import commands
    from evidence.results import page

    page._draw = lambda figure, runs, papers, into, name: f"figures/{name}.svg"
    return int(commands.main(words))


def sweep(words: list[str]) -> int:
    """``fedvlm sweep`` whose cells run in the command's own process."""
    from tests.sweep import in_process

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedvlm.sweep.run.Processes", in_process.processes)
        return main(words)


def tune(words: list[str]) -> int:
    """``fedvlm tune`` whose runs score what a formula says."""
    from fedvlm.sweep.tune import run
    from tests.sweep.tune import conftest

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "Scheduler", conftest.FakePool)
        return main(words)
