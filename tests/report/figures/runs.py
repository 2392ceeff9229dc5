"""Run folders with the curves of our choosing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fedvlm.runs.finished import FinishedRun


def make(
    tmp_path: Path, method: str, seed: int, values: list[float | None], *, shots: int = 16,
    dataset: str = "Set", zero: float = 30.0, mb: float = 1.0, folder: str = "",
    config: dict[str, Any] | None = None,
) -> FinishedRun:
    """Return a run whose ``personal`` after round r is ``values[r]``; each round sends ``mb``."""
    path = tmp_path / f"{dataset}-{method}-{shots}-{seed}{folder}"
    path.mkdir()
    lines = [
        {"round": r, "personal": v,
         "bytes_up": {"0": mb * 0.75e6} if r else {}, "bytes_down": {"0": mb * 0.25e6} if r else {}}
        for r, v in enumerate(values)
    ]
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    identity = {"config": {"SEED": seed, "DATA_SEED": seed, "OPTIM.LR": 0.1} | (config or {})}
    (path / "manifest.json").write_text(json.dumps({"identity": identity}))
    protocol = {
        "dataset": dataset, "setting": "personal", "shots": shots, "partition": "iid-K2-f1",
        "backbone": "tiny", "trainer": method, "seed": seed, "data_seed": seed,
    }
    results = {"last": lines[-1], "zero_shot": {"personal": zero}}
    return FinishedRun(path, protocol, results, {})
