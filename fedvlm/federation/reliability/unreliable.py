"""Unreliable federations, simulated: drop-out, stragglers, deadlines, late joins and leaves.

Who is lost in a round, and how much of its work a late client does, is a function of (seed, round,
client): nothing is remembered, so that a resumed run loses the same clients. The draw of a round's
clients does not look at it: somebody who is not there is drawn all the same and counts as dropped,
as a site that does not answer does in a deployment.

Partial work of late clients: Li et al., Federated Optimization in Heterogeneous Networks, MLSys
2020 (section 5.2, stragglers).
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from fedvlm.core import rng
from fedvlm.core.errors import ConfigError

KEY = "FED.UNRELIABLE"
NO_ANSWER, LATE, AWAY, REFUSED = "no answer", "late", "away", "refused"
VOID = "void"  # of a readmission that changed nothing
DROP, PARTIAL = "drop", "partial"  # what becomes of who is late
ROUND, CLIENT = "round", "client"  # what stragglers are drawn for
WORK, STEPS = "work", "steps"  # units of the deadline
EPS = 1e-9
SPAN = re.compile(r"(\d+):(\d+)(-(\d*))?")


@dataclass(frozen=True)
class Absence:
    """Rounds in which a client is not there.

    Attributes:
        first, last: rounds, both included; ``last`` 0: from ``first`` on for good.
    """

    client: int
    first: int
    last: int

    def covers(self, round_: int) -> bool:
        """Say whether the client is away in a round."""
        return self.first <= round_ and (not self.last or round_ <= self.last)


@dataclass(frozen=True)
class Unreliable:
    """What ``FED.UNRELIABLE`` says; by default everybody answers in time.

    Attributes:
        seed, rounds: of the run.
        dropout: probability that a selected client does not answer.
        stragglers: probability that a client is slow, in each round or in all (``slow_by``).
        slowdown: a slow client's steps take so many times as long: drawn between the two.
        slow_by: ``round`` or ``client``: what stragglers and their slowdown are drawn for.
        deadline: how long the server waits, in ``clock``; 0: for everybody.
        clock: ``work`` (1: the client's own round at full speed) or ``steps`` (local steps at
            full speed).
        late: ``drop`` or ``partial``: nothing of a late client counts, or what it has by then.
        join, leave: probability that a client comes after round 1, and that it leaves for good.
        absences: of named clients.
        quorum: share of a round's clients that have to answer; 0: a round may pass without any.
        buffer: updates for which the server makes a step, whoever is still at work
            (``buffered``); 0: it waits for the clients of a round.
    """

    seed: int = 1
    rounds: int = 1
    dropout: float = 0.0
    stragglers: float = 0.0
    slowdown: tuple[float, ...] = (2.0, 4.0)
    slow_by: str = ROUND
    deadline: float = 0.0
    clock: str = WORK
    late: str = DROP
    join: float = 0.0
    leave: float = 0.0
    absences: tuple[Absence, ...] = field(default=())
    quorum: float = 0.0
    buffer: int = 0

    def __post_init__(self) -> None:
        """Refuse what contradicts itself.

        Raises:
            ConfigError: such a key.
        """
        self._check_buffer()
        low, high = self.slowdown
        if self.stragglers and not 1 <= low <= high:
            raise ConfigError(
                f"{KEY}.SLOWDOWN {self.slowdown}: expected (least, most) with 1 <= least <= "
                "most, such as (2, 4)"
            )
        if self.stragglers and not self.deadline and not self.buffer:
            raise ConfigError(
                f"{KEY}.STRAGGLERS {self.stragglers:g} without {KEY}.DEADLINE: slow clients have "
                f"no effect when the server waits for all clients; set {KEY}.DEADLINE (1: until a "
                f"client of full speed has done its work) or {KEY}.BUFFER"
            )
        if 0 < self.deadline < 1 and self.clock == WORK and self.late == DROP:
            raise ConfigError(
                f"{KEY}.DEADLINE {self.deadline:g}: no client finishes its work in less than "
                f"1; set it to 1 or more, {KEY}.LATE partial, or {KEY}.CLOCK steps"
            )

    def _check_buffer(self) -> None:
        """Refuse what needs rounds with a beginning and an end where there are none."""
        there = {
            "DROPOUT": self.dropout, "DEADLINE": self.deadline, "JOIN": self.join,
            "LEAVE": self.leave, "AWAY": self.absences, "QUORUM": self.quorum,
            f"CLOCK {STEPS}": self.clock != WORK,
        }
        odd = [f"{KEY}.{name}" for name, value in there.items() if value]
        if self.buffer and odd:
            raise ConfigError(
                f"{KEY}.BUFFER {self.buffer}: the server waits for so many updates and for no "
                f"named client; it cannot be combined with {' and '.join(odd)}: leave it out, or "
                f"set {KEY}.BUFFER 0"
            )

    @property
    def active(self) -> bool:
        """Whether anybody can be lost or late at all."""
        return bool(self.dropout or self.deadline or self.join or self.leave or self.absences)

    @property
    def cuts(self) -> bool:
        """Whether late clients send what they have."""
        return self.deadline > 0 and self.late == PARTIAL

    # ---- one client ------------------------------------------------------------------------
    def never(self, client: int) -> bool:
        """Say whether a client is away from round 1 to the end: no quorum counts it."""
        return any(a.client == client and a.first <= 1 and not a.last for a in self.absences)

    def slowness(self, round_: int, client: int) -> float:
        """Return how many times as long a client's steps take in a round; 1: full speed."""
        when = round_ if self.slow_by == ROUND else 0
        if not self._draw("straggler", when, client) < self.stragglers:
            return 1.0
        low, high = self.slowdown
        return low + (high - low) * self._draw("slowdown", when, client)

    def share(self, round_: int, client: int, steps: int) -> float:
        """Return which share of its work a client has done at the deadline, 0 to 1.

        Args:
            steps: all of its work.
        """
        if not self.deadline:
            return 1.0
        whole = self.slowness(round_, client) * (1 if self.clock == WORK else steps)
        return 1.0 if whole <= self.deadline + EPS else self.deadline / whole

    def term(self, client: int) -> tuple[int, int]:
        """Return the first and the last round that a client is there for; 0: to the end."""
        first = last = 0
        if self._draw("join", client) < self.join:
            first = 2 + int(self._draw("join-round", client) * max(self.rounds - 1, 0))
        if self._draw("leave", client) < self.leave:
            begin = max(first, 1)
            last = begin + int(self._draw("leave-round", client) * max(self.rounds - begin, 0))
            last = 0 if last >= self.rounds else last
        return max(first, 1), last

    def away(self, round_: int, client: int) -> str:
        """Return why a client is not there in a round; empty where it is."""
        for absence in self.absences:
            if absence.client == client and absence.covers(round_):
                until = f"until round {absence.last}" if absence.last else "for good"
                return f"{AWAY}: since round {absence.first}, {until}"
        if not (self.join or self.leave):
            return ""
        first, last = self.term(client)
        if round_ < first:
            return f"{AWAY}: it joins in round {first}"
        return f"{AWAY}: it left after round {last}" if last and round_ > last else ""

    def _draw(self, purpose: str, *keys: int) -> float:
        """Return a number in [0, 1) for a purpose."""
        return rng.seed_of(self.seed, f"unreliable-{purpose}", *keys) / 2**63

    # ---- a round ---------------------------------------------------------------------------
    def lost(self, round_: int, clients: Sequence[int], steps: Sequence[int]) -> dict[int, str]:
        """Return which of a round's clients do not answer in time, with the reason of each.

        Args:
            steps: of each one's whole work in this round.
        """
        told = {c: self._why(round_, c, n) for c, n in zip(clients, steps, strict=True)}
        return {c: why for c, why in told.items() if why}

    def _why(self, round_: int, client: int, steps: int) -> str:
        away = self.away(round_, client)
        if away:
            return away
        if self._draw("dropout", round_, client) < self.dropout:
            return NO_ANSWER
        share = self.share(round_, client, steps)
        if share < 1 and self.late == DROP:
            return f"{LATE}: at the deadline it has finished {100 * share:.0f} % of its work"
        if steps and self.cuts and steps_in_share(steps, share) == 0:
            return f"{LATE}: no step is finished at the deadline"
        return ""

    def part(
        self, round_: int, clients: Sequence[int], totals: Sequence[int], steps: Sequence[int]
    ) -> list[int]:
        """Return the steps of each client's fit that it makes until the deadline, at least one.

        Args:
            totals: steps of the fit.
            steps: of each one's whole work; the share of it that is done is the fit's share, too.
        """
        return [
            n and max(1, steps_in_share(n, self.share(round_, c, whole)))
            for c, n, whole in zip(clients, totals, steps, strict=True)
        ]

    def words(self) -> str:
        """Return what is set, for notes and results; empty where nothing is."""
        slow = f"{self.stragglers:g} of the clients slow by {self.slow_by}"
        times = "-".join(f"{v:g}" for v in dict.fromkeys(self.slowdown))
        late = "dropped" if self.late == DROP else "sends what it has"
        said = {
            f"drop-out {self.dropout:g}": self.dropout,
            f"{slow}, {times} times": self.stragglers,
            f"deadline {self.deadline:g} ({self.clock}), late clients {late}": self.deadline,
            f"{self.join:g} join late": self.join,
            f"{self.leave:g} leave": self.leave,
            f"{len({a.client for a in self.absences})} clients listed as absent": self.absences,
            f"quorum {self.quorum:g}": self.quorum and self.active,
            f"asynchronous rounds of {self.buffer} updates": self.buffer,
        }
        return ", ".join(words for words, there in said.items() if there)


