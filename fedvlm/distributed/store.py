"""Rows of clients' states at a site, or shared by the workers of a pool.

A site keeps a run's rows in ``<folder>/<run>/s000001.json`` with its tensors beside it, one sealed
record for each piece of work (``runs.records``). Nothing is believed that is not on disk: every
answer reads the folder anew, so that a site may be killed at any instruction. A row is asked for
by its exact version, which the server accepted; a row that is written again (a round that did not
count is done again) stands in a newer record, and the newest counts. Rows go when the server says
that it cannot fall back to them any more (``floor``), and only as a newer one is written.

The workers of a pool write into one folder, each under letters of its own, and read what any of
them wrote. A record is whole or not there, so that no lock is needed: nothing is deleted while
others work, but when the server asks one worker to (``forget``).
"""

from __future__ import annotations

import contextlib
import json
import secrets
import string
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import torch

from fedvlm.core import files
from fedvlm.core.errors import FedvlmError
from fedvlm.runs import lock
from fedvlm.runs.records import RecordStore, RowPlace, record_number
from fedvlm.runs.seal import Damaged, check_tensor_file, lone_record

PREFIX, FLOORS, LETTERS = "s", "floors.json", 6


class LostState(FedvlmError):
    """A client's accepted state is not at its site: never made anew in silence."""


def new_letters() -> str:
    """Return letters that no other worker has."""
    return PREFIX + "".join(secrets.choice(string.ascii_lowercase) for _ in range(LETTERS))


class SiteStore(RecordStore):
    """One run's rows at a site or pool: every record of the folder counts; see the module.

    Args:
        folder: of the states of all runs.
        run: the run's digest.
        device: where rows are wanted.
        letters: what the names of a pool's worker's records begin with; empty: a site, which has
            the folder for itself.
    """

    def __init__(self, folder: Path, run: str, device: torch.device, letters: str = "") -> None:
        super().__init__(folder / run, run, device)
        self._letters, self._shared = letters or PREFIX, bool(letters)
        if self._shared:
            self.folder.mkdir(parents=True, exist_ok=True)
        self.damage = self._scan()

    def require(self, accepted: Mapping[int, int]) -> None:
        """Refuse to go on where an accepted state is not here, whole.

        Raises:
            LostState: names the clients.
        """
        wanted = {c: v for c, v in accepted.items() if v}
        places = {c: self.find(c, v) for c, v in wanted.items()}
        broken = self._broken({place.record for place in places.values() if place})
        lost = [c for c, place in places.items() if place is None or place.record in broken]
        if lost:
            raise LostState("; ".join(
                f"client {c}: the state of round {wanted[c]}, which the server accepted, is not at "
                "this site" for c in lost[:4]
            ) + (" (and others)" if len(lost) > 4 else "")
                + "; restore it from a backup, or start a new run")

    def _broken(self, names: Iterable[str]) -> set[str]:
        """Return which records are not as they were written."""
        out = set()
        for name in sorted(names):
            try:
                record = lone_record(self.folder, name, self.identity)[0]
                check_tensor_file(self.folder / f"{name}.safetensors", record)
            except Damaged:
                out.add(name)
        return out

    def begin(self, accepted: Mapping[int, int]) -> None:
        """Delete nothing: what is newer than ``accepted`` is replaced as its round is done again.

        A request that comes late, of an older round, can so do no harm.
        """

    def keep(self, floor: Mapping[int, int]) -> None:
        """Write the rows that were put as one record; a site then deletes what is below ``floor``.
        """
        if not self._ids:
            return
        floors = {} if self._shared else self._floors() | dict(floor)
        if not self._shared:
            files.write_json(self.folder / FLOORS, {str(c): v for c, v in sorted(floors.items())})
        self._write_from(self._next(), self._open, dict(sorted(self._ids.items())))
        if not self._shared:
            self._prune(floors)
            self._pack()

    def _floors(self) -> dict[int, int]:
        """Return what the server last said of each client; nothing where that is not known.

        A client's rows come with its floor, so the last word always fits the rows that are here.
        """
        try:
            told = json.loads((self.folder / FLOORS).read_text(encoding="utf-8"))
            return {int(c): int(v) for c, v in told.items()}
        except (OSError, ValueError, TypeError, AttributeError):
            return {}  # rows then stay longer than they have to, no more

    def forget(self, keep: Mapping[int, int]) -> None:
        """Delete rows of these clients, as far as whole records go.

        At a site all but the version named for each (0: all of them); in a pool those that are
        older, whichever worker wrote them.
        """
        if self._shared:
            self._prune(keep)
            self._pack()
            return
        for client, version in keep.items():
            self._forget(client, version)
        self._prune(keep)

    def _next(self) -> str:
        """Return the name of the next record, newer than all others."""
        newest = max(map(record_number, self.names()), default=0)
        return f"{self._letters}{newest + 1:06d}"

    def rows(self) -> list[tuple[int, int]]:
        """Return (client, version) of the rows that no checkpoint names yet, ascending."""
        return sorted((c, v) for c, versions in self._new.items() for v in versions)

    def _scan(self) -> list[str]:
        """Take over every record of the folder: no checkpoint names them, the newest name wins.

        Returns:
            Why records do not count, a clause each.
        """
        damage = []
        for name in sorted(self.names(), key=record_number):
            try:
                record, digest = lone_record(self.folder, name, self.identity)
            except Damaged as error:
                damage.append(str(error))
                continue
            self._enter(name, record, digest)
            for g, group in enumerate(record["groups"]):
                for row, (c, v) in enumerate(zip(group["ids"], group["versions"], strict=True)):
                    self._new.setdefault(c, {})[v] = RowPlace(name, g, row)
        return damage

    def _prune(self, floor: Mapping[int, int]) -> None:
        """Delete rows older than ``floor``, of these clients, as far as whole records go."""
        for client, least in floor.items():
            rows = self._new.get(client, {})
            for old in [v for v in rows if v < least]:
                del rows[old]
        live = {place.record for rows in self._new.values() for place in rows.values()}
        self._entries = {name: e for name, e in self._entries.items() if name in live}
        self.sweep(live)

    def _pack(self) -> None:
        """Put thin records into one, as ``accept`` does; where one is damaged, all stay."""
        rows = {(c, v): place for c, some in self._new.items() for v, place in some.items()}
        for entry in self._entries.values():
            entry.live = 0
        for place in rows.values():
            self._entries[place.record].live += 1
        due = self._due()
        by: dict[tuple[str, int], list[tuple[int, int]]] = {}
        for key, place in sorted(rows.items()):
            if place.record in due:
                by.setdefault((place.record, place.group), []).append(key)
        if not by or self._broken({name for name, _ in by}):
            return
        self.write(self._next(), [
            ([c for c, _ in keys], [v for _, v in keys], self.read([rows[key] for key in keys]))
            for _, keys in sorted(by.items())
        ])
        self._entries = {n: e for n, e in self._entries.items() if n not in due}
        self.sweep(self._entries)


@contextlib.contextmanager
def hold_store(folder: Path, run: str, device: torch.device) -> Iterator[SiteStore]:
    """Hold a run's folder at a site: one process at a time touches its states.

    Raises:
        ConfigError: another process has it.
    """
    place = folder / run
    with files.explain_errors(place):
        place.mkdir(parents=True, exist_ok=True)
    mine = lock.acquire(place)
    try:
        yield SiteStore(folder, run, device)
    finally:
        mine.release()
