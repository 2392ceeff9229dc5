"""The server's side: an engine whose clients live at sites (``federation.engine.Engine``).

The loop stays the driver's; a round's work and the numbers of personal models are asked for by
frames. Of its clients the server keeps the versions that it accepted, and nothing else.
"""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from fedvlm.core.errors import ConfigError, DataError, DivergedError, QuorumError
from fedvlm.core.rows.away import AwayStore
from fedvlm.core.trees import Tree
from fedvlm.distributed.carriers import Carrier
from fedvlm.distributed.facts import facts, likeness, odd_facts
from fedvlm.distributed.policy import NOT_FINITE, Policy, outvoted, read_parts, weigh, without
from fedvlm.distributed.rows import odd_row, outvoted_rows
from fedvlm.distributed.schema import ANSWERS, numbered
from fedvlm.distributed.site import of_client
from fedvlm.distributed.wire import Frame, WireError, pack, unpack
from fedvlm.evaluation.scores import ABSENT
from fedvlm.federation.aggregation.arrival import Upload
from fedvlm.federation.clients import Clients
from fedvlm.federation.context import Context
from fedvlm.federation.engine import Bundle, MakeContext, RoundWork
from fedvlm.federation.reliability.unreliable import NO_ANSWER
from fedvlm.federation.rounds import Federation
from fedvlm.federation.server import Measure, Question, Roster, Row
from fedvlm.federation.trainer import Trainer

PAUSE = 0.2  # seconds between looks for sites that are not there yet


