"""A site: the clients whose data lie here. It answers frames; how they come is not its business.

Every answer is a function of the frame and the site's disk. What leaves is what a method's clients
upload and declare, counts, and rows of numbers; personal tensors, images, logits and paths do not,
and neither do the texts of errors that this room did not write: they could quote any of these.
"""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedvlm.core import files
from fedvlm.core.errors import ConfigError, DataError, DivergedError, UnreadableError
from fedvlm.core.trees import Tree, matching
from fedvlm.distributed.facts import digest, facts, likeness, odd_keys
from fedvlm.distributed.ledger import Ledger
from fedvlm.distributed.noise import LENGTH, client_keys
from fedvlm.distributed.schema import LINE, by_number, words
from fedvlm.distributed.store import LostState, SiteStore, hold_store
from fedvlm.distributed.terms import SECURE, Refused, Terms
from fedvlm.distributed.wire import Frame, Garbled, WireError, pack, unpack
from fedvlm.evaluation.meter import ClientMeter
from fedvlm.evaluation.references.parties import WEIGHTS, alone_rows, pooled_rows, site_sums
from fedvlm.evaluation.references.suite import ALONE, Asked
from fedvlm.evaluation.scores import ABSENT, WITHHELD
from fedvlm.federation.aggregation.arrival import Upload
from fedvlm.federation.batches import SplitBatcher
from fedvlm.federation.engine import RoundWork
from fedvlm.federation.groups import BASELINE_SUMS, SERVER, SHARED
from fedvlm.federation.rounds import Federation
from fedvlm.federation.server import Measure, Question, Row, only_numbers

ROUNDS = ("work", "evaluate", "mask")  # requests of a round: they go into the account
# Models of an evaluation that are none of the run's: with sums; beside ``ALONE``, from class names.
BASELINE, NAMES = "baseline", "names"
SPENT = ".spent"  # folder among the states, for accounts of time
WEIGHT = "weight"  # among a part's numbers; metrics are ``metric/<name>``
METRIC = "metric/"
UNREADABLE = ("an image at the site cannot be read; its owner runs `fedvlm site check SITE.YAML "
              "--full`")
_TOLD = re.compile(  # ``Context.fail``
    rf"round \d+, client \d+: {LINE}{{1,200}}? is not finite"
)
_LOGITS = re.compile(r"(?:personal|true\|personal|labels\|[a-z_]{1,40})\|(\d{1,9})")
_WORD = re.compile(r"[A-Za-z_]{1,40}")


