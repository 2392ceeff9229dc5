"""States that the workers of a pool share, and what the driver has of them.

All workers write into one folder, each under letters of its own, and read what any of them wrote;
which version counts, the driver says with every request. A record is whole or not there, so that no
lock is needed: nobody deletes while others work (``PoolSite`` is told when to).
"""

from __future__ import annotations

import secrets
import string
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from fedvlm.core.errors import ConfigError
from fedvlm.core.trees import State
from fedvlm.distributed.store import PREFIX, AwayStore, SiteStore
from fedvlm.federation.clients import AWAY

LETTERS = 6


def new_letters() -> str:
    """Return letters that no other worker has."""
    return PREFIX + "".join(secrets.choice(string.ascii_lowercase) for _ in range(LETTERS))


class PoolStore(SiteStore):
    """One run's rows at a pool, as one of its workers sees them; see the module.

    Args:
        letters: what the names of this worker's records begin with.
    """

    def __init__(self, folder: Path, run: str, device: torch.device, letters: str) -> None:
        (folder / run).mkdir(parents=True, exist_ok=True)
        super().__init__(folder, run, device)
        self.letters = letters

    def keep(self, floor: Mapping[int, int]) -> None:
        """Write the rows that were put as one record, newer than all others; delete nothing."""
        if not self._ids:
            return
        ids = sorted(self._ids)
        versions = [self._ids[c] for c in ids]
        self.records.write(self._next(), [
            (clients, [self._ids[c] for c in clients], state)
            for clients, state in self._open.get(ids, versions)
        ])

    def forget(self, keep: Mapping[int, int]) -> None:
        """Delete records that hold only rows older than those named, whoever wrote them.

        Of the others, thin ones become one (``Records.pack``): every request reads their index.
        """
        self.records.prune(keep)
        self.records.pack(self._next())

    def _next(self) -> str:
        """Return the name of this worker's next record, newer than all others."""
        numbers = [int(name.lstrip(string.ascii_lowercase)) for name in self.records.names()]
        return f"{self.letters}{max(numbers, default=0) + 1:06d}"


class PoolAway(AwayStore):
    """What a pool's driver has of its clients: versions, and the form of each one's state.

    Forms decide which clients share a chunk. They are kept as names of empty slots, so that a
    checkpoint has them.

    Attributes:
        forms: client -> version -> digest of the form.
    """

    def __init__(self) -> None:
        super().__init__()
        self.forms: dict[int, dict[int, str]] = {}

    def hear(self, version: int, forms: Mapping[int, str]) -> None:
        """Take down the forms of new states, as the workers tell them."""
        for client, form in forms.items():
            self.forms.setdefault(client, {})[version] = form

    def get(
        self, ids: Sequence[int], versions: Sequence[int]
    ) -> list[tuple[list[int], State]]:
        """See ``ClientStore.get``: rows without a tensor, by form."""
        groups: dict[str, list[int]] = {}
        for client, version in zip(ids, versions, strict=True):
            groups.setdefault(self.forms[client][version], []).append(client)
        return [(clients, {AWAY + form: {}}) for form, clients in groups.items()]

    def put(self, round_: int, ids: Sequence[int], state: State) -> None:
        """Take down the form of rows that a checkpoint names.

        Raises:
            ConfigError: they are states themselves.
        """
        form = next(iter(state), "")
        if not form.startswith(AWAY):
            raise ConfigError(
                "this run was begun with --engine local, and its checkpoint holds the clients' "
                "states: go on with --engine local, or begin anew under another --tag"
            )
        self.hear(round_, dict.fromkeys(ids, form.removeprefix(AWAY)))

    def settle(self, accepted: Mapping[int, int]) -> None:
        """See ``ClientStore.settle``."""
        super().settle(accepted)
        for client, versions in self.forms.items():
            least = self.floor.get(client, 0)
            for old in [v for v in versions if v < least]:
                del versions[old]
