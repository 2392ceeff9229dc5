"""``metrics.jsonl``: one JSON object per line and event, whole lines only; what they add up to.

The lines are a chain: each ends with a seal over its own bytes and the seal of the line before, so
that a changed, lost or moved line shows, and the last seal stands for the whole file. Files from
before have no seals; a run that goes on in one seals what it adds.

The totals are those of the whole run: all sessions of a resumed one count.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedvlm.core import files
from fedvlm.core.errors import DataError
from fedvlm.runs.seal import sha256

# In our records -> in the totals. Tower forwards are those of training; the evaluation's and the
# filling of the feature cache are not among them. ``text_passes`` counts a pass of several stacked
# clients once, ``text_tokens`` counts each client's tokens.
NAMES = {"steps": "local_steps"}
#: In what a run has spent -> in the totals: passes through the towers in training, and gradients.
WORK = {
    "image_forwards": "image_forwards", "text_passes": "text_passes", "text_tokens": "text_tokens",
    "backward_passes": "gradients", "backward_samples": "gradient_samples",
}
COUNTERS = ("local_steps", "samples", "image_forwards", "text_passes", "text_tokens")


_SEAL = re.compile(rb', "seal": "([0-9a-f]{64})"\}')
_START = re.compile(rb'\{"after": "([0-9a-f]{64})"\}')  # first line of a file without its beginning
_WIDTH = len(', "seal": ""}') + 64


def repeats_personal(name: str, last: Mapping[str, Any]) -> bool:
    """Whether a number is ``personal`` again: before a final fine-tuning that the run lacks."""
    return name == "personal_before_ft" and not last.get("finetune")


@dataclass(frozen=True)
class Chain:
    """The lines of a file as far as they hold.

    Attributes:
        bodies: each line's JSON without its seal.
        seals: the seal after each of them; of a line without one, what it would be.
        bare: how many lines have no seal; they come first.
        broken: what is wrong with the first line that does not hold; it and the rest are left out.
        cut: the last line has no end, as a kill leaves it; it is left out.
        after: the seal that the first line follows; empty: the file has its beginning.
    """

    bodies: list[bytes] = field(default_factory=list)
    seals: list[str] = field(default_factory=list)
    bare: int = 0
    broken: str = ""
    cut: str = ""
    after: str = ""

    @property
    def last(self) -> str:
        """The last seal; empty before the first line."""
        return self.seals[-1] if self.seals else self.after


def read_chain(path: Path, shortened: bool = False) -> Chain:
    """Return the chain in a file, empty where there is no file.

    Args:
        shortened: whether the file may lack its beginning (``sealed_lines``).

    Raises:
        DataError: it cannot be read.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return Chain()
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise DataError(f"cannot read '{path}': {why}; make it readable") from error
    *lines, tail = data.split(b"\n")
    bodies: list[bytes] = []
    seals: list[str] = []
    bare, broken = 0, ""
    start = _START.fullmatch(lines[0]) if shortened and lines else None
    after = start[1].decode() if start else ""
    for number, line in enumerate(lines[bool(start):], start=1 + bool(start)):
        told = _SEAL.fullmatch(line[-_WIDTH:])
        body = line[:-_WIDTH] + b"}" if told else line
        seal = _link(seals[-1] if seals else after, body)
        if told and told[1].decode() != seal:
            broken = f"line {number} is damaged (its checksum does not match)"
        elif not told and len(seals) > bare:
            broken = f"line {number} is damaged (its checksum is missing)"
        if broken:
            break
        bare += not told
        bodies.append(body)
        seals.append(seal)
    cut = f"the last line ({len(lines) + 1}) is truncated" if tail.strip() and not broken else ""
    return Chain(bodies, seals, bare, broken, cut, after)


def sealed_lines(chain: Chain, first: int = 0) -> bytes:
    """Return the lines of a sealed chain from one on, as a file that lacks those before it.

    Args:
        first: place of a line, from 0; 0: the chain as it is.
    """
    after = chain.seals[first - 1] if first else chain.after
    lines = [f'{{"after": "{after}"}}'.encode()] if after else []
    lines += [body[:-1] + f', "seal": "{seal}"}}'.encode()
              for body, seal in zip(chain.bodies[first:], chain.seals[first:], strict=True)]
    return b"".join(line + b"\n" for line in lines)


def append_metrics(path: Path, record: Mapping[str, Any], before: str | None = None) -> str:
    """Append ``record`` as one sealed line, make it durable, and return the seal.

    NaN and infinities become null; their places and kinds are kept in ``non_finite``.

    Args:
        record: a mapping that is not empty.
        before: the seal of the last line; None: it is read.

    Raises:
        DataError: disk full, folder read-only or deleted; earlier lines are intact.
    """
    before = read_chain(path).last if before is None else before
    body = json.dumps(files.json_ready(dict(record)), allow_nan=False)
    seal = _link(before, body.encode())
    files.append_line(path, f'{body[:-1]}, "seal": "{seal}"}}')
    return seal


