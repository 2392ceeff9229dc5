"""Foreign trainers on the demo's data with the tiny backbone, in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fedvlm.federation.rounds import FedState, WholeState
from fedvlm.job.build import Built, build_run
from fedvlm.job.flags import parse
from fedvlm.job.resolve import resolve

HERE = Path(__file__).parent
THIRD = HERE.parents[2] / "shared" / "thirdparty" / "coop"
COOP = THIRD / "coop.py"
WORDS = "--demo --shots 2 --rounds 2 --num-users 2 --local-epochs 2"

needs_coop = pytest.mark.skipif(not COOP.is_file(), reason=f"CoOp's own file is not at {COOP}")


def double(file: str, name: str) -> str:
    """The spec of a double."""
    return f"{HERE}/doubles_{file}.py:{name}"


def built(trainer: str, *words: str, pixels: bool = True) -> Built:
    """A run, ready to go; ``pixels`` without a feature cache."""
    argv = [*WORDS.split(), "--trainer", trainer, *words]
    return build_run(resolve(parse(argv)).jobs[0].cfg, pixels=pixels)


def losses(run: Built, until: int | None = None, state: WholeState | None = None) -> dict[str, Any]:
    """Train; return the whole state and every client's loss by round."""
    told: list[list[float]] = []

    def listen(event: Any) -> None:
        if getattr(event, "updates", None) is not None:
            name = next(n for n in event.updates.metrics if "loss" in n)
            told.append(event.updates.metrics[name].tolist())

    run.federation.subscribers.append(listen)
    before = None if state is None else run.federation.adopt(state)
    after: FedState = run.federation.run(before, until)
    run.federation.subscribers.remove(listen)
    return {"losses": told, "state": run.federation.read(after)}


def same_bits(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    """Whether two trees are equal in all bits."""
    return a.keys() == b.keys() and all(torch.equal(a[n], b[n]) for n in a)