@dataclass
class RemoteEngine:
    """Clients at sites.

    Args:
        carrier: brings frames there and back.
        config: the run's, as far as it moves numbers (plain JSON values).
        chunk: clients stacked at once, at every site.
        policy: about sites that do not answer well.
        run_id: digest of this very run: sites keep its states under it.
        say: hears what went wrong, a sentence each.

    Attributes:
        home: the site of each client.
        counts: what the sites said of their clients' images.
        met, data: what each site said that it is; digests of its data.
        before: digest of the data of each client's site when the run began, where it goes on.
        sites: each client's site as a number, in the carrier's order.
        refusals: rounds in a row in which something of a site was refused.
        excluded: sites that are asked no more.
        readmitted: whom the coordinator took in again (``distributed.readmission``).
        silent: sites that the carrier brought no answer of, when it was asked last.
        failed: sites that did not answer well in the work or evaluation under way.
        traffic: bytes of frames, ``down`` and ``up``.
        tuning: seconds of each client's last final fine-tuning, as its site says.
        logits: of the newest measure that keeps them, as of ``ClientMeter.logits``, from the sites
            whose owners allow it.
    """

    carrier: Carrier
    config: Mapping[str, Any]
    chunk: int = 8
    policy: Policy = field(default_factory=Policy)
    run_id: str = field(default_factory=lambda: secrets.token_hex(16))
    say: Callable[[str], None] = lambda words: None
    home: dict[int, str] = field(default_factory=dict)
    counts: dict[int, dict[str, Any]] = field(default_factory=dict)
    met: dict[str, dict[str, str]] = field(default_factory=dict)
    data: dict[str, str] = field(default_factory=dict)
    before: dict[int, str] = field(default_factory=dict)
    sites: Sequence[int] = ()
    refusals: Counter[str] = field(default_factory=Counter)
    excluded: set[str] = field(default_factory=set)
    readmitted: list[dict[str, Any]] = field(default_factory=list)
    silent: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)
    traffic: Counter[str] = field(default_factory=Counter)
    tuning: dict[int, float] = field(default_factory=dict)
    logits: Tree = field(default_factory=dict)
    here: ClassVar[bool] = False
    remedy: ClassVar[str] = "; fedvlm readmit RUN CLIENT --anew goes on without it"
    _like: str = ""

    # ---- handshake ---------------------------------------------------------------------------
    def meet(
        self, clients: int, seconds: float = 60.0, before: Mapping[str, Mapping[str, Any]] = {},
    ) -> None:
        """Ask every site who it is, until all clients have a home.

        Args:
            before: what the sites told when the run began (``welcomes``). A site that told and is
                away now counts as it did; the quorum decides whether the run can go on without it.

        Raises:
            ConfigError: a site's config or data differ (it names the keys), two sites claim a
                client, or clients are nowhere after ``seconds``.
        """
        self._remember({site: told["data"] for site, told in before.items()},
                       {site: [int(c) for c in told["clients"]] for site, told in before.items()})
        until = time.monotonic() + seconds
        while True:
            hello = Frame("hello", {
                "run": self.run_id, "nonce": secrets.token_hex(8), "config": dict(self.config),
            })
            here = self.carrier.sites()
            for site, reply in self._ask({s: hello for s in here if s not in self.met}).items():
                if isinstance(reply, str):
                    raise ConfigError(f"site {site} cannot take part: {reply}")
                self._welcome(site, reply)
            lacking = sorted(set(range(clients)) - set(self.home))
            if not lacking:
                break
            if time.monotonic() >= until:
                self._count_absent(before)
                lacking = sorted(set(range(clients)) - set(self.home))
                if not lacking:
                    break
                raise ConfigError(
                    f"no site has clients {lacking[:8]}; there are {', '.join(self.met) or 'none'}"
                )
            time.sleep(PAUSE)
        beyond = sorted(c for c in self.home if c >= clients)
        if beyond:
            raise ConfigError(
                f"sites have clients {beyond[:8]}, and FED.CLIENTS {clients} are 0 to {clients - 1}"
            )
        first = [self.home[int(c)] for told in before.values() for c in told["clients"]
                 if int(c) in self.home]  # sums have the order of the run's beginning, always
        names = dict.fromkeys([*first, *self.carrier.sites(), *self.home.values()])
        order = {site: at for at, site in enumerate(names)}
        self.sites = tuple(order[self.home[c]] for c in range(clients))

    def _welcome(self, site: str, reply: Frame) -> None:
        self.met[site], self.data[site] = dict(reply.values["facts"]), reply.values["data"]
        for client, count in numbered(reply.values["clients"]).items():
            if client in self.home:
                raise ConfigError(f"sites {self.home[client]} and {site} both have client {client}")
            self.home[client], self.counts[client] = site, count
        self._compare(site)

    def _count_absent(self, before: Mapping[str, Mapping[str, Any]]) -> None:
        """Count the clients of sites that are away as they were counted before."""
        for name, told in before.items():
            counts, site = numbered(told["clients"]), name
            if counts.keys() & self.home.keys():
                continue
            while site in self.met or site in self.home.values():  # an address of that number is
                site += " (away)"  # another's now
            self.home |= dict.fromkeys(counts, site)
            self.counts |= counts
            self.data[site] = str(told["data"])
            self.say(f"{site} is away: clients {sorted(counts)[:8]} count as before")

    def welcomes(self) -> dict[str, dict[str, Any]]:
        """Return what each site told of itself, as JSON values (for ``meet``, later)."""
        at = dict(enumerate(self.sites))
        order = sorted(self.home, key=lambda c: at.get(c, 0))
        return {
            site: {"data": self.data[site], "clients": {
                str(c): self.counts[c] for c, home in sorted(self.home.items()) if home == site
            }} for site in dict.fromkeys(self.home[c] for c in order)
        }

    def roster(self) -> Roster:
        """Return what the sites say of their clients: counts, and nothing else."""
        ids = range(len(self.sites))
        train, val, test = (
            np.array([self.counts[c][n] for c in ids], np.int64) for n in ("train", "val", "test")
        )
        classes = np.zeros((len(ids), max(len(self.counts[c]["classes"]) for c in ids)), np.int64)
        for row, c in zip(classes, ids, strict=True):  # a site counts up to its last class
            row[: len(self.counts[c]["classes"])] = self.counts[c]["classes"]
        return Roster(train, val, test, classes, np.asarray(self.sites, np.int64))

    def join(self, fed: Federation) -> None:
        """Let the clients of ``fed`` be at the sites that were met.

        Raises:
            ConfigError: a site has other versions, tensors, classes or sizes; they are named.
        """
        fed.engine, fed.clients.store = self, AwayStore()
        fed.finetune_seconds = self.tuning
        ours, roster = self.facts(fed), self.roster()
        for site, theirs in self.met.items():
            odd = odd_facts(theirs, ours)
            if odd:
                raise ConfigError(f"site {site} cannot take part: it differs in {odd}")
        for n in ("train", "val", "test", "classes"):
            if not _alike(getattr(roster, n), getattr(fed.roster, n)):
                raise ConfigError(f"the sites count other images ({n}) than this run was told")
        fed.roster = replace(fed.roster, site=roster.site)
        self._like = likeness(self.config, ours)

    def facts(self, fed: Federation) -> dict[str, str]:
        """Return what a site has to have in common with ``fed``."""
        return facts(fed)

    # ---- work --------------------------------------------------------------------------------
    def run(
        self, trainer: Trainer, make: MakeContext, downloads: Mapping[int, Tree],
        clients: Clients, accepted: Mapping[int, int],
    ) -> RoundWork:
        """See ``Engine.run``; who does not answer is asked again, then the quorum decides.

        Raises:
            DivergedError: policy ``abort`` at a site.
            QuorumError: too few answered.
            DataError: a site has lost a state that was accepted.
        """
        ctx, job = make(sorted(accepted)), Round(downloads, dict(accepted))
        job.forms = trainer.extra_forms(ctx, clients.blank)
        floor = getattr(clients.store, "floor", {})
        self.failed.clear()
        for attempt in range(self.policy.retries + 1):
            if attempt:
                time.sleep(self.policy.wait)
            self._attempt(ctx, job, floor, attempt + 1)
            if not [c for c in job.missing if self.home[c] not in self.excluded]:
                break
        self._judge(ctx.round, job)
        if len(job.missing) > len(accepted) - self.policy.needed(len(accepted)):
            raise QuorumError(
                f"round {ctx.round}: {len(job.missing)} of {len(accepted)} clients did not answer "
                f"({_listing(job.why[c] for c in job.missing)}), and the quorum is "
                f"{self.policy.quorum:g}; the state of round {ctx.round - 1} is kept: the same "
                f"command goes on there{self._way_back(job.missing)}"
            )
        if not job.parts and job.is_distrusted():
            raise QuorumError(
                f"round {ctx.round}: of {len(accepted)} clients no update is left "
                f"({_listing(job.refused.values())}); the state of round {ctx.round - 1} is kept: "
                "the same command goes on there"
            )
        return job.work(ctx.round, self.sites)

    def _way_back(self, missing: Iterable[int]) -> str:
        """Return what helps where sites of those who are missing are asked no more."""
        gone = sorted(c for c in missing if self.home[c] in self.excluded)
        return f", once fedvlm readmit RUN {gone[0]} lets its site in again" if gone else ""

    def _attempt(
        self, ctx: Context, job: Round, floor: Mapping[int, int], attempt: int
    ) -> None:
        """Ask the sites of the clients that are missing, and take what is right."""
        job.why |= {c: f"{self.home[c]}: {silence('excluded')}" for c in job.missing
                    if self.home[c] in self.excluded}
        versions = {c: job.accepted[c] for c in job.missing if self.home[c] not in self.excluded}
        oldest = {c: min(floor.get(c, 0), v) for c, v in versions.items()}
        trips = self._trips("work", ctx.round, versions, job.downloads, lambda ids: {
            "floor": {str(c): oldest[c] for c in ids}, "seconds": float(self.policy.deadline),
        })
        replies = self._ask(trips)
        for site in trips:
            reply, ids = replies[site], [int(c) for c in trips[site].values["accepted"]]
            if isinstance(reply, str):
                self.failed.add(site)
                why = silence(reply) if site in self.silent else reply
                job.why |= dict.fromkeys(ids, f"{site}: {why}")
                self.say(f"round {ctx.round}, attempt {attempt}: {site}: {reply}")
                continue
            self._take(ctx, job, site, reply, ids)

    def _take(
        self, ctx: Context, job: Round, site: str, reply: Frame, ids: Sequence[int]
    ) -> None:
        """Take the updates of an answer that keep the contract."""
        values = reply.values
        for counters in (values["counters"], values["towers"]):
            job.counters.update(counters)
        parts, refused, foreign = read_parts(reply, ctx, job.downloads, ids, job.forms)
        told = numbered(values["dropped"])
        foreign += sorted(set(told) - set(ids))
        dropped = {c: why for c, why in told.items() if c in ids}  # others' are not its to drop
        if foreign:
            self.say(
                f"round {ctx.round}: {site} answers for clients {foreign[:8]}, for which it was "
                "not asked, or twice: ignored"
            )
            job.guilty.add(site)
        for part in parts:
            said = weigh(part, self.policy.max_norm, ctx)
            refused |= said
            rest = without(part, said)
            if rest is not None:
                job.parts.append((site, rest))
        job.refuse(site, refused)
        job.dropped |= {c: f"{site}: {why}" for c, why in dropped.items()}
        job.missing -= {*dropped, *refused, *(c for part in parts for c in part.clients)}

    def _judge(self, round_: int, job: Round) -> None:
        """Leave out what does not stack with most others; exclude who is refused all the time."""
        odd = outvoted([part for _, part in job.parts])
        for site in {self.home[c] for c in odd}:
            job.refuse(site, {c: why for c, why in odd.items() if self.home[c] == site})
        left = [(site, without(part, odd)) for site, part in job.parts]
        job.parts = [(site, part) for site, part in left if part is not None]
        for client, why in job.refused.items():
            self.say(f"round {round_}: the update of client {client} is refused ({why})")
        asked = {self.home[c] for c in job.accepted} - self.excluded
        for site in sorted(asked):
            self.refusals[site] = self.refusals[site] + 1 if site in job.guilty else 0
            if self.refusals[site] >= self.policy.refusals:
                self.excluded.add(site)
                self.say(
                    f"round {round_}: {site} is excluded from now on: refused "
                    f"{self.refusals[site]} rounds in a row"
                )

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
        """Return the rows of the model as it comes (``ClientMeter.template``)."""
        none: dict[int, Tree] = {c: {} for c in clients}
        return self._rows(Question(0, clients, none, dict.fromkeys(clients, 0)), measure,
                          "template")

    def _place(self, question: Question, missing: Sequence[int], model: str) -> None:
        """Choose who is asked for whom, where that can be chosen."""

    def _rows(self, question: Question, measure: Measure, model: str) -> list[Row]:
        plain = asdict(measure)
        if measure.keep_logits:
            self.logits = {}
        rows: dict[int, Row] = {}
        missing, why = set(question.clients), dict[int, str]()
        self.failed.clear()
        for attempt in range(self.policy.retries + 1):
            if attempt:
                time.sleep(self.policy.wait)
            self._place(question, sorted(missing), model)
            versions = {c: question.versions.get(c, 0) for c in missing
                        if self.home[c] not in self.excluded}
            trips = self._trips(
                "evaluate", question.round, versions, question.downloads,
                lambda ids: {"tune": question.tune, "model": model, "measure": plain},
            )
            for site, reply in self._ask(trips).items():
                ids = {int(c) for c in trips[site].values["accepted"]}
                if isinstance(reply, str):
                    self.failed.add(site)
                    why |= dict.fromkeys(ids, f"{site}: {reply}")
                    self.say(f"numbers of round {question.round}, {site}: {reply}")
                    continue
                odd = self._take_rows(rows, reply, ids, measure)
                if odd:
                    self.failed.add(site)
                    why |= {c: f"{site}: {words}" for c, words in odd.items()}
                    self.say(f"numbers of round {question.round}, {site}: {_by_client(odd)}")
                seconds = numbered(reply.values["seconds"])
                self.tuning |= {c: float(s) for c, s in seconds.items() if c in ids and s}
                self._take_logits(site, reply, ids, measure.keep_logits)
            missing -= rows.keys()
            if not [c for c in missing if self.home[c] not in self.excluded]:
                break
        lone = outvoted_rows(rows)
        if lone:
            self.say(f"numbers of round {question.round}: {_by_client(lone)}")
            why |= {c: f"{self.home[c]}: {words}" for c, words in lone.items()}
            rows, missing = {c: r for c, r in rows.items() if c not in lone}, missing | set(lone)
        total = len(question.clients)
        if len(missing) > total - self.policy.needed(total) or (missing and not rows):
            raise QuorumError(
                f"round {question.round}: no numbers of {len(missing)} of {total} clients "
                f"({_listing(why.get(c, f'{self.home[c]}: excluded') for c in missing)}), and the "
                f"quorum is {self.policy.quorum:g}; what was saved is kept, and the same command "
                f"goes on there{self._way_back(missing)}"
            )
        return [rows.get(c) or _absent(c, next(iter(rows.values()))) for c in question.clients]

    def _take_rows(
        self, rows: dict[int, Row], reply: Frame, ids: Collection[int], measure: Measure
    ) -> dict[int, str]:
        """Add the rows of an answer that can be true to ``rows``; return why others are not."""
        odd: dict[int, str] = {}
        for row in (row for row in reply.values["rows"] if row["client"] in ids):
            words = odd_row(row, int(self.counts[row["client"]][measure.split]), measure)
            if words:
                odd[row["client"]] = words
            else:
                rows[row["client"]] = row
        return odd

    def _take_logits(
        self, site: str, reply: Frame, ids: Collection[int], wanted: bool
    ) -> None:
        """Keep what a site's owner lets out of the logits that were asked for."""
        tree = reply.trees.get("logits", {})
        fine = {n: v for n, v in tree.items() if of_client(n) in ids
                and v.dim() == (2 if n.startswith("personal|") else 1)}
        if wanted and len(fine) == len(tree):
            self.logits |= fine
            if not fine:
                self.say(f"{site} keeps its logits: its owner does not allow them (rule 'logits')")
        elif tree:
            self.say(f"{site} sends logits that nobody asked for: ignored")

    def origin(self, clients: Sequence[int]) -> str:
        """See ``Engine.origin``."""
        each = {site: [c for c in clients if self.home[c] == site]
                for site in dict.fromkeys(self.home[c] for c in clients)}
        return " and ".join(
            f"{site} (clients {', '.join(map(str, ids[:8]))}{', ...' if ids[8:] else ''})"
            for site, ids in each.items()
        )

    # ---- memory ------------------------------------------------------------------------------
    def memory(self) -> dict[str, Any]:
        """Return what a checkpoint has to keep of the sites, as JSON values."""
        homes = {site: [c for c, home in sorted(self.home.items()) if home == site]
                 for site in self.data}
        return {
            "excluded": sorted(self.excluded), "refusals": dict(self.refusals),
            "data": dict(self.data), "clients": homes, "readmitted": list(self.readmitted),
        }

    def recall(self, memory: Mapping[str, Any]) -> None:
        """Go on with what a checkpoint kept; sites may have been met, or come later.

        A site is known again by its clients: carriers may have given it another name.

        Raises:
            ConfigError: a site has other data than before.
        """
        homes = memory.get("clients") or {
            site: [c for c, home in self.home.items() if home == site]
            for site in memory.get("data", {})
        }
        self._remember(memory.get("data", {}), homes)
        for site in self.met:
            self._compare(site)
        now = {site: self.home.get(ids[0], site) for site, ids in homes.items() if ids}
        self.excluded = {now.get(site, site) for site in memory.get("excluded", ())}
        self.refusals = Counter(
            {now.get(site, site): n for site, n in memory.get("refusals", {}).items()}
        )
        self.readmitted = list(memory.get("readmitted", ()))

    def _remember(
        self, data: Mapping[str, str], homes: Mapping[str, Sequence[int]]
    ) -> None:
        self.before |= {c: said for site, said in data.items() for c in homes.get(site, ())}

    def _compare(self, site: str) -> None:
        ours = [c for c, home in self.home.items() if home == site]
        if any(self.before.get(c, self.data[site]) != self.data[site] for c in ours):
            raise ConfigError(
                f"site {site} has other data than when this run began: put its old ones back, or "
                "begin a new run under another --tag"
            )

    # ---- frames ------------------------------------------------------------------------------
    def _trips(
        self, op: str, round_: int, versions: Mapping[int, int], downloads: Mapping[int, Tree],
        more: Callable[[Sequence[int]], dict[str, Any]],
    ) -> dict[str, Frame]:
        """Return a request for each site; what several clients receive travels there once.

        Args:
            more: values of a request for these clients.
        """
        out: dict[str, Frame] = {}
        for site in dict.fromkeys(self.home[c] for c in sorted(versions)):
            ids = [c for c in sorted(versions) if self.home[c] == site]
            refs: dict[tuple[tuple[str, int], ...], str] = {}
            trees, down = dict[str, Tree](), dict[str, str]()
            for c in ids:
                mark = tuple((n, id(v)) for n, v in downloads[c].items())
                down[str(c)] = ref = refs.setdefault(mark, str(len(refs)))
                trees[f"down/{ref}"] = downloads[c]
            out[site] = Frame(op, {
                "run": self.run_id, "like": self._like, "nonce": secrets.token_hex(8),
                "round": round_, "accepted": {str(c): versions[c] for c in ids}, "down": down,
                **more(ids),
            }, trees)
        return out

    def forget(self, keep: Mapping[int, int]) -> None:
        """Let the sites delete their clients' states but the versions named (0: all)."""
        frames = {}
        for site in sorted({self.home[c] for c in keep}):
            ids = [c for c in sorted(keep) if self.home[c] == site]
            frames[site] = Frame("forget", {
                "run": self.run_id, "like": self._like, "nonce": secrets.token_hex(8),
                "keep": {str(c): keep[c] for c in ids},
            })
        for site, reply in self._ask(frames).items():
            if isinstance(reply, str):
                self.say(f"{site} did not forget: {reply}")

    def _ask(self, frames: Mapping[str, Frame]) -> dict[str, Frame | str]:
        """Return each site's answer, or why there is none that fits.

        Raises:
            DivergedError, DataError: a failure at a site that ends the run.
        """
        sent = {site: pack(frame) for site, frame in frames.items()}
        self.traffic["down"] += sum(map(len, sent.values()))
        replies = self.carrier.ask(sent, self.policy.deadline) if sent else {}
        told = {site: replies.get(site, NO_ANSWER) for site in frames}
        self.silent = {site for site, data in told.items() if isinstance(data, str)}
        return {site: self._read(site, frames[site], data) for site, data in told.items()}

    def _read(self, site: str, asked: Frame, data: bytes | str) -> Frame | str:
        if isinstance(data, str):
            return data
        self.traffic["up"] += len(data)
        try:
            reply = unpack(data)
        except WireError as error:
            return str(error)
        values = reply.values
        if reply.op == "failed" and values["nonce"] in ("", asked.values["nonce"]):
            if values["kind"] == "diverged":
                raise DivergedError(f"{site}: {values['text']}")
            if values["kind"] == "lost":
                raise DataError(f"{site}: {values['text']}{self.remedy}")
            return str(values["text"])
        if values["nonce"] != asked.values["nonce"]:
            return "a late answer to another request"
        if reply.op != ANSWERS[asked.op] or values.get("round") != asked.values.get("round"):
            return "an answer to another question"
        return reply