def read_metrics(path: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the records of a file that may be cut, and a note on every line left out.

    A file that does not exist has no records.
    """
    chain = read_chain(path)
    records: list[dict[str, Any]] = []
    notes: list[str] = []
    for number, body in enumerate(chain.bodies, start=1):
        record = _parse(body)
        if record is not None:
            records.append(record)
        elif body:
            notes.append(f"{path.name}: line {number} is damaged and was dropped")
    if chain.broken:
        notes.append(f"{path.name}: {chain.broken}; this line and all later ones were dropped")
    if chain.cut:
        notes.append(f"{path.name}: {chain.cut} and was dropped")
    return records, notes


def truncate_metrics(path: Path, after_round: int) -> list[str]:
    """Drop records of rounds later than ``after_round``, cut and damaged lines; return notes.

    A record without ``round`` counts as round 0. With ``after_round = -1`` nothing is left. The
    file is rewritten atomically, and only if something goes; what stays keeps its bytes.

    Raises:
        DataError: the file cannot be read or written.
    """
    chain, (_, notes) = read_chain(path), read_metrics(path)
    rest: list[bytes] = []
    dropped, gap = 0, False  # after a gap no seal fits
    for number, (body, seal) in enumerate(zip(chain.bodies, chain.seals, strict=True)):
        record, bare = _parse(body), number < chain.bare
        if record is None:
            gap = True
        elif _round(record) > after_round or (gap and not bare):
            dropped, gap = dropped + 1, True
        else:
            rest.append(body if bare else body[:-1] + f', "seal": "{seal}"}}'.encode())
    if dropped:
        notes.append(f"{path.name}: {dropped} lines after round {after_round} were dropped; "
                     "these rounds run again")
    if notes:
        files.write_bytes(path, b"".join(line + b"\n" for line in rest))
    return notes


def _link(before: str, body: bytes) -> str:
    return sha256(before.encode() + b"\n" + body)


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _round(record: Mapping[str, Any]) -> float:
    value = record.get("round", 0)
    return float(value) if isinstance(value, int | float) else 0.0


def totals(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return rounds, work, seconds and bytes of a run, all clients together.

    Returns:
        ``rounds``, ``client_rounds``, the counters (``local_steps``, ``samples``,
        ``image_forwards``, ``text_passes``, ...), ``seconds`` (of training and aggregation),
        ``bytes_up``, ``bytes_down`` and both ``_by_tensor``, ``finetune_samples`` and
        ``finetune_steps`` (of the final fine-tuning, which the counters leave out and the seconds
        do not).
    """
    work: Counter[str] = Counter(dict.fromkeys(COUNTERS, 0))
    tensors = {way: Counter[str]() for way in ("up", "down")}
    for record in records:
        work.update({NAMES.get(n, n): int(v) for n, v in record.get("counters", {}).items()})
        for way, sums in tensors.items():
            sums.update(record.get(f"bytes_{way}_by_tensor", {}))
    return {
        "rounds": max((int(r.get("round", 0)) for r in records), default=0),
        "client_rounds": sum(len(r.get("participants", ())) for r in records),
        **work,
        "seconds": sum(float(r.get("seconds", 0.0)) for r in records),
        **{f"bytes_{way}": sum(sum(r.get(f"bytes_{way}", {}).values()) for r in records)
           for way in tensors},
        **{f"bytes_{way}_by_tensor": dict(sorted(sums.items())) for way, sums in tensors.items()},
        **{f"finetune_{name}": sum(int(r.get("finetune", {}).get(name, 0)) for r in records)
           for name in ("samples", "steps")},
    }


def spent(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what a run's numbers cost, all clients together, the final fine-tuning included.

    Returns:
        ``local_steps`` and ``samples`` of the whole run, ``final_steps``, ``final_samples`` and
        ``final_epochs`` of them (0 without a final phase), ``bytes_up``, ``bytes_down``,
        ``seconds``; the passes of ``WORK`` (0 where a method counts none).
    """
    whole = totals(records)
    final = {name: whole[f"finetune_{name}"] for name in ("steps", "samples")}
    return {
        "local_steps": whole["local_steps"] + final["steps"],
        "samples": whole["samples"] + final["samples"],
        "final_steps": final["steps"], "final_samples": final["samples"],
        "final_epochs": sum(int(r.get("finetune", {}).get("epochs", 0)) for r in records),
        "bytes_up": whole["bytes_up"], "bytes_down": whole["bytes_down"],
        "seconds": whole["seconds"],
        **{name: whole.get(told, 0) for name, told in WORK.items()},
    }


def sentence(totals: Mapping[str, Any]) -> str:
    """Return the totals as one line for the screen."""
    rounds = f"{totals['rounds']} round{'' if totals['rounds'] == 1 else 's'}"
    return (
        f"totals: {rounds}, {totals['local_steps']:,} local steps, "
        f"{totals['samples']:,} samples, {totals['image_forwards']:,} images and "
        f"{totals['text_tokens']:,} text tokens encoded, {totals['seconds']:.1f} s, "
        f"{totals['bytes_up'] / 1e6:.2f} MB up, {totals['bytes_down'] / 1e6:.2f} MB down "
        "(what the rounds' training sends; no evaluations or baselines)"
    )
