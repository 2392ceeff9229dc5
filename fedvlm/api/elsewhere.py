"""Is a run what it says, on another machine than its own? In images, not in points.

Another version of a library may move the last bits of a number, so that bits prove nothing there.
But equal tensors give equal answers: the tensors that the run recorded are evaluated again, and an
image may be answered otherwise only if its two likeliest classes lie within ``MARGIN``. What has no
recorded tensors (earlier rounds, references, packed runs) is compared with what the rounds give
here, in images of which a thousandth may differ. Other numbers agree within ``CLOSE``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedvlm.api.rebuild import adopt_state, kept_models, take_start
from fedvlm.core.trees import expand
from fedvlm.federation.rounds import RoundFinished
from fedvlm.federation.server import Measure, Row
from fedvlm.job.build import Built
from fedvlm.job.record import make_evaluator
from fedvlm.job.results.images import image_bits
from fedvlm.runs.bits import BITS, PAIRED, decode_bits
from fedvlm.runs.state import SavedState
from fedvlm.runs.verify.models import START
from fedvlm.runs.verify.numbers import PERCENT

MARGIN = 1e-4  # between the probabilities of the two likeliest classes of an image
PART = 1000  # one image of so many may differ where models are trained again, and always one
CLOSE = 0.01  # share of a number that is no count of images
SURE = 1e-3  # of a loss of the same tensors
ROWS = ("clients", "unseen_clients_rows")
COSTS = ("counters", "spent", "participants")  # counted, not measured; and ``bytes_...``
# Time, a note on updates by a rule of the version, and metrics that may be a user's own code.
LEFT_OUT = ("seconds", "outliers", "named")
# ``runs.verify`` computes them; ``paired`` counts images of rows that are compared themselves.
FOLLOWS = ("table", "answer", "next", "below", "gain", "hurt", PAIRED)


@dataclass
class AnswerTally:
    """What was compared.

    Attributes:
        images: how many answers were compared; differ: how many are others.
        problems: what is not as recorded, in words.
        skipped: baselines that this version computes otherwise than the run says: not compared.
    """

    images: int = 0
    differ: int = 0
    problems: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Again:
    """The numbers of recorded tensors, evaluated here.

    Attributes:
        numbers: as a round's record has them.
        doubtful: images of clients, and of the shared model's test set, whose two likeliest classes
            lie within ``MARGIN``.
    """

    numbers: Mapping[str, Any]
    doubtful: int


def evaluate_recorded(built: Built, path: Path, identity: str, saved: SavedState) -> Again:
    """Evaluate the tensors that a run recorded after its last round.

    Args:
        built: the run's images and towers.
        path: the run's folder; its start and personal models are read, too.
        saved: its last state.
    """
    federation = built.federation
    if (path / START).exists():
        take_start(federation, path / START)
    state = adopt_state(path, identity, saved, federation)
    kept = kept_models(path, built.model.device)

    def rows(clients: Sequence[int], measure: Measure) -> list[Row]:
        if not all(client in kept for client in clients):
            return federation.rows(state, clients, measure)
        return built.meter(measure, (([c], expand(kept[c], 1)) for c in clients))

    evaluator = make_evaluator(built, keep_logits=True)
    shared = federation.shared(state)
    numbers = evaluator.evaluate(RoundFinished(
        state.round, state.round, state.server, shared, federation.roster, rows
    ))
    logits = evaluator.logits | built.meter.logits
    numbers[BITS] = image_bits(logits)
    doubtful = sum(_doubtful(v) for n, v in logits.items() if f"true|{n}" in logits)
    return Again(numbers, doubtful)


def _doubtful(logits: Tensor) -> int:
    """Return how many images have two likeliest classes within ``MARGIN``, or none at all."""
    if not len(logits) or logits.shape[1] < 2:
        return 0
    first, second = logits.double().softmax(-1).topk(2, -1).values.unbind(-1)
    return int((~(first - second >= MARGIN)).sum())


def compare_records(
    tally: AnswerTally, place: str, recorded: Any, seen: Any, allowed: int | None = None
) -> None:
    """Compare what a run says with what was found here.

    Args:
        allowed: how many images may be answered otherwise: those in doubt; None: models were
            trained again, one in ``PART``.
    """
    if isinstance(recorded, Mapping) and isinstance(seen, Mapping):
        _record(tally, place, recorded, seen, allowed)
    elif isinstance(recorded, list) and isinstance(seen, list) and len(recorded) == len(seen):
        for at, (a, b) in enumerate(zip(recorded, seen, strict=True)):
            compare_records(tally, f"{place}.{at}", a, b, allowed)
    elif isinstance(recorded, float) and isinstance(seen, int | float) and not isinstance(
            seen, bool):
        share = CLOSE if allowed is None else SURE
        near = abs(recorded - seen) <= share * max(abs(recorded), abs(seen)) + SURE
        if not near and not (math.isnan(recorded) and math.isnan(seen)):
            tally.problems.append(f"{place}: recorded {recorded}, here {seen}")
    elif type(recorded) is not type(seen) or recorded != seen:
        tally.problems.append(f"{place}: recorded {recorded}, here {seen}")


def drop_changed(tally: AnswerTally, recorded: dict[str, Any], seen: dict[str, Any]) -> None:
    """Take the baselines out of two results that say that they were computed in different ways."""
    then, now = recorded.get("references"), seen.get("references")
    if not isinstance(then, Mapping) or not isinstance(now, Mapping):
        return
    ways = {n: [one[n].get("how") for one in (then, now)] for n in then if n in now}
    tally.skipped += [name for name, (a, b) in ways.items() if a != b]
    for results, found in ((recorded, then), (seen, now)):
        results["references"] = {k: v for k, v in found.items() if k not in tally.skipped}


def _record(
    tally: AnswerTally, place: str, recorded: Mapping[str, Any], seen: Mapping[str, Any],
    allowed: int | None,
) -> None:
    """Compare a record of numbers, its clients' rows in images."""
    images, differ = 0, 0
    for key in ROWS:
        a, b = _rows(recorded.get(key)), _rows(seen.get(key))
        if a and b:
            n, other = _images(tally, f"{place}.{key}", a, b)
            images, differ = images + n, differ + other
    bits = _bits(recorded.get(BITS), seen.get(BITS))
    if bits is not None:
        differ = max(differ, bits)
    most = max(1, images // PART) if allowed is None else allowed
    tally.images, tally.differ = tally.images + images, tally.differ + differ
    if differ > most:
        tally.problems.append(f"{place}: {differ} of {images:,} images are answered otherwise "
                              f"here, at most {most} may be")
    for key in dict.fromkeys([*recorded, *seen]):
        where = f"{place}.{key}" if place else key
        if key in LEFT_OUT or key in FOLLOWS or key in (*ROWS, BITS, "notes"):
            continue
        if key not in recorded or key not in seen:
            tally.problems.append(
                f"{where}: only {'the run has it' if key in recorded else 'found here'}")
        elif key in COSTS or key.startswith("bytes_"):
            _costs(tally, where, recorded[key], seen[key])
        elif key in PERCENT or key.startswith("target."):
            _percent(tally, where, recorded[key], seen[key], images, differ, most)
        else:
            compare_records(tally, where, recorded[key], seen[key], allowed)


def _percent(
    tally: AnswerTally, where: str, recorded: Any, seen: Any, images: int, differ: int, most: int
) -> None:
    """Compare a percentage: of no image, without rows, in images of as many as the rows have."""
    if not (isinstance(recorded, int | float) and isinstance(seen, int | float)):
        if recorded is not seen:
            tally.problems.append(f"{where}: recorded {recorded}, here {seen}")
        return
    own = where.rpartition(".")[2] in ("global", "unseen", "base_all", "new", "base_other")
    free = differ and not own  # follows from the rows, and ``runs.verify`` says so
    within = CLOSE + (100 * most / images if images else 0.0)
    if not free and abs(recorded - seen) > within:
        tally.problems.append(f"{where}: recorded {recorded}, here {seen}")


def _costs(tally: AnswerTally, where: str, recorded: Any, seen: Any) -> None:
    """Compare what counts work or bytes, which is equal on every machine."""
    if isinstance(recorded, Mapping) and isinstance(seen, Mapping):
        for key in dict.fromkeys([*recorded, *seen]):
            if key not in LEFT_OUT:
                _costs(tally, f"{where}.{key}", recorded.get(key), seen.get(key))
    elif recorded != seen:
        tally.problems.append(f"{where}: recorded {recorded}, here {seen}")


def _rows(value: Any) -> list[Mapping[str, Any]]:
    """Return clients' rows; none where a value is no list of rows."""
    rows = value if isinstance(value, list) else []
    return rows if all(isinstance(row, Mapping) for row in rows) else []


def _images(
    tally: AnswerTally, place: str, recorded: Sequence[Mapping[str, Any]],
    seen: Sequence[Mapping[str, Any]],
) -> tuple[int, int]:
    """Return how many images clients' rows are of, and how many more or fewer are right."""
    here = {row.get("client"): row for row in seen}
    if [row.get("client") for row in recorded] != [row.get("client") for row in seen]:
        tally.problems.append(f"{place}: the clients are others here")
        return 0, 0
    images = differ = 0
    for row in recorded:
        other = here[row.get("client")]
        if row.get("n") != other.get("n"):
            tally.problems.append(f"{place}: client {row.get('client')} has {row.get('n')} images, "
                                  f"here {other.get('n')}")
        images += int(row.get("n") or 0)
        differ += math.ceil(abs((row.get("correct") or 0) - (other.get("correct") or 0)) - 1e-9)
        tally.problems += _row_numbers(place, row, other)
    return images, differ


def _row_numbers(
    place: str, row: Mapping[str, Any], other: Mapping[str, Any]
) -> Iterator[str]:
    """Yield the numbers of a client that are others although as many images are right."""
    if row.get("correct") != other.get("correct"):
        return
    for key, value in row.items():
        there = other.get(key)
        if not isinstance(value, float) or not isinstance(there, int | float):
            continue
        within = 1.0 if key == "ece" else CLOSE * max(abs(value), abs(there)) + SURE
        if abs(value - there) > within:
            yield f"{place}: client {row.get('client')}: {key}: recorded {value}, here {there}"


def _bits(recorded: Any, seen: Any) -> int | None:
    """Return how many images of clients have another bit; None where a side has no bits."""
    if not (isinstance(recorded, Mapping) and isinstance(seen, Mapping)):
        return None
    a, b = recorded.get("personal"), seen.get("personal")
    if not (isinstance(a, Mapping) and isinstance(b, Mapping)) or a.keys() != b.keys():
        return None
    out = 0
    for client in a:
        one, other = decode_bits(str(a[client])), decode_bits(str(b[client]))
        out += int(np.sum(np.array(one) != np.array(other))) if len(one) == len(other) else len(one)
    return out


def norm_share(a: Tensor, b: Tensor) -> float:
    """Return how far two tensors differ, as a share of the first one's norm."""
    one, other = a.double(), b.double()
    finite = one.isfinite()  # logits of absent classes are not
    if not torch.equal(finite, other.isfinite()):
        return float("inf")
    return float((one - other)[finite].norm() / one[finite].norm().clamp_min(1e-12))
