"""The driver of a pool: it plans the chunks, and deals them whole to the workers that are there.

A chunk's bits depend on its clients alone, so neither the number of workers nor the death of one
moves any. Who does not answer is replaced by another worker, from the same accepted versions.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fedvlm.core.errors import ConfigError, FedvlmError
from fedvlm.core.rows.away import AwayStore
from fedvlm.core.spelling import site_words
from fedvlm.core.trees import Tree, nbytes
from fedvlm.distributed.facts import odd_facts
from fedvlm.distributed.schema import by_number
from fedvlm.distributed.server.membership import Membership
from fedvlm.distributed.server.remote import RemoteEngine
from fedvlm.distributed.server.work import RoundAnswers
from fedvlm.distributed.wire import Frame
from fedvlm.federation.clients import Clients, joint_form
from fedvlm.federation.engine import Bundle, MakeContext, RoundWork
from fedvlm.federation.plan import Chunk, plan_chunks
from fedvlm.federation.rounds import Federation
from fedvlm.federation.server import Question
from fedvlm.federation.trainer import Trainer

COST = 16  # samples that a client's bookkeeping is worth
ANSWER = 1 << 28  # bytes of personal models in an answer


class _Personal(NamedTuple):
    """A chunk's personal models, and the form of what its clients hold and receive."""

    form: str
    bundle: Bundle


class PoolMembership(Membership):
    """Workers of a pool: each has all clients; ``home`` is who is asked for a client next."""

    def welcome(self, site: str, values: Mapping[str, Any], key: str = "") -> None:
        """See ``Membership.welcome`` (``ConfigError``: the worker counts other images)."""
        counts = by_number(values["clients"])
        if self.counts and counts != self.counts:
            raise ConfigError(f"{site_words(site)} cannot take part: it has different images than "
                              "the others")
        self.met[site], self.data[site] = dict(values["facts"]), values["data"]
        self.counts = counts
        self.home = dict.fromkeys(counts, site)

    def memory(self) -> dict[str, Any]:
        """See ``Membership.memory``: a run that goes on has other workers."""
        return {}

    def recall(self, memory: Mapping[str, Any]) -> None:
        """See ``Membership.recall``."""


