"""Faults of one client's message (style_and_ux.md 6.2): refused, with client and tensor."""

from __future__ import annotations

import pytest
import torch

from fedvlm.core.errors import FedvlmError
from fedvlm.core.trees import State, Tree
from fedvlm.federation.context import Context, Upload
from tests.federation.toys import Quadratic, quadratic


def faulty(kind: str) -> Quadratic:
    class Faulty(Quadratic):
        name = "Faulty"

        def __init__(self) -> None:
            super().__init__()

        def local(self, ctx: Context, c: State, d: Tree) -> tuple[State, Upload]:
            state, up = super().local(ctx, c, d)
            mine = 1 in ctx.clients
            if kind == "none" and mine:
                return None  # type: ignore[return-value]
            if kind == "raises" and mine:
                raise RuntimeError("boom")
            if kind == "shape":
                return state, Upload({"w": torch.stack([up.params["w"]] * 2, 1)}, up.weight)
            if kind == "dtype":
                return state, Upload({"w": up.params["w"].float()}, up.weight)
            if kind == "state":
                return {"w": {"w": state["w"]["w"] / 0}}, up
            if kind == "many":
                return state, Upload(up.params, torch.ones(7))
            factors = {"negative": -1.0 if mine else 3.0, "nan": torch.nan, "zero": 0.0}
            return state, Upload(up.params, up.weight * factors.get(kind, 1.0))

    return Faulty()


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        ("none", "client 1"), ("raises", "client 1.*boom"), ("shape", "'w'.*shape"),
        ("dtype", "'w'.*float32"), ("negative", "client 1.*weight"), ("nan", "client 0.*weight"),
        ("zero", "weight"), ("many", "weight"), ("state", "round 1, client 0.*'w'"),
    ],
)
def test_faulty_message(kind: str, sentence: str) -> None:
    with pytest.raises(FedvlmError, match=sentence):
        quadratic(faulty(kind), 1, chunk=1).run()


def test_until_zero_runs_nothing() -> None:
    assert quadratic(Quadratic(), 3).run(until=0).round == 0
