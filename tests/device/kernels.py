"""Kernels of methods' whole jobs as lines of a table (``docs/gpu.md``).

``python -m tests.device.kernels FedTV CLIP-LoRA`` counts these; without names those of the page.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from fedvlm.federation.optim import SGD, Adam
from tests.device.methods import on_card
from tests.device.tally import Tally
from tests.device.tensor import PretendCard

NAMES = ("FedAvg", "PromptFL", "FedTV", "SCAFFOLD", "pFedMoAP", "CLIP-LoRA", "HetLoRA", "FedMGP",
         "FedDPA", "HEART-PFL", "FedALA")
HEAD = ("method", "local steps", "kernels in a step", "of them the optimiser's",
        "rest of client work", "rest of rounds", "evaluation", "all")


def count_kernels(output: Path, method: str, *words: str) -> tuple[Tally, int]:
    """Run a method's job; return its tally, and how many kernels of local steps were a rule's."""
    spent = 0
    with pytest.MonkeyPatch.context() as patch:
        for rule in (SGD, Adam):
            def step(self: Any, *args: Any, _step: Any = rule.step) -> Any:
                nonlocal spent
                before = PretendCard.tally.kernels["step"]
                out = _step(self, *args)
                spent += PretendCard.tally.kernels["step"] - before
                return out

            patch.setattr(rule, "step", step)
        return on_card(output, method, *words), spent


def row_of(method: str, tally: Tally, spent: int) -> str:
    """Return a line of the table."""
    k, steps = tally.kernels, max(1, tally.steps)
    return (f"| {method} | {tally.steps} | {k['step'] / steps:.0f} | {spent / steps:.0f} | "
            f"{k['work']:,} | {k['round']:,} | {k['told']:,} | {k.total():,} |")


def main(names: Sequence[str]) -> None:
    """Print the table, each line when it is counted."""
    print(f"| {' | '.join(HEAD)} |", "|---" * len(HEAD) + "|", sep="\n", file=sys.stderr)
    for method in names or NAMES:
        with TemporaryDirectory() as folder:
            counted = count_kernels(Path(folder), method)
        print(row_of(method, *counted), file=sys.stderr, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
