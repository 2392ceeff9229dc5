"""Write the tables of ``docs/parity.md``: every method in one process, over frames, by workers.

    python scripts/parity_table.py docs/parity.md
    python scripts/parity_table.py docs/parity.md HetLoRA FedDPA    # these rows alone

The runs are those of the tests (``tests/distributed/test_parity.py``,
``tests/job/workers/test_pool.py``): what is equal is compared bit for bit. The page's text
stays; lines between ``<!-- table -->`` and ``<!-- end -->`` are written anew. A few minutes.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fedvlm.check.compare import Broken, same_fed, same_state
from fedvlm.check.world import CheckWorld
from fedvlm.distributed.schema import ANSWERS
from fedvlm.distributed.wire import unpack
from fedvlm.federation.cards import trainer_files
from fedvlm.federation.discovery import load_trainer
from fedvlm.federation.rounds import WholeState
from tests.distributed.grid import leaks
from tests.distributed.test_parity import both
from tests.job.workers import test_pool as pools

BEGIN, END = "<!-- table -->", "<!-- end -->"
HEAD = ("method", "frames: server", "clients", "numbers", "private in a frame", "bytes down",
        "bytes up", "workers: server", "clients", "numbers")


def equal(ours: WholeState, theirs: WholeState) -> Iterator[str]:
    """Yield whether the server's tensors are equal, and the clients'."""
    try:
        same_state(ours.server, theirs.server, "server")
        yield "equal"
    except Broken as error:
        yield str(error)
    try:
        same_fed(replace(ours, server=theirs.server), theirs, "clients")
        yield "equal"
    except Broken as error:
        yield str(error)


def numbers(told: Any, rows: Any) -> str:
    """Return whether the rows of all evaluations are equal."""
    return "equal" if json.dumps(told) == json.dumps(rows) else "differ"


def row(world: CheckWorld, name: str, folder: Path) -> tuple[str, ...]:
    """Return a method's line."""
    grid, away, whole, rows = both(world, name, folder / "frames")
    frames: list[bytes] = grid.carrier.frames  # type: ignore[attr-defined]
    private = leaks(grid.private(), frames)
    asked = [unpack(frame).op in ANSWERS for frame in frames]
    down, up = (sum(len(f) for f, a in zip(frames, asked, strict=True) if a == way)
                for way in (True, False))
    pool = pools.Pool(world, load_trainer(name), folder / "pool")
    local, end, (here, told) = pools.both(pool)
    return (
        load_trainer(name).name, *equal(away, whole), numbers(*rows),
        ", ".join(private) or "none", f"{down:,}", f"{up:,}", *equal(end, local),
        numbers(told, here),
    )


def main(page: Path, only: Collection[str] = ()) -> None:
    """Write the table into the page.

    Args:
        only: methods whose rows are written, the others stay as they are. Empty: all of them.
    """
    text, world, files = page.read_text(encoding="utf-8"), CheckWorld(), sorted(trainer_files())
    if strangers := set(only) - {load_trainer(f).name for f in files}:
        sys.exit(f"no method is called {', '.join(sorted(strangers))}")
    before, _, table = text.partition(BEGIN)
    table, _, after = table.partition(END)
    rows = {line.split("|")[1].strip(): line for line in table.splitlines()[3:] if only}
    for file in files:
        name = load_trainer(file).name
        if only and name not in only:
            continue
        with tempfile.TemporaryDirectory() as folder:
            rows[name] = f"| {' | '.join(row(world, file, Path(folder)))} |"
        print(rows[name], flush=True)
    order = {load_trainer(file).name: place for place, file in enumerate(files)}
    lines = [rows[name] for name in sorted(rows.keys() & order, key=lambda name: order[name])]
    head = [f"| {' | '.join(HEAD)} |", "|---" * len(HEAD) + "|"]
    page.write_text("\n".join([before + BEGIN, *head, *lines, END]) + after, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
