"""Whom an evaluation asks, and after which rounds: a function of config and roster alone.

Nothing here looks at a clock or at a result, so that a resumed run asks the same clients after the
same rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from fedvlm.core import rng
from fedvlm.core.errors import ConfigError
from fedvlm.federation.rounds import RoundFinished
from fedvlm.federation.server import Roster


@dataclass(frozen=True)
class Panel:
    """The clients whose personal models are evaluated.

    At the untrained start and after the last round these are ``clients``; between them the clients
    that worked in the round, which is as much as the round itself cost.

    Attributes:
        clients: all that take part, or the cohort that stands for them.
        members: how many take part.
        unseen: those that do not, and are only personalised at the end.
        every: rounds between evaluations; 0 for start and last round only.
        alike: ask ``clients`` after every evaluated round, so that rounds can be compared
            (selection by validation).
    """

    clients: Sequence[int]
    members: int
    unseen: Sequence[int] = ()
    every: int = 1
    alike: bool = False

    def __post_init__(self) -> None:
        """Refuse an interval that is none.

        Raises:
            ConfigError: ``every`` is negative.
        """
        if self.every < 0:
            raise ConfigError(
                f"cannot evaluate every {self.every} rounds: TEST.EVAL_EVERY must be auto or at "
                "least 1"
            )

    @property
    def is_cohort(self) -> bool:
        """Whether ``clients`` stand for more than themselves."""
        return len(self.clients) < self.members

    def due(self, round_: int, total: int) -> bool:
        """Say whether a round is evaluated."""
        return round_ in (0, total) or (self.every > 0 and round_ % self.every == 0)

    def whom(self, event: RoundFinished) -> list[int]:
        """Return the clients to ask after a round, ascending."""
        if self.alike or event.round in (0, event.total_rounds):
            return list(self.clients)
        there = {*event.roster.present}  # a forgotten client is drawn, and has no image left
        return [c for c in event.drawn if c in there]


def panel_of(
    roster: Roster, *, cohort: int = 0, data_seed: int = 1, every: int = 1, alike: bool = False
) -> Panel:
    """Return the panel over the clients of ``roster``.

    Args:
        cohort: ``TEST.COHORT``: how many stand for all; 0, or as many as there are: all of them.
        data_seed: decides who, the same for every method of a table.
        every, alike: see ``Panel``.
    """
    members = list(roster.present)
    asked = members
    if 0 < cohort < len(members):
        order = torch.randperm(len(members), generator=rng.stream(data_seed, "eval-cohort"))
        asked = sorted(members[i] for i in order[:cohort].tolist())
    return Panel(asked, len(members), roster.unseen, every, alike)


def auto_interval(roster: Roster, drawn: int, epochs: int, pooled: int) -> int:
    """Return ``TEST.EVAL_EVERY auto``: the rounds that train on as many samples as one evaluates.

    Rounded up to a power of two, so that runs with other intervals share their rounds.

    Args:
        drawn: clients of a round.
        epochs: local epochs.
        pooled: samples that the shared model is evaluated on.
    """
    members = list(roster.members)
    train, test = (int(sizes[members].sum()) for sizes in (roster.train, roster.test))
    trained = epochs * drawn * train  # times the number of members, as is `evaluated`
    evaluated = drawn * test + len(members) * pooled
    interval = 1
    while trained and interval * trained < evaluated:
        interval *= 2
    return interval
