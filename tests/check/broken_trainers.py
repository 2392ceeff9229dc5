"""One good method and many bad ones: each bad one breaks the invariant it stands for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedvlm.check.world import BATCH
from fedvlm.core.trees import State, Tree
from fedvlm.federation.aggregation.updates import Updates, weighted_mean
from fedvlm.federation.batches import Batch
from fedvlm.federation.context import Context, Upload
from fedvlm.federation.server import ServerContext
from fedvlm.federation.trainer import Trainer


class Good(Trainer):
    """A shared prompt and a personal shift of the image features; keeps every invariant."""

    groups = ((r"text\.ctx", "shared"), (r"image\.shift", "personal"))

    def trainables(self, model: Any, generator: torch.Generator) -> Tree:
        return {
            "text.ctx": torch.randn(4, model.text_width, generator=generator) * 0.02,
            "image.shift": torch.randn(model.embed_dim, generator=generator) * 0.02,
        }

    def image_features(self, model: Any, p: Tree, x: Mapping[str, Tensor]) -> Tensor:
        return model.image(x) + p["image.shift"][:, None]


class SendsPersonalTensor(Good):
    """G1: under another name, in a declared extra."""

    extras_up = ("prototype",)

    def client_update(self, ctx: Context, state: State, received: Tree) -> tuple[State, Upload]:
        w = ctx.fit(state["w"] | received, self.loss).params
        extra = {"prototype": w["image.shift"].reshape(ctx.k, -1, 2)}
        return state | {"w": w}, ctx.upload(w, extras=extra)


class LogsUndeclared(Good):
    """G1: a number that nobody declared."""

    def client_update(self, ctx: Context, state: State, received: Tree) -> tuple[State, Upload]:
        state, upload = super().client_update(ctx, state, received)
        ctx.logs["drift"] = state["w"]["image.shift"].norm(dim=-1)
        return state, upload


class LogsPersonalTensor(Good):
    """G1: as a metric, which is declared."""

    metrics = (*Good.metrics, r"norm of .*")

    def client_update(self, ctx: Context, state: State, received: Tree) -> tuple[State, Upload]:
        state, upload = super().client_update(ctx, state, received)
        ctx.logs["norm of image.shift"] = state["w"]["image.shift"].norm(dim=-1)
        return state, upload


class Keeps(Good):
    """Gets round the seal: what it changes is not the trainer, but what a name of it holds."""

    def __init__(self, cfg: Any) -> None:
        super().__init__(cfg)
        self.kept: dict[str, Any] = {}


class KeepsOnItself(Good):
    """G8: the plain way, which the seal refuses."""

    def client_update(self, ctx: Context, state: State, received: Tree) -> tuple[State, Upload]:
        self.rounds = ctx.round
        return super().client_update(ctx, state, received)


class ReportsPersonalTensor(Keeps):
    """G1: numbers of a personal tensor in the report of the aggregation."""

    def client_update(self, ctx: Context, state: State, received: Tree) -> tuple[State, Upload]:
        state, upload = super().client_update(ctx, state, received)
        self.kept["seen"] = state["w"]["image.shift"][0].tolist()
        return state, upload

    def aggregate(self, ctx: ServerContext, server: State, updates: Updates) -> State:
        ctx.log("drift", self.kept.get("seen", []))
        return super().aggregate(ctx, server, updates)


class SendsUndeclared(Good):
    """G1: a key that is neither shared nor declared, down instead of up."""

    def init_server(self, ctx: ServerContext, start: Tree) -> State:
        return super().init_server(ctx, start) | {"more": {"hint": torch.ones(3)}}

    def download(self, ctx: ServerContext, server: State, client: int) -> Tree:
        return server["w"] | server["more"]


class TrapPool(Good):
    """G1: a model per client at the server, and the last client's for everybody."""

    def init_server(self, ctx: ServerContext, start: Tree) -> State:
        count = len(ctx.roster)
        return {"pool": {n: torch.stack([start[n]] * count) for n in ctx.groups.shared}}

    def download(self, ctx: ServerContext, server: State, client: int) -> Tree:
        return {n: v[client] for n, v in server["pool"].items()}

    def shared(self, server: State) -> Tree:
        return {n: v[-1] for n, v in server["pool"].items()}

    def aggregate(self, ctx: ServerContext, server: State, updates: Updates) -> State:
        pool = {n: v.clone() for n, v in server["pool"].items()}
        for name, value in updates.params.items():
            pool[name][list(updates.clients)] = value
        return {"pool": pool}


