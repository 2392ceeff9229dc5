"""``metrics.jsonl``: one JSON object per line and event, whole lines only; what they add up to.

The totals are those of the whole run: all sessions of a resumed one count.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedvlm.core import files
from fedvlm.core.errors import DataError

# In our records -> in the totals. Tower forwards are those of training; the evaluation's and the
# filling of the feature cache are not among them. ``text_passes`` counts a pass of several stacked
# clients once, ``text_tokens`` counts each client's tokens.
NAMES = {"steps": "local_steps"}
COUNTERS = ("local_steps", "samples", "image_forwards", "text_passes", "text_tokens")


def append_metrics(path: Path, record: Mapping[str, Any]) -> None:
    """Append ``record`` as one line and make it durable before returning.

    NaN and infinities become null; their places and kinds are kept in ``non_finite``.

    Raises:
        DataError: disk full, folder read-only or deleted; earlier lines are intact.
    """
    files.append_line(path, json.dumps(files.json_ready(dict(record)), allow_nan=False))


def read_metrics(path: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the records of a file that may be cut, and a note per line left out.

    A file that does not exist has no records.
    """
    records: list[dict[str, Any]] = []
    notes: list[str] = []
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return records, notes
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise DataError(f"cannot read '{path}': {why}; make it readable") from error
    lines = data.split(b"\n")
    for number, line in enumerate(lines, start=1):
        last = number == len(lines)
        if not line.strip() and (last or line == b""):
            continue
        record = None if last else _parse(line)
        if record is not None:
            records.append(record)
        elif last:
            notes.append(f"{path.name}: the last line ({number}) is cut and was dropped")
        else:
            notes.append(f"{path.name}: line {number} is damaged and was dropped")
    return records, notes


def truncate_metrics(path: Path, after_round: int) -> list[str]:
    """Drop records of rounds later than ``after_round``, cut and damaged lines; return notes.

    A record without ``round`` counts as round 0. With ``after_round = -1`` nothing is left. The
    file is rewritten atomically, and only if something goes.

    Raises:
        DataError: the file cannot be read or written.
    """
    records, notes = read_metrics(path)
    rest = [r for r in records if _round(r) <= after_round]
    dropped = len(records) - len(rest)
    if dropped:
        notes.append(f"{path.name}: {dropped} lines after round {after_round} are done again")
    if notes:
        files.write_text(path, "".join(json.dumps(r, allow_nan=False) + "\n" for r in rest))
    return notes


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
        ``seconds``.
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
    }


def sentence(totals: Mapping[str, Any]) -> str:
    """Return the totals as one line for the screen."""
    return (
        f"totals: {totals['rounds']} rounds, {totals['local_steps']:,} local steps, "
        f"{totals['samples']:,} samples, {totals['image_forwards']:,} images and "
        f"{totals['text_tokens']:,} text tokens through towers, {totals['seconds']:.1f} s, "
        f"{totals['bytes_up'] / 1e6:.2f} MB up, {totals['bytes_down'] / 1e6:.2f} MB down"
    )
