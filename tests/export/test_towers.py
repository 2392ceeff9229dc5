"""What was trained in towers of timm's is exported merged into timm's own layers."""

from __future__ import annotations

import pytest

from fedvlm.export.recipe import TOLERANCE
from tests.export.matrix import try_exports
from tests.export.models import trained
from tests.models.trunks import alone, paired

FEW = ("PEFT.N_CTX", "2")
ALL = ("PEFT.TARGETS", "q,k,v,o,mlp", "PEFT.LN", "True", *FEW)


@pytest.mark.parametrize(("kind", "words", "formats"), [
    ("siglip", ("--peft", "prompt+lora", *ALL), ("safetensors", "open_clip")),
    ("eva02", ("--peft", "prompt+lora", *ALL), ("safetensors", "open_clip")),
    ("eva01", ("--peft", "prompt+adapter", *FEW), ("safetensors",)),
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
