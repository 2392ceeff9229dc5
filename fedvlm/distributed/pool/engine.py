"""The driver of a pool: it plans the chunks, and deals them whole to the workers that are there.

A chunk's bits depend on its clients alone, so neither the number of workers nor the death of one
moves any. Who does not answer is replaced by another worker, from the same accepted versions.
"""

from __future__ import annotations

import heapq
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

from fedvlm.core.errors import ConfigError, FedvlmError
from fedvlm.core.rows.away import AwayStore
from fedvlm.core.trees import Tree, nbytes
from fedvlm.distributed.facts import odd_facts
from fedvlm.distributed.remote import RemoteEngine, Round
from fedvlm.distributed.wire import Frame
from fedvlm.federation.clients import Clients, joint_form
from fedvlm.federation.context import Context
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


@dataclass
class PoolEngine(RemoteEngine):
    """Clients at a pool of workers; see ``RemoteEngine``.

    Attributes:
        layout: the site of each client as the config has it (``FED.SITES``).
        beside: facts of the job, as of ``PoolSite``: workers that read other images, or compute on
            another kind of device, cannot take part.
    """

    remedy: ClassVar[str] = ""  # a simulation has them all, or begins anew
    layout: Sequence[int] = ()
    beside: Mapping[str, str] = field(default_factory=dict)
    _fed: Federation | None = None
    _forms: dict[int, str] = field(default_factory=dict)  # told in this round
    _cleaned: dict[int, int] = field(default_factory=dict)

    # ---- handshake ---------------------------------------------------------------------------
    def meet(
        self, clients: int, seconds: float = 60.0, before: Mapping[str, Mapping[str, Any]] = {},
    ) -> None:
        """See ``RemoteEngine.meet``: every worker that is there has all clients."""
        super().meet(clients, seconds)
        self.sites = tuple(self.layout)

    def _welcome(self, site: str, reply: Frame) -> None:
        counts = {int(c): count for c, count in reply.values["clients"].items()}
        if self.counts and counts != self.counts:
            raise ConfigError(f"site {site} cannot take part: it counts other images than others")
        self.met[site], self.data[site] = dict(reply.values["facts"]), reply.values["data"]
        self.counts = counts
        self.home = dict.fromkeys(counts, site)

    def join(self, fed: Federation) -> None:
        """See ``RemoteEngine.join``; states that ``fed`` knows of stay known."""
        store = fed.clients.store
        super().join(fed)
        fed.clients.store = store if isinstance(store, AwayStore) else AwayStore(None)
        self._fed = fed

    def facts(self, fed: Federation) -> dict[str, str]:
        """See ``RemoteEngine.facts``."""
        return super().facts(fed) | dict(self.beside)

    def memory(self) -> dict[str, Any]:
        """See ``Engine.memory``: a run that goes on has other workers."""
        return {}

    def recall(self, memory: Mapping[str, Any]) -> None:
        """See ``Engine.recall``."""

    def workers(self) -> list[str]:
        """Return who can be asked now; newcomers (a worker begun again) are met first.

        Raises:
            FedvlmError: nobody is left.
        """
        here = self.carrier.sites()
        strangers = [s for s in here if s not in self.met and s not in self.excluded]
        hello = {s: Frame("hello", {
            "run": self.run_id, "nonce": secrets.token_hex(8), "config": dict(self.config),
        }) for s in strangers}
        facts_of = next(iter(self.met.values()), {})
        for site, reply in self._ask(hello).items():
            odd = reply if isinstance(reply, str) else odd_facts(reply.values["facts"], facts_of)
            if isinstance(reply, str) or odd:
                self.say(f"{site} cannot take part: {odd}")
                self.excluded.add(site)
            else:
                self._welcome(site, reply)
        live = [s for s in here if s in self.met and s not in self.excluded]
        if not live:
            raise FedvlmError("no worker is left that could be asked; the same command goes on")
        return live

    def _fit(self) -> list[str]:
        """Return who is asked next: who did not fail in this job, or all where everybody did."""
        live = self.workers()
        return [site for site in live if site not in self.failed] or live

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

    def _attempt(
        self, ctx: Context, job: Round, floor: Mapping[int, int], attempt: int
    ) -> None:
        ids = sorted(job.missing)
        self._deal(self._chunks(ids, job.accepted, job.downloads), self._fit())
        super()._attempt(ctx, job, floor, attempt)

    def _take(
        self, ctx: Context, job: Round, site: str, reply: Frame, ids: Sequence[int]
    ) -> None:
        super()._take(ctx, job, site, reply, ids)
        said = reply.values["dropped"]  # without the worker's name: who it was, does not matter
        job.dropped |= {c: said[str(c)] for c in ids if str(c) in said}
        for part in reply.values["parts"]:
            self._forms |= dict.fromkeys(part["clients"], part["form"])

    def _place(self, question: Question, missing: Sequence[int], model: str) -> None:
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
            self.home |= dict.fromkeys(missing, live[0])
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
        self.failed.clear()
        for attempt in range(self.policy.retries + 1):
            if attempt:
                time.sleep(self.policy.wait)
            rest = [chunk for chunk in chunks if chunk.clients not in out]
            self._deal(rest, self._fit())
            trips = self._trips(
                "personalize", question.round,
                {c: question.versions.get(c, 0) for chunk in rest for c in chunk.clients},
                question.downloads, lambda ids: {"tune": question.tune},
            )
            for site, reply in self._ask(trips).items():
                if isinstance(reply, str):
                    self.failed.add(site)
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
            f"no worker makes the personal models of round {question.round} ({'; '.join(why)}); "
            "what was saved is kept, and the same command goes on there"
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
            self.home |= dict.fromkeys(chunks[k].clients, live[at])
            heapq.heappush(load, (spent + costs[k], at))

    def _clean(self, store: object) -> None:
        """Let one worker delete what no checkpoint can go back to, while nobody else works."""
        floor = dict(getattr(store, "floor", {}))
        moved = {c: v for c, v in floor.items() if self._cleaned.get(c, 0) != v}
        if not moved:
            return
        frame = Frame("forget", {
            "run": self.run_id, "like": self._like, "nonce": secrets.token_hex(8),
            "keep": {str(c): v for c, v in moved.items()},
        })
        site = self._fit()[0]
        reply = self._ask({site: frame})[site]
        if isinstance(reply, str):
            self.say(f"{site} did not forget: {reply}")
        else:
            self._cleaned = floor

    def _federation(self) -> Federation:
        if self._fed is None:
            raise FedvlmError("a pool is asked before a run has joined it")
        return self._fed

