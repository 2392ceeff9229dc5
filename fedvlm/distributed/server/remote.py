"""The server's side: an engine whose clients live at sites (``federation.engine.Engine``).

The loop stays the server's; a round's work and the numbers of personal models are asked for by
frames. Of its clients the server keeps the versions that it accepted, and nothing else.
"""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from fedvlm.core.errors import ConfigError, FedvlmError
from fedvlm.core.rows.away import AwayStore
from fedvlm.core.spelling import site_words
from fedvlm.core.trees import Tree
from fedvlm.distributed.carriers import Carrier
from fedvlm.distributed.facts import CLASSES, facts, likeness, odd_facts
from fedvlm.distributed.schema import by_number
from fedvlm.distributed.server.membership import Membership
from fedvlm.distributed.server.policy import Policy
from fedvlm.distributed.server.requests import Grave, Requests
from fedvlm.distributed.server.rows import RowAnswers, most_row_bytes
from fedvlm.distributed.server.work import RoundAnswers, silence
from fedvlm.distributed.wire import Frame
from fedvlm.federation.clients import Clients
from fedvlm.federation.engine import Bundle, MakeContext, RoundWork
from fedvlm.federation.rounds import Federation
from fedvlm.federation.server import Measure, Question, Row
from fedvlm.federation.trainer import Trainer

PAUSE = 0.2  # seconds between looks for sites that are not connected yet
REMEDY = "; fedvlm readmit RUN CLIENT --anew continues without it"


