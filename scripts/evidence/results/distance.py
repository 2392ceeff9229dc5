"""How far a run's shared tensors are from their start, by what they belong to (image, text)."""

from __future__ import annotations

import math
from collections import defaultdict
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from fedvlm.core.errors import DataError
from fedvlm.runs.state import load_newest_state

START = "start.safetensors"


def distance(folder: Path, identity: str) -> dict[str, float]:
    """Return the Euclidean distance of the server's tensors from the start, in times the start's.

    By the first word of their names, over all tensors of it. Empty where the run kept no whole
    state or no start; a word whose start is all zero is left out.

    Args:
        folder: the run's; its newest state counts.
        identity: digest of the run's identity.

    Raises:
        DataError: the start cannot be read.
    """
    state, _ = load_newest_state(folder / "state", identity=identity)
    path = folder / "models" / START
    if state is None or not path.is_file():
        return {}
    try:
        start = load_file(path)
    except (OSError, ValueError, RuntimeError) as error:
        raise DataError(f"{path}: cannot be read ({error})") from error
    squares: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for name, tensor in state.server.get("w", {}).items():
        before: Any = start.get(name)
        if before is not None and before.shape == tensor.shape:
            sums = squares[name.partition(".")[0]]
            sums[0] += float((tensor.double() - before.double()).square().sum())
            sums[1] += float(before.double().square().sum())
    return {word: math.sqrt(a / b) for word, (a, b) in sorted(squares.items()) if b > 0}
