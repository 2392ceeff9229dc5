"""A server's side of secure sums: it asks, adds masked vectors, and learns one sum a round.

An attempt is four questions: public keys; shares of secrets, sealed for each other; the masked sums
(the work); and, once enough came in, shares of the masks that do not cancel. Every question is
asked again of sites that do not answer, as ``Policy`` says. A round that is begun again is another
attempt, with other keys.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from fedvlm.core.errors import ConfigError, FedvlmError, QuorumError
from fedvlm.core.trees import Tree, expand, pick
from fedvlm.distributed.schema import KEYS
from fedvlm.distributed.server.remote import RemoteEngine
from fedvlm.distributed.server.requests import Grave, Refusal
from fedvlm.distributed.server.work import SLACK, RoundAnswers, join_reasons, silence
from fedvlm.distributed.sums import masks
from fedvlm.distributed.sums.site import KEY, OWN, SUM, mark_of, task_of, words_of
from fedvlm.distributed.sums.vector import SumVector, Total, vector_of
from fedvlm.distributed.wire import Frame
from fedvlm.federation.aggregation.rules import AggregateSpec
from fedvlm.federation.aggregation.sums import of_each
from fedvlm.federation.aggregation.updates import Updates
from fedvlm.federation.clients import Clients
from fedvlm.federation.context import UNIFORM, Context
from fedvlm.federation.engine import MakeContext, RoundWork
from fedvlm.federation.rounds import Federation
from fedvlm.federation.trainer import Trainer

MOST_WORDS = 1000  # of what sites say, in one message
Offers = dict[str, dict[str, str]]  # site -> its public keys


@dataclass(frozen=True)
class Attempt:
    """Sites that agreed on keys for one sum.

    Attributes:
        name: hex digits.
        roster: their public keys.
        shares: who made them -> who they are for -> sealed shares.
    """

    name: str
    roster: Offers
    shares: Mapping[str, Mapping[str, str]]

    def sent_to(self, site: str) -> dict[str, str]:
        """Return the sealed shares for a site."""
        return {giver: sealed[site] for giver, sealed in self.shares.items() if giver != site}


@dataclass
class SumEngine(RemoteEngine):
    """Clients at sites whose single updates nobody but their site sees; see ``RemoteEngine``."""

    _why: dict[str, str] = field(default_factory=dict)  # site -> why it last did not answer
    _spec: AggregateSpec = field(default_factory=AggregateSpec)

    def join(self, fed: Federation) -> None:
        """See ``RemoteEngine.join``.

        Raises:
            ConfigError: there are too few sites for a sum that hides each of them.
        """
        masks.require_cryptography()
        super().join(fed)
        self._spec = fed.plan.aggregator
        for round_ in range(1, fed.plan.rounds + 1):
            there = {self.sites[c] for c in fed.plan.sample(round_)}
            if len(there) < masks.FEWEST:
                raise ConfigError(
                    f"FED.SECURE_SUM: round {round_} draws clients of {len(there)} site(s), and a "
                    f"secure sum needs {masks.FEWEST}: connect more sites, or raise FED.FRAC"
                )

    def run(
        self, trainer: Trainer, make: MakeContext, downloads: Mapping[int, Tree],
        clients: Clients, accepted: Mapping[int, int],
    ) -> RoundWork:
        """See ``Engine.run``: the updates are one mean, as of each client that is in it.

        Raises:
            QuorumError: too few answered, or the masks do not fit each other.
            ConfigError: weights by similarity are too small for fixed point.
            DivergedError, DataError: as ``RemoteEngine.run``.
        """
        ctx, members = make(sorted(accepted)), self.members
        names = sorted(ctx.groups.shared)
        start = _alike([pick(downloads[c], names) for c in sorted(accepted)], names)
        job = RoundAnswers(ctx, downloads, dict(accepted), {}, self.policy, self.say)
        vector = vector_of(trainer, self._spec, ctx.round, _whole(ctx), start,
                           trainer.extra_forms(ctx, clients.blank))
        self._why.clear()
        attempt = self._agree(job)
        sent = self._masked(job, attempt, getattr(clients.store, "floor", {}), vector)
        for site in members.judge(accepted, job.guilty, self.policy.refusals):
            self.say(f"round {ctx.round}: {site} is excluded from now on")
        job.check(members)
        self._enough(job, sent, attempt.roster, "sent a sum")
        total = self._unmasked(job, attempt, sent, task_of(_whole(ctx), start))
        work = job.work(self.sites)
        there = [c for c in sorted(accepted) if members.home[c] in sent and c not in work.dropped]
        if there:
            first = {min(c for c in there if members.home[c] == s)
                     for s in {members.home[c] for c in there}}
            sizes = {n: tuple(size if c in first else 0 for c in there)
                     for n, size in vector.sizes().items()}
            told = vector.decode(total, len(sent), ctx.round)
            work.summed = _as_sent(trainer, there, start, told, sizes)
            work.versions = dict.fromkeys(there, ctx.round)
        return work

    # ---- questions ---------------------------------------------------------------------------
    def _agree(self, job: RoundAnswers) -> Attempt:
        """Let the sites exchange keys and shares; who does not is left out, with a new attempt."""
        able = self.members.askable(job.missing)
        job.why |= {c: f"{self.members.home[c]}: {silence('excluded')}"
                    for c in job.missing - set(able)}
        sites = sorted({self.members.home[c] for c in able})
        while True:
            attempt = secrets.token_hex(16)
            about = {"round": job.ctx.round, "attempt": attempt}
            offered = self._gather(job, {s: self.requests.of_run("keys", **about) for s in sites})
            roster = {s: {k: str(reply.values[k]) for k in KEYS} for s, reply in offered.items()}
            self._enough(job, roster, sites, "sent a key")
            shared = self._gather(job, {
                s: self.requests.of_run("share", **about, roster=roster) for s in roster
            })
            whole = {s: reply.values["shares"] for s, reply in shared.items()
                     if reply.values["shares"].keys() == roster.keys() - {s}}
            if whole.keys() == roster.keys():
                return Attempt(attempt, roster, whole)
            self._enough(job, whole, sites, "shared its keys")
            sites = sorted(whole)

    def _masked(
        self, job: RoundAnswers, attempt: Attempt, floor: Mapping[int, int], places: SumVector
    ) -> dict[str, np.ndarray]:
        """Let the sites work; return their masked sums."""
        home, count = self.members.home, len(places)
        versions = {c: v for c, v in job.accepted.items() if home[c] in attempt.roster}
        trips = self.requests.trips(
            "mask", job.ctx.round, versions, job.downloads, home, lambda ids: {
                "floor": {str(c): min(floor.get(c, 0), versions[c]) for c in ids},
                "attempt": attempt.name, "roster": attempt.roster, "whole": places.whole,
                "shares": attempt.sent_to(home[ids[0]]),
            })
        out: dict[str, np.ndarray] = {}
        for site, reply in self._gather(job, trips, 8 * count).items():
            ids = [int(c) for c in trips[site].values["accepted"]]
            vector = reply.trees[SUM].get(SUM)
            if vector is None or vector.dtype != torch.int64 or vector.shape != (count,):
                job.refuse_all(site, "its masked sum has the wrong shape", ids)
                continue
            job.settle(site, reply.values, ids)
            job.missing -= set(ids)
            out[site] = vector.numpy().view(np.uint64)
        return out

    def _unmasked(
        self, job: RoundAnswers, attempt: Attempt, sent: Mapping[str, np.ndarray], task: str
    ) -> np.ndarray:
        """Return the sum of what the sites sent, without masks.

        Args:
            task: what their masks are bound to beside the attempt (``task_of``).

        Raises:
            QuorumError: too few shares, or some that fit no secret.
        """
        round_, there = job.ctx.round, sorted(sent)
        replies = self._gather(job, {s: self.requests.of_run(
            "unmask", round=round_, attempt=attempt.name, roster=attempt.roster,
            shares=attempt.sent_to(s), there=there,
        ) for s in there})
        self._enough(job, replies, attempt.roster, "helped to unmask the sum")
        total = np.zeros_like(sent[there[0]])
        for site in there:
            total = total + sent[site]
        names = sorted(attempt.roster)
        words = words_of({"run": self.requests.run_id, "like": self.requests.like, "round": round_,
                          "attempt": attempt.name, "roster": attempt.roster})
        for name in names:
            kind = OWN if name in sent else KEY
            secret = _joined(replies, name, names)
            if secret is None or not _fits(secret, kind, attempt.roster[name]):
                raise QuorumError(
                    f"round {round_}: the shares of the secret of {name} do not fit: a site sent "
                    f"other shares than it was given; the state of round {round_ - 1} is kept; run "
                    "the same command again to continue"
                )
            if kind == OWN:
                total = total - masks.keystream(secret, len(total))
            else:
                publics = {s: bytes.fromhex(attempt.roster[s]["mask"]) for s in there}
                total = total + masks.pair_masks(secret, name, publics, len(total), *words, task)
        return total

    def _gather(
        self, job: RoundAnswers, frames: Mapping[str, Frame], most: int = 0
    ) -> dict[str, Frame]:
        """Ask sites, and those that neither answer nor refuse again, the same; return the answers.

        Args:
            most: bytes of an answer, beside a frame's own.
        """
        out: dict[str, Frame] = {}
        gone: set[str] = set()
        for attempt in self._attempts():
            left = {s: f for s, f in frames.items() if s not in out and s not in gone}
            for site, reply in self.requests.ask(left, end=False, most=SLACK + most).items():
                ids = [c for c in job.missing if self.members.home[c] == site]
                if isinstance(reply, str):
                    self._why[site] = reply
                    self._note_failure(job, site, reply, ids, attempt)
                    if isinstance(reply, Grave | Refusal):
                        gone.add(site)
                else:
                    out[site] = reply
            if len(out) + len(gone) == len(frames):
                break
        return out

    def _enough(
        self, job: RoundAnswers, there: Mapping[str, object],
        of: Sequence[str] | Mapping[str, object], what: str,
    ) -> None:
        """Hold an attempt to its threshold (``QuorumError``)."""
        need, round_ = masks.threshold(len(of)), job.ctx.round
        if len(there) < need:
            told = {site: why for site, why in self._why.items() if site not in there}
            why = join_reasons((
                f"{', '.join(sorted(s for s in told if told[s] == one))}: {one}"
                for one in told.values()), MOST_WORDS)
            refused = any(isinstance(one, Refusal) for one in told.values())
            raise QuorumError(
                f"round {round_}: {len(there)} of {len(of)} sites {what}, and a secure sum takes "
                f"{need} of them{f' ({why})' if why else ''}; the state of round {round_ - 1} is "
                "kept; " + ("waiting mends no refusal: do what the sites say, then " if refused
                            else "") + "run the same command again to continue"
            )


def _whole(ctx: Context) -> float:
    """Return the most that all clients of a round weigh together."""
    return float(len(ctx.clients) if ctx.weighting == UNIFORM else sum(ctx.sizes.tolist()))


def _as_sent(
    trainer: Trainer, clients: Sequence[int], home: Tree, told: Total,
    sizes: Mapping[str, tuple[int, ...]],
) -> Updates:
    """Return a sum as updates: of each client the mean move, and an equal part of other sums."""
    updates = of_each(clients, home, told.mean, sizes)
    if not told.own:
        return updates
    part = trainer.from_sums({n: v / len(clients) for n, v in told.own.items()})
    return replace(updates, extras=expand(part, len(clients)))


def _alike(trees: Sequence[Tree], names: Sequence[str]) -> Tree:
    """Return what all clients receive of some tensors (``FedvlmError``: not the same)."""
    first = trees[0]
    for tree in trees:
        if tree.keys() != {*names} or any(
            v is not first[n] and not torch.equal(v, first[n]) for n, v in tree.items()
        ):
            raise FedvlmError("FED.SECURE_SUM does not cover clients that receive unlike models")
    return first


def _joined(replies: Mapping[str, Frame], name: str, names: Sequence[str]) -> bytes | None:
    """Return a secret of the shares of it that came; None: they are of none."""
    shares = {names.index(site) + 1: masks.from_text(bytes.fromhex(reply.values["shares"][name]))[0]
              for site, reply in replies.items() if name in reply.values["shares"]}
    need = masks.threshold(len(names))
    if len(shares) < need:
        return None
    return masks.join_shares(dict(sorted(shares.items())[:need]))


def _fits(secret: bytes, kind: int, offer: Mapping[str, str]) -> bool:
    """Say whether a secret is the one that a site's public values are of."""
    if kind == OWN:
        return mark_of(secret) == offer["mark"]
    return masks.public_of(secret).hex() == offer["mask"]
