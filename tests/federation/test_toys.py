"""Closed forms on the quadratic toys; APFL, Ditto, Per-FedAvg and Hermes fit the core."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fedvlm.core.trees import State, Tree, map_leaves, per_client, slice_clients
from fedvlm.federation.aggregation.updates import Updates, weighted_mean
from fedvlm.federation.batches import Batch, Step
from fedvlm.federation.context import Context, Upload
from fedvlm.federation.server import ServerContext

from .toys import ETA, A, B, Quadratic, quadratic


def server(fed: Any, state: Any = None) -> float:
    return float((state or fed.run()).server["w"]["w"])


def test_fedavg_one_round_and_weights() -> None:
    assert server(quadratic(Quadratic(), 1)) == pytest.approx(0.6, abs=1e-12)
    assert server(quadratic(Quadratic(), 1, sizes=(3, 1))) == pytest.approx(0.3, abs=1e-12)


@pytest.mark.parametrize(("epochs", "expected"), [(1, 3.0), (5, 2.680532285)])
def test_fedavg_fixed_point(epochs: int, expected: float) -> None:
    assert server(quadratic(Quadratic(), 120, epochs=epochs)) == pytest.approx(expected, abs=1e-8)


class Prox(Quadratic):
    mu = 1.0

    def client_update(self, ctx: Context, state: State, received: Tree) -> tuple[State, Upload]:
        def pull(p: Tree, g: Tree, b: Batch) -> Tree:
            return map_leaves(lambda g, w, w0: g + self.mu * (w - w0), g, p, b.cut(received))

        w = ctx.fit(state["w"] | received, self.loss, edit=pull).params
        return state | {"w": w}, ctx.upload(w)


@pytest.mark.parametrize(
    ("mu", "expected"), [(0.0, 2.680532285), (1.0, 2.691780822), (5.0, 2.777711915)]
)
def test_fedprox_fixed_point(mu: float, expected: float) -> None:
    trainer = Prox()
    trainer.mu = mu
    assert server(quadratic(trainer, 100, epochs=5)) == pytest.approx(expected, abs=1e-8)


class Ditto(Quadratic):
    """v trained with the gradient of F + lam (v - w_received)."""

    lam = 1.0
    metrics = (r"(v/)?loss",)

    def init_client(self, ctx: Context, start: Tree) -> State:
        return {"w": start, "v": start}

    def client_update(self, ctx: Context, state: State, received: Tree) -> tuple[State, Upload]:
        def pull(p: Tree, g: Tree, b: Batch) -> Tree:
            return map_leaves(lambda g, v, w: g + self.lam * (v - w), g, p, b.cut(received))

        v = ctx.fit(state["v"], self.loss, edit=pull, tag="v").params
        return super().client_update(ctx, state | {"v": v}, received)

    def personalize(self, ctx: Context, state: State, received: Tree) -> Tree:
        return state["v"]


def test_ditto() -> None:
    fed = quadratic(Ditto(), 150)
    state = fed.run()
    (_, v), = fed.personal(state, [0, 1])
    assert v["w"].tolist() == pytest.approx([1.5, 3.75], abs=1e-8)
    local = Ditto()
    local.lam = 0.0
    fed = quadratic(local, 50)
    state = fed.run()
    assert float(state.clients[1]["v"]["w"]) == pytest.approx(3.9999999281, abs=1e-9)


def mix(alpha: Tensor, x: Tree, y: Tree) -> Tree:
    """Return ``alpha * x + (1 - alpha) * y`` leaf by leaf; ``alpha`` is ``[K]``."""
    return map_leaves(lambda v, w: per_client(alpha, v) * v + (1 - per_client(alpha, v)) * w, x, y)


class APFL(Quadratic):
    """w by SGD, v by the gradient of F(alpha v + (1 - alpha) w), alpha by Eq. 10."""

    alpha0, alpha_lr = 0.5, 0.0

    def init_client(self, ctx: Context, start: Tree) -> State:
        alpha = torch.tensor(self.alpha0, dtype=torch.float64)
        return {"w": start, "v": start, "mix": {"alpha": alpha}}

    def client_update(self, ctx: Context, state: State, received: Tree) -> tuple[State, Upload]:
        def mixed(model: Any, p: Tree, b: Batch) -> Tensor:
            return self.loss(model, mix(p["alpha"], {"w": p["v"]}, {"w": p["w"]}), b)

        def body(slots: State, batches: tuple[Batch, ...], step: Step) -> State:
            gw = ctx.grad(slots["w"], self.loss, batches[0]).grads
            w = map_leaves(lambda x, g: x - ETA * g, slots["w"], gw)
            joint = {"v": slots["v"]["w"], "w": w["w"], "alpha": slots["mix"]["alpha"]}
            g = ctx.grad(joint, mixed, batches[0], ["v", "alpha"], log="mixed/").grads
            alpha = (joint["alpha"] - self.alpha_lr * g["alpha"]).clamp(0, 1)
            return {"w": w, "v": {"w": joint["v"] - ETA * g["v"]}, "mix": {"alpha": alpha}}

        start = {"w": state["w"] | received, "v": state["v"], "mix": state["mix"]}
        new = ctx.loop(start, body)
        return state | new, ctx.upload(new["w"])

    def personalize(self, ctx: Context, state: State, received: Tree) -> Tree:
        return mix(state["mix"]["alpha"], state["v"], state["w"] | received)


def test_apfl() -> None:
    trainer = APFL()
    trainer.alpha0 = 1.0
    state = quadratic(trainer, 10).run()
    assert float(state.clients[1]["v"]["w"]) == pytest.approx(3.8870099004, abs=1e-9)
    trainer = APFL()
    trainer.alpha0 = 0.0
    fed = quadratic(trainer, 10)
    state = fed.run()
    assert float(state.clients[1]["v"]["w"]) == 0.0
    assert server(fed, state) == pytest.approx(server(quadratic(Quadratic(), 10)), abs=1e-14)


def test_apfl_alpha_is_equation_10() -> None:
    trainer = APFL()
    trainer.alpha_lr = 0.1
    fed = quadratic(trainer, 1, lr=0.0)
    ctx = fed.context([0])
    one = torch.ones(1, 1, dtype=torch.float64)
    b = Batch({"a": one, "b": 3 * one}, torch.zeros(1, 1), one)
    p = {"v": 2 * one[0], "w": 0 * one[0], "alpha": 0.5 * one[0]}

    def mixed(model: Any, q: Tree, b: Batch) -> Tensor:
        return trainer.loss(model, mix(q["alpha"], {"w": q["v"]}, {"w": q["w"]}), b)

    g = ctx.grad(p, mixed, b, ["alpha"]).grads
    assert float(p["alpha"] - 0.1 * g["alpha"]) == pytest.approx(0.9, abs=1e-12)


class PerFedAvg(Quadratic):
    """First-order and Hessian-free, with disjoint batches of one shuffled pass."""

    alpha, mode = 0.1, "fo"

    def client_update(self, ctx: Context, state: State, received: Tree) -> tuple[State, Upload]:
        def gradient(p: Tree, b: Batch) -> Tensor:
            return ctx.grad(p, self.loss, b).grads["w"]

        def body(slots: State, batches: tuple[Batch, ...], step: Step) -> State:
            w = slots["w"]["w"]
            q = gradient({"w": w - self.alpha * gradient({"w": w}, batches[0])}, batches[1])
            if self.mode == "hf":
                up, down = ({"w": w + s * 1e-3 * q} for s in (1, -1))
                h = (gradient(up, batches[2]) - gradient(down, batches[2])) / 2e-3
                q = q - self.alpha * h
            return {"w": {"w": w - 0.05 * q}}

        new = ctx.loop({"w": state["w"] | received}, body, per_step=3)
        return state | new, ctx.upload(new["w"])


@pytest.mark.parametrize(("mode", "expected"), [("fo", 2.8), ("hf", 2.578947368)])
def test_per_fedavg(mode: str, expected: float) -> None:
    trainer = PerFedAvg()
    trainer.mode = mode
    assert server(quadratic(trainer, 450)) == pytest.approx(expected, abs=1e-8)


class Hermes(Quadratic):
    """Per-client masks, per-client downloads, the intersection rule; not batched."""

    batched = False
    extras_up = ("mask",)
    masks = torch.tensor([[1.0, 1, 0, 0], [1, 0, 1, 0]], dtype=torch.float64)

    def trainables(self, model: Any, generator: torch.Generator) -> Tree:
        return {"w": torch.full((4,), 9.0, dtype=torch.float64)}

    def init_client(self, ctx: Context, start: Tree) -> State:
        return {"w": start, "mask": {"w": torch.ones(4, dtype=torch.float64)}}

    def download(self, ctx: ServerContext, server: State, client: int) -> Tree:
        return ctx.held.get(client).get("own", server["w"])

    def client_update(self, ctx: Context, state: State, received: Tree) -> tuple[State, Upload]:
        assert ctx.k == 1
        client = ctx.clients[0]
        trained = torch.tensor([[1.0, 2, 0, 0], [5, 0, 7, 0]], dtype=torch.float64)[client][None]
        mask = self.masks[client][None]
        new = state | {"w": {"w": trained}, "mask": {"w": mask}}
        return new, ctx.upload({"w": trained * mask}, extras={"mask": mask})

    def aggregate(self, ctx: ServerContext, server: State, updates: Updates) -> State:
        mean = weighted_mean(updates)["w"]
        shared = updates.extras["mask"].sum(0) == len(updates)
        for k, client in enumerate(updates.clients):
            own = torch.where(shared, mean, updates.params["w"][k])
            ctx.held.put(client, {"own": {"w": own}})
        return server | {"w": {"w": torch.where(shared, mean, server["w"]["w"])}}


def test_hermes_intersection() -> None:
    fed = quadratic(Hermes(), 1)
    state = fed.run()
    assert state.server["w"]["w"].tolist() == [3, 9, 9, 9]
    down = fed.downloads(state, 2, [0, 1])
    assert down[0]["w"].tolist() == [3, 2, 0, 0]
    assert down[1]["w"].tolist() == [3, 0, 7, 0]
    assert set(state.server) == {"w"} and set(state.held) == {0, 1}


@pytest.mark.parametrize("trainer", [Quadratic, Ditto, APFL, PerFedAvg])
def test_stacked_clients_equal_one_by_one(trainer: type[Quadratic]) -> None:
    """Unequal step counts: a finished client drops out exactly."""
    runs = []
    for chunk in (1, 2):
        fed = quadratic(trainer(), 3, epochs=2, sizes=(7, 3), chunk=chunk, batch=2, momentum=0.9)
        state = fed.run()
        runs.append([float(state.server["w"]["w"])] + [
            float(v) for c in (0, 1) for tree in state.clients[c].values() for v in tree.values()
        ])
    assert runs[0] == runs[1]
    assert len({round(x, 6) for x in runs[0]}) > 1


def test_client_without_samples_keeps_its_model() -> None:
    fed = quadratic(Ditto(), 2, sizes=(3, 0))
    state = fed.run()
    assert torch.isfinite(state.server["w"]["w"])
    assert float(state.clients[1]["v"]["w"]) == 0.0


def test_new_states_go_to_their_own_clients() -> None:
    state = quadratic(Quadratic(), 1, sizes=(1, 3)).run()  # the larger client works first
    assert [float(state.clients[c]["w"]["w"]) for c in (0, 1)] == pytest.approx([0.0, 1.2])


class Greets(Quadratic):
    """Client k receives the model plus k."""

    def download(self, ctx: ServerContext, server: State, client: int) -> Tree:
        return {"w": server["w"]["w"] + client}


def test_every_client_of_a_chunk_gets_its_own_download() -> None:
    fed = quadratic(Greets(), 1, lr=0.0)
    state = fed.run()
    assert [float(state.clients[c]["w"]["w"]) for c in (0, 1)] == [0.0, 1.0]
    (_, models), = fed.personal(state, [0, 1])
    assert models["w"].tolist() == [0.5, 1.5]  # the mean, plus k


def test_the_global_model_is_nobodys_download() -> None:
    fed = quadratic(Greets(), 1, lr=0.0)
    assert float(fed.shared(fed.run())["w"]) == 0.5


@pytest.mark.parametrize("chunk", [1, 2])
def test_updates_hold_what_each_client_received(chunk: int) -> None:
    seen: list[Any] = []
    fed = quadratic(Greets(), 2, lr=0.0, sizes=(1, 3), chunk=chunk)  # the larger client works first
    fed.subscribers.append(seen.append)
    fed.run(until=1)
    assert seen[-1].updates.received["w"].tolist() == [0.0, 1.0]


def test_the_global_model_is_the_aggregate() -> None:
    fed = quadratic(Quadratic(), 1)
    assert float(fed.shared(fed.run())["w"]) == pytest.approx(0.6, abs=1e-12)


@pytest.mark.parametrize(("per_round", "epochs"), [(False, [0, 1, 4, 5]), (True, [0, 1, 0, 1])])
def test_the_clock_of_the_schedule(per_round: bool, epochs: list[int]) -> None:
    fed = quadratic(Quadratic(), 3, epochs=2, clock_per_round=per_round)
    assert [fed.context([0], r).clock(e) for r in (1, 3) for e in (0, 1)] == epochs


def test_sampling_depends_on_seed_and_round_only() -> None:
    fed = quadratic(Quadratic(), 1)
    plan = fed.plan.__class__(10, 20, frac=0.25, seed=3)
    assert plan.sample(1) == list(range(20))
    draws = [plan.sample(r) for r in range(2, 10)]
    assert all(len(d) == 5 and d == sorted(set(d)) for d in draws)
    assert draws == [plan.sample(r) for r in range(2, 10)]
    assert len({tuple(d) for d in draws}) > 1


def test_rows_and_constants() -> None:
    assert (A, B) == ((1.0, 3.0), (0.0, 4.0))
    tree = slice_clients({"w": torch.arange(3.0)}, 1, 3)
    assert tree["w"].tolist() == [1.0, 2.0]
    one = Updates((0,), {"w": torch.tensor([2.0])}, torch.ones(1).double())
    assert weighted_mean(one)["w"] == 2.0