class SilentPool(TrapPool):
    """G1 and all others: a pool that says nothing of the global model."""

    def shared(self, server: State) -> Tree:
        return Trainer.shared(self, server)


class WritesIntoDownload(Good):
    """G2: in place."""

    def client_update(self, ctx: Context, state: State, received: Tree) -> tuple[State, Upload]:
        received["text.ctx"][0].add_(0.01)
        return super().client_update(ctx, state, received)


class WritesBehindAutograd(Good):
    """G2: where no version counter sees it."""

    def client_update(self, ctx: Context, state: State, received: Tree) -> tuple[State, Upload]:
        received["text.ctx"].data[0] += 0.01
        return super().client_update(ctx, state, received)


class KeepsServer(Keeps):
    """G2: holds on to the server's own tensors and writes into them, copies or not."""

    def download(self, ctx: ServerContext, server: State, client: int) -> Tree:
        self.kept.update(server["w"])
        return super().download(ctx, server, client)

    def client_update(self, ctx: Context, state: State, received: Tree) -> tuple[State, Upload]:
        self.kept["text.ctx"].data += 0.01
        return super().client_update(ctx, state, received)


class KeepsOptimiser(Keeps):
    """G3: a buffer that stays from client to client, as in the authors' FedTV."""

    def client_update(self, ctx: Context, state: State, received: Tree) -> tuple[State, Upload]:
        w = ctx.fit(state["w"] | received, self.loss).params
        step = (w["text.ctx"] - received["text.ctx"]).mean(0)
        self.kept["buffer"] = 0.9 * self.kept.get("buffer", 0.0) + step
        w = w | {"text.ctx": w["text.ctx"] + 0.1 * self.kept["buffer"]}
        return state | {"w": w}, ctx.upload(w)


class TakesFirstUpdate(Keeps):
    """G3: the server's rule depends on who comes first."""

    def client_update(self, ctx: Context, state: State, received: Tree) -> tuple[State, Upload]:
        self.kept.setdefault(f"first of round {ctx.round}", ctx.clients[0])
        return super().client_update(ctx, state, received)

    def aggregate(self, ctx: ServerContext, server: State, updates: Updates) -> State:
        first = updates.clients.index(self.kept[f"first of round {ctx.round}"])
        return server | {"w": {n: v[first] for n, v in updates.params.items()}}


class DecaysByItself(Good):
    """G4: a weight decay that is not multiplied by the learning rate."""

    def client_update(self, ctx: Context, state: State, received: Tree) -> tuple[State, Upload]:
        state, upload = super().client_update(ctx, state, received)
        return {"w": {n: v * 0.999 for n, v in state["w"].items()}}, upload


class HalfStep(Good):
    """G5 and G6: the server goes half the way."""

    def aggregate(self, ctx: ServerContext, server: State, updates: Updates) -> State:
        mean = weighted_mean(updates)
        return server | {"w": {n: (v + server["w"][n]) / 2 for n, v in mean.items()}}


class NoiseByClient(Good):
    """G6: identical clients that differ by their id."""

    def client_update(self, ctx: Context, state: State, received: Tree) -> tuple[State, Upload]:
        w = ctx.fit(state["w"] | received, self.loss).params
        shift = torch.tensor(ctx.clients, dtype=torch.float64)[:, None, None] * 1e-4
        return state | {"w": w}, ctx.upload(w | {"text.ctx": w["text.ctx"] + shift})


