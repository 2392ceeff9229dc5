"""Run folders as the main job leaves them, with numbers of our choosing."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

CONFIG = {"OPTIM.LR": 0.01, "DATALOADER.TRAIN_X.BATCH_SIZE": 32, "INPUT.VIEWS": 1}


def write_run(
    root: Path, trainer: str, dataset: str = "Pets", seed: int = 1,
    last: Mapping[str, Any] | None = None, *, config: Mapping[str, Any] | None = None,
    info: Mapping[str, Any] | None = None, sections: Mapping[str, Any] | None = None,
    identity: Mapping[str, Any] | None = None, curve: Sequence[float] = (), folder: str = "",
    **protocol: Any,
) -> Path:
    """Write a finished run and return its folder; ``protocol`` changes single keys."""
    facts = {
        "setting": "personal", "dataset": dataset, "trainer": trainer, "tag": "", "shots": 16,
        "subsample": "all", "backbone": "tiny", "weights": "embedded",
        "backbone_digest": "b" * 64, "peft": "", "partition": "disjoint-K10-f1", "rounds": 2,
        "local_epochs": 1, "views": 1, "seed": seed, "data_seed": seed, "selection": "last",
        "budget": "rounds", "extra_data": "",
        "data_digest": hashlib.sha256(f"{dataset} {seed}".encode()).hexdigest(),
    } | protocol
    flat = CONFIG | {"SEED": seed, "DATA_SEED": seed} | dict(config or {})
    told = json.dumps([facts, flat, identity], sort_keys=True)
    digest = hashlib.sha256(told.encode()).hexdigest()
    name = "".join(c if c.isalnum() else "_" for c in f"{trainer}-{dataset}-{facts['tag']}")
    path = root / (folder or f"{name}-{digest[:6]}") / f"seed{seed}"
    path.mkdir(parents=True)
    record = {
        "format": 1, "identity_digest": digest, "protocol": facts,
        "run_info": {"notes": ["embedded tiny backbone: not comparable with papers"],
                     "totals": {"local_steps": 4, "bytes_up": 2_000_000, "seconds": 1.5},
                     "trainable": 100} | dict(info or {}),
        "results": {"last": {"round": 2} | dict(last or {})} | dict(sections or {}),
    }
    (path / "results.json").write_text(json.dumps(record))
    whole = {"config": flat, **(identity or {})}
    manifest = {"identity": whole, "identity_digest": digest}
    (path / "manifest.json").write_text(json.dumps(manifest))
    lines = [json.dumps({"round": at, "personal": v}) for at, v in enumerate(curve)]
    (path / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return path


def rows(*correct: int, n: int = 10) -> list[dict[str, Any]]:
    """Return clients' rows: right answers of ``n`` each."""
    return [{"client": at, "n": n, "correct": right, "accuracy": 100 * right / n}
            for at, right in enumerate(correct)]


def reference(kind: str, *correct: int) -> dict[str, Any]:
    """Return a reference as runs hold it."""
    clients = rows(*correct)
    return {"kind": kind, "clients": clients,
            "personal": sum(row["accuracy"] for row in clients) / len(clients)}


def write_seeds(
    root: Path, trainer: str, values: Sequence[float | None], dataset: str = "Pets", **more: Any
) -> None:
    """Write one run per value of ``personal``, seeds 1, 2, ..."""
    for seed, value in enumerate(values, start=1):
        write_run(root, trainer, dataset, seed, {"personal": value}, **more)
