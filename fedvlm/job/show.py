"""What a run shows beside its numbers: a picture of who holds what, and a page at the end."""

from __future__ import annotations

import shlex
from pathlib import Path

from fedvlm.console.screen import complain, say
from fedvlm.core import files
from fedvlm.core.errors import DataError
from fedvlm.report import PAGE
from fedvlm.report.figures.partition import folder_holdings, pictures

WORTH = 30.0  # seconds of training; the page takes one or two, so a shorter run gets it on demand

# The picture drawn last, by title and table: a sweep's methods have one partition after another.
_DRAWN: dict[tuple[str, bytes], dict[str, bytes]] = {}


def draw_partition(folder: Path, title: str) -> None:
    """Draw ``partition.csv`` of a run that starts, once; a picture that fails ends no run."""
    if all((folder / f"partition.{kind}").exists() for kind in ("png", "svg")):
        return
    try:
        table = folder / "partition.csv"
        if not table.is_file():
            raise DataError(f"cannot read {table}: no such file")
        key = title, table.read_bytes()
        if key not in _DRAWN:
            drawn = pictures(folder_holdings(folder), title)
            _DRAWN.clear()
            _DRAWN[key] = drawn
        for name, data in _DRAWN[key].items():
            files.write_bytes(folder / name, data)
    except Exception as error:  # whatever it is, the run is worth more
        complain(f"partition figure not written: {' '.join(str(error).split())}", prefix="note")


def say_results(folder: Path, seconds: float) -> None:
    """Say where a run's results are, with its page; a page that fails ends no run.

    Args:
        folder: the run's, finished.
        seconds: of its training; a run of less than ``WORTH`` gets no page of itself.
    """
    command = shlex.join(["fedvlm", "report", str(folder)])
    written = seconds >= WORTH and _write_page(folder, command)
    say(f"results: {folder}", f"report page: {folder / PAGE if written else command}")


def _write_page(folder: Path, command: str) -> bool:
    try:
        # start-up: 1 s of matplotlib, where a page is due
        from fedvlm.federation.cards import card_of
        from fedvlm.report.collect import collect
        from fedvlm.report.pages.run import run_page

        run = collect([folder]).runs[0]
        card = card_of(str(run.protocol["trainer"]))
        files.write_text(folder / PAGE, run_page(run, card, "", command))
    except Exception as error:  # whatever it is, the run is worth more
        complain(f"{PAGE} not written: {' '.join(str(error).split())}", prefix="note")
        return False
    return True
