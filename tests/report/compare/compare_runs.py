"""Run folders with rounds, clients and kept logits of our choosing, to be compared."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

CONFIG = {"OPTIM.LR": 0.01, "FED.ROUNDS": 2}
DIGEST = hashlib.sha256(b"data").hexdigest()


def record(round_: int, accuracies: Sequence[float | None], loss: float | None = None,
           **more: Any) -> dict[str, Any]:
    """Return a round's line; without ``accuracies`` one that was not evaluated."""
    known = [a for a in accuracies if a is not None]
    found: dict[str, Any] = {"round": round_, "seconds": 0.1 * (1 + len(more)), "participants": []}
    if loss is not None:
        everyone = range(len(accuracies) or 2)
        found["train"] = {str(c): {"loss": loss + c} for c in everyone}
        found["bytes_up"] = {str(c): 100 for c in everyone}
    if known:
        rows = [{"client": c, "n": 0 if a is None else 10, "accuracy": a}
                for c, a in enumerate(accuracies)]
        found |= {"personal": sum(known) / len(known), "clients": rows}
    return found | more


def write(
    path: Path, records: Sequence[Mapping[str, Any]], trainer: str = "FedAvg", *, seed: int = 1,
    config: Mapping[str, Any] | None = None, elsewhere: Mapping[str, Any] | None = None,
    data: str = DIGEST, finished: bool = True, torch: str = "2.15.0",
    logits: Mapping[str, Any] | None = None,
) -> Path:
    """Write a run folder and return it."""
    path.mkdir(parents=True)
    keys = CONFIG | {"SEED": seed, "DATA_SEED": seed, "TRAINER.NAME": trainer} | dict(config or {})
    identity = {"config": keys, "data": data, "images": "i"}
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
    session = {"versions": {"torch": torch}, "machine": {"cores": 2}, "git": None}
    (path / "manifest.json").write_text(json.dumps(
        {"identity": identity, "identity_digest": digest, "sessions": [session]}
    ))
    lines = [f"{key}: {json.dumps(v)}\n" for key, v in (keys | dict(elsewhere or {})).items()]
    (path / "config.yaml").write_text("".join(lines))
    (path / "metrics.jsonl").write_text("".join(f"{json.dumps(r)}\n" for r in records))
    if logits is not None:
        save_file({k: np.asarray(v) for k, v in logits.items()}, path / "logits.safetensors")
    if finished:
        (path / "results.json").write_text(json.dumps({
            "format": 1, "identity_digest": digest,
            "protocol": {"trainer": trainer, "seed": seed, "data_seed": seed, "data_digest": data},
            "run_info": {"totals": {"bytes_up": 1_000_000, "local_steps": 4}, "trainable": 10},
            "results": {"last": dict(records[-1])},
        }))
    return path
