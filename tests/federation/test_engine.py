"""Trainers that break a contract, faulty messages, and numbers that are not finite."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fedvlm.core.errors import DivergedError, FedvlmError
from fedvlm.core.trees import State, Tree, per_client
from fedvlm.federation.batches import Batch
from fedvlm.federation.context import Context, Upload
from fedvlm.federation.server import ServerContext
from tests.federation.toys import Quadratic, quadratic


def server(fed: Any) -> float:
    return float(fed.run().server["w"]["w"])


def test_upload_outside_the_shared_group_is_refused() -> None:
    class Leaks(Quadratic):
        def client_update(self, ctx: Context, state: State, received: Tree) -> tuple[State, Upload]:
            return state, Upload({"w": received["w"], "secret": received["w"]}, ctx.sizes)

    with pytest.raises(FedvlmError, match="secret"):
        quadratic(Leaks(), 1).run()


def test_personal_tensor_in_an_upload_is_refused() -> None:
    class Leaks(Quadratic):
        groups = ((r"w", "shared"), (r"own", "personal"))

        def trainables(self, model: Any, generator: torch.Generator) -> Tree:
            return {n: torch.zeros((), dtype=torch.float64) for n in ("w", "own")}

        def client_update(self, ctx: Context, state: State, received: Tree) -> tuple[State, Upload]:
            return state, Upload(state["w"], ctx.sizes)

    with pytest.raises(FedvlmError, match=r"uploads \['own'\] outside the shared group"):
        quadratic(Leaks(), 1).run()


def test_server_tensor_written_by_a_client_is_noticed() -> None:
    kept: dict[str, Tensor] = {}

    class Writes(Quadratic):
        def download(self, ctx: ServerContext, server: State, client: int) -> Tree:
            kept["w"] = server["w"]["w"]
            return super().download(ctx, server, client)

        def client_update(self, ctx: Context, state: State, received: Tree) -> tuple[State, Upload]:
            kept["w"].add_(1.0)
            return super().client_update(ctx, state, received)

    with pytest.raises(FedvlmError, match="changed server tensors"):
        quadratic(Writes(), 1, chunk=1).run()


def test_download_written_in_place_reaches_nobody_else() -> None:
    class Writes(Quadratic):
        def client_update(self, ctx: Context, state: State, received: Tree) -> tuple[State, Upload]:
            out = super().client_update(ctx, state, received)
            received["w"].add_(1.0)
            return out

    assert server(quadratic(Writes(), 3)) == server(quadratic(Quadratic(), 3))


@pytest.mark.parametrize("chunk", [1, 2])
def test_an_update_tells_what_its_own_client_received(chunk: int) -> None:
    class Unlike(Quadratic):
        def download(self, ctx: ServerContext, server: State, client: int) -> Tree:
            return {"w": server["w"]["w"] + client}

    fed = quadratic(Unlike(), 1, chunk=chunk)
    seen: list[Any] = []
    fed.subscribers.append(seen.append)
    fed.run()
    assert seen[-1].updates.received["w"].tolist() == [0, 1]


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


def test_an_infinity_is_not_finite_either() -> None:
    ctx = quadratic(Quadratic(), 1).context([0, 1], 1)
    with pytest.raises(DivergedError, match="client 1: a value is not finite"):
        ctx.check(torch.tensor([1.0, torch.inf]), "a value")


def test_all_dropped_stops() -> None:
    class AllExplode(Quadratic):
        def loss(self, model: Any, p: Tree, b: Batch) -> Tensor:
            return super().loss(model, p, b) * torch.nan

    with pytest.raises(DivergedError, match="every client"):
        quadratic(AllExplode(), 1, nonfinite="drop").run()


def faulty(kind: str) -> Quadratic:
    class Faulty(Quadratic):
        name = "Faulty"

        def __init__(self) -> None:
            super().__init__()

        def client_update(self, ctx: Context, state: State, received: Tree) -> tuple[State, Upload]:
            state, up = super().client_update(ctx, state, received)
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


class NoAxis(Quadratic):
    """Keeps a leaf without the clients' axis."""

    def client_update(self, ctx: Context, state: State, received: Tree) -> Any:
        state, upload = super().client_update(ctx, state, received)
        return state | {"seen": {"rounds": torch.ones(3)}}, upload


def test_state_without_client_axis_is_refused() -> None:
    with pytest.raises(FedvlmError, match="'rounds' in slot 'seen'"):
        quadratic(NoAxis(), 1).run()
