"""Rows of clients' states on disk: sealed records, an index in memory, packs.

``r000007.safetensors`` holds the rows of who worked up to round 7 and was in no record yet, leaves
``<group>|<slot>|<name>`` as ``[K, ...]``; ``r000007.json`` names the clients of each group with the
version of each row, the file's hash and the run, under a seal. A checkpoint of the server
(``runs.state``) names the records that count, with their hashes, and only then do they: whatever
else lies in the folder is left from a kill. The version of a client is in the newest record that
names it, so that nothing which is written each round grows with the number of clients.

``p000007`` is a pack: live rows of several records in one. It is one more record, named by the
next checkpoint; what it stands for is deleted once no checkpoint needs it. When more than half
of all rows are dead, all of them are packed; when there are more than ``MOST`` records, the newest
ones of like size are, so that a row is written again a few times at most (log N).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import safetensors
import safetensors.torch
import torch

from fedvlm.core import files
from fedvlm.core.errors import DataError
from fedvlm.core.rows.memory import MemoryStore
from fedvlm.core.rows.store import (
    Form,
    RowStore,
    form_of,
    missing_row,
    move_state,
    order_rows,
)
from fedvlm.core.trees import State, Tree
from fedvlm.runs.seal import (
    RECORD,
    Damaged,
    checked_record,
    open_sealed,
    read_bytes,
)
from fedvlm.runs.tensors import read_tensors, write_vouched

MOST = 64  # records that a checkpoint may name
CPU = torch.device("cpu")
_NAME = re.compile(r"([a-z]+\d{6,})\.(json|safetensors)")
RowGroup = tuple[Sequence[int], Sequence[int], State]  # clients, versions, their rows [K, ...]


class RowPlace(NamedTuple):
    """Where a row lies."""

    record: str
    group: int
    row: int


@dataclass
class Entry:
    """A record: hash of its JSON, slots and names by group, number of its rows, of those in use."""

    sha256: str
    layout: list[dict[str, list[str]]]
    rows: int
    live: int = 0


class RecordStore:
    """Rows in the records of one folder, which need not exist yet (``RowStore``).

    In memory is only where they lie. The rows of a round wait there until all are in; then they are
    one record. Where rows are kept in memory it is what checkpoints write and read.

    Args:
        folder: ``state/clients`` or ``state/held``.
        identity: digest of the run; records of others are refused.
        device: where rows are wanted.
    """

    def __init__(self, folder: Path, identity: str, device: torch.device = CPU) -> None:
        self.folder, self.identity, self.device = folder, identity, device
        self._entries: dict[str, Entry] = {}
        self._rows: dict[int, tuple[int, RowPlace]] = {}  # client -> version that counts, its place
        self._new: dict[int, dict[int, RowPlace]] = {}  # written, named by no checkpoint yet
        self._open, self._ids = MemoryStore(), dict[int, int]()  # of this round: client -> version
        self._forms: dict[tuple[str, int], Form] = {}  # of a record's groups

    # ---- the round in hand -------------------------------------------------------------------
    def get(
        self, ids: Sequence[int], versions: Sequence[int]
    ) -> list[tuple[list[int], State]]:
        """See ``RowStore.get``."""
        here = [c for c, v in zip(ids, versions, strict=True) if self._ids.get(c) == v]
        groups = self._open.get(here, [self._ids[c] for c in here])
        places: dict[tuple[str, int], tuple[list[int], list[RowPlace]]] = {}
        for client, version in zip(ids, versions, strict=True):
            if self._ids.get(client) == version:
                continue
            place = self.find(client, version)
            if place is None:
                raise missing_row(client, version)
            clients, rows = places.setdefault((place.record, place.group), ([], []))
            clients.append(client)
            rows.append(place)
        alike: dict[Form, tuple[list[int], list[State]]] = {form_of(s): (c, [s]) for c, s in groups}
        for clients, rows in places.values():
            state = move_state(self.read(rows), self.device)
            known, states = alike.setdefault(form_of(state), ([], []))
            known += clients
            states.append(state)
        return [order_rows(ids, *group) for group in alike.values()]

    def form(self, client: int, version: int) -> Form:
        """See ``RowStore.form``; the rows of a record's group have one."""
        if self._ids.get(client) == version:
            return self._open.form(client, version)
        place = self.find(client, version)
        if place is None:
            raise missing_row(client, version)
        key = place.record, place.group
        if key not in self._forms:
            self._forms[key] = form_of(self.read([place]))
        return self._forms[key]

    def put(self, round_: int, ids: Sequence[int], state: State) -> None:
        """See ``RowStore.put``."""
        self._open.put(round_, ids, state)
        self._ids |= dict.fromkeys(ids, round_)

    def begin(self, accepted: Mapping[int, int]) -> None:
        """See ``RowStore.begin``."""
        for client, version in accepted.items():
            self._forget(client, version)
            if self._ids.get(client, version) > version:
                del self._ids[client]

    def seal(self, round_: int) -> None:
        """See ``RowStore.seal``: write the round's record."""
        if self._ids:
            self._write_from(f"r{round_:06d}", self._open, dict(sorted(self._ids.items())))
        self._open, self._ids = MemoryStore(), {}

    def settle(self, accepted: Mapping[int, int]) -> None:
        """See ``RowStore.settle``: what a checkpoint names stays."""

    # ---- rows --------------------------------------------------------------------------------
    def write(self, name: str, groups: Sequence[RowGroup]) -> None:
        """Write a record: tensors first, then the JSON that vouches for them.

        Raises:
            DataError: disk full, folder read-only or deleted.
            ValueError: a slot's name holds ``|``.
        """
        with files.explain_errors(self.folder):
            if not self.folder.is_dir():
                self.folder.mkdir(exist_ok=True)
                files.sync_folder(self.folder.parent)
        keys, layout, told = {}, [], []
        for g, (ids, versions, state) in enumerate(groups):
            for slot, tree in state.items():
                if "|" in slot:
                    raise ValueError(f"slot '{slot}' holds '|', which separates key parts")
                keys.update({f"{g}|{slot}|{leaf}": v for leaf, v in tree.items()})
            layout.append({slot: list(tree) for slot, tree in state.items()})
            told.append({"ids": list(ids), "versions": list(versions), "slots": layout[-1]})
        digest = write_vouched(self.folder / name, keys, {
            "format": RECORD, "identity": self.identity, "name": name, "groups": told,
            "sha256": "", "bytes": 0,
        })
        self._entries[name] = Entry(digest, layout, sum(len(g[0]) for g in groups))
        self._forms = {key: form for key, form in self._forms.items() if key[0] != name}
        for g, (ids, versions, _) in enumerate(groups):
            for row, (client, version) in enumerate(zip(ids, versions, strict=True)):
                self._new.setdefault(client, {})[version] = RowPlace(name, g, row)

    def find(self, client: int, version: int) -> RowPlace | None:
        """Return where a row lies, if it was written and still counts."""
        new = self._new.get(client, {}).get(version)
        if new is None and self._rows.get(client, (-1,))[0] == version:
            return self._rows[client][1]
        return new

    def _forget(self, client: int, version: int) -> None:
        """Forget rows of a client that are newer than ``version`` and named by no checkpoint."""
        for newer in [v for v in self._new.get(client, {}) if v > version]:
            del self._new[client][newer]

    def read(self, places: Sequence[RowPlace]) -> State:
        """Return rows of one form, ``[K, ...]`` on the CPU.

        Raises:
            DataError: a record is gone or cut.
        """
        parts: dict[tuple[str, int], list[tuple[int, RowPlace]]] = {}
        for k, place in enumerate(places):
            parts.setdefault((place.record, place.group), []).append((k, place))
        rows: list[dict[tuple[str, str], torch.Tensor]] = [{} for _ in places]
        for (name, _), wanted in parts.items():
            path = self.folder / f"{name}.safetensors"
            try:
                self._read_group(path, wanted, rows)
            except (OSError, safetensors.SafetensorError) as error:
                raise DataError(
                    f"'{path}' cannot be read any more ({error}): it was changed during the "
                    "run; the same command resumes from the last intact state"
                ) from error
        return {
            slot: {leaf: torch.cat([row[slot, leaf] for row in rows]) for leaf in names}
            for slot, names in self._layout(places[0]).items()
        }

    def _read_group(
        self, path: Path, wanted: Sequence[tuple[int, RowPlace]],
        rows: Sequence[dict[tuple[str, str], torch.Tensor]],
    ) -> None:
        """Put rows of one group of a record into ``rows``, by slot and name of the leaf.

        Args:
            wanted: positions in ``rows``, and where the rows lie.
        """
        first = wanted[0][1]
        with safetensors.safe_open(path, "pt") as file:
            for slot, leaf in ((s, n) for s, names in self._layout(first).items() for n in names):
                values = file.get_slice(f"{first.group}|{slot}|{leaf}")
                if 4 * len(wanted) > values.get_shape()[0]:  # most of it: at once
                    values = values[:]
                for k, place in wanted:
                    rows[k][slot, leaf] = values[place.row : place.row + 1]

    def _layout(self, place: RowPlace) -> dict[str, list[str]]:
        return self._entries[place.record].layout[place.group]

    # ---- checkpoints -------------------------------------------------------------------------
    def accept(self, round_: int, rows: RowStore, versions: Mapping[int, int]) -> list[list[str]]:
        """Write what no record has yet and return the records that a checkpoint has to name.

        Args:
            rows: the store that they are in: this one, or one in memory.
            versions: of every client, as of the checkpoint.

        Returns:
            ``[[name, hash of its JSON], ...]``.
        """
        moved = sorted(c for c, v in versions.items() if self._rows.get(c, (-1,))[0] != v)
        self._write_from(
            f"r{round_:06d}", rows,
            {c: versions[c] for c in moved if versions[c] not in self._new.get(c, {})},
        )
        for client in moved:
            self._move(client, versions[client])
        self._new = {}
        self._drop_dead()
        due = self._due()
        if due:
            of = {c: v for c, (v, place) in sorted(self._rows.items()) if place.record in due}
            self._write_from(f"p{round_:06d}", rows, of)
            for client, version in of.items():
                self._move(client, version)
            self._new = {}
            self._drop_dead()
        return [[name, self._entries[name].sha256] for name in sorted(self._entries)]

    def load(self, named: Iterable[Sequence[str]]) -> None:
        """Take over the records that a checkpoint names; their tensors stay on disk.

        Raises:
            Damaged: one is missing, changed, or of another run.
        """
        self._entries, self._rows, self._new, self._forms = {}, {}, {}, {}
        for name, digest in named:
            record = checked_record(self.folder, name, digest, self.identity)
            self._enter(name, record, digest)
            for g, group in enumerate(record["groups"]):
                for row, (c, v) in enumerate(zip(group["ids"], group["versions"], strict=True)):
                    if self._rows.get(c, (-1,))[0] <= v:
                        self._new[c] = {v: RowPlace(name, g, row)}
                        self._move(c, v)
        self._new = {}

    def versions(self) -> dict[int, int]:
        """Return the version of every client that has a row, by ascending id."""
        return {c: version for c, (version, _) in sorted(self._rows.items())}

    def live(self) -> Iterator[tuple[int, list[int], State]]:
        """Yield (version, clients, their rows), record by record: all that counts, once."""
        by: dict[tuple[str, int], list[tuple[int, int, int]]] = {}
        for client, (version, (name, group, row)) in sorted(self._rows.items()):
            by.setdefault((name, group), []).append((version, row, client))
        for (name, group), rows in sorted(by.items()):
            for version in sorted({v for v, _, _ in rows}):
                of = [(row, c) for v, row, c in rows if v == version]
                state = self.read([RowPlace(name, group, row) for row, _ in of])
                yield version, [c for _, c in of], state

    def names(self) -> set[str]:
        """Return the names of the records in the folder, half-written ones among them."""
        with files.explain_errors(self.folder):
            matches = [_NAME.fullmatch(p.name) for p in self.folder.glob("*")]
        return {match[1] for match in matches if match}

    def sweep(self, keep: Iterable[str]) -> None:
        """Delete all records but those called in ``keep``; other files are left alone."""
        kept = set(keep)
        if not self.folder.is_dir():
            return
        with files.explain_errors(self.folder):
            for path in sorted(self.folder.iterdir()):
                match = _NAME.fullmatch(path.name)
                if match and match[1] not in kept:
                    path.unlink(missing_ok=True)

    def _enter(self, name: str, record: Mapping[str, Any], digest: str) -> None:
        """Take over a record that was read; its rows are not entered."""
        layout = [group["slots"] for group in record["groups"]]
        count = sum(len(group["ids"]) for group in record["groups"])
        self._entries[name] = Entry(digest, layout, count)

    def _write_from(self, name: str, rows: RowStore, of: Mapping[int, int]) -> None:
        if of:
            groups = rows.get(list(of), list(of.values()))
            self.write(name, [(ids, [of[c] for c in ids], state) for ids, state in groups])

    def _move(self, client: int, version: int) -> None:
        """Let the row that was written last count; the one before is dead."""
        if client in self._rows:
            self._entries[self._rows[client][1].record].live -= 1
        place = self._new[client][version]
        self._rows[client] = version, place
        self._entries[place.record].live += 1

    def _drop_dead(self) -> None:
        self._entries = {name: e for name, e in self._entries.items() if e.live}

    def _due(self) -> set[str]:
        """Return the records whose live rows go into a pack; none while that is not worth it."""
        entries = sorted(self._entries.items(), key=lambda item: record_number(item[0]))  # by round
        if sum(e.rows for _, e in entries) > 2 * sum(e.live for _, e in entries):
            return {name for name, _ in entries}
        if len(entries) <= MOST:
            return set()
        due, size = {entries[-1][0], entries[-2][0]}, entries[-1][1].rows + entries[-2][1].rows
        for name, entry in reversed(entries[:-2]):
            if entry.rows > size:
                break
            due.add(name)
            size += entry.rows
        return due


def read_models(folder: Path) -> dict[int, Tree]:
    """Return the models in the records ``personal000000, ...`` of ``folder``, by client.

    Raises:
        DataError: there are none, or one is damaged.
    """
    out: dict[int, Tree] = {}
    for path in sorted(folder.glob("personal??????.json")):
        try:
            data = read_bytes(path)
            identity = json.loads(data)["identity"]
            record = open_sealed(path, data, (RECORD,), identity)
            tensors = read_tensors(path.with_suffix(".safetensors"), record)
        except (Damaged, ValueError, KeyError, TypeError) as error:
            raise DataError(f"'{path}' cannot be read: {error}") from error
        for g, group in enumerate(record["groups"]):
            for row, client in enumerate(group["ids"]):
                out[client] = {
                    leaf: tensors[f"{g}|{slot}|{leaf}"][row]
                    for slot, names in group["slots"].items() for leaf in names
                }
    if not out:
        raise DataError(f"'{folder}' holds no models called personal000000, ...")
    return out


def record_number(name: str) -> int:
    """Return the number in a record's name."""
    return int(name.lstrip("abcdefghijklmnopqrstuvwxyz"))
