"""What the frames of ``fedvlm-wire/1`` hold, by op: their values and the names of their trees.

Whoever reads a frame may rely on it: types, ranges and names are those listed here, and nothing
else is there. Whether a client exists, or a tensor has the right shape, is for the reader to say.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

MOST_CLIENTS, MOST_TEXT = 10**9, 2000
MOST_LEAVES = 100_000  # tensors of a tree; of logits, of which clients have some each, no limit
DEEPEST = 4  # lists within lists in a value of a config
LIMIT = 1 << 31  # bytes of a frame
Check = Callable[[Any], bool]
# Half of a surrogate pair cannot be written to a log or a terminal.
_BROKEN = re.compile(r"[\ud800-\udfff]")
# One line, read in the order in which it is written: no controls, no marks that turn it round.
LINE = r"[^\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]"
_ID = re.compile(r"0|[1-9]\d{0,8}")


def integer(low: int = 0, high: int = 2**53) -> Check:
    """Return the check of a whole number in a range."""
    return lambda v: type(v) is int and low <= v <= high


def text(pattern: str = r"[\s\S]*", most: int = MOST_TEXT) -> Check:
    """Return the check of a text of which all matches."""
    shape = re.compile(pattern)
    return lambda v: (
        isinstance(v, str) and len(v) <= most and shape.fullmatch(v) is not None
        and not _BROKEN.search(v)
    )


def flag(v: Any) -> bool:
    """Check a truth value."""
    return isinstance(v, bool)


def number(v: Any) -> bool:
    """Check a finite number, or nothing."""
    return v is None or type(v) is int or (type(v) is float and math.isfinite(v))


def span(v: Any) -> bool:
    """Check a finite number of seconds, none below zero."""
    return v is not None and number(v) and v >= 0


def each(check: Check, most: int = MOST_CLIENTS) -> Check:
    """Return the check of a list."""
    return lambda v: isinstance(v, list) and len(v) <= most and all(map(check, v))


def by(key: Check, value: Check) -> Check:
    """Return the check of a mapping."""
    return lambda v: isinstance(v, dict) and all(key(k) and value(x) for k, x in v.items())


def record(fields: Mapping[str, Check]) -> Check:
    """Return the check of a mapping with exactly these keys."""
    return lambda v: (
        isinstance(v, dict) and v.keys() == fields.keys() and all(fields[k](v[k]) for k in fields)
    )


def setting(v: Any, deepest: int = DEEPEST) -> bool:
    """Check a value of a config: a scalar, or a list of such, of lists at most ``deepest``."""
    if isinstance(v, list):
        return deepest > 0 and all(setting(x, deepest - 1) for x in v)
    return number(v) or isinstance(v, bool) or (isinstance(v, str) and not _BROKEN.search(v))


def row(v: Any) -> bool:
    """Check a client's row of numbers."""
    return by(name, number)(v) and integer()(v.get("client"))


words = text(f"{LINE}*")  # it comes to a terminal and a log
name = text(f"{LINE}+", 500)
client = text(_ID.pattern, 9)
hexes = text(r"[0-9a-f]{8,64}", 64)
versions = by(client, integer())
_where = {"run": hexes, "like": hexes, "nonce": hexes}
_trip = {**_where, "round": integer(), "accepted": versions, "down": by(client, text(r"\d{1,9}"))}
_back = {"nonce": hexes, "round": integer()}
_key = text("[0-9a-f]{64}", 64)
_packet = text("([0-9a-f]{2})+", 1000)
_attempt = {**_where, "round": integer(), "attempt": hexes}
KEYS = ("lock", "mask", "mark", "who")  # of a site in a secure sum
_roster = {"roster": by(name, record(dict.fromkeys(KEYS, _key)))}
_shares = {"shares": by(name, _packet)}
SUMS = {"keys": "offered", "share": "shared", "mask": "masked", "unmask": "unmasked"}
ANSWERS = {"hello": "welcome", "work": "worked", "evaluate": "evaluated", "forget": "forgot",
           "personalize": "personalized", **SUMS}
PARTS = ("up", "extra", "told", "rows")  # trees of a part
PART = {
    "clients": each(integer(0, MOST_CLIENTS)), "rows": by(name, integer(-16, 16)),
    "counts": by(name, each(integer())), "form": text("|[0-9a-f]{12}"),
}
BUNDLE = {"clients": each(integer(0, MOST_CLIENTS)), "form": text("[0-9a-f]{12}"), "images": flag}
MEASURE = {
    "split": text("test|val"), "finetuned": flag, "cross": flag, "away": flag, "calibration": flag,
    "confusion": flag, "keep_logits": flag,
}
COUNTS = {
    "train": integer(), "val": integer(), "test": integer(), "classes": each(integer(), 10**6),
}