class CountsAbsolutely(Good):
    """G7: shrinks by the number of samples instead of their share."""

    def aggregate(self, ctx: ServerContext, server: State, updates: Updates) -> State:
        total = float(updates.weight.sum())
        return server | {"w": {n: v * (1 - 1 / total) for n, v in weighted_mean(updates).items()}}


class CountsInSelf(Keeps):
    """G8: what is not in the state is not saved."""

    def aggregate(self, ctx: ServerContext, server: State, updates: Updates) -> State:
        rounds = self.kept["rounds"] = self.kept.get("rounds", 0) + 1
        mean = weighted_mean(updates)
        return server | {"w": {n: v * (1 - 0.01 * rounds) for n, v in mean.items()}}


class TouchesBackbone(Good):
    """G9: nudges a frozen weight (and puts nothing back)."""

    def client_update(self, ctx: Context, state: State, received: Tree) -> tuple[State, Upload]:
        state, upload = super().client_update(ctx, state, received)
        ctx.model.backbone.text_tower.ln_final.weight.data[0] += 1e-3
        return state, upload


class TrainsBatchNorm(Good):
    """G9: training mode moves the running statistics, as soon as there are pixels."""

    def image_features(self, model: Any, p: Tree, x: Mapping[str, Tensor]) -> Tensor:
        if "pixels" in x:
            model.backbone.model.train()
        return super().image_features(model, p, x)


class CatchesAll(Good):
    """G10: whatever is added some day would be sent."""

    groups = ((r".*", "shared"),)


class TwoGroups(Good):
    """G10: a tensor in two groups."""

    groups = (*Good.groups, (r"image\..*", "shared"))


class DropsLast(Good):
    """G11: a client without a full batch does nothing."""

    batched = False

    def client_update(self, ctx: Context, state: State, received: Tree) -> tuple[State, Upload]:
        if float(ctx.sizes[0]) < BATCH:
            return state, ctx.upload(state["w"] | received)
        return super().client_update(ctx, state, received)


class StandsStill(Good):
    """G11: takes its steps and throws them away."""

    def client_update(self, ctx: Context, state: State, received: Tree) -> tuple[State, Upload]:
        super().client_update(ctx, state, received)
        return state, ctx.upload(state["w"] | received)


class GlobalNoise(Good):
    """G12: random numbers that no seed of ours decides."""

    def loss(self, model: Any, p: Tree, b: Batch) -> Tensor:
        return super().loss(model, p, b) * (1 + 0.01 * torch.rand(1, dtype=torch.float64))


class IgnoresSeed(Good):
    """G12: the same numbers for every seed."""

    def trainables(self, model: Any, generator: torch.Generator) -> Tree:
        return super().trainables(model, torch.Generator().manual_seed(0))

    def client_update(self, ctx: Context, state: State, received: Tree) -> tuple[State, Upload]:
        w = {n: v * 0.9 for n, v in (state["w"] | received).items()}
        return state | {"w": w}, ctx.upload(w)


class EvaluationLearns(Keeps):
    """G12: the model that is evaluated is fitted in place."""

    def personalize(self, ctx: Context, state: State, received: Tree) -> Tree:
        state["w"]["image.shift"].data += 0.01
        self.kept["evaluated"] = True
        return state["w"] | received

    def client_update(self, ctx: Context, state: State, received: Tree) -> tuple[State, Upload]:
        if self.kept.get("evaluated"):
            state = {"w": {n: v + 1e-6 for n, v in state["w"].items()}}
        return super().client_update(ctx, state, received)


class WrongWidth(Good):
    """G12: logits of another width than the class list."""

    def text_features(self, model: Any, p: Tree) -> Tensor:
        one = model.text(p["text.ctx"])
        return torch.cat([one, one], 1)


class MixesClients(Good):
    """G13: normalises over the client axis."""

    def image_features(self, model: Any, p: Tree, x: Mapping[str, Tensor]) -> Tensor:
        z = super().image_features(model, p, x)
        return z - 0.1 * z.mean(0, keepdim=True)