def steps_in_share(total: int, share: float) -> int:
    """Return the whole steps in a share of ``total``."""
    return min(total, math.floor(total * share + EPS))


def quorum_count(quorum: float, clients: int) -> int:
    """Return how many of so many clients have to answer."""
    return math.ceil(quorum * clients - EPS)


def below_quorum(round_: int, clients: int, lost: Mapping[int, str], quorum: float) -> str:
    """Return the message about a round with too few answers."""
    by_reason: dict[str, list[int]] = {}
    for client, why in sorted(lost.items()):
        by_reason.setdefault(drop_kind(why), []).append(client)
    reasons = "; ".join(
        f"{why}: {', '.join(map(str, ids[:8]))}{', ...' if len(ids) > 8 else ''}"
        for why, ids in by_reason.items()
    )
    return (
        f"round {round_}: {len(lost)} of {clients} clients did not answer ({reasons}), and "
        f"{KEY}.QUORUM is {quorum:g}; the state of round {round_ - 1} is kept: to resume there, "
        f"run the same command with a lower {KEY}.QUORUM"
    )


def drop_kind(why: str) -> str:
    """Return the kind of a reason in ``dropped``: no answer, late, away, or refused (NaN, norm).

    A deployment writes the site before it.
    """
    for word in (why, why.partition(": ")[2]):
        for kind in (NO_ANSWER, LATE, AWAY):
            if word == kind or word.startswith(f"{kind}: "):
                return kind
    return REFUSED


