"""The first round at which two runs part: their recorded rounds, bit for bit.

JSON keeps a float's shortest exact spelling, so equal text is equal bits. Wall time and passes
through the towers (fewer where a cache is warm) are no results and are not compared.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

TRAINING = ("participants", "dropped", "train", "aggregation", "finetune", "similarity")
TRAFFIC = ("bytes_up", "bytes_down", "bytes_up_by_tensor", "bytes_down_by_tensor")
IGNORED = ("round", "seconds", "counters", "notes")
BY_CLIENT = ("dropped", "train", "bytes_up", "bytes_down")
PARTS = ("training", "evaluation", "traffic")
_ABSENT = object()

Leaf = tuple[str, int | None]  # name of a number, client or None


@dataclass(frozen=True)
class Parting:
    """The first number that differs.

    Attributes:
        round: where.
        name: of the number, dotted: ``train.loss``, ``clients.accuracy``, ``personal``.
        client: whose, or None.
        a, b: both values; ``absent`` where one side has none such.
    """

    round: int
    name: str
    client: int | None
    a: Any
    b: Any


@dataclass(frozen=True)
class PartRounds:
    """One part of the records over the rounds that both runs have.

    Attributes:
        part: ``training``, ``evaluation`` or ``traffic``.
        rounds: the rounds compared; an evaluation counts where both were evaluated.
        parting: None where all are equal, bit for bit.
    """

    part: str
    rounds: tuple[int, ...]
    parting: Parting | None


def part_rounds(
    a: Mapping[int, Mapping[str, Any]], b: Mapping[int, Mapping[str, Any]]
) -> list[PartRounds]:
    """Return for training, evaluation and traffic where the records part first."""
    found = []
    for part in PARTS:
        both = sorted(set(a) & set(b))
        if part == "evaluation":
            both = [r for r in both if "personal" in a[r] and "personal" in b[r]]
        else:
            both = [r for r in both if r > 0]  # round 0 is the untrained start
        parting = next((p for r in both if (p := _parting(r, a[r], b[r], part))), None)
        found.append(PartRounds(part, tuple(both), parting))
    return found


def _parting(
    round_: int, a: Mapping[str, Any], b: Mapping[str, Any], part: str
) -> Parting | None:
    """Return the first number that both have and that differs, else the first that one lacks."""
    left, right = dict(_leaves(a, part)), dict(_leaves(b, part))
    lacking: Parting | None = None
    for leaf in dict.fromkeys([*left, *right]):
        x, y = left.get(leaf, _ABSENT), right.get(leaf, _ABSENT)
        if x is _ABSENT or y is _ABSENT:
            shown = ["absent" if v is _ABSENT else v for v in (x, y)]
            lacking = lacking or Parting(round_, *leaf, *shown)
        elif json.dumps(x) != json.dumps(y):
            return Parting(round_, *leaf, x, y)
    return lacking


def _leaves(record: Mapping[str, Any], part: str) -> Iterator[tuple[Leaf, Any]]:
    keys = [k for k in (*TRAINING, *TRAFFIC, "clients") if k in record]  # causes before means
    keys += [k for k in record if k not in keys]
    for key in keys:
        if key in IGNORED:
            continue
        value = record[key]
        if key == "non_finite" and isinstance(value, Mapping):  # place -> nan, inf
            mine = {p: kind for p, kind in value.items() if _part(p.partition(".")[0]) == part}
            yield from (((f"non_finite {place}", None), kind) for place, kind in mine.items())
        elif _part(key) != part:
            continue
        elif key in BY_CLIENT and isinstance(value, Mapping):
            for client in sorted(value, key=_number):
                yield from _flat(key, _number(client), value[client])
        elif key == "clients" and isinstance(value, list):
            for row in value:
                own = {k: v for k, v in row.items() if k != "client"}
                yield from _flat(key, row.get("client"), own)
        else:
            yield from _flat(key, None, value)


def _flat(name: str, client: int | None, value: Any) -> Iterator[tuple[Leaf, Any]]:
    items: Any = ()
    if isinstance(value, Mapping):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    else:
        yield (name, client), value
    for key, item in items:
        yield from _flat(f"{name}.{key}", client, item)


def _part(key: str) -> str:
    if key in TRAINING:
        return "training"
    return "traffic" if key in TRAFFIC else "evaluation"


def _number(client: Any) -> int:
    return int(client) if str(client).isdigit() else -1
