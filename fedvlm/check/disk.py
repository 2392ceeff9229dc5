"""A federation's state through files and back, as a run does it."""

from __future__ import annotations

from pathlib import Path

from fedvlm.check.compare import Broken
from fedvlm.federation.rounds import Federation, FedState
from fedvlm.runs.records import RecordStore
from fedvlm.runs.state import KINDS, load_newest_state, save_state

IDENTITY = "check"


def logs(folder: Path) -> dict[str, RecordStore]:
    """Return the records of a state folder."""
    return {kind: RecordStore(folder / kind, IDENTITY) for kind in KINDS}


def write_state(folder: Path, fed: Federation, state: FedState) -> None:
    """Write a checkpoint with records of its own."""
    records = fed.save(state, logs(folder))
    save_state(folder, state.round, state.server, records, {}, identity=IDENTITY)


def read_state(folder: Path, fed: Federation, on_disk: bool = False) -> FedState:
    """Return the newest checkpoint as the state of ``fed``.

    Raises:
        Broken: none can be read.
    """
    saved, notes = load_newest_state(folder, identity=IDENTITY)
    if saved is None:
        raise Broken(f"the state cannot be read back: {'; '.join(notes)}")
    records = logs(folder)
    for kind, named in (saved.records or {}).items():
        records[kind].load(named)
    if on_disk:
        fed.keep_on_disk(records)
    return fed.load(saved.round, saved.server, records)