class WantsFeatures(Good):
    """G13: other numbers on pixels than on their cached features."""

    def image_features(self, model: Any, p: Tree, x: Mapping[str, Tensor]) -> Tensor:
        return super().image_features(model, p, x) * (2.0 if "pixels" in x else 1.0) + 0.1


class CutsTensor(Good):
    """G1: sends another shape than it received."""

    def client_update(self, ctx: Context, state: State, received: Tree) -> tuple[State, Upload]:
        w = ctx.fit(state["w"] | received, self.loss).params
        return {"w": w}, Upload({"text.ctx": w["text.ctx"][:, :2]}, ctx.sizes)


class RoundsTensor(Good):
    """G1: sends another type than it received."""

    def client_update(self, ctx: Context, state: State, received: Tree) -> tuple[State, Upload]:
        w = ctx.fit(state["w"] | received, self.loss).params
        return {"w": w}, Upload({"text.ctx": w["text.ctx"].float()}, ctx.sizes)


class WeighsNegatively(Good):
    """G1: a weight below zero."""

    weighting = "own"

    def client_update(self, ctx: Context, state: State, received: Tree) -> tuple[State, Upload]:
        w = ctx.fit(state["w"] | received, self.loss).params
        return state | {"w": w}, ctx.upload(w, ctx.sizes - 2)


class HidesNaN(Good):
    """G14: goes on without an error."""

    def image_features(self, model: Any, p: Tree, x: Mapping[str, Tensor]) -> Tensor:
        return super().image_features(model, p, x).nan_to_num()


class SpreadsNaN(Good):
    """G14: a NaN of one client stops all of its chunk."""

    def loss(self, model: Any, p: Tree, b: Batch) -> Tensor:
        value = super().loss(model, p, b)
        return value + 0 * value.sum()


class DrawsItself(Good):
    """G15: a generator kept aside, which goes on from wherever it stands."""

    def __init__(self, cfg: Any) -> None:
        super().__init__(cfg)
        self.own = torch.Generator().manual_seed(1)

    def client_update(self, ctx: Context, state: State, received: Tree) -> tuple[State, Upload]:
        w = {n: v + torch.rand(v.shape, generator=self.own, dtype=v.dtype)
             for n, v in (state["w"] | received).items()}
        return state | {"w": w}, ctx.upload(w)


class WeighsEvenly(Good):
    """G16: declares samples, and averages without weights."""

    def aggregate(self, ctx: ServerContext, server: State, updates: Updates) -> State:
        return server | {"w": weighted_mean(updates, [1.0] * len(updates))}


class KeepsSumUnsaid(Good):
    """G16: a sum that no rule declares."""

    def init_server(self, ctx: ServerContext, start: Tree) -> State:
        whole = super().init_server(ctx, start)
        return whole | {"sum": {n: torch.zeros_like(v) for n, v in whole["w"].items()}}

    def aggregate(self, ctx: ServerContext, server: State, updates: Updates) -> State:
        new = super().aggregate(ctx, server, updates)
        return new | {"sum": {n: v + new["w"][n] for n, v in server["sum"].items()}}


class SumsWrongly(KeepsSumUnsaid):
    """G16: declares the sum of all rounds' means with a weight that it does not have."""

    server_rules = {"sum/.*": lambda s: s.old + s.round * s.mean()}


class WeighsItself(Good):
    """G16: the weight is not the one that is declared."""

    def client_update(self, ctx: Context, state: State, received: Tree) -> tuple[State, Upload]:
        state, upload = super().client_update(ctx, state, received)
        return state, replace(upload, weight=upload.weight.sqrt())


class KeepsClasses(Good):
    """G13: a number for each class by its place, and unseen classes would get those of others."""

    groups = ((r"text\.(ctx|bias)", "shared"), (r"image\.shift", "personal"))

    def trainables(self, model: Any, generator: torch.Generator) -> Tree:
        bias = {"text.bias": torch.zeros(len(model.classnames))}
        return super().trainables(model, generator) | bias

    def predictor(self, model: Any, p: Tree) -> Any:
        plain = super().predictor(model, p)
        return lambda x: plain(x) + p["text.bias"][:, None]