@dataclass
class PoolEngine(RemoteEngine):
    """Clients at a pool of workers; see ``RemoteEngine``.

    Attributes:
        layout: the site of each client as the config has it (``FED.SITES``).
    """

    remedy: str = ""  # a simulation has all states, or begins anew
    members: Membership = field(default_factory=PoolMembership)
    layout: Sequence[int] = ()
    _fed: Federation | None = None
    _forms: dict[int, str] = field(default_factory=dict)  # told in this round
    _cleaned: dict[int, int] = field(default_factory=dict)

    def meet(
        self, clients: int, seconds: float = 60.0, before: Mapping[str, Mapping[str, Any]] = {},
    ) -> None:
        """See ``RemoteEngine.meet``."""
        super().meet(clients, seconds)
        self.members.sites = tuple(self.layout)

    def _turn_away(self, site: str, why: FedvlmError, known: bool) -> None:
        """See ``RemoteEngine._turn_away``: the carrier replaces a worker that is gone."""
        if site not in self.requests.silent:
            raise why
        self.say(str(why))

    def join(self, fed: Federation) -> None:
        """See ``RemoteEngine.join``; states that ``fed`` knows of stay known."""
        if not isinstance(fed.clients.store, AwayStore):
            fed.clients.store = AwayStore(None)
        super().join(fed)
        self._fed = fed

    def workers(self) -> list[str]:
        """Return the workers to ask now, new ones met first (``FedvlmError``: none is left)."""
        members, here = self.members, self.carrier.sites()
        strangers = [s for s in here if s not in members.met and s not in members.excluded]
        facts_of = next(iter(members.met.values()), {})
        hello = {s: self.requests.hello(self.config) for s in strangers}
        for site, reply in self.requests.ask(hello).items():
            odd = reply if isinstance(reply, str) else odd_facts(reply.values["facts"], facts_of)
            if isinstance(reply, str) or odd:
                self.say(f"{site} cannot take part: {odd}")
                members.excluded.add(site)
            else:
                members.welcome(site, reply.values)
        live = [s for s in here if s in members.met and s not in members.excluded]
        if not live:
            raise FedvlmError("no worker is left; the same command resumes the run")
        return live

    def _fit(self) -> list[str]:
        """Return who is asked next: who did not fail in this job, or all where everybody did."""
        live = self.workers()
        return [site for site in live if site not in self._failed] or live

    # ---- work --------------------------------------------------------------------------------
    def run(
        self, trainer: Trainer, make: MakeContext, downloads: Mapping[int, Tree],
        clients: Clients, accepted: Mapping[int, int],
    ) -> RoundWork:
        """See ``RemoteEngine.run``."""
        self._forms, store = {}, clients.store
        self._clean(store)
        work = super().run(trainer, make, downloads, clients, accepted)
        if isinstance(store, AwayStore):
            for client, version in work.versions.items():
                store.note_forms(version, {client: self._forms[client]})
        return work

    def _place_work(self, job: RoundAnswers) -> None:
        chunks = self._chunks(sorted(job.missing), job.accepted, job.downloads)
        self._deal(chunks, self._fit())

    def _take(self, job: RoundAnswers, site: str, reply: Frame, ids: Sequence[int]) -> None:
        super()._take(job, site, reply, ids)
        said = reply.values["dropped"]  # without the worker's name: which it was, does not matter
        job.dropped |= {c: said[str(c)] for c in ids if str(c) in said}
        for part in reply.values["parts"]:
            self._forms |= dict.fromkeys(part["clients"], part["form"])

    def _place_rows(self, question: Question, missing: Sequence[int], model: str) -> None:
        """Deal an evaluation: by chunks where each has models of its own, else to one worker.

        Models that are equal are measured as one, which remembers what it said of a sample: last
        bits of its confidence come from the order of all clients.
        """
        fed, live = self._federation(), self._fit()
        personal = bool(fed.groups.personal) or (
            type(fed.trainer).personalize is not Trainer.personalize)
        everybody = all(question.versions.get(c, 0) for c in question.clients)
        tuned = question.tune and bool(fed.roster.train[list(question.clients)].all())
        if model == "template" or not (tuned or (personal and everybody)):
            self.members.home |= dict.fromkeys(missing, live[0])
            return
        chunks = self._chunks(missing, question.versions, question.downloads)
        self._deal(chunks, live)

    # ---- models ------------------------------------------------------------------------------
    def models(self, question: Question, here: Callable[[], Iterator[Bundle]]) -> Iterator[Bundle]:
        """See ``Engine.models``: made by the workers, in the order of the local engine.

        It sorts by forms of states and downloads together, which the workers tell with the first
        chunk of each.

        Raises:
            FedvlmError: no worker answers well.
        """
        groups: dict[tuple[int, str], list[Chunk]] = {}
        for chunk in self._chunks(question.clients, question.versions, question.downloads):
            groups.setdefault((chunk.site, chunk.form), []).append(chunk)
        heads = [group[0] for group in groups.values()]
        first = self._personalized(question, heads)
        model = sum(nbytes(self._federation().p0).values())
        for head in sorted(heads, key=lambda chunk: (chunk.site, first[chunk.clients].form)):
            yield first[head.clients].bundle
            rest, each = groups[head.site, head.form][1:], ANSWER // (model * len(head.clients) + 1)
            while rest:
                wave = rest[: max(1, each) * len(self.workers())]
                models = self._personalized(question, wave)
                yield from (models[chunk.clients].bundle for chunk in wave)
                rest = rest[len(wave) :]

    def _personalized(
        self, question: Question, chunks: Sequence[Chunk]
    ) -> dict[tuple[int, ...], _Personal]:
        """Return the models of some chunks; who does not answer well is replaced by others."""
        out: dict[tuple[int, ...], _Personal] = {}
        why = list[str]()
        for _ in self._attempts():
            rest = [chunk for chunk in chunks if chunk.clients not in out]
            self._deal(rest, self._fit())
            trips = self.requests.trips(
                "personalize", question.round,
                {c: question.versions.get(c, 0) for chunk in rest for c in chunk.clients},
                question.downloads, self.members.home, lambda ids: {"tune": question.tune},
            )
            for site, reply in self.requests.ask(trips).items():
                if isinstance(reply, str):
                    self._failed.add(site)
                    why.append(f"{site}: {reply}")
                    self.say(f"personal models of round {question.round}, {site}: {reply}")
                    continue
                out |= {
                    tuple(part["clients"]): _Personal(
                        part["form"], (part["clients"], reply.trees[f"model/{p}"], part["images"])
                    ) for p, part in enumerate(reply.values["parts"])
                }
            if all(chunk.clients in out for chunk in chunks):
                return out
        raise FedvlmError(
            f"no worker computed the personal models of round {question.round} ({'; '.join(why)}); "
            "saved rounds are kept; the same command resumes there"
        )

    # ---- chunks ------------------------------------------------------------------------------
    def _chunks(
        self, ids: Sequence[int], versions: Mapping[int, int], downloads: Mapping[int, Tree]
    ) -> list[Chunk]:
        """Return the chunks of the local engine."""
        fed = self._federation()
        forms = [
            f"{joint_form(downloads[c], ())} {self._form(fed.clients, c, versions.get(c, 0))}"
            for c in ids
        ]
        sites = [self.layout[c] if self.layout else 0 for c in ids]
        sizes = [int(fed.roster.train[c]) for c in ids]
        return plan_chunks(ids, sizes, sites, forms, self.chunk if fed.trainer.batched else 1)

    def _form(self, clients: Clients, client: int, version: int) -> str:
        if version and isinstance(clients.store, AwayStore):
            return clients.store.form_name(client, version)
        return clients.forms([client], {}, {client: {}})[0]

    def _deal(self, chunks: Sequence[Chunk], live: Sequence[str]) -> None:
        """Give each chunk to the worker with the least to do, the greatest first."""
        train = self._federation().roster.train
        costs = [sum(int(train[c]) + COST for c in chunk.clients) for chunk in chunks]
        load = [(0, at) for at in range(len(live))]
        for k in sorted(range(len(chunks)), key=lambda k: -costs[k]):
            spent, at = heapq.heappop(load)
            self.members.home |= dict.fromkeys(chunks[k].clients, live[at])
            heapq.heappush(load, (spent + costs[k], at))

    def _clean(self, store: object) -> None:
        """Let one worker delete what no checkpoint can go back to, while nobody else works."""
        floor = dict(getattr(store, "floor", {}))
        moved = {c: v for c, v in floor.items() if self._cleaned.get(c, 0) != v}
        if not moved:
            return
        site = self._fit()[0]
        reply = self.requests.ask({site: self.requests.forget(moved)})[site]
        if isinstance(reply, str):
            self.say(f"{site} did not forget: {reply}")
        else:
            self._cleaned = floor

    def _federation(self) -> Federation:
        if self._fed is None:
            raise FedvlmError("the worker pool was used before a run joined it")
        return self._fed

