"""Rows of clients' states at a site, and what a server has of them: their versions.

A site keeps a run's rows in ``<folder>/<run>/s000001.json`` with its tensors beside it, one sealed
record for each piece of work (``runs.records``). Nothing is believed that is not on disk: every
answer reads the folder anew, so that a site may be killed at any instruction. A row is asked for
by its exact version, which the server accepted; a row that is written again (a round that did not
count is done again) stands in a newer record, and the newest counts. Rows go when the server says
that it cannot fall back to them any more (``floor``), and only as a newer one is written.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch

from fedvlm.core import files
from fedvlm.core.errors import FedvlmError
from fedvlm.core.trees import State
from fedvlm.federation.clients import DiskStore, Form
from fedvlm.runs import lock
from fedvlm.runs.records import Place, Records
from fedvlm.runs.seal import Damaged

PREFIX, FLOORS = "s", "floors.json"


class LostState(FedvlmError):
    """A client's accepted state is not at its site: never made anew in silence."""


class SiteStore(DiskStore):
    """One run's rows at a site; see ``ClientStore`` and the module.

    Args:
        folder: of the site's states, of all runs.
        run: the run's digest.
        device: where rows are wanted.
    """

    def __init__(self, folder: Path, run: str, device: torch.device) -> None:
        self.folder = folder / run
        self.records = Records(self.folder, run)
        self.damage = self.records.scan()
        super().__init__(self.records, device)

    def require(self, accepted: Mapping[int, int]) -> None:
        """Refuse to go on where an accepted state is not here, whole.

        Raises:
            LostState: names the clients.
        """
        wanted = {c: v for c, v in accepted.items() if v}
        places = {c: self.records.find(c, v) for c, v in wanted.items()}
        broken = self._broken({place.record: place for place in places.values() if place})
        lost = [c for c, place in places.items() if place is None or place.record in broken]
        if lost:
            raise LostState("; ".join(
                f"client {c}: the state of round {wanted[c]}, which the server accepted, is not at "
                "this site" for c in lost[:4]
            ) + (" (and others)" if len(lost) > 4 else "")
                + "; restore it from a backup, or start the run anew")

    def _broken(self, records: Mapping[str, Place]) -> set[str]:
        """Return which records are not as they were written."""
        out = set()
        for name, place in records.items():
            try:
                self.records.check([place])
            except Damaged:
                out.add(name)
        return out

    def begin(self, accepted: Mapping[int, int]) -> None:
        """Delete nothing: what is newer than ``accepted`` is replaced as its round is done again.

        A request that comes late, of an older round, can so do no harm.
        """

    def keep(self, floor: Mapping[int, int]) -> None:
        """Write the rows that were put as one record; then delete what is below ``floor``."""
        if not self._ids:
            return
        floors = self._floors() | dict(floor)
        files.write_json(self.folder / FLOORS, {str(c): v for c, v in sorted(floors.items())})
        numbers = [int(name[len(PREFIX) :]) for name in self.records.names()]
        name = f"{PREFIX}{max(numbers, default=0) + 1:06d}"
        ids = sorted(self._ids)
        versions = [self._ids[c] for c in ids]
        self.records.write(name, [
            (clients, [self._ids[c] for c in clients], state)
            for clients, state in self._open.get(ids, versions)
        ])
        self.records.prune(floors)
        self.records.pack(f"{PREFIX}{max(numbers, default=0) + 2:06d}")

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
        """Delete all rows of these clients but the version named for each; 0: all of them."""
        for client, version in keep.items():
            self.records.forget(client, version)
        self.records.prune(keep)


@contextlib.contextmanager
def opened(folder: Path, run: str, device: torch.device) -> Iterator[SiteStore]:
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


class AwayStore:
    """What a server has of its clients: a row of nothing for each version (``ClientStore``).

    Checkpoints so name versions, and no tensor of a client.

    Attributes:
        floor: the oldest version of each client that a checkpoint can still go back to.
    """

    def __init__(self) -> None:
        self.floor: dict[int, int] = {}
        self._settled: dict[int, int] = {}

    def get(
        self, ids: Sequence[int], versions: Sequence[int]
    ) -> list[tuple[list[int], State]]:
        """See ``ClientStore.get``."""
        return [(list(ids), {})] if ids else []

    def form(self, client: int, version: int) -> Form:
        """See ``ClientStore.form``."""
        return ()

    def put(self, round_: int, ids: Sequence[int], state: State) -> None:
        """Keep nothing.

        Raises:
            FedvlmError: tensors of clients, which do not belong here.
        """
        if any(state.values()):
            raise FedvlmError(f"a server was given states of clients {list(ids)}: they stay away")

    def begin(self, accepted: Mapping[int, int]) -> None:
        """See ``ClientStore.begin``."""

    def seal(self, round_: int) -> None:
        """See ``ClientStore.seal``."""

    def settle(self, accepted: Mapping[int, int]) -> None:
        """See ``ClientStore.settle``; the checkpoint before this one still counts."""
        self.floor, self._settled = self._settled, dict(accepted)
