"""Training state on disk: safetensors + JSON per round, index last, the newest valid one wins.

A state is slots of trees, for the server and for each client; this file knows nothing of what the
tensors mean. ``round_0003.safetensors`` holds them under ``server|<slot>|<name>`` and
``client|<id>|<slot>|<name>``; ``round_0003.json`` holds what the tensors cannot: the order of slots
and names (empty ones too), the hash of the tensor file, the run's identity, and a seal over itself.
No pickle is ever read or written.

A state is built in memory before it is written (twice its size at the peak). Room for states larger
than memory: ``layout["clients"]`` would name a file per client beside the slots, under a new
``FORMAT``; nothing else changes, and an older program passes such a state over by its version.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

from fedvlm.core import files
from fedvlm.core.trees import TreeView

StateView = Mapping[str, TreeView]  # a state that is read only

FORMAT = 1
KEEP = 2  # states kept on disk: the newest, and the one before it in case the newest is damaged
_NAME = re.compile(r"round_(\d{4,})\.(json|safetensors)")


@dataclass(frozen=True)
class SavedState:
    """One state as read back: tensors on the CPU, dtypes, order and empty trees as saved."""

    round: int
    server: dict[str, dict[str, Tensor]]
    clients: dict[int, dict[str, dict[str, Tensor]]]
    extra: dict[str, Any] = field(default_factory=dict)


class _Invalid(Exception):
    """Why a state is passed over."""


def save_state(
    folder: Path,
    round: int,
    server: StateView,
    clients: Mapping[int, StateView],
    extra: Mapping[str, Any],
    *,
    identity: str,
) -> None:
    """Write the state after ``round`` into ``folder``, then drop all but the newest two.

    Args:
        folder: the run's ``state/``; it must exist.
        extra: JSON values kept beside the tensors (infinities and NaN come back as such).
        identity: digest of the run, see ``runs.identity_digest``.

    Raises:
        DataError: disk full, folder read-only or deleted; the state before is still valid.
        ValueError: a slot's name holds ``|``, or ``extra`` has no exact JSON form.
    """
    _check_exact(extra, "extra")
    keys, layout = _flatten(server, clients)
    data = safetensors.torch.save(storable(keys))
    stem = f"round_{round:04d}"
    record = {
        "format": FORMAT, "identity": identity, "round": round, "sha256": _sha(data),
        "bytes": len(data), "layout": layout, "extra": dict(extra),
    }
    files.write_bytes(folder / f"{stem}.safetensors", data)
    files.write_text(folder / f"{stem}.json", _sealed(record))
    settle(folder, round)


def settle(folder: Path, newest: int) -> None:
    """Make the index name the last states up to round ``newest`` and drop those before.

    The end of ``save_state``, and of a resume: a kill may have come between state and index.

    Raises:
        DataError: as ``save_state``.
    """
    rounds = sorted(r for r in _rounds_on_disk(folder) if r <= newest)[-KEEP:]
    index = {"format": FORMAT, "states": [f"round_{r:04d}" for r in rounds]}
    if _read_index(folder) != index:
        files.write_json(folder / "index.json", index)
    _prune(folder, rounds[0])


def load_newest_state(
    folder: Path, *, identity: str, only: int | None = None
) -> tuple[SavedState | None, list[str]]:
    """Return the newest valid state in ``folder`` (or None), and a note per state passed over.

    A state counts only as a whole: JSON seal, format, identity, file hash and the full set of
    tensors are checked; truncated, zero-byte, bit-flipped and foreign files are passed over.

    Args:
        only: the round that is wanted; None: the newest.
    """
    notes: list[str] = []
    if not folder.is_dir():
        return None, notes
    for number in sorted(_rounds_on_disk(folder) | _rounds_in_index(folder, notes), reverse=True):
        if only not in (None, number):
            continue
        try:
            state = _read(folder, number, identity)
        except _Invalid as error:
            notes.append(f"state of round {number} passed over: {error}")
            continue
        return state, notes
    if notes:
        notes.append(
            f"NO VALID STATE is left in '{folder}': the run starts again from the beginning"
        )
    return None, notes


def clear_states(folder: Path) -> None:
    """Delete every state and the index in ``folder``."""
    with files.explain_errors(folder):
        (folder / "index.json").unlink(missing_ok=True)
    _prune(folder, None)


def _flatten(
    server: StateView, clients: Mapping[int, StateView]
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return tensors by key, and the layout: each distinct form of a state once."""
    keys: dict[str, Tensor] = {}
    forms: list[dict[str, list[str]]] = []
    places: dict[str, int] = {}

    def add(prefix: str, state: StateView) -> int:
        form = {slot: list(tree) for slot, tree in state.items()}
        for slot, tree in state.items():
            if "|" in slot:
                raise ValueError(f"slot '{slot}' of {prefix} holds '|', which separates key parts")
            keys.update({f"{prefix}|{slot}|{name}": t for name, t in tree.items()})
        place = places.setdefault(json.dumps(form), len(forms))
        if place == len(forms):
            forms.append(form)
        return place

    layout: dict[str, Any] = {"server": add("server", server), "clients": {}}
    for client, state in clients.items():
        layout["clients"][str(int(client))] = add(f"client|{int(client)}", state)
    return keys, layout | {"forms": forms}


