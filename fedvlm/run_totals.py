"""What a whole run cost, from its ``metrics.jsonl``: all sessions of a resumed run count."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

# In our records -> in the totals. Tower forwards are those of training; the evaluation's and the
# filling of the feature cache are not among them. ``text_passes`` counts a pass of several stacked
# clients once, ``text_tokens`` counts each client's tokens.
NAMES = {"steps": "local_steps"}
COUNTED = ("local_steps", "samples", "image_forwards", "text_passes", "text_tokens")


def totals(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return rounds, work, seconds and bytes of a run, all clients together.

    Returns:
        ``rounds``, ``client_rounds``, the counters (``local_steps``, ``samples``,
        ``image_forwards``, ``text_passes``, ...), ``seconds`` (of training and aggregation),
        ``bytes_up``, ``bytes_down`` and both ``_by_tensor``, ``finetune_samples`` (of the final
        fine-tuning, which the counters leave out).
    """
    counted: Counter[str] = Counter(dict.fromkeys(COUNTED, 0))
    tensors = {way: Counter[str]() for way in ("up", "down")}
    for record in records:
        counted.update({NAMES.get(n, n): int(v) for n, v in record.get("counters", {}).items()})
        for way, found in tensors.items():
            found.update(record.get(f"bytes_{way}_by_tensor", {}))
    return {
        "rounds": max((int(r.get("round", 0)) for r in records), default=0),
        "client_rounds": sum(len(r.get("participants", ())) for r in records),
        **counted,
        "seconds": sum(float(r.get("seconds", 0.0)) for r in records),
        **{f"bytes_{way}": sum(sum(r.get(f"bytes_{way}", {}).values()) for r in records)
           for way in tensors},
        **{f"bytes_{way}_by_tensor": dict(sorted(found.items())) for way, found in tensors.items()},
        "finetune_samples": sum(int(r.get("finetune", {}).get("samples", 0)) for r in records),
    }


def sentence(found: Mapping[str, Any]) -> str:
    """Return the totals as one line for the screen."""
    return (
        f"totals: {found['rounds']} rounds, {found['local_steps']:,} local steps, "
        f"{found['samples']:,} samples, {found['image_forwards']:,} images and "
        f"{found['text_tokens']:,} text tokens through towers, {found['seconds']:.1f} s, "
        f"{found['bytes_up'] / 1e6:.2f} MB up, {found['bytes_down'] / 1e6:.2f} MB down"
    )
