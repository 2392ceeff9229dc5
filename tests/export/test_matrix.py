"""Every method in every format: exported with its logits, or refused with a reason."""

from __future__ import annotations

import pytest

from fedvlm.export.formats import onnx_file
from fedvlm.export.recipe import TOLERANCE
from fedvlm.federation.cards import trainer_files
from tests.export.matrix import try_exports
from tests.export.models import trained


def test_a_cell_has_a_number_or_a_reason() -> None:
    cells = try_exports({"promptfl": trained("promptfl")}, ["safetensors", "peft"])
    assert [c.format for c in cells] == ["safetensors", "peft"]
    assert cells[0].difference is not None and cells[0].difference <= TOLERANCE
    assert cells[1].difference is None and "the model has no LoRA" in cells[1].reason


# Without a recipe: what predicts is more than adapters of known kinds and class features.
NO_RECIPE = {
    "afl", "clip_adapter", "cocoop", "fedclip", "feddda", "feddpa", "fedmgp", "fedmvp", "fedotp",
    "fedmedclip", "fedpft",
    "maple", "pfedmma", "pfedmoap", "promptsrc", "tip_adapter", "tip_adapter_f", "tofa", "trip",
    "vpt",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(trainer_files()))
def test_every_method_is_exported_or_refused(name: str) -> None:
    formats = ["safetensors", "peft", "open_clip"] + ["onnx"] * (not onnx_file.missing_packages())
    cells = {c.format: c for c in try_exports({name: trained(name)}, formats)}
    for form in ("safetensors", "onnx"):  # every other method goes into these
        if form in cells and name not in NO_RECIPE:
            assert cells[form].difference is not None, cells[form].reason
    for cell in cells.values():
        assert cell.difference is None or cell.difference <= TOLERANCE, cell
        assert (cell.difference is None) == bool(cell.reason), cell