def storable(keys: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors on the CPU and contiguous; those that share memory are copied apart."""
    seen: set[int] = set()
    out: dict[str, Tensor] = {}
    for key, tensor in keys.items():
        plain = tensor.detach().to("cpu").contiguous()
        storage = plain.untyped_storage().data_ptr()
        out[key] = plain.clone() if storage in seen else plain
        seen.add(storage)
    return out


def _read(folder: Path, number: int, identity: str) -> SavedState:
    stem = f"round_{number:04d}"
    record = _record(folder / f"{stem}.json", number, identity)
    path = folder / f"{stem}.safetensors"
    data = _bytes(path)
    if len(data) != record["bytes"]:
        raise _Invalid(f"{path.name} has {len(data)} bytes instead of {record['bytes']}")
    if _sha(data) != record["sha256"]:
        raise _Invalid(f"{path.name} is damaged (its hash is not the recorded one)")
    try:
        tensors = safetensors.torch.load(data)
    except (safetensors.SafetensorError, ValueError, KeyError) as error:
        raise _Invalid(f"{path.name} is not a safetensors file ({error})") from error
    return _unflatten(record, tensors)


def _record(path: Path, number: int, identity: str) -> dict[str, Any]:
    try:
        record = json.loads(_bytes(path))
        seal = record.pop("seal")
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise _Invalid(f"{path.name} is not readable") from error
    if record.get("format") != FORMAT:
        raise _Invalid(f"{path.name} has format {record.get('format')}, not {FORMAT}")
    if seal != _sha(_canonical(record)):
        raise _Invalid(f"{path.name} is damaged (its seal does not fit)")
    if record.get("identity") != identity:
        raise _Invalid(f"{path.name} belongs to another run")
    if record.get("round") != number:
        raise _Invalid(f"{path.name} is the state of round {record.get('round')}")
    return dict(record)


def _unflatten(record: dict[str, Any], tensors: dict[str, Tensor]) -> SavedState:
    layout, used = record["layout"], 0

    def take(prefix: str, place: int) -> dict[str, dict[str, Tensor]]:
        nonlocal used
        state: dict[str, dict[str, Tensor]] = {}
        for slot, names in layout["forms"][place].items():
            try:
                state[slot] = {name: tensors[f"{prefix}|{slot}|{name}"] for name in names}
            except KeyError as error:
                raise _Invalid(f"tensor {error} is missing") from error
            used += len(names)
        return state

    server = take("server", layout["server"])
    clients = {int(c): take(f"client|{c}", place) for c, place in layout["clients"].items()}
    if used != len(tensors):
        raise _Invalid(f"{len(tensors) - used} tensors more than the layout names")
    return SavedState(record["round"], server, clients, record["extra"])


def _rounds_on_disk(folder: Path) -> set[int]:
    with files.explain_errors(folder / "index.json"):
        matches = [_NAME.fullmatch(p.name) for p in folder.iterdir()]
    return {int(m[1]) for m in matches if m and m[2] == "json"}


def _rounds_in_index(folder: Path, notes: list[str]) -> set[int]:
    """Return the rounds the index names, so that a deleted file is noticed."""
    if not (folder / "index.json").exists():
        return set()
    index = _read_index(folder)
    stems = index.get("states") if isinstance(index, dict) else None
    if not isinstance(stems, list):
        notes.append("state/index.json is not readable; the states themselves were searched")
        return set()
    return {int(m[1]) for m in (_NAME.fullmatch(f"{s}.json") for s in stems) if m}


def _read_index(folder: Path) -> Any:
    try:
        return json.loads((folder / "index.json").read_bytes())
    except (OSError, ValueError, RecursionError):
        return None


def _prune(folder: Path, first: int | None) -> None:
    """Delete states before round ``first`` (None: all); other files are left alone."""
    with files.explain_errors(folder):
        for path in folder.iterdir():
            match = _NAME.fullmatch(path.name)
            if match and (first is None or int(match[1]) < first):
                path.unlink(missing_ok=True)


def _sealed(record: dict[str, Any]) -> str:
    seal = _sha(_canonical(record))
    return json.dumps(record | {"seal": seal}, indent=1) + "\n"


def _canonical(record: dict[str, Any]) -> bytes:
    return json.dumps(record, sort_keys=True, separators=(",", ":")).encode()


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


def _sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise _Invalid(f"{path.name} is missing") from error
    except OSError as error:
        raise _Invalid(f"{path.name} cannot be read ({error.strerror})") from error
