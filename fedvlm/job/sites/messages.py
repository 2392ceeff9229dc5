"""A site's log of its messages, ``messages.jsonl`` beside the states: one line for each, a chain.

A line says run, round, kind, direction, names of tensors and numbers, bytes and the checksum of the
frame, never a value of a tensor, an image, a label or a path. It ends with a seal over itself and
the line before (``runs.metrics``). The line of an answer is on disk before the answer leaves, so
that no update leaves without a line; a site that is killed in between leaves a line too
many, never one too few. Whoever may write the file can make all of it anew: a seal that was kept
elsewhere shows that.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedvlm.core import files
from fedvlm.core.errors import DataError, FedvlmError
from fedvlm.distributed.schema import ANSWERS
from fedvlm.distributed.site import Site
from fedvlm.distributed.terms import SECURE, Terms
from fedvlm.distributed.wire import WireError, outline
from fedvlm.runs.metrics import append_metrics, read_chain, truncate_metrics
from fedvlm.runs.seal import sha256

LOG = "messages.jsonl"
CAME, WENT = "in", "out"
SERVING, UNREADABLE, TOO_LONG = "serving", "unreadable", "too long"
_WHERE = ("run", "round", "model")
_ALL = 2**53  # no round is later


class MessageLog:
    """The log of one site; ``enter`` may be called by several threads.

    Args:
        folder: of the site's states.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / LOG
        self._lock = threading.Lock()
        self._last: str | None = None  # seal of the last line; None: to be read

    def begin(self, over: str, terms: Terms) -> None:
        """Say that a process serves the site: who brings the messages, and the owner's rules.

        Args:
            over: address and certificate of a federation on Flower; empty: a socket here.

        Raises:
            DataError: as ``enter``.
        """
        rules = {rule: v for rule, v in asdict(terms).items() if rule != "weights"}  # may be paths
        rules["files of weights"] = len(terms.weights or ())
        self.enter("", {"kind": SERVING, "over": over, "rules": rules})

    def carry(
        self, data: bytes, answer: Callable[[bytes], bytes], site: Callable[[], Site | None]
    ) -> bytes:
        """Return the answer to a message, with a line for each of both.

        Args:
            site: what worked for the run, of which a greeting's answer says more.

        Raises:
            DataError: as ``enter``: then no answer may leave.
        """
        asked = line_of(data)
        self.enter(CAME, asked)
        reply = answer(data)
        said = {k: asked[k] for k in ("run", "round") if k in asked} | line_of(reply)
        there = site() if said["kind"] == ANSWERS["hello"] else None
        self.enter(WENT, said | ({"about": about_run(there)} if there else {}))
        return reply

    def unread(self, size: int, reply: bytes) -> None:
        """Write the lines of a message that is too long to be read (``DataError``)."""
        self.enter(CAME, {"kind": TOO_LONG, "bytes": size})
        self.enter(WENT, line_of(reply))

    def enter(self, direction: str, record: Mapping[str, Any]) -> None:
        """Write a line; it is on disk when this returns.

        Raises:
            DataError: it cannot be written, or what is there was changed.
        """
        with self._lock:
            before = self._go_on() if self._last is None else self._last
            self._last = None  # where writing fails: who knows what is there
            line = {"at": round(time.time(), 3), "direction": direction, **record}
            self._last = append_metrics(self.path, line, before)

    def _go_on(self) -> str:
        """Return the last seal of what is there, without a line that a kill cut.

        Raises:
            DataError: a line was changed, moved or taken away.
        """
        with files.explain_errors(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
        chain = read_chain(self.path)
        why = log_damage(self.path)
        if why:
            raise DataError(f"'{self.path}': {why}; move the file away and keep it: a new log then "
                            "begins")
        if chain.cut:
            truncate_metrics(self.path, _ALL)
        return chain.last


def line_of(data: bytes) -> dict[str, Any]:
    """Return what the log says of a message, beside time and direction.

    Names only: which tensors, which numbers; what was refused with the words that left.
    """
    size = {"bytes": len(data), "sha256": sha256(data)}
    try:
        op, values, trees = outline(data)
    except WireError:
        return {"kind": UNREADABLE, **size}
    tensors: dict[str, set[str]] = {}
    for tree, names in trees.items():
        tensors.setdefault(tree.partition("/")[0], set()).update(names)
    about: dict[str, Any] = {k: values[k] for k in _WHERE if k in values}
    if op == "failed":
        about["why"] = f"{values['kind']}: {values['text']}"
    return {
        "kind": op, **about, "tensors": {tree: sorted(n) for tree, n in tensors.items()},
        "numbers": _numbers(op, values), **size,
    }


def _numbers(op: str, values: Mapping[str, Any]) -> list[str]:
    """Return the names of plain numbers that an answer tells of the site's data or work."""
    told: set[str] = set()
    if op == "welcome":
        for counts in values["clients"].values():
            told.update(f"count of {part}" for part, n in counts.items() if n != [])
    elif op == "evaluated":
        for row in values["rows"]:
            told.update(k for k, v in row.items() if v is not None)
        told.update(["seconds of fine-tuning"] if values["seconds"] else [])
    elif op in ("worked", "masked"):
        told.update(values["counters"], values["towers"], ["dropped"] if values["dropped"] else [])
    return sorted(told)


def about_run(site: Site) -> dict[str, Any]:
    """Return what the log says of a run as it is accepted.

    Returns:
        Method, backbone, planned rounds, secure sums or none, the guarantee of privacy if every
        client of the site works in all planned rounds, and what the method declares that it sends
        (``Trainer.releases``).
    """
    fed, config = site.federation, site.config
    return {
        "method": fed.trainer.name, "backbone": config.get("MODEL.BACKBONE.NAME"),
        "rounds": fed.plan.rounds, "secure": config.get(SECURE) is True, **_guarantee(site),
        "declared": asdict(fed.trainer.releases(fed.groups)),
    }


def _guarantee(site: Site) -> dict[str, Any]:
    """Return ``bounded``, whether epsilon has a bound, and ``privacy`` in words; empty: nothing."""
    fed, batch = site.federation, int(site.config["DATALOADER.TRAIN_X.BATCH_SIZE"])
    drawn = dict.fromkeys(range(1, fed.plan.rounds + 1), site.clients)
    try:
        report = fed.plan.private.report if fed.plan.private else fed.trainer.privacy
        spoken = dict(report(fed.plan.worked(drawn, fed.roster.train.tolist(), batch)))
    except FedvlmError as error:  # the run's coordinator hears it as the run ends
        return {"bounded": False, "privacy": f"not known: {error}"}
    return {"bounded": spoken.get("epsilon") is not None, "privacy": spoken.get("words", "")}


def log_damage(path: Path) -> str:
    """Return where a log is not what was written; empty: every line fits the one before.

    A last line that a kill cut is no break.

    Raises:
        DataError: it cannot be read.
    """
    chain = read_chain(path)
    return "line 1 is damaged (its checksum is missing)" if chain.bare else chain.broken


def read_log(path: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the lines that hold, and the seal of each.

    Raises:
        DataError: it cannot be read.
    """
    chain = read_chain(path)
    whole = [] if chain.bare else chain.bodies
    return [json.loads(body) for body in whole], chain.seals[: len(whole)]
