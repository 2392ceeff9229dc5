"""A site's log of its messages, ``messages.jsonl`` beside the states: one line for each, a chain.

A line says run, round, kind, direction, names of tensors and numbers, bytes and the checksum of the
frame, never a value of a tensor, an image, a label or a path. It ends with a seal over itself and
the line before (``runs.metrics``). The line of an answer is on disk before the answer leaves, so
that no update leaves without a line; a site that is killed in between leaves a line too
many, never one too few. Whoever may write the file can make all of it anew: a seal that was kept
elsewhere shows that. The owner can remove old lines (``prune_log``): a line says which.
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
from fedvlm.distributed.terms import SECURE, Refused, Terms
from fedvlm.distributed.wire import WireError, outline
from fedvlm.runs.metrics import Chain, append_metrics, read_chain, sealed_lines
from fedvlm.runs.seal import sha256

LOG = "messages.jsonl"
CAME, WENT = "in", "out"
SERVING, UNREADABLE, TOO_LONG = "serving", "unreadable", "too long"
OWNER = "owner"  # direction of what the site's owner did
PRUNED, SUMS_ANEW, WITHDRAWN = "pruned", "secure sums anew", "withdrawn"
_WHERE = ("run", "round", "model")


class MessageLog:
    """The log of one site; ``enter`` may be called by several threads."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / LOG
        self._lock = threading.Lock()
        self._last: str | None = None  # seal of the last line; None: to be read

    def begin(self, over: str, terms: Terms) -> None:
        """Say that a process serves the site: who brings the messages, and the owner's rules.

        Args:
            over: address and certificate of a federation on Flower; empty: a socket here.
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
        """Return the last seal, and cut what a kill left (``DataError``: a line was changed)."""
        with files.explain_errors(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.touch(0o600)
        chain = whole_log(self.path)
        if chain.cut:
            files.write_bytes(self.path, sealed_lines(chain), private=True)
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
        (``Trainer.releases``). ``privacy`` or ``declared`` None: the method's own code for it
        fails; the site's log says why (``require_declared``).
    """
    fed, config = site.federation, site.config
    return {
        "method": fed.trainer.name, "backbone": config.get("MODEL.BACKBONE.NAME"),
        "rounds": fed.plan.rounds, "secure": config.get(SECURE) is True, **_guarantee(site),
        "declared": _told(site, "releases", lambda: json.loads(json.dumps(asdict(
            fed.trainer.releases(fed.groups))))),
    }


def require_declared(site: Site) -> None:
    """Refuse a method whose code for what it sends, or for its privacy, fails (``Refused``)."""
    about = about_run(site)
    for own, told in (("releases", about["declared"]), ("privacy", about["privacy"])):
        if told is None:
            raise Refused(f"this site does not work with this method: its own '{own}' fails, so "
                          "that nobody can say what leaves; details are in the site's log")


def _told(site: Site, own: str, tell: Callable[[], dict[str, Any]]) -> dict[str, Any] | None:
    """Return what a method's own code tells; None: it fails."""
    try:
        return tell()
    except Exception as error:  # somebody's file: anything
        site.say(f"'{own}' of the method fails: {type(error).__name__}: {error}")
        return None


def _guarantee(site: Site) -> dict[str, Any]:
    """Return ``bounded``, whether epsilon has a bound, and ``privacy`` in words; empty: nothing."""
    fed, batch = site.federation, int(site.config["DATALOADER.TRAIN_X.BATCH_SIZE"])
    drawn = dict.fromkeys(range(1, fed.plan.rounds + 1), site.clients)

    def tell() -> dict[str, Any]:
        try:
            report = fed.plan.private.report if fed.plan.private else fed.trainer.privacy
            spoken = dict(report(fed.plan.worked(drawn, fed.roster.train.tolist(), batch)))
        except FedvlmError as error:  # the run's coordinator hears it as the run ends
            return {"bounded": False, "privacy": f"not known: {error}"}
        return {"bounded": spoken.get("epsilon") is not None,
                "privacy": str(spoken.get("words", ""))}

    return _told(site, "privacy", tell) or {"bounded": False, "privacy": None}


def log_damage(path: Path) -> str:
    """Return where a log is not what was written; empty: every line fits the one before.

    A last line that a kill cut is no break.

    Raises:
        DataError: it cannot be read.
    """
    chain = read_chain(path, shortened=True)
    if chain.bare:
        return "line 1 is damaged (its checksum is missing)"
    said = [line for line in map(json.loads, chain.bodies) if line["kind"] == PRUNED]
    if chain.after and not chain.broken and chain.after not in [line["head"] for line in said]:
        return "line 1 is damaged (lines before it are missing, and no line says who removed them)"
    return chain.broken


def read_log(path: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the lines that hold, and the seal of each (``DataError``: it cannot be read)."""
    chain = read_chain(path, shortened=True)
    whole = [] if chain.bare else chain.bodies
    return [json.loads(body) for body in whole], chain.seals[: len(whole)]


def whole_log(path: Path) -> Chain:
    """Return a log in which every line holds (``DataError``: one does not)."""
    why = log_damage(path)
    if why:
        raise DataError(f"'{path}': {why}; move the file away and keep it: a new log then begins")
    return read_chain(path, shortened=True)


def prune_log(path: Path, before: float) -> int:
    """Remove the lines of all that was over before a time; return how many.

    What is kept begins with a start of the site, so that its rules are known, and a run is kept or
    removed as a whole. A line at the end says how many went, and the seal of the last of them,
    from which the chain goes on: seals of lines that are kept stay what they were.

    Args:
        before: seconds since 1970.

    Raises:
        DataError: the log cannot be read or written, or a line was changed.
    """
    chain = whole_log(path)
    lines = [json.loads(body) for body in chain.bodies]
    last = {line["run"]: i for i, line in enumerate(lines) if "run" in line}
    first = ends = 0  # the first line that is kept; behind the last one of runs that begin before i
    for i in range(len(lines) + 1):
        if ends <= i and (i == len(lines) or lines[i]["kind"] == SERVING):
            first = i
        if i == len(lines) or lines[i]["at"] >= before:
            break
        ends = max(ends, last.get(lines[i].get("run"), i) + 1)
    if all(line["kind"] == PRUNED for line in lines[:first]):
        return 0
    removed = [line["lines"] for line in lines  # of a pruning that was cut nothing went
               if line["kind"] == PRUNED and line["head"] == chain.after]
    append_metrics(path, {  # first: a kill between the two leaves lines too many
        "at": round(time.time(), 3), "direction": OWNER, "kind": PRUNED,
        "lines": first + (removed[-1] if removed else 0), "until": lines[first - 1]["at"],
        "head": chain.seals[first - 1],
    }, chain.last)
    files.write_bytes(path, sealed_lines(whole_log(path), first), private=True)
    return first
