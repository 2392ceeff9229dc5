"""Requests of a run to its sites: frames that name it, and the answers that fit them."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedvlm.core.errors import DataError, DivergedError, FedvlmError
from fedvlm.core.trees import Tree
from fedvlm.distributed.carriers import Carrier
from fedvlm.distributed.schema import ANSWERS, LIMIT
from fedvlm.distributed.wire import Frame, WireError, pack, unpack
from fedvlm.federation.reliability.unreliable import NO_ANSWER


class Grave(str):
    """Why a site failed in a way that asking again does not mend; ``error`` ends a run that cannot
    do without it."""

    error: FedvlmError

    @classmethod
    def of(cls, error: FedvlmError, words: str) -> Grave:
        """Return the failure of a site."""
        out = cls(words)
        out.error = error
        return out


class Refusal(str):
    """Why a site does not do what it was asked: the same question gets the same answer."""

    __slots__ = ()


@dataclass
class Requests:
    """What a server sends to sites, and reads of them.

    Args:
        carrier: brings frames there and back.
        run_id: digest of this very run: sites keep its states under it.
        deadline: seconds for an answer.
        remedy: what helps where a site has lost a state.

    Attributes:
        like: digest of what server and sites have in common, once they were joined.
        traffic: bytes of frames, ``down`` and ``up``.
        silent: sites that the carrier brought no answer of, when it was asked last.
    """

    carrier: Carrier
    run_id: str
    deadline: float
    remedy: str = ""
    like: str = ""
    traffic: Counter[str] = field(default_factory=Counter)
    silent: set[str] = field(default_factory=set)

    def hello(self, config: Mapping[str, Any]) -> Frame:
        """Return the question who a site is."""
        return Frame("hello", {
            "run": self.run_id, "nonce": secrets.token_hex(8), "config": dict(config),
        })

    def forget(self, keep: Mapping[int, int]) -> Frame:
        """Return the word to delete clients' states but the versions named (0: all)."""
        return Frame("forget", self._about() | {"keep": {str(c): v for c, v in keep.items()}})

    def of_run(self, op: str, **values: Any) -> Frame:
        """Return a question about this run, without trees."""
        return Frame(op, self._about() | values)

    def trips(
        self, op: str, round_: int, versions: Mapping[int, int], downloads: Mapping[int, Tree],
        home: Mapping[int, str], more: Callable[[Sequence[int]], dict[str, Any]],
    ) -> dict[str, Frame]:
        """Return a request for each site; what several clients receive travels there once.

        Args:
            home: the site of each client.
            more: values of a request for these clients.
        """
        out: dict[str, Frame] = {}
        for site in dict.fromkeys(home[c] for c in sorted(versions)):
            ids = [c for c in sorted(versions) if home[c] == site]
            refs: dict[tuple[tuple[str, int], ...], str] = {}
            trees, down = dict[str, Tree](), dict[str, str]()
            for c in ids:
                mark = tuple((n, id(v)) for n, v in downloads[c].items())
                down[str(c)] = ref = refs.setdefault(mark, str(len(refs)))
                trees[f"down/{ref}"] = downloads[c]
            out[site] = Frame(op, {
                **self._about(), "round": round_, "accepted": {str(c): versions[c] for c in ids},
                "down": down, **more(ids),
            }, trees)
        return out

    def _about(self) -> dict[str, Any]:
        return {"run": self.run_id, "like": self.like, "nonce": secrets.token_hex(8)}

    def ask(
        self, frames: Mapping[str, Frame], *, end: bool = True, most: int = LIMIT
    ) -> dict[str, Frame | str]:
        """Return each site's answer, or why there is none that fits.

        Args:
            most: bytes of an answer.
            end: whether a ``Grave`` failure of one site is raised; else it is returned as others.

        Raises:
            DivergedError, DataError: such a failure.
        """
        sent = {site: pack(frame) for site, frame in frames.items()}
        self.traffic["down"] += sum(map(len, sent.values()))
        self.carrier.most = min(most, LIMIT)
        replies = self.carrier.ask(sent, self.deadline) if sent else {}
        told = {site: replies.get(site, NO_ANSWER) for site in frames}
        self.silent = {site for site, data in told.items() if isinstance(data, str)}
        out = {site: self._read(site, frames[site], data) for site, data in told.items()}
        for reply in out.values():
            if end and isinstance(reply, Grave):
                raise reply.error
        return out

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
            words = str(values["text"])
            if values["kind"] == "diverged":
                return Grave.of(DivergedError(f"{site}: {words}"), words)
            if values["kind"] == "lost":
                return Grave.of(DataError(f"{site}: {words}{self.remedy}"), words)
            if values["kind"] == "damaged":
                return f"the question came there damaged ({words})"
            return Refusal(words) if values["kind"] == "refused" else words
        if values["nonce"] != asked.values["nonce"]:
            return "a late answer to another request"
        if reply.op != ANSWERS[asked.op] or values.get("round") != asked.values.get("round"):
            return "an answer to another question"
        return reply