@dataclass
class Round:
    """A round's work as far as it came in."""

    downloads: Mapping[int, Tree]
    accepted: dict[int, int]
    parts: list[tuple[str, Upload]] = field(default_factory=list)
    dropped: dict[int, str] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)
    why: dict[int, str] = field(default_factory=dict)
    guilty: set[str] = field(default_factory=set)
    counters: Counter[str] = field(default_factory=Counter)
    missing: set[int] = field(default_factory=set)
    forms: Tree | None = None

    def __post_init__(self) -> None:
        """Wait for everybody."""
        self.missing = set(self.accepted)

    def refuse(self, site: str, why: Mapping[int, str]) -> None:
        """Note whose updates are not taken."""
        self.refused |= {c: f"{site}: {words}" for c, words in why.items()}
        if why:
            self.guilty.add(site)

    def is_distrusted(self) -> bool:
        """Whether an answer was refused for more than numbers that are not finite."""
        return any(not why.endswith(NOT_FINITE) for why in self.refused.values())

    def work(self, round_: int, sites: Sequence[int]) -> RoundWork:
        """Return the round's work, parts in the order of the sites."""
        parts = sorted((part for _, part in self.parts), key=lambda part: sites[part.clients[0]])
        clients = [c for part in parts for c in part.clients]
        lost = {c: self.why.get(c, NO_ANSWER) for c in sorted(self.missing)}
        return RoundWork(
            dict.fromkeys(clients, round_), parts, self.dropped | self.refused | lost,
            self.counters,
        )


def silence(why: str) -> str:
    """Return the reason of who did not answer, as ``unreliable.kind_of`` reads it."""
    rest = why.removeprefix(NO_ANSWER).strip()
    return f"{NO_ANSWER}: {rest}" if rest else NO_ANSWER


def _alike(ours: np.ndarray, theirs: np.ndarray) -> bool:
    """Return whether counts are equal; classes that only one side has are without images."""
    wide = min(ours.shape[-1], theirs.shape[-1])
    beyond = ours[..., wide:].any() or theirs[..., wide:].any()
    same = np.array_equal(ours[..., :wide], theirs[..., :wide])
    return bool(len(ours) == len(theirs) and same and not beyond)


def _absent(client: int, like: Row) -> Row:
    """Return the row of a client whose site did not answer."""
    none: Row = dict.fromkeys(like)
    return none | {"client": client, "n": 0, "correct": 0, ABSENT: 1}


def _by_client(odd: Mapping[int, str]) -> str:
    """Return whose numbers are not taken, and why."""
    return _listing(f"no numbers of client {c}: {words}" for c, words in sorted(odd.items()))


def _listing(words: Iterable[str]) -> str:
    return "; ".join(sorted(set(words)))[:300]