# (trainer, invariant that must catch it, what its sentence must say)
BROKEN = [
    (SendsPersonalTensor, "G1", r"upload of client \d: 'prototype' holds .*'image\.shift'"),
    (LogsPersonalTensor, "G1", r"metrics: names the personal tensor 'image\.shift'"),
    (ReportsPersonalTensor, "G1", r"report.*holds the personal tensor 'image\.shift'"),
    (LogsUndeclared, "G1", r"uploads the numbers \['drift'\], which its `metrics` do not"),
    (SendsUndeclared, "G1", r"client 0 would receive \['hint'\], outside the shared group"),
    (TrapPool, "G1", r"round 1: the global 'text\.ctx' is the upload of client 3"),
    (SilentPool, "G1", r"no slot 'w': define shared\(self, server\)"),
    (CutsTensor, "G1", r"client 0: upload 'text\.ctx' has shape \[1, 2, 16\]"),
    (RoundsTensor, "G1", r"client 0: upload 'text\.ctx' is torch\.float32"),
    (WeighsNegatively, "G1", r"client 3 has weight -1"),
    (WritesIntoDownload, "G2", r"server's state after client work.*'text\.ctx'"),
    (WritesBehindAutograd, "G2", r"server's state after client work.*'text\.ctx'"),
    (KeepsServer, "G2", r"server's state after client work.*'text\.ctx'"),
    (KeepsOptimiser, "G3", r"order|alone"),
    (TakesFirstUpdate, "G3", r"clients in the order 3, 2, 1, 0: server"),
    (DecaysByItself, "G4", r"lr 0: client 0, slot 'w'.*differs"),
    (HalfStep, "G5", r"centralised SGD: 'text\.ctx'"),
    (HalfStep, "G6", r"server against client 0: 'text\.ctx'"),
    (NoiseByClient, "G6", r"clients 0 and 1, upload"),
    (CountsAbsolutely, "G7", r"weights times 4"),
    (CountsInSelf, "G8", r"resumed after round 1"),
    (KeepsOnItself, "G8", r"sets self\.rounds during the run"),
    (TouchesBackbone, "G9",
     r"a backbone weight changed|the frozen backbone .*changed during the run"),
    (TrainsBatchNorm, "G9", r"BatchNorm buffers"),
    (CatchesAll, "G10", r"'stray\.tensor' matches the rule '\.\*'"),
    (TwoGroups, "G10", r"image\.shift.*several groups"),
    (DropsLast, "G11", r"client 2 with 3 sample\(s\).*no step"),
    (StandsStill, "G11", r"did not change"),
    (GlobalNoise, "G12", r"global random generator"),
    (IgnoresSeed, "G12", r"another seed gives the same numbers"),
    (EvaluationLearns, "G12", r"with an evaluation after each round"),
    (WrongWidth, "G12", r"logits of clients .* not"),
    (MixesClients, "G13", r"four clients stacked"),
    (WantsFeatures, "G13", r"pixels instead of cached features"),
    (KeepsClasses, "G13", r"classes in another order .*declare open_vocabulary = False"),
    (HidesNaN, "G14", r"without an error"),
    (DrawsItself, "G15", r"done twice: the clients' new state, slot 'w'"),
    (WeighsEvenly, "G16", r"'w/text\.ctx' is .* off the mean of what was sent \(weighting 'samp"),
    (KeepsSumUnsaid, "G16", r"'sum/text\.ctx' moved and is not shared .*: declare in server_rul"),
    (SumsWrongly, "G16", r"round 2, server: 'sum/text\.ctx' is .* off its server rule"),
    (WeighsItself, "G16", r"client 0 of 7 samples weighs 2\.6\d*, not 7 \(weighting 'samples'\)"),
    (SpreadsNaN, "G14", r"the error message does not name|left out clients \[0, 1, 2, 3\]"),
]