def count_reasons(reasons: Iterable[str]) -> dict[str, int]:
    """Return how many reasons there are of each kind, the most frequent first."""
    counts = Counter(map(drop_kind, reasons))
    return dict(sorted(counts.items(), key=lambda kind: (-kind[1], kind[0])))


def parse_absences(text: str, clients: int) -> tuple[Absence, ...]:
    """Return the absences of ``FED.UNRELIABLE.AWAY``: ``3:1-4,7:20-`` -> 3 in rounds 1 to 4, ...

    Args:
        text: ``client:rounds``; rounds are one (``5``), several (``1-4``) or from one on
            (``20-``).
        clients: how many there are.

    Raises:
        ConfigError: no such client, or rounds that are none.
    """
    out = []
    for part in text.replace(" ", "").split(",") if text.strip() else []:
        match = SPAN.fullmatch(part)
        if match is None:
            raise ConfigError(
                f"{KEY}.AWAY '{text}': '{part}' is not an absence; write client:rounds, such as "
                "3:1-4 (joins in round 5), 7:20- (leaves after round 19) or 2:6"
            )
        client, first = int(match[1]), int(match[2])
        last = first if match[3] is None else int(match[4] or 0)
        if client >= clients:
            raise ConfigError(
                f"{KEY}.AWAY '{text}': no client {client}, the last client is {clients - 1}"
            )
        if first < 1 or (match[4] and last < first):
            why = "rounds begin at 1" if first < 1 else "its last round is before its first"
            raise ConfigError(f"{KEY}.AWAY '{text}': '{part}': {why}")
        out.append(Absence(client, first, last))
    return tuple(out)