VALUES: Mapping[str, Mapping[str, Check]] = {
    "hello": {"run": hexes, "nonce": hexes, "config": by(name, setting)},
    "welcome": {
        "nonce": hexes, "facts": by(name, words), "clients": by(client, record(COUNTS)),
        "data": hexes,
    },
    "work": {**_trip, "floor": versions, "seconds": number},
    "worked": {
        **_back, "parts": each(record(PART)), "dropped": by(client, words),
        "counters": by(name, integer()), "towers": by(name, integer()),
    },
    "evaluate": {
        **_trip, "tune": flag, "model": text("personal|template|baseline|alone|names"),
        "measure": lambda v: record(MEASURE)(v) or record({**MEASURE, "answers": flag})(v),
    },
    "evaluated": {**_back, "rows": each(row), "seconds": by(client, number)},
    "personalize": {**_trip, "tune": flag},
    "personalized": {**_back, "parts": each(record(BUNDLE))},
    "keys": _attempt,
    "offered": {**_back, **dict.fromkeys(KEYS, _key)},
    "share": {**_attempt, **_roster},
    "shared": {**_back, **_shares},
    "mask": {**_trip, **_attempt, **_roster, **_shares, "floor": versions, "whole": span},
    "masked": {**_back, "dropped": by(client, words), "counters": by(name, integer()),
               "towers": by(name, integer())},
    "unmask": {**_attempt, **_roster, **_shares, "there": each(name)},
    "unmasked": {**_back, **_shares},
    "forget": {**_where, "keep": versions},
    "forgot": {"nonce": hexes},
    "failed": {"nonce": text("|[0-9a-f]{8,64}", 64), "kind": text("[a-z]+", 20), "text": words},
}
TREES: Mapping[str, re.Pattern[str]] = {
    "work": re.compile(r"down/\d{1,9}"), "evaluate": re.compile(r"down/\d{1,9}"),
    "worked": re.compile(r"(up|extra|told|rows)/\d{1,9}"), "evaluated": re.compile("logits|sums"),
    "personalize": re.compile(r"down/\d{1,9}"), "personalized": re.compile(r"model/\d{1,9}"),
    "mask": re.compile(r"down/\d{1,9}"), "masked": re.compile("sum"),
}


def misfit(op: str, values: Any, trees: Mapping[str, Mapping[str, Any]]) -> str:
    """Return what of a frame does not fit its op; empty: nothing.

    Values of the other side are not quoted: they could be anything.
    """
    if op not in VALUES:
        return "its op is unknown to this version"
    fields = VALUES[op]
    if not isinstance(values, dict) or values.keys() != fields.keys():
        return f"'{op}' has {', '.join(fields)}, no more and no less"
    bad = [key for key, check in fields.items() if not check(values[key])]
    if bad:
        return f"'{bad[0]}' of '{op}' has an invalid value"
    for tree, leaves in trees.items():
        if op not in TREES or not TREES[op].fullmatch(tree):
            return f"'{op}' has an unexpected tree"
        if len(leaves) > MOST_LEAVES and tree != "logits":
            return f"'{op}' has a tree of more than {MOST_LEAVES} tensors"
        if not all(map(name, leaves)):
            return f"'{op}' has a tensor without a proper name"
    if op in ("work", "evaluate", "personalize", "mask"):
        if values["accepted"].keys() != values["down"].keys():
            return f"'{op}' names other clients in 'down' than in 'accepted'"
        if {f"down/{ref}" for ref in values["down"].values()} != trees.keys():
            return f"'{op}' names missing downloads, or has others"
    if op in ("work", "mask"):
        accepted, floor, round_ = values["accepted"], values["floor"], values["round"]
        if any(v >= round_ for v in accepted.values()):
            return f"'{op}' starts from a version that is not older than its round"
        if accepted.keys() != floor.keys() or any(floor[c] > v for c, v in accepted.items()):
            return f"'floor' of '{op}' is above 'accepted', or of other clients"
    if op == "worked":
        parts = range(len(values["parts"]))
        if {f"{kind}/{p}" for p in parts for kind in PARTS} != trees.keys():
            return "'worked' has other trees than its parts say"
    if op == "personalized" and {f"model/{p}" for p in range(len(values["parts"]))} != trees.keys():
        return "'personalized' has other trees than its parts say"
    return ""


def too_long(size: int, most: int) -> str:
    """Return why a message of so many bytes is not read: a clause."""
    return f"a frame of {size} bytes is above the limit of {most}"


def by_number(values: Mapping[str, Any]) -> dict[int, Any]:
    """Return a mapping by client with the clients as numbers, ascending."""
    return {int(c): values[c] for c in sorted(values, key=int)}