@dataclass
class RemoteEngine:
    """Clients at sites.

    Args:
        carrier: brings frames there and back.
        config: the run's, as far as it moves numbers (plain JSON values).
        chunk: clients stacked at once, at every site.
        policy: about sites that do not answer well.
        run_id: digest of this very run: sites keep its states under it.
        say: hears what went wrong, a message each.
        beside: facts of the job that a site must share, too (``job.sites.party.shared_facts``).
        remedy: what helps where a site has lost a state.

    Attributes:
        members: the sites and their clients.
        requests: what is sent to them.
        tuning: seconds of each client's last final fine-tuning, as its site says.
        logits: of the newest measure that keeps them, as of ``ClientMeter.logits``, from the sites
            whose owners allow it.
        sums: bytes of single sites' own sums that came, by name (``server.baselines``).
        baselined: baselines of which a client's numbers came, also where others' did not.
    """

    carrier: Carrier
    config: Mapping[str, Any]
    chunk: int = 8
    policy: Policy = field(default_factory=Policy)
    run_id: str = field(default_factory=lambda: secrets.token_hex(16))
    say: Callable[[str], None] = lambda words: None
    beside: Mapping[str, str] = field(default_factory=dict)
    remedy: str = REMEDY
    members: Membership = field(default_factory=Membership)
    tuning: dict[int, float] = field(default_factory=dict)
    logits: Tree = field(default_factory=dict)
    sums: Counter[str] = field(default_factory=Counter)
    baselined: set[str] = field(default_factory=set)
    requests: Requests = field(init=False)
    here: ClassVar[bool] = False
    _failed: set[str] = field(default_factory=set)  # in the work or evaluation under way

    def __post_init__(self) -> None:
        """Prepare the requests."""
        self.requests = Requests(self.carrier, self.run_id, self.policy.deadline, self.remedy)

    @property
    def sites(self) -> Sequence[int]:
        """See ``Engine.sites``."""
        return self.members.sites

    @property
    def traffic(self) -> Counter[str]:
        """Bytes of frames, ``down`` and ``up``."""
        return self.requests.traffic

    # ---- handshake ---------------------------------------------------------------------------
    def meet(
        self, clients: int, seconds: float = 60.0, before: Mapping[str, Mapping[str, Any]] = {},
    ) -> None:
        """Ask every site who it is, until all clients have a home.

        Args:
            before: what the sites told when the run began (``Membership.welcomes``). A site that
                told and is away now counts as it did; the quorum decides whether the run can go on
                without it. With a quorum below 1 so does one that fits no more.

        Raises:
            ConfigError: a site's config or data differ (it names the keys), two sites claim a
                client, or clients are nowhere after ``seconds``.
        """
        members, until = self.members, time.monotonic() + seconds
        members.bound |= {int(c): str(told["key"]) for told in before.values()
                          for c in told["clients"] if told.get("key")}
        members.remember({site: told["data"] for site, told in before.items()},
                         {site: [int(c) for c in told["clients"]] for site, told in before.items()})
        while True:
            hello = self.requests.hello(self.config)
            strangers = [s for s in self.carrier.sites() if s not in members.met.keys() |
                         members.shut]
            told = self.requests.ask(dict.fromkeys(strangers, hello), end=False)
            for site, reply in told.items():
                try:
                    if isinstance(reply, Grave):
                        raise reply.error
                    if isinstance(reply, str):
                        raise ConfigError(f"{site_words(site)} cannot take part: {reply}")
                    members.welcome(site, reply.values, self.carrier.key(site))
                except FedvlmError as error:
                    self._turn_away(site, error, bool(before))
            late = time.monotonic() >= until
            if late and set(range(clients)) - set(members.home):
                members.count_absent(before, self.say)
            lacking = sorted(set(range(clients)) - set(members.home))
            if not lacking:
                break
            if late:
                raise ConfigError(
                    f"no site has clients {lacking[:8]}; there are "
                    f"{', '.join(members.met) or 'none'}"
                )
            time.sleep(PAUSE)
        members.number(clients, before, self.carrier.sites())

    def _turn_away(self, site: str, why: FedvlmError, known: bool) -> None:
        """Go on without a site that does not fit, or end the start.

        Args:
            known: whether its clients' counts are, of when the run began.
        """
        if not known or self.policy.quorum == 1:
            raise why
        self.members.shut.add(site)
        self.say(f"{why}: it takes no part in this session")

    def join(self, fed: Federation) -> None:
        """Let the clients of ``fed`` be at the sites that were met.

        Raises:
            ConfigError: a site has other versions, tensors, classes or sizes; they are named.
        """
        fed.engine = self
        if not isinstance(fed.clients.store, AwayStore):  # else a checkpoint told of the clients
            fed.clients.store = AwayStore()
        fed.finetune_seconds = self.tuning
        ours, roster = facts(fed) | dict(self.beside), self.members.roster()
        for site, theirs in self.members.met.items():
            odd = odd_facts(theirs, ours)
            if odd:
                known = any(home == site and c in self.members.before
                            for c, home in self.members.home.items())
                self._turn_away(site, ConfigError(
                    f"{site_words(site)} cannot take part: it differs in {odd}{_hint(odd)}"), known)
        for n in ("train", "val", "test", "classes"):
            if not _same_counts(getattr(roster, n), getattr(fed.roster, n)):
                raise ConfigError(f"the sites now report other image counts ({n}) than at the "
                                  "start of this run")
        fed.roster = replace(fed.roster, site=roster.site)
        self.requests.like = likeness(self.config, ours)

    # ---- work --------------------------------------------------------------------------------
    def run(
        self, trainer: Trainer, make: MakeContext, downloads: Mapping[int, Tree],
        clients: Clients, accepted: Mapping[int, int],
    ) -> RoundWork:
        """See ``Engine.run``; sites that do not answer are asked again, then the quorum decides.

        Raises:
            DivergedError: policy ``abort`` at a site without which too few are left.
            QuorumError: too few answered.
            DataError: such a site has lost a state that was accepted.
        """
        ctx, members = make(sorted(accepted)), self.members
        job = RoundAnswers(ctx, downloads, dict(accepted), trainer.extra_forms(ctx, clients.blank),
                           self.policy, self.say)
        floor = getattr(clients.store, "floor", {})
        for attempt in self._attempts():
            self._place_work(job)
            self._attempt(job, floor, attempt)
            if not members.askable(job.missing):
                break
        job.compare(members.home)
        for site in members.judge(accepted, job.guilty, self.policy.refusals):
            self.say(f"round {ctx.round}: {site} is excluded from now on: refused "
                     f"{members.refusals[site]} rounds in a row")
        job.check(members)
        return job.work(self.sites)

    def _attempts(self) -> Iterator[int]:
        """Yield 1, 2, ..., with a wait before each but the first, as often as is asked."""
        self._failed.clear()
        for attempt in range(self.policy.retries + 1):
            if attempt:
                time.sleep(self.policy.wait)
            yield attempt + 1

    def _attempt(self, job: RoundAnswers, floor: Mapping[int, int], attempt: int) -> None:
        """Ask the sites of the clients that are missing, and take what is right."""
        home, able = self.members.home, self.members.askable(job.missing)
        job.why |= {c: f"{home[c]}: {silence('excluded')}" for c in job.missing - set(able)}
        versions = {c: job.accepted[c] for c in able}
        oldest = {c: min(floor.get(c, 0), v) for c, v in versions.items()}
        trips = self.requests.trips(
            "work", job.ctx.round, versions, job.downloads, home, lambda ids: {
                "floor": {str(c): oldest[c] for c in ids}, "seconds": float(self.policy.deadline),
            })
        for site, reply in self.requests.ask(
            trips, end=False, most=job.most_bytes()
        ).items():
            ids = [int(c) for c in trips[site].values["accepted"]]
            if isinstance(reply, str):
                self._note_failure(job, site, reply, ids, attempt)
            else:
                self._take(job, site, reply, ids)

    def _note_failure(
        self, job: RoundAnswers, site: str, why: str, ids: Sequence[int], attempt: int
    ) -> None:
        """Keep, for clients of a site, why an attempt has no answer for them."""
        if isinstance(why, Grave):
            job.fail(site, why, ids)
            return
        self._failed.add(site)
        words = silence(why) if site in self.requests.silent else why
        job.why |= dict.fromkeys(ids, f"{site}: {words}")
        self.say(f"round {job.ctx.round}, attempt {attempt}: {site}: {why}")

    def _take(self, job: RoundAnswers, site: str, reply: Frame, ids: Sequence[int]) -> None:
        job.take(site, reply, ids)

    def _place_work(self, job: RoundAnswers) -> None:
        """Choose which site is asked for which client, where that can be chosen."""

    # ---- evaluation --------------------------------------------------------------------------
    def rows(
        self, question: Question, measure: Measure, here: Callable[[], Iterable[Row]]
    ) -> Iterable[Row]:
        """See ``Engine.rows``: from the sites; logits stay there.

        Raises:
            QuorumError: too few answered.
        """
        return self._rows(question, measure, "personal")

    def models(self, question: Question, here: Callable[[], Iterator[Bundle]]) -> Iterator[Bundle]:
        """See ``Engine.models``: they stay at their sites."""
        yield from ()

    def template(self, measure: Measure, clients: Sequence[int]) -> list[Row]:
        """Return the rows of the model without training (``ClientMeter.template``)."""
        none: dict[int, Tree] = {c: {} for c in clients}
        return self._rows(Question(0, clients, none, dict.fromkeys(clients, 0)), measure,
                          "template")

    def _place_rows(self, question: Question, missing: Sequence[int], model: str) -> None:
        """As ``_place_work``, for an evaluation."""

    def _rows(self, question: Question, measure: Measure, model: str) -> list[Row]:
        plain, members = measure.plain(), self.members
        job = RowAnswers(question, measure, members, self.say)
        for _ in self._attempts():
            self._place_rows(question, sorted(job.missing), model)
            left = members.askable(job.missing - job.grave.keys())
            versions = {c: question.versions.get(c, 0) for c in left}
            trips = self.requests.trips(
                "evaluate", question.round, versions, question.downloads, members.home,
                lambda ids: {"tune": question.tune, "model": model, "measure": plain},
            )
            most = most_row_bytes(measure, len(left), members.widest())
            for site, reply in self.requests.ask(trips, end=False, most=most).items():
                ids = {int(c) for c in trips[site].values["accepted"]}
                if not job.take(site, reply, ids):
                    self._failed.add(site)
                if not isinstance(reply, str):
                    seconds = by_number(reply.values["seconds"])
                    self.tuning |= {c: float(s) for c, s in seconds.items() if c in ids and s}
            if not members.askable(job.missing - job.grave.keys()):
                break
        if measure.keep_logits:
            self.logits = job.logits
        return job.finish(self.policy)

    def origin(self, clients: Sequence[int]) -> str:
        """See ``Engine.origin``."""
        return self.members.origin(clients)

    # ---- memory ------------------------------------------------------------------------------
    def memory(self) -> dict[str, Any]:
        """See ``Engine.memory``."""
        return self.members.memory()

    def recall(self, memory: Mapping[str, Any]) -> None:
        """See ``Engine.recall``.

        Raises:
            ConfigError: a site has other data than before.
        """
        self.members.recall(memory)

    def forget(self, keep: Mapping[int, int]) -> None:
        """Let the sites delete their clients' states but the versions named (0: all)."""
        home = self.members.home
        frames = {site: self.requests.forget({c: keep[c] for c in sorted(keep) if home[c] == site})
                  for site in sorted({home[c] for c in keep})}
        for site, reply in self.requests.ask(frames, end=False).items():
            if isinstance(reply, str):
                self.say(f"{site} did not forget: {reply}")


def _hint(odd: str) -> str:
    """Return what to do about facts that differ, where classes do: other facts follow from them."""
    return (": make its site file with the list of --classes that the coordinator's was made with, "
            "the same names in the same order") if CLASSES in odd else ""


def _same_counts(ours: np.ndarray, theirs: np.ndarray) -> bool:
    """Return whether counts are equal; classes that only one side has are without images."""
    wide = min(ours.shape[-1], theirs.shape[-1])
    beyond = ours[..., wide:].any() or theirs[..., wide:].any()
    same = np.array_equal(ours[..., :wide], theirs[..., :wide])
    return bool(len(ours) == len(theirs) and same and not beyond)
