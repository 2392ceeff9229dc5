"""The plain text path in pieces."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fedvlm.models.towers import text_path
from fedvlm.models.vlmodel import VLModel
from tests.models.toys import NAMES, context, loss_and_grad, relative, toy


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("kind", ["vit", "siglip"])
def test_plain_text_in_pieces_is_the_same(kind: str, own: bool, monkeypatch: Any) -> None:
    backbone = toy(kind, dtype=torch.float64)
    ctx = context(backbone, 4, len(NAMES)) if own else context(backbone, 2, 2)

    def answers() -> tuple[Tensor, Tensor]:
        model = VLModel(backbone, NAMES, packed=False)
        return loss_and_grad(model, ctx, model.text_by_class if own else model.text)

    whole = answers()
    monkeypatch.setattr(text_path, "PLAIN_BYTES", 4 << 20)
    calls = []
    plain = text_path.plain_text

    def counted(*args: Any) -> Tensor:
        calls.append(len(args[1].ids) * len(args[2]))
        return plain(*args)

    monkeypatch.setattr(text_path, "plain_text", counted)
    pieces = answers()
    assert len(calls) > 2 and max(calls) < 4 * len(NAMES)
    assert relative(pieces[0], whole[0]) < 1e-12 and relative(pieces[1], whole[1]) < 1e-12
