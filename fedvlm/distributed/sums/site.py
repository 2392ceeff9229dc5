"""A site's side of secure sums: it adds its own clients' moves, masks the sum, and helps to unmask.

All keys of an attempt follow from the site's secret and the attempt's name, so that a question that
is asked again gets the same answer. What a site answered is kept on its disk (``ASKED``): in one
attempt it answers one question of each kind, and for a round it helps to read one sum only; a
second sum over other sites would show what the site between them sent. A run's name is the server's
to choose: over which sites and clients a round was read is kept by the data (``READ``), for all
runs on them, until the site's owner has it forgotten. So is how clients weighed in sums that began
at a model: the same updates in two sums of unlike weights give their difference away, which is one
site's where the others weigh alike (sites of 10, 10 and 20 images: sum n m - 10 sum m = 10 m_3).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from fedvlm.core import files
from fedvlm.core.errors import DataError
from fedvlm.core.trees import Tree, pick
from fedvlm.distributed.noise import client_keys
from fedvlm.distributed.store import SiteStore
from fedvlm.distributed.sums import masks
from fedvlm.distributed.sums.vector import SumVector, vector_of
from fedvlm.distributed.terms import Refused, Terms
from fedvlm.distributed.wire import Frame
from fedvlm.federation.engine import RoundWork
from fedvlm.federation.rounds import Federation

ASKED = "asked.json"  # beside a run's states
READ = ".sums.json"  # among all states: digest of data -> round -> sites and clients of its sums
WEIGHED = "weighed"  # beside the rounds there: digest of a model -> how clients weighed
ALLOW = "only its owner can allow that (fedvlm site prune SITE.YAML --sums)"
KEY, OWN = 0, 1  # of the two shares of a site: of its key, and of its own mask
SUM = "sum"  # tree and tensor of the answer


class Workshop(Protocol):
    """What of a site its secure sums are made with (``distributed.site.Site``)."""

    federation: Federation
    folder: Path
    data: str
    terms: Terms

    def check_like(self, frame: Frame) -> None:
        """Refuse a request of another run."""

    def addressed(self, frame: Frame) -> tuple[dict[int, int], dict[int, Tree]]:
        """Return accepted versions and downloads."""

    def train(self, frame: Frame) -> tuple[RoundWork, Counter[str]]:
        """Train clients."""

    def told_of(self, done: RoundWork, towers: Mapping[str, int]) -> dict[str, Any]:
        """Return the plain values of an answer."""

    def opened(self, run: str) -> AbstractContextManager[SiteStore]:
        """Hold the run's folder."""


@dataclass(frozen=True)
class SumRoster:
    """The sites of an attempt, as one of them sees them.

    Attributes:
        me: its name here.
        keys: name -> public keys ``lock``, ``mask``, the digest ``mark``, and ``who``, which a site
            has in all attempts of all runs, all in hex.
        words: what all keys of the attempt are bound to.
    """

    me: str
    keys: Mapping[str, Mapping[str, str]]
    words: tuple[Any, ...]

    @property
    def names(self) -> list[str]:
        """All sites; a site's place in this list, from 1, is the place of its shares."""
        return sorted(self.keys)

    @property
    def others(self) -> list[str]:
        """All but this one."""
        return [name for name in self.names if name != self.me]

    def publics(self) -> dict[str, bytes]:
        """Return the keys of the others' masks."""
        return {name: bytes.fromhex(self.keys[name]["mask"]) for name in self.others}