class Site:
    """Holds the model, the data of its clients and their states; ``answer`` is all it offers.

    Args:
        federation: the run as this site sees it: its batcher and meter serve ``clients``.
        clients: whose data are here.
        folder: for their states.
        config: the run's, as far as it moves numbers (plain JSON values).
        data: digest of the site's data; by default of its counts.
        say: hears what is for the site's own log.
        terms: what the site's owner allows; by default everything.
        baselines: clients -> what their baselines are made of.
        secret: of the noise of its clients (``distributed.noise``); by default the run's seed.

    Attributes:
        rows: of the newest evaluation of models, or of clients alone; nothing is withheld from the
            owner, and they stay here.

    Raises:
        ConfigError: the owner does not allow this very run, or clients have too few images.
    """

    def __init__(
        self, federation: Federation, clients: Sequence[int], folder: Path,
        config: Mapping[str, Any], data: str = "",
        say: Callable[[str], None] = lambda words: None, terms: Terms | None = None,
        baselines: Callable[[Sequence[int]], Asked] | None = None, secret: bytes = b"",
    ) -> None:
        self.secret = secret
        self.federation, self.clients, self.folder = federation, sorted(clients), folder
        self.config, self.data, self.say = dict(config), data, say
        self.terms, self.baselines = terms or Terms(), baselines
        self.rows: list[Row] = []
        self._alone: dict[tuple[object, ...], list[Row]] = {}  # the server may ask a second time
        try:
            self.terms.admit(self.config)
        except Refused as error:
            raise ConfigError(str(error)) from error
        self.terms.check_sizes({c: int(federation.roster.train[c]) for c in self.clients})
        self.facts = facts(federation)
        self.like = likeness(self.config, self.facts)
        self._ops = {
            "hello": self._hello, "work": self._work, "evaluate": self._evaluate,
            "forget": self._forget,
        }
        if self.config.get(SECURE):
            self._sum_only()

    def _sum_only(self) -> None:
        """Let single clients' updates stay here: only masked sums of all of them leave."""
        from fedvlm.distributed.sums.site import SiteSums  # start-up: runs with secure sums only

        del self._ops["work"]
        self._ops |= SiteSums(self, self.secret or os.urandom(LENGTH)).ops

    def answer(self, data: bytes) -> bytes:
        """Return the reply to a message; what goes wrong is a reply, too."""
        began, nonce, frame = time.perf_counter(), "", None
        try:
            self.terms.allow_size(len(data))
            frame = unpack(data)
            nonce = str(frame.values.get("nonce", ""))
            if frame.op not in self._ops:
                raise Refused(f"a site is not asked for '{frame.op}'")
            reply = pack(self._ops[frame.op](frame))
            self.terms.allow_size(len(reply))
        except Exception as error:
            reply = pack(Frame("failed", {"nonce": nonce} | failure(error, self.say)))
            failed = True
        else:
            failed = False
        if frame is not None and frame.op in ROUNDS and frame.values["like"] == self.like:
            self._enter(frame, len(data), len(reply), time.perf_counter() - began, failed)
        return reply

    def _enter(self, frame: Frame, down: int, up: int, seconds: float, failed: bool) -> None:
        """Enter an answer into the run's account, and where time is short into that of its config.

        What hinders that stays at the site.
        """
        run, spent = self.folder / frame.values["run"], self._spent()
        accounts = [Ledger(run)] if run.is_dir() else []  # others leave no trace
        try:
            if self.terms.seconds:
                with files.explain_errors(spent.path):
                    spent.path.parent.mkdir(parents=True, exist_ok=True)
                accounts.append(spent)
            for account in accounts:
                account.enter(frame.op, frame.values["round"], down, up, seconds, failed)
        except DataError as error:
            self.say(str(error))

    def _spent(self) -> Ledger:
        """Return the account of all runs of this config: a run's name is the server's to choose."""
        return Ledger(self.folder / SPENT / self.like)

    # ---- ops ---------------------------------------------------------------------------------
    def _hello(self, frame: Frame) -> Frame:
        """Say what this site is: facts, its clients and how many images they hold.

        A server whose config differs is ``Refused``, and the keys are named.
        """
        self.terms.admit(frame.values["config"])
        odd = odd_keys(self.config, frame.values["config"])
        if odd:
            raise Refused(f"the config differs in {odd}")
        self._allow_counts()
        roster = self.federation.roster
        counts = {
            str(c): self.terms.tell({
                "train": int(roster.train[c]), "val": int(roster.val[c]),
                "test": int(roster.test[c]), "classes": roster.classes[c].tolist(),
            }) for c in self.clients
        }
        return Frame("welcome", {
            "nonce": frame.values["nonce"], "facts": self.facts, "clients": counts,
            "data": self.data or digest(counts),
        })

    def train(self, frame: Frame) -> tuple[RoundWork, Counter[str]]:
        """Train clients from exactly the accepted versions; keep what is theirs, return the rest.

        Returns:
            The work, and what the towers counted in it.
        """
        fed, values = self.federation, frame.values
        accepted, downloads = self.addressed(frame)
        worked = {c for c, version in accepted.items() if version}
        round_, towers = values["round"], Counter(fed.model.counters)
        steps = fed.plan.effort.totals(
            round_, list(accepted), fed.batcher.lengths(list(accepted), 1)
        )
        self._allow(frame, steps)
        if self.secret and isinstance(fed.batcher, SplitBatcher):
            fed.batcher = replace(fed.batcher, secrets=client_keys(
                self.secret, values["run"], round_, accepted, downloads
            ))
        with self._states(values["run"], accepted) as store:
            done = fed.engine.run(
                fed.trainer, lambda some: fed.context(some, round_, worked), downloads,
                fed.clients, accepted,
            )
            store.keep(by_number(values["floor"]))
        return done, Counter(fed.model.counters) - towers

    def told_of(self, done: RoundWork, towers: Mapping[str, int]) -> dict[str, Any]:
        """Return the plain values of an answer to work: who was dropped, and counts."""
        return {
            "dropped": {str(c): _told(why) for c, why in done.dropped.items()},
            "counters": _counts(done.counters), "towers": _counts(towers),
        }

    def _work(self, frame: Frame) -> Frame:
        """Train clients, and send what they upload."""
        done, towers = self.train(frame)
        trees: dict[str, Tree] = {}
        for p, part in enumerate(done.uploads):
            trees |= {f"{kind}/{p}": tree for kind, tree in _trees(part).items()}
        return Frame("worked", {
            "nonce": frame.values["nonce"], "round": frame.values["round"],
            "parts": [_values(part) for part in done.uploads], **self.told_of(done, towers),
        }, trees)

    def _evaluate(self, frame: Frame) -> Frame:
        """Measure personal models, or the pretrained model; only numbers leave."""
        fed, values = self.federation, frame.values
        measure = Measure(**values["measure"])
        if values["model"] in (BASELINE, ALONE, NAMES):
            return self._baseline(frame)
        told, logits = dict[str, float](), dict[str, Tree]()
        if measure.keep_logits and not self.terms.logits:
            self.say("the server requested logits; they are not sent (rule 'logits')")
            measure = replace(measure, keep_logits=False)
        if measure.answers and not self.terms.logits:
            self.say("the server requested which images are right; that is not sent (rule "
                     "'logits')")
            measure = replace(measure, answers=False)
        if values["model"] == "template":  # nothing of the run is in it
            self.check_like(frame)
            ids = list(by_number(values["accepted"]))
            self._mine(ids)
            self._allow(frame)
            if not isinstance(fed.meter, ClientMeter):
                raise Refused("this site does not evaluate the untrained model")
            rows: list[Row] = only_numbers(fed.meter.template(measure, ids), ids)
        else:
            accepted, downloads = self.addressed(frame)
            ids = list(accepted)
            question = Question(values["round"], ids, downloads, accepted, values["tune"])
            epochs = fed.finetuning.epochs if question.tune else 0
            self._allow(frame, [epochs * n for n in fed.batcher.lengths(ids, 1)])
            with self._states(values["run"], accepted):
                rows = only_numbers(fed.measured(question, measure), ids)
            if question.tune:
                told = {str(c): fed.finetune_seconds[c] for c in ids}
        self.rows, rows = rows, [self.terms.tell_row(row) for row in rows]
        if measure.keep_logits and isinstance(fed.meter, ClientMeter):
            whose = [row["client"] for row in rows if not row.get(ABSENT)]
            logits["logits"] = {n: v for n, v in fed.meter.logits.items() if of_client(n) in whose}
        return Frame("evaluated", {
            "nonce": values["nonce"], "round": values["round"], "rows": rows, "seconds": told,
        }, logits)

    def _baseline(self, frame: Frame) -> Frame:
        """Measure baselines on this site's images: each client alone, or a shared linear model.

        What the owner does not allow is withheld: no number leaves.

        Raises:
            Refused: other clients, another config, weights of another shape, or sums that the run
                does not release.
        """
        self.check_like(frame)
        ids, model = list(by_number(frame.values["accepted"])), frame.values["model"]
        self._mine(ids)
        self._allow(frame)
        list_ = self.federation.trainer.releases(self.federation.groups)
        unlisted = self.config.get(SECURE) or list_.outside((), (), (), BASELINE_SUMS)
        if model == BASELINE and unlisted:
            raise Refused("this site's own sums for baselines would leave without masks, and this "
                          "run does not release them")
        rows, sums = [withheld(c) for c in ids], dict[str, Tree]()
        self.rows = []
        if self.terms.baselines and self.baselines is not None:
            asked = self.baselines(ids)
            weights = next(iter(frame.trees.values()), {}).get(WEIGHTS)
            if weights is None:
                rows = self.rows = self._alone_rows(asked, model)
                sums = self._sums(asked) if model == BASELINE else {}
            elif model != BASELINE:
                raise Refused("what clients reach alone needs no weights of a model")
            elif weights.shape[-1:] != (asked.classes,) or weights.dim() != 2:
                raise Refused("the weights of a linear model have the wrong shape")
            else:
                rows = pooled_rows(asked, weights)
        else:
            self.say("the server asked for baselines; none is sent (rule 'baselines')")
        return Frame("evaluated", {
            "nonce": frame.values["nonce"], "round": frame.values["round"],
            "rows": [self.terms.tell_row(row) for row in only_numbers(rows, ids)], "seconds": {},
        }, sums)

    def _alone_rows(self, asked: Asked, model: str) -> list[Row]:
        """Return what clients reach alone, ``NAMES`` from the class names on; computed once."""
        names = self.federation.model if model == NAMES else None
        key = names is None, *asked.clients
        if key not in self._alone:
            self._alone[key] = alone_rows(asked, names)
        return self._alone[key]

    def _sums(self, asked: Asked) -> dict[str, Tree]:
        """Return the sums for a shared linear model; nothing where class counts are withheld."""
        if self.terms.may_tell(self._classes()):
            return {"sums": site_sums(asked)}
        self.say("the server asked for sums for baselines; none is sent, since class counts follow "
                 "from them, and a class has too few images (rule 'count')")
        return {}

    def _forget(self, frame: Frame) -> Frame:
        """Delete states but those named."""
        self.check_like(frame)
        keep = by_number(frame.values["keep"])
        self._mine(keep)
        with self.opened(frame.values["run"]) as store:
            store.forget(keep)
        return Frame("forgot", {"nonce": frame.values["nonce"]})

    # ---- checks ------------------------------------------------------------------------------
    def _allow(self, frame: Frame, steps: Sequence[int] = ()) -> None:
        """Hold the owner's rules against a piece of work (``Refused``, by the rule's name)."""
        self.terms.allow_round(frame.values["round"])
        self.terms.allow_steps(steps)
        self._allow_counts()
        if self.terms.seconds:
            accounts = self._spent(), Ledger(self.folder / frame.values["run"])
            self.terms.allow_time(max(account.read().seconds for account in accounts))

    def _allow_counts(self) -> None:
        """Refuse a method whose uploads tell class counts that the owner withholds."""
        if self.federation.trainer.tells_classes and not self.config.get(SECURE):
            self.terms.allow_counts(self._classes())

    def _classes(self) -> list[list[int]]:
        return [self.federation.roster.classes[c].tolist() for c in self.clients]

    def addressed(self, frame: Frame) -> tuple[dict[int, int], dict[int, Tree]]:
        """Return whom a request names: their accepted versions and downloads.

        Raises:
            Refused: other clients, tensors that no server sends, another config.
        """
        self.check_like(frame)
        values = frame.values
        accepted = by_number(values["accepted"])
        self._mine(accepted)
        device = self.federation.model.device
        trees = {ref.removeprefix("down/"): self._download({n: v.to(device) for n, v in t.items()})
                 for ref, t in frame.trees.items()}
        return accepted, {c: trees[ref] for c, ref in by_number(values["down"]).items()}

    def check_like(self, frame: Frame) -> None:
        """Refuse a request of another run (``Refused``)."""
        if frame.values["like"] != self.like:
            raise Refused("the request is of a run with another config, model or version")

    def _mine(self, ids: Iterable[int]) -> None:
        stray = sorted(set(ids) - set(self.clients))
        if stray:
            raise Refused(f"clients {stray[:8]} are not at this site")

    def _download(self, tree: Tree) -> Tree:
        """Return a download, if it is of names, shapes and types that a server sends."""
        fed = self.federation
        names = fed.groups.names(SHARED, SERVER)
        extras = set(matching(tree, fed.trainer.extras_down))
        stray = [n for n in tree if n not in names and n not in extras]
        if stray:
            raise Refused(f"a download holds {len(stray)} tensor(s) that the method does not send")
        lost = [n for n in fed.groups.server if n not in tree]
        odd = [n for n in names if n in tree and (
            tree[n].shape != fed.p0[n].shape or tree[n].dtype != fed.p0[n].dtype)]
        if lost or odd:
            raise Refused(f"'{(lost + odd)[0]}' of a download is missing or has the wrong shape")
        return tree

    def opened(self, run: str) -> AbstractContextManager[SiteStore]:
        """Hold the run's folder of states."""
        return hold_store(self.folder, run, self.federation.model.device)

    @contextmanager
    def _states(self, run: str, accepted: Mapping[int, int]) -> Iterator[SiteStore]:
        """Hold the run's states, with those that the server accepted among them."""
        clients = self.federation.clients
        before = clients.store
        with self.opened(run) as store:
            for words in store.damage:
                self.say(words)
            store.require(accepted)
            clients.store = store
            try:
                yield store
            finally:
                clients.store = before


