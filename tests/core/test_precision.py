"""TF32's switches can be read and set whatever a program has set before."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from fedvlm.core.threads import forbid_tf32, tf32_allowed
from fedvlm.runs.manifest import determinism

B: Any = torch.backends


@pytest.fixture(autouse=True)
def as_pytorch_begins() -> Iterator[None]:
    begin()
    yield
    begin()


def begin() -> None:
    torch.set_float32_matmul_precision("highest")
    B.cuda.matmul.allow_tf32, B.cudnn.allow_tf32 = False, True
    B.fp32_precision = B.cudnn.fp32_precision = B.cuda.matmul.fp32_precision = "none"


@pytest.mark.parametrize(("owner", "word", "value", "said"), [
    (B, "fp32_precision", "ieee", (False, False, "highest")),
    (B, "fp32_precision", "tf32", (True, True, "tf32")),
    (B.cudnn, "fp32_precision", "tf32", (True, True, "tf32")),
    (B.cudnn.conv, "fp32_precision", "ieee", (False, True, "highest")),
    (B.cuda.matmul, "fp32_precision", "tf32", (True, True, "tf32")),
    (B.cuda.matmul, "allow_tf32", True, (True, True, "high")),
    (B.cudnn, "allow_tf32", False, (False, False, "highest")),
])
def test_switches_of_a_program(owner: Any, word: str, value: Any, said: tuple[Any, ...]) -> None:
    if owner is B:  # asked where an operation has no word of its own, as when a process begins
        B.cudnn.conv.fp32_precision = B.cudnn.rnn.fp32_precision = "none"
    setattr(owner, word, value)
    told = determinism()
    assert (told["tf32"], told["cudnn_tf32"], told["matmul_precision"]) == said
    forbid_tf32(torch)
    assert tf32_allowed(torch) == (False, False)
    assert [x.fp32_precision for x in (B.cuda.matmul, B.cudnn.conv, B.cudnn.rnn)] == ["ieee"] * 3
    assert not B.cuda.matmul.allow_tf32 and not B.cudnn.allow_tf32  # as others ask


def test_the_precision_of_products_that_a_program_chose() -> None:
    torch.set_float32_matmul_precision("high")
    forbid_tf32(torch)
    assert determinism()["matmul_precision"] == "highest"
