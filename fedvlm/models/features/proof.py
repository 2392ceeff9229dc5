"""Whether cached activations and pixels give the same numbers, and proofs of it, kept as JSON.

What a method computes from a stream (features, tokens that enter a block) must be what it computes
from the pixels: its logits, and the gradient of its loss for every trained tensor. A proof that
held is kept beside the feature store, under a key of everything that it depends on.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from fedvlm.core import files
from fedvlm.core.errors import DataError
from fedvlm.core.trees import Tree
from fedvlm.models.towers.vision import PREFIX

TOLERANCES = {torch.float64: 1e-9, torch.float32: 2e-4, torch.bfloat16: 5e-2}
FLOOR = 1e-2  # a gradient that is zero but for rounding counts as this share of the largest one
NOISE = 8  # roundings: the noise on pixels that shows how much a method enlarges them
ENLARGED = 5e-2  # what such noise may move; a method that it moves more has the usual tolerance
FOLDER = "proofs"
LOGITS, JOINT = "logits", ", "
Answers = tuple[Tensor, Tree]  # logits, and gradients by name


@dataclass(frozen=True)
class Proof:
    """What came of a comparison.

    Attributes:
        stream: what was compared with pixels: ``features``, ``tokens.<b>``, several joined by
            commas; where they differ, the one that is to blame, if it is one.
        tolerance: the largest difference that is rounding: the usual one, or more for a method that
            enlarges roundings (a BatchNorm over two images that hardly differ).
        differences: of the logits and each gradient, relative to the largest number in it.
        cause: in words what is wrong where it is no stream's fault; empty: nothing is known.
    """

    stream: str
    tolerance: float
    differences: Mapping[str, float]
    cause: str = ""

    @property
    def worst(self) -> str:
        """What differs most: ``logits``, or the name of a trained tensor."""
        return max(self.differences, key=lambda name: self.differences[name])

    @property
    def holds(self) -> bool:
        """Whether everything differs by rounding only."""
        return all(value <= self.tolerance for value in self.differences.values())

    def sentence(self) -> str:
        """Say what differs most and by how much, and which block the cache has to enter."""
        if self.cause:
            return self.cause
        name = self.worst
        what = name if name == LOGITS else f"gradient of '{name}'"
        text = (
            f"{'streams' if JOINT in self.stream else 'stream'} {self.stream} "
            f"{'give' if JOINT in self.stream else 'gives'} other numbers than pixels: {what} "
            f"differs by {self.differences[name]:.1e} (allowed {self.tolerance:.0e})"
        )
        blocks = [s.removeprefix(PREFIX) for s in self.stream.split(JOINT) if s.startswith(PREFIX)]
        if not blocks:
            return text
        entered = max(map(int, blocks))
        wrong = [n for n, value in self.differences.items() if value > self.tolerance]
        numbers = (int(b) for n in wrong for b in re.findall(r"(?<=\.)\d+(?=\.|$)", n))
        below = [b for b in numbers if b < entered]  # ``image.prompt.3`` is of block 3
        return f"{text}: the cache must start at or before block {min(below)}" if below else text


def compare(
    run: Callable[[Mapping[str, Tensor]], Answers], cached: Mapping[str, Tensor],
    pixels: Mapping[str, Tensor], dtype: torch.dtype,
) -> Proof:
    """Compare what ``run`` makes of cached streams, all at once, and of pixels.

    Where they differ by more than usual, noise of a few roundings on the pixels tells how much of
    that can be rounding.

    Args:
        run: streams ``[K, B, ...]`` -> logits ``[K, B, C]`` and gradients of the loss by name.
        cached: the streams of images.
        pixels: the same images.
        dtype: what the towers compute in; it decides what is rounding.
    """
    plain = run(pixels)
    proof = Proof(JOINT.join(cached), TOLERANCES[dtype], _differences(run(cached), plain))
    if proof.holds:
        return proof
    cause = _cause(plain, run(pixels))
    if cause or proof.tolerance >= ENLARGED:
        return replace(proof, cause=cause)
    moved = max(_differences(run(_noisy(pixels, dtype)), plain).values())
    return replace(proof, tolerance=moved) if proof.tolerance < moved <= ENLARGED else proof


def _cause(plain: Answers, again: Answers) -> str:
    """Return what is wrong with a method's numbers from pixels alone; empty: nothing is."""
    for what, value in {LOGITS: plain[0], **plain[1]}.items():
        if not bool(torch.isfinite(value).all()):
            said = "logits are" if what == LOGITS else f"the loss's gradient for '{what}' is"
            return (f"{said} not finite before round 1, on two images (a logarithm or root of 0, "
                    "a division by 0?)")
    differences = _differences(again, plain)
    name = max(differences, key=lambda one: differences[one])
    if differences[name] <= (0 if plain[0].device.type == "cpu" else ENLARGED):
        return ""  # a GPU may add in another order
    what = name if name == LOGITS else f"the gradient of '{name}'"
    return (f"the same two images, read twice, give other numbers ({what} differs by "
            f"{differences[name]:.1e}): draw from ctx.stream or Batch.seed, never from a global "
            "random generator, and keep nothing outside the state")


def _noisy(streams: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """Return streams, each number multiplied by 1 + ``NOISE`` roundings of a normal draw."""
    generator, size = torch.Generator().manual_seed(0), NOISE * torch.finfo(dtype).eps
    return {
        name: value * (1 + size * torch.randn(
            value.shape, generator=generator, dtype=torch.float64)).to(value)
        for name, value in streams.items()
    }


def _differences(left: Answers, right: Answers) -> dict[str, float]:
    """Return the differences of logits and gradients by name, as ``Proof`` has them."""
    (ours, slopes), (theirs, wanted) = left, right
    top = max((_size(g) for g in wanted.values()), default=0.0)
    differences = {LOGITS: _difference(ours, theirs, 0.0)}
    for name in sorted({*slopes, *wanted}):
        shape = slopes[name] if name in slopes else wanted[name]
        zero = torch.zeros_like(shape)  # a tensor without influence has no gradient
        differences[name] = _difference(
            slopes.get(name, zero), wanted.get(name, zero), FLOOR * top
        )
    return differences


def _size(value: Tensor) -> float:
    return float(value.detach().double().abs().max()) if value.numel() else 0.0


def _difference(ours: Tensor, theirs: Tensor, floor: float) -> float:
    """Return the largest difference over the largest number; infinite where one is none."""
    if ours.shape != theirs.shape:
        return math.inf
    gap = _size(ours.detach().double() - theirs.detach().double())
    scale = max(_size(ours), _size(theirs), floor)
    share = gap / scale if scale else 0.0
    return share if math.isfinite(share) else math.inf


def read_proof(path: Path, key: str, stream: str) -> Proof | None:
    """Return the proof kept at ``path``; None where there is none, or a damaged one."""
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
        if said["key"] != key or said["stream"] != stream:
            return None
        differences = {str(name): float(v) for name, v in said["differences"].items()}
        proof = Proof(stream, float(said["tolerance"]), differences)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
    known = proof.tolerance <= ENLARGED and LOGITS in differences
    return proof if known and proof.holds else None


def keep_proof(path: Path, key: str, proof: Proof, about: Mapping[str, str]) -> None:
    """Write a proof that holds; a folder that cannot be written keeps none.

    Args:
        about: what it is of, for whoever reads the file.
    """
    said = {
        "key": key, "stream": proof.stream, "tolerance": proof.tolerance,
        "differences": dict(proof.differences), "about": dict(about),
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write_json(path, said)
    except (OSError, DataError):
        return