def failure(error: Exception, say: Callable[[str], None]) -> dict[str, str]:
    """Return kind and text of a failure as they may leave a site; its log gets all of it."""
    say(f"{type(error).__name__}: {error}")
    line = "".join(ch if ch.isprintable() else " " for ch in str(error))[:500]
    if isinstance(error, Garbled):  # the owner's rules have nothing against it
        return {"kind": "damaged", "text": line}
    if isinstance(error, (WireError, Refused)):
        return {"kind": "refused", "text": line}
    if isinstance(error, LostState):
        return {"kind": "lost", "text": line}
    if isinstance(error, DivergedError):
        return {"kind": "diverged", "text": _told(str(error))}
    if isinstance(error, UnreadableError):
        return {"kind": "failed", "text": UNREADABLE}
    name = type(error).__name__ if _WORD.fullmatch(type(error).__name__) else "an error"
    return {"kind": "failed", "text": f"{name} at the site; details are in the site's log"}


def withheld(client: int) -> Row:
    """Return the row of a client of which nothing is told."""
    none: Row = dict.fromkeys(("accuracy", "balanced", "macro_f1"))
    return none | {"client": client, "n": 0, "correct": 0, ABSENT: WITHHELD}


def of_client(name: str) -> int | None:
    """Return whose kept logits, labels or predictions a tensor is (``ClientMeter.logits``)."""
    match = _LOGITS.fullmatch(name)
    return int(match[1]) if match else None


def _told(message: str) -> str:
    """Return what of a message about numbers may leave: round, client and tensor."""
    match = _TOLD.match(message)
    return match[0] if match and words(match[0]) else "a number is not finite"


def _counts(counters: Mapping[str, int]) -> dict[str, int]:
    return {n: int(v) for n, v in counters.items() if v > 0}


def _trees(part: Upload) -> dict[str, Tree]:
    """Return the tensors of a part as they travel."""
    return {
        "up": part.params, "extra": part.extras,
        "told": {WEIGHT: part.weight} | {METRIC + n: v for n, v in part.metrics.items()},
        "rows": {n: rows.index for n, rows in part.rows.items()},
    }


def _values(part: Upload) -> dict[str, Any]:
    """Return the plain values of a part as they travel."""
    return {
        "clients": list(part.clients), "form": "",
        "rows": {n: rows.axis for n, rows in part.rows.items()},
        "counts": {n: [int(k) for k in counts] for n, counts in part.counts.items()},
    }


