"""A round's work at sites, as far as its answers came in and keep the contract (``policy``)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from fedvlm.core.errors import QuorumError
from fedvlm.core.trees import Tree
from fedvlm.distributed.schema import by_number
from fedvlm.distributed.server.membership import Membership
from fedvlm.distributed.server.policy import (
    NOT_FINITE,
    Policy,
    find_outvoted,
    read_parts,
    weigh,
    without,
)
from fedvlm.distributed.wire import Frame
from fedvlm.federation.aggregation.arrival import Upload
from fedvlm.federation.context import Context
from fedvlm.federation.engine import RoundWork
from fedvlm.federation.reliability.unreliable import NO_ANSWER


@dataclass
class RoundAnswers:
    """The answers to a round's work.

    Args:
        ctx: of the round.
        downloads: what each client receives.
        accepted: the version that each client starts from.
        forms: of the method's extras, where it gives them.
        policy: about sites that do not answer well.
        say: hears what went wrong, a message each.

    Attributes:
        parts: updates, each with its site.
        missing: clients of which nothing is settled yet; ``why`` says why not.
        guilty: sites of which something was refused.
    """

    ctx: Context
    downloads: Mapping[int, Tree]
    accepted: dict[int, int]
    forms: Tree | None
    policy: Policy
    say: Callable[[str], None]
    parts: list[tuple[str, Upload]] = field(default_factory=list)
    dropped: dict[int, str] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)
    why: dict[int, str] = field(default_factory=dict)
    guilty: set[str] = field(default_factory=set)
    counters: Counter[str] = field(default_factory=Counter)
    missing: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        """Wait for all clients."""
        self.missing = set(self.accepted)

    def take(self, site: str, reply: Frame, ids: Sequence[int]) -> None:
        """Take the updates of an answer that keep the contract.

        Args:
            ids: the clients that the site was asked for.
        """
        values = reply.values
        for counters in (values["counters"], values["towers"]):
            self.counters.update(counters)
        parts, refused, foreign = read_parts(reply, self.ctx, self.downloads, ids, self.forms)
        told = by_number(values["dropped"])
        foreign += sorted(set(told) - set(ids))
        dropped = {c: why for c, why in told.items() if c in ids}  # others' are not its to drop
        if foreign:
            self.say(
                f"round {self.ctx.round}: {site} answers for clients {foreign[:8]}, which were "
                "not requested or already answered: ignored"
            )
            self.guilty.add(site)
        for part in parts:
            said = weigh(part, self.policy.max_norm, self.ctx)
            refused |= said
            rest = without(part, said)
            if rest is not None:
                self.parts.append((site, rest))
        self._refuse(site, refused)
        self.dropped |= {c: f"{site}: {why}" for c, why in dropped.items()}
        self.missing -= {*dropped, *refused, *(c for part in parts for c in part.clients)}

    def _refuse(self, site: str, why: Mapping[int, str]) -> None:
        """Note whose updates are not taken."""
        self.refused |= {c: f"{site}: {words}" for c, words in why.items()}
        if why:
            self.guilty.add(site)

    def compare(self, home: Mapping[int, str]) -> None:
        """Leave out what does not stack with most others, and report all that is refused."""
        odd = find_outvoted([part for _, part in self.parts])
        for site in {home[c] for c in odd}:
            self._refuse(site, {c: why for c, why in odd.items() if home[c] == site})
        left = [(site, without(part, odd)) for site, part in self.parts]
        self.parts = [(site, part) for site, part in left if part is not None]
        for client, why in self.refused.items():
            self.say(f"round {self.ctx.round}: the update of client {client} is refused ({why})")

    def check(self, members: Membership) -> None:
        """Hold the round to its quorum.

        Raises:
            QuorumError: too few answered, or no update is left for more than divergence.
        """
        round_, total = self.ctx.round, len(self.accepted)
        kept = f"the state of round {round_ - 1} is kept; run the same command again to continue"
        if len(self.missing) > total - self.policy.needed(total):
            raise QuorumError(
                f"round {round_}: {len(self.missing)} of {total} clients did not answer "
                f"({join_reasons(self.why[c] for c in self.missing)}), and the quorum is "
                f"{self.policy.quorum:g}; {kept}{members.way_back(self.missing)}"
            )
        distrusted = any(not why.endswith(NOT_FINITE) for why in self.refused.values())
        if not self.parts and distrusted:
            raise QuorumError(
                f"round {round_}: of {total} clients no update is left "
                f"({join_reasons(self.refused.values())}); {kept}"
            )

    def work(self, sites: Sequence[int]) -> RoundWork:
        """Return the round's work, parts in the order of the sites."""
        parts = sorted((part for _, part in self.parts), key=lambda part: sites[part.clients[0]])
        clients = [c for part in parts for c in part.clients]
        lost = {c: self.why.get(c, NO_ANSWER) for c in sorted(self.missing)}
        return RoundWork(
            dict.fromkeys(clients, self.ctx.round), parts, self.dropped | self.refused | lost,
            self.counters,
        )


def silence(why: str) -> str:
    """Return the reason of a site that did not answer, as ``unreliable.drop_kind`` reads it."""
    rest = why.removeprefix(NO_ANSWER).strip()
    return f"{NO_ANSWER}: {rest}" if rest else NO_ANSWER


def join_reasons(words: Iterable[str]) -> str:
    """Return different clauses as one, of at most 300 characters."""
    return "; ".join(sorted(set(words)))[:300]
