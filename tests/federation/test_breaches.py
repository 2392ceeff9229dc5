"""Trainers that break a contract, and numbers that are not finite, on the quadratic toys."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fedvlm.core.errors import DivergedError, FedvlmError
from fedvlm.core.trees import State, Tree, per_client
from fedvlm.federation.batches import Batch
from fedvlm.federation.context import Context, Upload

from .toys import Quadratic, quadratic


def server(fed: Any) -> float:
    return float(fed.run().server["w"]["w"])


def test_upload_outside_the_shared_group_is_refused() -> None:
    class Leaks(Quadratic):
        def local(self, ctx: Context, c: State, d: Tree) -> tuple[State, Upload]:
            return c, Upload({"w": d["w"], "secret": d["w"]}, ctx.sizes)

    with pytest.raises(FedvlmError, match="secret"):
        quadratic(Leaks(), 1).run()


def test_server_tensor_written_by_a_client_is_noticed() -> None:
    class Writes(Quadratic):
        def down(self, server: State, client: int) -> Tree:
            self.held = server["w"]["w"]
            return super().down(server, client)

        def local(self, ctx: Context, c: State, d: Tree) -> tuple[State, Upload]:
            self.held.add_(1.0)
            return super().local(ctx, c, d)

    with pytest.raises(FedvlmError, match="changed server tensors"):
        quadratic(Writes(), 1, chunk=1).run()


def test_download_written_in_place_reaches_nobody_else() -> None:
    class Writes(Quadratic):
        def local(self, ctx: Context, c: State, d: Tree) -> tuple[State, Upload]:
            out = super().local(ctx, c, d)
            d["w"].add_(1.0)
            return out

    assert server(quadratic(Writes(), 3)) == server(quadratic(Quadratic(), 3))


class Explodes(Quadratic):
    def loss(self, model: Any, p: Tree, b: Batch) -> Tensor:
        value = super().loss(model, p, b)
        bad = per_client(b.x["a"][:, 0] == 3.0, value)
        return torch.where(bad, torch.nan, 1.0) * value


@pytest.mark.parametrize("chunk", [1, 2])
def test_non_finite_is_named_or_dropped(chunk: int) -> None:
    with pytest.raises(DivergedError, match=r"round 1, client 1: loss .* step 1"):
        quadratic(Explodes(), 1, chunk=chunk).run()
    fed = quadratic(Explodes(), 2, chunk=chunk, nonfinite="drop")
    seen = []
    fed.subscribers.append(seen.append)
    state = fed.run()
    assert float(state.server["w"]["w"]) == 0.0  # client 0 alone: b = 0
    assert "client 1" in seen[-1].dropped[1]
    assert float(state.clients[1]["w"]["w"]) == 0.0


def test_all_dropped_stops() -> None:
    class AllExplode(Quadratic):
        def loss(self, model: Any, p: Tree, b: Batch) -> Tensor:
            return super().loss(model, p, b) * torch.nan

    with pytest.raises(DivergedError, match="every client"):
        quadratic(AllExplode(), 1, nonfinite="drop").run()
