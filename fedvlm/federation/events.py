"""What the round loop tells its subscribers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fedvlm.federation.aggregate import Update
from fedvlm.federation.trees import State, Tree

if TYPE_CHECKING:
    from fedvlm.federation.rounds import Federation


@dataclass
class FedState:
    """All there is to save: everything else is a function of config and seeds."""

    round: int
    server: State
    clients: dict[int, State]


@dataclass(frozen=True)
class RoundStarted:
    """Clients are chosen; nothing has happened yet."""

    round: int
    total_rounds: int
    clients: Sequence[int]


@dataclass(frozen=True)
class RoundFinished:
    """The aggregate of ``round`` is in ``state`` (round 0: the untrained start).

    Attributes:
        updates: what the clients sent (empty in round 0).
        dropped: clients left out by the non-finite policy, with the reason.
        bytes_up, bytes_down: per client and tensor.
        counters: steps, samples and tower forwards of this round.
        seconds: wall time of the round's training and aggregation.
        report: what the aggregation rule has to tell (similarity weights, ...).
    """

    round: int
    total_rounds: int
    state: FedState
    federation: Federation
    updates: Sequence[Update] = ()
    dropped: dict[int, str] = field(default_factory=dict)
    bytes_up: dict[int, dict[str, int]] = field(default_factory=dict)
    bytes_down: dict[int, dict[str, int]] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    report: dict[str, Any] = field(default_factory=dict)

    @property
    def finetuned(self) -> bool:
        """Whether ``personal`` is after a final fine-tuning (``before_finetuning``: before)."""
        return self.federation.finetunes(self.state)

    def personal(self, clients: Sequence[int]) -> Iterator[tuple[Sequence[int], Tree]]:
        """Yield (clients, personal models ``[K, ...]``) chunk by chunk."""
        return self.federation.personal(self.state, clients)

    def before_finetuning(self, clients: Sequence[int]) -> Iterator[tuple[Sequence[int], Tree]]:
        """Yield the same models as they were before the final fine-tuning."""
        return self.federation.personal(self.state, clients, finetune=False)

    def shared(self) -> Tree:
        """Return the global model ``[1, ...]``: what a new client would start from."""
        return self.federation.shared(self.state)


Event = RoundStarted | RoundFinished
Subscriber = Callable[[Event], None]
