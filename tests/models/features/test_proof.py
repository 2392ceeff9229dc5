"""Comparing what a method makes of a cached stream and of pixels, and the proofs that are kept."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedvlm.models.features.proof import (
    FLOOR,
    LOGITS,
    TOLERANCES,
    Proof,
    compare,
    keep_proof,
    read_proof,
)

ONE = torch.ones(2, 1)


def proof_of(
    cached: tuple[Tensor, dict[str, Tensor]], pixels: tuple[Tensor, dict[str, Tensor]],
    dtype: torch.dtype = torch.float32, stream: str = "tokens.2",
) -> Proof:
    def run(x: Mapping[str, Tensor]) -> Any:
        return cached if stream in x else pixels

    return compare(run, {stream: ONE}, {"pixels": ONE}, dtype)


def test_differences_are_relative_to_the_largest_number() -> None:
    proof = proof_of(
        (torch.tensor([4.0, -100.0]), {"a": torch.tensor([10.0, 1.0])}),
        (torch.tensor([5.0, -100.0]), {"a": torch.tensor([10.0, 3.0])}),
    )
    assert proof.differences == pytest.approx({LOGITS: 0.01, "a": 0.2})
    assert (proof.worst, proof.holds, proof.tolerance) == ("a", False, 2e-4)


@pytest.mark.parametrize(("dtype", "allowed"), TOLERANCES.items())
def test_tolerances_of_each_type(dtype: torch.dtype, allowed: float) -> None:
    assert allowed == {torch.float64: 1e-9, torch.float32: 2e-4, torch.bfloat16: 5e-2}[dtype]
    for factor, holds in ((0.9, True), (1.1, False)):
        ours = torch.tensor([1.0 + factor * allowed], dtype=torch.float64)
        grad = {"a": torch.ones(1, dtype=torch.float64)}
        assert proof_of((ours, grad), (torch.ones_like(ours), grad), dtype).holds is holds


def test_a_gradient_that_is_missing_on_one_side_differs_wholly() -> None:
    proof = proof_of((ONE, {"b": ONE}), (ONE, {"a": ONE, "b": ONE}))
    assert proof.differences["a"] == 1.0 and proof.worst == "a"


def test_rounding_of_a_gradient_that_is_zero_is_no_difference() -> None:
    noise = torch.tensor([1e-7])
    assert proof_of((ONE, {"a": ONE, "z": noise}), (ONE, {"a": ONE, "z": -noise})).holds
    small = torch.tensor([FLOOR / 10])  # but a small gradient that is missing is one
    assert not proof_of((ONE, {"a": ONE, "z": 0 * small}), (ONE, {"a": ONE, "z": small})).holds


@pytest.mark.parametrize(("shift", "holds", "dtype"), [
    (3e-7, True, torch.float32), (1e-3, False, torch.float32), (2e-15, True, torch.float64),
])
def test_rounding_that_a_method_enlarges_is_no_difference(
    shift: float, holds: bool, dtype: torch.dtype
) -> None:
    """As BatchNorm does with images that hardly differ; a wrong number is still found."""
    x, times = torch.rand(2, 50, dtype=dtype), {torch.float32: 1e3, torch.float64: 1e7}[dtype]

    def run(streams: Mapping[str, Tensor]) -> Any:
        (value,) = streams.values()
        return ONE, {"a": times * (value - x) + 1}

    proof = compare(run, {"features": x + shift}, {"pixels": x}, dtype)
    assert proof.holds is holds and TOLERANCES[dtype] < proof.tolerance < 1e-2


def test_a_method_that_enlarges_rounding_beyond_measure_has_the_usual_tolerance() -> None:
    def run(streams: Mapping[str, Tensor]) -> Any:
        (value,) = streams.values()
        return ONE, {"a": 1e6 * (value - 1) + 1}

    proof = compare(run, {"features": ONE + 1e-6}, {"pixels": ONE}, torch.float32)
    assert not proof.holds and proof.tolerance == 2e-4


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_numbers_that_are_none_differ(value: float) -> None:
    odd = torch.full_like(ONE, value)
    assert proof_of((ONE, {"a": odd}), (ONE, {"a": odd})).differences["a"] == math.inf


def test_the_sentence_names_tensor_stream_and_block() -> None:
    grads = {"image.prompt.0": ONE, "image.prompt.1": ONE, "image.prompt.2": ONE}
    wrong = {"image.prompt.0": 0 * ONE, "image.prompt.1": 0.5 * ONE, "image.prompt.2": 0.9 * ONE}
    assert proof_of((ONE, wrong), (ONE, grads)).sentence() == (
        "stream tokens.2 gives other numbers than pixels: gradient of 'image.prompt.0' differs by "
        "1.0e+00 (allowed 2e-04): the cache must start at or before block 0"
    )
    plain = proof_of((2 * ONE, {}), (ONE, {}), stream="features").sentence()
    assert plain == (
        "stream features gives other numbers than pixels: logits differs by 5.0e-01 (allowed 2e-04)"
    )


def test_kept_and_read_back(tmp_path: Path) -> None:
    path = tmp_path / "proofs" / "x.json"
    proof = Proof("features", 2e-4, {LOGITS: 1e-6, "a": 0.0})
    assert read_proof(path, "k", "features") is None
    keep_proof(path, "k", proof, {"trainer": "T"})
    assert read_proof(path, "k", "features") == proof
    assert read_proof(path, "other", "features") is None
    assert read_proof(path, "k", "tokens.1") is None


@pytest.mark.parametrize(
    "damage",
    [
        lambda t: "", lambda t: t[: len(t) // 2], lambda t: "[]", lambda t: "\0" * 40,
        lambda t: json.dumps(json.loads(t) | {"differences": []}),
        lambda t: json.dumps(json.loads(t) | {"differences": {}}),
        lambda t: json.dumps(json.loads(t) | {"differences": {LOGITS: 0.5}}),
        lambda t: json.dumps(json.loads(t) | {"differences": {LOGITS: None}}),
        lambda t: json.dumps(json.loads(t) | {"tolerance": 1.0}),
    ],
)
def test_a_damaged_proof_is_none(tmp_path: Path, damage: Any) -> None:
    path = tmp_path / "x.json"
    keep_proof(path, "k", Proof("features", 2e-4, {LOGITS: 1e-6}), {})
    path.write_text(damage(path.read_text()))
    assert read_proof(path, "k", "features") is None


def test_a_folder_that_cannot_be_written_keeps_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    keep_proof(tmp_path / "file" / "x.json", "k", Proof("features", 2e-4, {LOGITS: 0.0}), {})
