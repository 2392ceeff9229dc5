"""A round's work at sites, as far as its answers came in and keep the contract (``policy``)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedvlm.core.errors import QuorumError
from fedvlm.core.trees import Tree, nbytes
from fedvlm.distributed.schema import LIMIT, by_number
from fedvlm.distributed.server.membership import Membership
from fedvlm.distributed.server.policy import (
    NOT_FINITE,
    Policy,
    find_outvoted,
    read_parts,
    weigh,
    without,
)
from fedvlm.distributed.server.requests import Grave
from fedvlm.distributed.wire import Frame
from fedvlm.federation.aggregation.arrival import Upload
from fedvlm.federation.context import Context
from fedvlm.federation.engine import Homes, RoundWork
from fedvlm.federation.reliability.unreliable import NO_ANSWER

MORE, SLACK, SLACK_ROW = 4, 1 << 20, 1 << 16  # of the bytes asked for; bytes of a frame, a client
PASSES = 100  # over a client's work, more than any method makes
INSIDE = 100_000  # tokens and blocks of a tower for one sample or class


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
        grave: clients of sites that failed for good in this round.
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
    grave: dict[int, Grave] = field(default_factory=dict)
    homes: Homes = field(default_factory=dict)  # see ``read_parts``

    def __post_init__(self) -> None:
        """Wait for all clients."""
        self.missing = set(self.accepted)

    def most_bytes(self) -> int:
        """Return how many bytes an answer has at most: four times what the tensors asked for have.

        What a method of a user's own sends beside them is not known: then it is a frame's limit.
        """
        if self.forms is None:
            return LIMIT
        extra = sum(nbytes(self.forms).values())
        tensors = sum(extra + sum(nbytes(self.downloads[c]).values()) for c in self.missing)
        return SLACK + MORE * (tensors + SLACK_ROW * len(self.missing))

    def _count(self, site: str, told: Mapping[str, int], ids: Sequence[int]) -> None:
        """Add what a site counted, at most ``PASSES`` times what its clients were asked for."""
        ctx, size = self.ctx, dict(zip(self.ctx.clients, self.ctx.sizes.tolist(), strict=True))
        images = [int(size[c]) for c in ids]
        each = [ctx.epochs * n for n in images]  # a step has one image at least
        if ctx.effort is not None:
            each = ctx.effort.totals(ctx.round, ids, images)
        steps = PASSES * (sum(each) + len(ids))
        samples = PASSES * sum((t + 1) * n for t, n in zip(each, images, strict=True))
        inside = (samples + steps * len(ctx.model.classnames)) * INSIDE
        for name, n in told.items():
            plain = {"steps": steps, "gradients": steps, "samples": samples}
            most = plain.get(name, samples if name.endswith("_samples") else inside)
            if n > most:
                self.say(f"round {ctx.round}: {site} counts {n} {name}, more than its clients "
                         f"could be asked for: {most} are counted")
            self.counters[name] += min(n, most)

    def take(self, site: str, reply: Frame, ids: Sequence[int]) -> None:
        """Take the updates of an answer that keep the contract.

        Args:
            ids: the clients that the site was asked for.
        """
        parts, refused, foreign = read_parts(
            reply, self.ctx, self.downloads, ids, self.forms, self.homes
        )
        foreign += self.settle(site, reply.values, ids)
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
        self.missing -= {*refused, *(c for part in parts for c in part.clients)}

    def settle(self, site: str, values: Mapping[str, Any], ids: Sequence[int]) -> list[int]:
        """Take what an answer counted and whom it dropped; return others' clients among those."""
        for counters in (values["counters"], values["towers"]):
            self._count(site, counters, ids)
        told = by_number(values["dropped"])
        dropped = {c: why for c, why in told.items() if c in ids}  # others' are not its to drop
        self.dropped |= {c: f"{site}: {why}" for c, why in dropped.items()}
        self.missing -= set(dropped)
        return sorted(set(told) - set(ids))

    def refuse_all(self, site: str, why: str, ids: Sequence[int]) -> None:
        """Take nothing of an answer."""
        self._refuse(site, dict.fromkeys(ids, why))
        self.missing -= set(ids)

    def fail(self, site: str, why: Grave, ids: Sequence[int]) -> None:
        """Do without a site's clients in this round, if the quorum allows it (``check``)."""
        self.grave |= dict.fromkeys(ids, why)
        self.refuse_all(site, str(why), ids)

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
        for client in [c for c in self.refused if c not in self.grave]:
            self.say(f"round {self.ctx.round}: the update of client {client} is refused "
                     f"({self.refused[client]})")

    def check(self, members: Membership) -> None:
        """Hold the round to its quorum.

        Raises:
            DivergedError, DataError: too few are left without sites that failed for good.
            QuorumError: too few answered, or no update is left for more than divergence.
        """
        round_, total = self.ctx.round, len(self.accepted)
        spare = total - self.policy.needed(total)
        for why in self.grave.values():
            if len(self.missing) <= spare < len(self.missing) + len(self.grave):
                raise why.error
        for client in self.grave:
            self.say(f"round {round_}: without client {client} ({self.refused[client]})")
        kept = f"the state of round {round_ - 1} is kept; run the same command again to continue"
        if len(self.missing) > spare:
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


def join_reasons(words: Iterable[str], most: int = 300) -> str:
    """Return different clauses as one, of at most so many characters."""
    return "; ".join(sorted(set(words)))[:most]
