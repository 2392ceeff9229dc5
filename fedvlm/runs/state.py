"""The server's checkpoints: safetensors + JSON per round, index last, the newest valid one wins.

A state is slots of trees; this file knows nothing of what the tensors mean.
``round_0003.safetensors`` holds the server's under ``server|<slot>|<name>``; ``round_0003.json``
holds what the tensors cannot: the order of slots and names (empty ones too), the hash of the tensor
file, the records of clients' rows (``runs.records``) with their hashes, the run's identity, and a
seal over itself. Writing that JSON commits the round. No pickle is ever read or written.

Format 1 had all clients' tensors beside the server's (``client|<id>|<slot>|<name>``); it is read.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from fedvlm.core import files
from fedvlm.core.trees import TreeView
from fedvlm.runs.records import RecordStore
from fedvlm.runs.seal import Damaged, check_records, open_sealed, read_bytes
from fedvlm.runs.tensors import read_tensors, write_vouched

StateView = Mapping[str, TreeView]  # a state that is read only

FORMAT, OLD = 2, 1
KINDS = ("clients", "held")  # folders of records: what clients keep, what the server keeps of them
KEEP = 2  # states kept on disk: the newest, and the one before it in case the newest is damaged
ALL = 0  # every one
_NAME = re.compile(r"round_(\d{4,})\.(json|safetensors)")


@dataclass(frozen=True)
class SavedState:
    """One state as read back: tensors on the CPU, dtypes, order and empty trees as saved.

    Attributes:
        clients: everybody's, in format 1 only.
        records: kind -> the records that count, ``[[name, hash], ...]``; none in format 1.
    """

    round: int
    server: dict[str, dict[str, Tensor]]
    clients: dict[int, dict[str, dict[str, Tensor]]] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)
    records: dict[str, list[list[str]]] | None = None


def open_records(
    folder: Path, identity: str, named: Mapping[str, list[list[str]]] | None = None
) -> dict[str, RecordStore]:
    """Return the records in ``state/`` by kind, of which those that a state names are loaded."""
    records = {kind: RecordStore(folder / kind, identity) for kind in KINDS}
    for kind, those in (named or {}).items():
        records[kind].load(those)
    return records


def save_state(
    folder: Path,
    round: int,
    server: StateView,
    records: Mapping[str, Sequence[Sequence[str]]],
    extra: Mapping[str, Any],
    *,
    identity: str,
    keep: int = KEEP,
) -> None:
    """Write the state after ``round`` into ``folder``, then drop all but the newest.

    Args:
        folder: the run's ``state/``; it must exist.
        records: kind -> the records that count (``RecordStore.accept``); on disk already.
        extra: JSON values kept beside the tensors (infinities and NaN come back as such).
        identity: digest of the run, see ``runs.identity_digest``.
        keep: how many states stay; ``ALL``.

    Raises:
        DataError: disk full, folder read-only or deleted; the state before is still valid.
        ValueError: a slot's name holds ``|``, or ``extra`` has no exact JSON form.
    """
    _check_exact(extra, "extra")
    keys: dict[str, Tensor] = {}
    for slot, tree in server.items():
        if "|" in slot:
            raise ValueError(f"slot '{slot}' of the server holds '|', which separates key parts")
        keys.update({f"server|{slot}|{name}": v for name, v in tree.items()})
    write_vouched(folder / f"round_{round:04d}", keys, {
        "format": FORMAT, "identity": identity, "round": round, "sha256": "", "bytes": 0,
        "layout": {slot: list(tree) for slot, tree in server.items()},
        "records": {kind: [list(pair) for pair in named] for kind, named in records.items()},
        "extra": dict(extra),
    })
    settle(folder, round, identity, keep)


def settle(folder: Path, newest: int, identity: str, keep: int = KEEP) -> None:
    """Make the index name the last states up to round ``newest`` and drop all others.

    The end of ``save_state``, and of a resume: a kill may have come between state and index, or
    left records that no state names.

    Raises:
        DataError: as ``save_state``.
    """
    rounds = sorted(r for r in rounds_on_disk(folder) if r <= newest)[-keep:]  # of ALL: all
    index = {"format": FORMAT, "states": [f"round_{r:04d}" for r in rounds]}
    if files.read_json(folder / "index.json") != index:
        files.write_json(folder / "index.json", index)
    _prune(folder, set(rounds))
    named: dict[str, set[str]] = {kind: set() for kind in KINDS}
    for number in rounds:
        with contextlib.suppress(Damaged):  # one that does not count needs no record
            record = _record(folder / f"round_{number:04d}.json", number, identity)
            for kind, pairs in record.get("records", {}).items():
                named[kind] |= {name for name, _ in pairs}
    for kind, names in named.items():
        RecordStore(folder / kind, identity).sweep(names)


def load_newest_state(
    folder: Path, *, identity: str, only: int | None = None,
    refuse: Callable[[SavedState], str] = lambda _: "",
) -> tuple[SavedState | None, list[str]]:
    """Return the newest valid state in ``folder`` (or None), and a note per state passed over.

    A state counts only as a whole: JSON seal, format, identity, file hash and the full set of
    tensors are checked; truncated, zero-byte, bit-flipped and foreign files are passed over.

    Args:
        only: the round that is wanted; None: the newest.
        refuse: why a state that is whole does not count; empty where it does.
    """
    notes: list[str] = []
    if not folder.is_dir():
        return None, notes
    for number in sorted(rounds_on_disk(folder) | _rounds_in_index(folder, notes), reverse=True):
        if only not in (None, number):
            continue
        try:
            state = _read(folder, number, identity)
            why = refuse(state)
        except Damaged as error:
            why = str(error)
        if not why:
            return state, notes
        notes.append(f"state of round {number} skipped: {why}")
    if notes:
        notes.append(
            f"NO VALID STATE is left in '{folder}': the run restarts from round 1"
        )
    return None, notes


def clear_states(folder: Path) -> None:
    """Delete every state, every record and the index in ``folder``."""
    with files.explain_errors(folder):
        (folder / "index.json").unlink(missing_ok=True)
    _prune(folder, set())
    for kind in KINDS:
        RecordStore(folder / kind, "").sweep(())


def _read(folder: Path, number: int, identity: str) -> SavedState:
    stem = f"round_{number:04d}"
    record = _record(folder / f"{stem}.json", number, identity)
    tensors = read_tensors(folder / f"{stem}.safetensors", record)
    if record["format"] == OLD:
        return _unflatten(record, tensors)
    for kind, named in record["records"].items():
        check_records(folder / kind, named, identity)
    server = _slots("server", record["layout"], tensors)
    _all_used(tensors, server)
    return SavedState(record["round"], server, {}, record["extra"], record["records"])


def _record(path: Path, number: int, identity: str) -> dict[str, Any]:
    record = open_sealed(path, read_bytes(path), (FORMAT, OLD), identity)
    if record.get("round") != number:
        raise Damaged(f"{path.name} is the state of round {record.get('round')}")
    return record


def _unflatten(record: dict[str, Any], tensors: dict[str, Tensor]) -> SavedState:
    """Return a state of format 1."""
    layout = record["layout"]
    server = _slots("server", layout["forms"][layout["server"]], tensors)
    clients = {
        int(c): _slots(f"client|{c}", layout["forms"][place], tensors)
        for c, place in layout["clients"].items()
    }
    _all_used(tensors, server, *clients.values())
    return SavedState(record["round"], server, clients, record["extra"])


def _slots(
    prefix: str, form: Mapping[str, Sequence[str]], tensors: Mapping[str, Tensor]
) -> dict[str, dict[str, Tensor]]:
    try:
        return {
            slot: {name: tensors[f"{prefix}|{slot}|{name}"] for name in names}
            for slot, names in form.items()
        }
    except KeyError as error:
        raise Damaged(f"tensor {error} is missing") from error


def _all_used(tensors: Mapping[str, Tensor], *states: StateView) -> None:
    more = len(tensors) - sum(len(tree) for state in states for tree in state.values())
    if more:
        raise Damaged(f"{more} tensors that the layout does not name")


def rounds_on_disk(folder: Path) -> set[int]:
    """Return the rounds of all states in ``folder``, whole or not."""
    with files.explain_errors(folder / "index.json"):
        matches = [_NAME.fullmatch(p.name) for p in folder.iterdir()]
    return {int(m[1]) for m in matches if m and m[2] == "json"}


def _rounds_in_index(folder: Path, notes: list[str]) -> set[int]:
    """Return the rounds the index names, so that a deleted file is noticed."""
    if not (folder / "index.json").exists():
        return set()
    index = files.read_json(folder / "index.json")
    stems = index.get("states") if isinstance(index, dict) else None
    if not isinstance(stems, list):
        notes.append("state/index.json is not readable; the state files were read instead")
        return set()
    return {int(m[1]) for m in (_NAME.fullmatch(f"{s}.json") for s in stems) if m}


def _prune(folder: Path, keep: set[int]) -> None:
    """Delete the states of all rounds but ``keep``; other files are left alone."""
    with files.explain_errors(folder):
        for path in folder.iterdir():
            match = _NAME.fullmatch(path.name)
            if match and int(match[1]) not in keep:
                path.unlink(missing_ok=True)


def _check_exact(value: Any, place: str) -> None:
    """Refuse what JSON would hand back changed (tuples, keys that are no strings) or not at all."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            if not isinstance(key, str):
                raise ValueError(f"{place} has the key {key!r}: JSON keeps text keys only")
            _check_exact(item, f"{place}.{key}")
    elif isinstance(value, list):
        for i, item in enumerate(value):
            _check_exact(item, f"{place}.{i}")
    elif value is not None and type(value) not in (bool, int, float, str):
        raise ValueError(f"{place} is a {type(value).__name__}: JSON does not keep that exactly")