class SiteSums:
    """Answers the four questions of an attempt.

    Args:
        site: whose clients are summed.
        secret: 32 bytes or more that nobody else has.
    """

    def __init__(self, site: Workshop, secret: bytes) -> None:
        masks.require_cryptography()
        self.site, self.secret = site, secret
        self.ops: Mapping[str, Callable[[Frame], Frame]] = {
            "keys": self._keys, "share": self._share, "mask": self._mask, "unmask": self._unmask,
        }

    # ---- questions ---------------------------------------------------------------------------
    def _keys(self, frame: Frame) -> Frame:
        """Say the public keys of an attempt."""
        self.site.check_like(frame)
        self.site.terms.allow_round(frame.values["round"])
        return _reply("offered", frame, **self._offer(frame))

    def _share(self, frame: Frame) -> Frame:
        """Return shares of this site's secrets, each sealed for the site that it is for."""
        roster = self._roster(frame)
        self._note(frame, "roster", masks.bound_to(roster.keys).hex())
        both = self._split(frame, roster)
        return _reply("shared", frame, shares={
            name: masks.shut(self._lock(frame, roster, roster.me, name),
                             masks.to_text([half[at] for half in both])).hex()
            for at, name in enumerate(roster.names) if name != roster.me
        })

    def _mask(self, frame: Frame) -> Frame:
        """Train the clients, and send the masked sum of what they would have sent."""
        roster, values = self._roster(frame), frame.values
        self._open_shares(frame, roster)
        accepted, downloads = self.site.addressed(frame)
        if not accepted:
            raise Refused("a secure sum asks each of its sites for work")
        shared = self.site.federation.groups.shared
        tasks = {task_of(values["whole"], pick(downloads[c], shared)) for c in accepted}
        if len(tasks) > 1:
            raise Refused("the clients of a secure sum start from one model")
        vector, how = self._vector(frame, sorted(accepted))
        starts = client_keys(b"", values["run"], values["round"], accepted, downloads)
        self._note(frame, "roster", masks.bound_to(roster.keys).hex())
        self._note(frame, "clients", sorted(accepted))
        self._note(frame, "work", masks.bound_to(
            values["whole"], {str(c): key.hex() for c, key in starts.items()}).hex())
        done, towers = self.site.train(frame)
        updates, start = done.spend(), task_of(1.0, pick(downloads[min(accepted)], shared))
        moves = updates is None or any(bool(updates.sent(n).any()) for n in updates.params)
        self._note(frame, "weighed", [start, how if moves else ""])
        plain = vector.encode(self.site.federation.trainer, updates)
        key, own = self._secret("mask", frame), self._secret("own", frame)
        hidden = plain + masks.keystream(own, len(plain)) + masks.pair_masks(
            key, roster.me, roster.publics(), len(plain), *roster.words, *tasks)
        return Frame("masked", {
            "nonce": values["nonce"], "round": values["round"],
            **self.site.told_of(done, towers),
        }, {SUM: {SUM: torch.from_numpy(hidden.view(np.int64))}})

    def _unmask(self, frame: Frame) -> Frame:
        """Return shares: of the own masks of sites that sent a sum, of the keys of the others.

        A question that no honest server asks, or a second one, is ``Refused``.
        """
        roster, there = self._roster(frame), list(frame.values["there"])
        if sorted(set(there)) != there or not {*there} <= {*roster.names}:
            raise Refused("a question for shares does not name the sites of its attempt")
        if len(there) < masks.threshold(len(roster.names)):
            raise Refused(f"the sum of {len(there)} of {len(roster.names)} sites is not unmasked: "
                          f"it takes {masks.threshold(len(roster.names))}")
        mine = self._asked(frame)[1]
        if roster.me not in there or "work" not in mine:
            raise Refused("this site sent no sum in that attempt")
        held = self._open_shares(frame, roster)
        self._note(frame, "roster", masks.bound_to(roster.keys).hex())
        who = sorted(roster.keys[name]["who"] for name in there)
        self._note(frame, "there", [who, mine["clients"]])
        return _reply("unmasked", frame, shares={
            name: masks.to_text([both[OWN if name in there else KEY]]).hex()
            for name, both in held.items()
        })

    # ---- keys --------------------------------------------------------------------------------
    def _secret(self, kind: str, frame: Frame) -> bytes:
        values = frame.values
        return masks.derive(self.secret, kind, values["run"], values["round"], values["attempt"])

    def _offer(self, frame: Frame) -> dict[str, str]:
        lock, key, own = (self._secret(kind, frame) for kind in ("lock", "mask", "own"))
        return {"lock": masks.public_of(lock).hex(), "mask": masks.public_of(key).hex(),
                "mark": mark_of(own), "who": masks.derive(self.secret, "who").hex()}

    def _roster(self, frame: Frame) -> SumRoster:
        """Return the sites of an attempt; too few, or not this one once, are ``Refused``."""
        self.site.check_like(frame)
        values, mine = frame.values, self._offer(frame)
        keys = values["roster"]
        me = [name for name, offer in keys.items() if offer == mine]
        if len(keys) < masks.FEWEST:
            raise Refused(f"a secure sum needs {masks.FEWEST} sites; this one is over {len(keys)}")
        if len(me) != 1 or any(len({o[kind] for o in keys.values()}) < len(keys) for kind in mine):
            raise Refused("the list of sites does not have this site once, each with its own keys")
        return SumRoster(me[0], keys, words_of(values))

    def _lock(self, frame: Frame, roster: SumRoster, giver: str, taker: str) -> bytes:
        """Return the key that seals the shares of one site for another."""
        other = taker if giver == roster.me else giver
        public = bytes.fromhex(roster.keys[other]["lock"])
        try:
            return masks.agree(self._secret("lock", frame), public, "share", giver, taker,
                               *roster.words)
        except ValueError:
            raise Refused("a key of another site is none") from None

    def _split(self, frame: Frame, roster: SumRoster) -> list[list[int]]:
        """Return the shares of this site's key and of its own mask, a list each."""
        return [
            masks.make_shares(self._secret(kind, frame), len(roster.names),
                        masks.derive(self.secret, "shares", kind, *roster.words))
            for kind in ("mask", "own")
        ]

    def _open_shares(self, frame: Frame, roster: SumRoster) -> dict[str, list[int]]:
        """Return both shares of each site; missing or damaged ones are ``Refused``."""
        sealed, place = frame.values["shares"], roster.names.index(roster.me)
        if sorted(sealed) != roster.others:
            raise Refused("shares of other sites are missing")
        held = {roster.me: [half[place] for half in self._split(frame, roster)]}
        for name in roster.others:
            data = masks.unshut(self._lock(frame, roster, name, roster.me),
                                bytes.fromhex(sealed[name]))
            if data is None or len(data) != 2 * masks.WIDE:
                raise Refused(f"the shares of {name} are damaged")
            held[name] = masks.from_text(data)
        return held

    # ---- numbers -----------------------------------------------------------------------------
    def _vector(self, frame: Frame, clients: list[int]) -> tuple[SumVector, str]:
        """Return the places of the numbers of a sum, and how clients weigh in it."""
        fed, round_ = self.site.federation, int(frame.values["round"])
        ctx = fed.context(clients, round_, {})
        vector = vector_of(
            fed.trainer, fed.plan.aggregator, round_, float(frame.values["whole"]),
            pick(fed.p0, fed.groups.shared), fed.trainer.extra_forms(ctx, fed.clients.blank),
        )
        if vector.own and round_ > 1:
            raise Refused("the sums of this method are those of images and the same in every "
                          "round; over other clients the difference would show single ones: they "
                          "are sent in round 1 only")
        how = ctx.weighting
        if vector.temperature:
            how += f", by similarity at temperature {vector.temperature!r}"
        return vector, how

    # ---- memory ------------------------------------------------------------------------------
    def _asked(self, frame: Frame) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
        """Return what was answered in the run's attempts, and in this one."""
        told = _kept(self._path(frame))
        mine = told.setdefault(frame.values["attempt"], {"round": frame.values["round"]})
        if mine["round"] != frame.values["round"]:
            raise Refused("that attempt was of another round")
        return told, mine

    def _note(self, frame: Frame, kind: str, what: Any) -> None:
        """Keep what is answered, before it is; a second answer of this kind is ``Refused``."""
        with self.site.opened(frame.values["run"]):
            told, mine = self._asked(frame)
            if mine.get(kind, what) != what:
                raise Refused(f"this site answered another question of that attempt ({kind}) and "
                              "does not answer a second one")
            if kind == "work" and any(other["round"] == mine["round"] and
                                      other.get("work", what) != what for other in told.values()):
                raise Refused(f"this site did other work for a sum of round {mine['round']}, and "
                              "the difference would show single updates")
            if kind == "there" and "weighed" not in mine:
                raise Refused("an earlier version began that sum, and how its clients weighed is "
                              "not known: it is not read")
            if kind == "there":
                self._note_read(mine["round"], what, *mine["weighed"])
            if kind not in mine:
                mine[kind] = what
                files.write_json(self._path(frame), told)

    def _note_read(self, round_: int, what: Any, start: str, how: str) -> None:
        """Keep over which sites and clients a round is read, whatever the run is called.

        Args:
            start: digest of the model that the clients began at.
            how: they weigh in the sum; empty: it has no moves of that model, and in sums of a
                method's own each client counts once, under whatever weights.

        Raises:
            Refused: it was read over others, or under other weights from that model, in this run or
                another one on the same data.
            DataError: the file is damaged.
        """
        path = self.site.folder / READ
        told = _kept(path)
        rounds = told.setdefault(self.site.data, {})
        if rounds.setdefault(str(round_), what) != what:
            raise Refused(
                f"this site helped to read a sum of round {round_} over other sites or clients, in "
                "this run or another one on its images, and the difference would show single ones; "
                + ALLOW)
        before = rounds.setdefault(WEIGHED, {}).setdefault(start, how) if how else how
        if before != how:
            raise Refused(
                "this site helped to read a sum of updates of this very model under other weights "
                f"({before}; now {how}), in this run or another one on its images, and the two "
                f"together would show single ones; {ALLOW}")
        files.write_json(path, told)

    def _path(self, frame: Frame) -> Path:
        return self.site.folder / str(frame.values["run"]) / ASKED


def _kept(path: Path) -> dict[str, Any]:
    """Return what a file remembers; nothing where there is none (``DataError``: it is damaged)."""
    with files.explain_errors(path):
        text = path.read_text(encoding="utf-8") if path.is_file() else "{}"
    try:
        return dict(json.loads(text))
    except (ValueError, TypeError) as error:
        raise DataError(f"'{path}' is damaged: without it this site does not know which sums it "
                        "helped to read; restore it from a backup") from error


def words_of(values: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what the keys of an attempt are bound to.

    Run, settings (by their digest), round, attempt, and all public keys.
    """
    return tuple(values[word] for word in ("run", "like", "round", "attempt", "roster"))


def task_of(whole: float, start: Tree) -> str:
    """Return a digest of what all sites of a sum are told alike: the weights and the model."""
    return masks.bound_to(float(whole), client_keys(b"", "", 0, {0: 0}, {0: start})[0].hex()).hex()


def mark_of(own: bytes) -> str:
    """Return a digest by which the secret of a site's own mask is known when it is joined."""
    return masks.bound_to("mark", own.hex()).hex()


def _reply(op: str, frame: Frame, **values: Any) -> Frame:
    return Frame(op, {"nonce": frame.values["nonce"], "round": frame.values["round"], **values})
