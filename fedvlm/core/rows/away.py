"""What a server has of clients whose states are with another process: versions and forms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedvlm.core.errors import ConfigError
from fedvlm.core.rows.store import AWAY, Form
from fedvlm.core.trees import State


class AwayStore:
    """A row of nothing for each version (``RowStore``), so that no tensor of a client is here.

    Args:
        form: of all states; empty: rows have no slot; None: workers tell the form of each, which
            decides what clients share a chunk. A row is an empty slot of its form's name, so that a
            checkpoint has it.

    Attributes:
        forms: client -> version -> digest of the form, as far as it was told.
        floor: the oldest version of each client that a checkpoint can still go back to.
    """

    def __init__(self, form: str | None = "") -> None:
        self.forms: dict[int, dict[int, str]] = {}
        self.floor: dict[int, int] = {}
        self._form, self._settled = form, dict[int, int]()

    def note_forms(self, version: int, forms: Mapping[int, str]) -> None:
        """Take down the forms of new states, as the workers tell them."""
        for client, form in forms.items():
            self.forms.setdefault(client, {})[version] = form

    def form_name(self, client: int, version: int) -> str:
        """Return the name of a state's form."""
        return self.forms[client][version] if self._form is None else self._form

    def get(self, ids: Sequence[int], versions: Sequence[int]) -> list[tuple[list[int], State]]:
        """See ``RowStore.get``: rows without a tensor, by form."""
        groups: dict[str, list[int]] = {}
        for client, version in zip(ids, versions, strict=True):
            groups.setdefault(self.form_name(client, version), []).append(client)
        return [(clients, {AWAY + form: {}} if form else {}) for form, clients in groups.items()]

    def form(self, client: int, version: int) -> Form:
        """See ``RowStore.form``."""
        return ()

    def put(self, round_: int, ids: Sequence[int], state: State) -> None:
        """Take down the form of rows that a checkpoint names.

        Raises:
            ConfigError: they are states themselves, or stand for those of another engine.
        """
        slot = next(iter(state), "")
        unknown = self._form is None or slot != ""
        if any(state.values()) or (unknown and not slot.startswith(AWAY)):
            raise ConfigError(
                "this run was started with --engine local, and its checkpoint contains the "
                f"states of clients {list(ids[:4])}: resume with --engine local, or start a new "
                "run with another --tag"
            )
        form = slot.removeprefix(AWAY)
        if self._form is None:
            self.note_forms(round_, dict.fromkeys(ids, form))
        elif form != self._form:
            raise ConfigError(
                "this run was started with another --engine, so the states of its clients are not "
                "at the sites: resume with that engine, or start a new run with another --tag"
            )

    def begin(self, accepted: Mapping[int, int]) -> None:
        """See ``RowStore.begin``."""

    def seal(self, round_: int) -> None:
        """See ``RowStore.seal``."""

    def settle(self, accepted: Mapping[int, int]) -> None:
        """See ``RowStore.settle``; the checkpoint before this one still counts."""
        self.floor, self._settled = self._settled, dict(accepted)
        for client, versions in self.forms.items():
            least = self.floor.get(client, 0)
            for old in [v for v in versions if v < least]:
                del versions[old]
