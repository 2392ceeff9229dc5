"""Figures of both sides: what is stored in ``tests/golden``, and how close two sides are.

A tensor of at most 32 numbers is stored whole; a larger one by its norm and eight sums over
fixed cosine patterns, in which an error of any entry shows.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from parity.world import Case, World

GOLDEN = Path(__file__).resolve().parents[2] / "tests" / "golden"
WHOLE = 32  # numbers up to which a tensor is stored whole
PRIMES = (2, 3, 5, 7, 11, 13, 17, 19)  # their roots are the patterns' frequencies
BOUND = 1e-10  # of two sides, relative to the tensor's norm
FLOOR = 1e-12  # norms below it are rounding

AUTHORS, OTHERS, PAPER, READING = "authors' code", "others' code", "paper", "our reading"

Values = dict[str, Tensor]


@dataclass(frozen=True)
class Source:
    """Where the other side comes from.

    Attributes:
        method: ours.
        kind: the authors' released code, code of others, an implementation written from the paper
            by somebody who had not read ours, or, where no more than an abstract or a summary
            is to be had, a second one of our own reading of it.
        repository, commit: ``owner/name`` and hash on GitHub; of ``PAPER`` and ``READING`` the
            paper's title and year, and an empty hash.
        files: that were run.
        equal: what is compared, in words.
        differs: what is not equal, or set differently for the comparison, and why.
    """

    method: str
    kind: str
    repository: str
    commit: str = ""
    files: tuple[str, ...] = ()
    equal: str = "loss, gradients, logits, three rounds"
    differs: str = ""


def digest(value: Tensor) -> dict[str, Any]:
    """Return shape, norm and probes of a tensor, or all its numbers."""
    flat = value.detach().to(torch.float64).reshape(-1).numpy()
    if len(flat) <= WHOLE:
        return {"shape": list(value.shape), "numbers": flat.tolist()}
    at = np.arange(1, len(flat) + 1)
    probes = [float(flat @ np.cos(math.sqrt(p) * at)) for p in PRIMES]
    return {"shape": list(value.shape), "norm": float(np.linalg.norm(flat)), "probes": probes}


def distance(value: Tensor, stored: Mapping[str, Any]) -> float:
    """Return the largest difference from a stored digest, relative to the tensor's norm.

    Infinite where the shape is another or a number is not finite.
    """
    mine = digest(value)
    if mine["shape"] != list(stored["shape"]):
        return math.inf
    keys = ("numbers",) if "numbers" in stored else ("norm", "probes")
    a, b = (np.hstack([side[k] for k in keys]) for side in (mine, stored))
    norm = float(stored["norm"] if "norm" in stored else np.linalg.norm(b))
    gap = float(np.abs(a - b).max(initial=0.0)) / max(norm, FLOOR)
    return gap if math.isfinite(gap) else math.inf


def deviations(ours: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> dict[str, float]:
    """Return each array's largest difference, relative to its norm on the other side.

    Raises:
        KeyError: an array of the other side that ours lacks.
    """
    found = {}
    for name, theirs in other.items():
        mine, norm = ours[name], float(theirs.norm())
        same = mine.shape == theirs.shape
        found[name] = float((mine - theirs).abs().max()) / max(norm, FLOOR) if same else math.inf
    return found


def golden_path(method: str) -> Path:
    """Return the file of a method's figures."""
    return GOLDEN / f"{method.lower().replace('-', '_')}.json"


def read_golden(path: Path) -> tuple[Source, dict[str, tuple[Case, dict[str, Any]]]]:
    """Return the source and, by case, its settings and stored figures."""
    record = json.loads(path.read_text(encoding="utf-8"))
    known = {f.name for f in fields(Case)}
    source = Source(**{**record["source"], "files": tuple(record["source"]["files"])})
    cases = {}
    for name, entry in record["cases"].items():
        settings: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in entry["case"].items()
            if k in known
        }
        cases[name] = (Case(**settings), entry["values"])
    return source, cases


def stored_deviation(path: Path) -> float:
    """Return the largest deviation when a method's figures were stored."""
    return float(json.loads(path.read_text(encoding="utf-8"))["deviation"])


def write_golden(source: Source, cases: Mapping[str, Case], values: Mapping[str, Values],
                 worst: float) -> Path:
    """Store the other side's figures; return the file."""
    path, plain = golden_path(source.method), Case(source.method)
    record = {
        "source": asdict(source), "deviation": worst,
        "cases": {name: {
            "case": {k: v for k, v in asdict(case).items()
                     if k == "method" or v != getattr(plain, k)},
            "values": {k: digest(v) for k, v in values[name].items()},
        } for name, case in cases.items()},
    }
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return path


def compare(module: Any, folder: Path, write: bool) -> float:
    """Compare all cases of a method's module, print the deviations, store the other side's figures.

    Args:
        module: with ``SOURCE``, ``CASES`` and ``other(world, folder)``.
        folder: the other side's repository.
        write: store, if the largest deviation is within ``BOUND``.

    Returns:
        The largest deviation.
    """
    source, cases, values, worst = module.SOURCE, {}, {}, 0.0
    for name, case in module.CASES.items():
        world = World(case)
        cases[name] = replace(case, scales=world.scales)
        values[name] = module.other(world, folder)
        for key, gap in deviations(world.values(), values[name]).items():
            print(f"{source.method} {name}: {key:<40} {gap:.1e}")
            worst = max(worst, gap)
    print(f"{source.method}: largest deviation {worst:.1e}, allowed {BOUND:g}")
    if write and worst <= BOUND:
        print(write_golden(source, cases, values, worst))
    return worst
