"""Rows of clients' states by (client, version), wherever they lie: what every store of them offers.

``memory.MemoryStore`` holds them in memory, ``runs.records.RecordStore`` in the files of a run (and
``distributed.store.SiteStore`` in those of a site), ``away.AwayStore`` stands for rows that another
process has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import torch

from fedvlm.core.errors import FedvlmError
from fedvlm.core.trees import State, cat

AWAY = "away."  # begins the name of a slot that stands for a state at another place
Form = tuple[tuple[str, tuple[tuple[str, torch.dtype, tuple[int, ...]], ...]], ...]


class RowStore(Protocol):
    """Rows of clients' states by (client, version); a version is the round it was put in."""

    def get(self, ids: Sequence[int], versions: Sequence[int]) -> list[tuple[list[int], State]]:
        """Return (clients, their states ``[K, ...]``) by form, each in the order of ``ids``.

        Raises:
            FedvlmError: there is no such row.
        """
        ...

    def form(self, client: int, version: int) -> Form:
        """Return names, types and shapes of such a row, without reading it.

        Raises:
            FedvlmError: there is no such row.
        """
        ...

    def put(self, round_: int, ids: Sequence[int], state: State) -> None:
        """Keep the rows of ``state`` as version ``round_``; a second put of a round replaces it."""
        ...

    def begin(self, accepted: Mapping[int, int]) -> None:
        """Forget versions newer than ``accepted``, of these clients: a round that did not count."""
        ...

    def seal(self, round_: int) -> None:
        """Hear that everybody of ``round_`` is in: nothing more is put in that round."""
        ...

    def settle(self, accepted: Mapping[int, int]) -> None:
        """Forget what nobody asks for any more: all but ``accepted``, the version of every client.

        What lies in the records of a checkpoint stays there until that checkpoint goes.
        """
        ...


class CheckpointStore(RowStore, Protocol):
    """A store of rows on disk of which checkpoints say what counts (``runs.records``)."""

    device: torch.device

    def accept(self, round_: int, rows: RowStore, versions: Mapping[int, int]) -> list[list[str]]:
        """Write what no record has, and return the records that a checkpoint has to name."""
        ...

    def versions(self) -> dict[int, int]:
        """Return the version of every client that has a row that counts."""
        ...

    def live(self) -> Iterator[tuple[int, list[int], State]]:
        """Yield (version, clients, their rows): all that counts."""
        ...


def form_of(state: State) -> Form:
    """Return names, types and shapes of one client's state, of stacked rows ``[K, ...]``."""
    return tuple(
        (slot, tuple((name, v.dtype, tuple(v.shape[1:])) for name, v in tree.items()))
        for slot, tree in state.items()
    )


def missing_row(client: int, version: int) -> FedvlmError:
    """Return the error of a row that a store does not have."""
    return FedvlmError(
        f"the store has no state of client {client} from round {version}: it was removed, "
        "or a later round started from another state"
    )


def move_state(state: State, device: torch.device) -> State:
    """Return ``state`` with its tensors on ``device``; types stay.

    Apple's mps has no float64: such tensors stay where they are.
    """
    mps = device.type == "mps"
    return {
        s: {n: v if mps and v.dtype is torch.float64 else v.to(device) for n, v in tree.items()}
        for s, tree in state.items()
    }


def order_rows(
    ids: Sequence[int], clients: Sequence[int], states: Sequence[State]
) -> tuple[list[int], State]:
    """Join rows of one form in the order of ``ids``."""
    state = {slot: cat([s[slot] for s in states]) for slot in states[0]}
    at = {c: k for k, c in enumerate(clients)}
    wanted = [c for c in ids if c in at]
    rows = torch.tensor([at[c] for c in wanted], dtype=torch.int64)
    return wanted, {s: {n: v.index_select(0, rows.to(v.device)) for n, v in t.items()}
                    for s, t in state.items()}
