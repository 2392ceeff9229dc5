"""What was trained in towers of timm's is exported merged into timm's own layers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from fedvlm.export.recipe import TOLERANCE
from fedvlm.export.traced import Whole
from tests.export.matrix import try_exports
from tests.export.models import trained
from tests.models.trunks import alone, paired

FEW = ("PEFT.N_CTX", "2")
ALL = ("PEFT.TARGETS", "q,k,v,o,mlp", "PEFT.LN", "True", *FEW)


@pytest.mark.parametrize(("kind", "words", "formats"), [
    ("siglip", ("--peft", "prompt+lora", *ALL), ("safetensors", "open_clip")),
    ("eva02", ("--peft", "prompt+lora", *ALL), ("safetensors", "open_clip")),
    ("eva01", ("--peft", "prompt+adapter", *FEW), ("safetensors",)),
    ("swin", ("--peft", "prompt+adapter", *FEW), ("safetensors",)),
    ("convnext", ("--peft", "head+adapter"), ("safetensors",)),
])
def test_the_logits_come_back(
    kind: str, words: tuple[str, ...], formats: tuple[str, ...]
) -> None:
    for cell in try_exports({kind: trained("fedavg", words, backbone=paired(kind))}, formats):
        assert cell.difference is not None and cell.difference <= TOLERANCE, cell


def test_a_tower_alone_goes_into_onnx_only() -> None:
    whole = trained("fedavg", ("--peft", "head+lora", *ALL), backbone=alone("dinov3plus"))
    (cell,) = try_exports({"dinov3": whole}, ["open_clip"])
    assert cell.difference is None and "use --format onnx" in cell.reason


def test_attention_has_four_axes_in_a_graph_and_the_same_numbers() -> None:
    class Seen(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if func is F.scaled_dot_product_attention:
                axes.append(args[0].dim())
            return func(*args, **(kwargs or {}))

    axes: list[int] = []
    gen = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 3, 2, 5, 4, generator=gen) for _ in range(3))
    want = F.scaled_dot_product_attention(q, k, v)
    with Seen(), Whole():
        got = F.scaled_dot_product_attention(q, k, v)
    assert axes == [4] and torch.allclose(got, want, 0, 1e-6)
