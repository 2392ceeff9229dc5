"""Hermes beside Plato's schedule of pruning and its server, which averages what all masks keep."""

from __future__ import annotations

import asyncio
import copy
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedvlm.core.trees import Tree
from parity.authors import repository, shell
from parity.figures import OTHERS, Source, Values
from parity.net import BODY, HEAD, data, net_case, network, outcome, put, tensors
from parity.world import World

FOLDER = "examples/personalized_fl/hermes"
SOURCE = Source(
    "Hermes", OTHERS, "TL-System/plato", "60d6779a0be16bd529f5f9d9cd34fd4d47f4e95a",
    (f"{FOLDER}/hermes_server.py", f"{FOLDER}/hermes_pruning.py"),
    equal="schedule of pruning, server's mean by masks, four rounds, logits",
    differs="units are hidden channels of a feature adapter and scored by the product of their "
    "norms (there the L1 norm of a layer's output channels), which their function gets as a layer "
    "of one column; their server's list of masked layers is empty and its table of clients' models "
    "has no entry (so that all is plain FedAvg), here both are filled as they are meant; a client "
    "prunes after its training and its pruned units stay zero; ACC_MODE abs, ACC_THR 0",
)
RATE, TARGET, WIDTH, WARMUP = 0.2, 0.5, 10, 1
DOWN, UP = BODY
CASES = {"20, 40, 50 % of ten": net_case(
    "Hermes", {"RATE": RATE, "TARGET": TARGET, "WARMUP": WARMUP, "ACC_MODE": "abs", "ACC_THR": 0},
    {"PEFT.WIDTH": WIDTH}, rounds=4, held=(2, 2, 2), loss=False,
)}
SHELLS = ("plato", "plato.servers", "plato.config", "plato.trainers", "plato.datasources")
LAYERS = {DOWN: "down.weight", UP: "up.weight"}  # theirs: a Linear's name and ".weight"


def pruned_more(prune: Callable[..., list[np.ndarray]], scores: Tensor, kept: Tensor) -> Tensor:
    """Return the mask ``[U]`` after one more step of their schedule (``train_run_start``)."""
    layer = nn.Linear(1, len(scores), bias=False, dtype=scores.dtype)
    layer.weight.data = scores[:, None].clone()
    torch.nn.utils.prune.custom_from_mask(layer, "weight", kept[:, None])
    done, target, rate = 100 * float(1 - kept.mean()), 100 * TARGET, 100 * RATE
    if done >= target:
        return kept
    model = nn.Sequential(layer)
    if target - done < rate:
        (mask,) = prune(model, (target - done) / 100, adjust_rate=done)
    else:
        (mask,) = prune(model, rate / (100 - done))
    return torch.from_numpy(mask)[:, 0].to(scores)


def masks(kept: Tensor, tree: Tree) -> Tree:
    """Return the masks of both layers of the adapter, as their weights."""
    return {DOWN: kept[:, None].expand_as(tree[DOWN]), UP: kept.expand_as(tree[UP])}


def server_of(module: Any) -> Any:
    """Return their server with the lists that it needs, and nothing of Plato around it."""
    server = module.Server.__new__(module.Server)
    modules = [(name.removesuffix(".weight"), nn.Linear(1, 1)) for name in LAYERS.values()]
    server.trainer = SimpleNamespace(model=SimpleNamespace(named_parameters=lambda: modules))
    server.aggregated_clients_model, server.updates = {}, []

    async def nothing(*_: Any) -> dict[str, Any]:
        return {}

    server.aggregate_deltas = nothing
    server.algorithm = SimpleNamespace(compute_weight_deltas=lambda *_: [],
                                       update_weights=lambda *_: {})
    return server


def train(net: nn.Module, batch: tuple[Tensor, Tensor], kept: Tensor, world: World) -> None:
    """Train one client; pruned units get no gradient."""
    optimiser = torch.optim.SGD(net.parameters(), world.case.rate)
    for _ in range(world.case.epochs):
        optimiser.zero_grad()
        F.cross_entropy(net(batch[0]), batch[1]).backward()
        own = masks(kept, tensors(net))
        for parameter, mask in ((net.base.down, own[DOWN]), (net.base.up, own[UP])):
            parameter.grad = parameter.grad * mask
        optimiser.step()


def other(world: World, folder: Path) -> Values:
    """Return each client's own model and its logits after the rounds."""
    case, batches, start = world.case, data(world), dict(world.start)
    names, clients = {**LAYERS, "head.weight": "head"}, range(len(world.rows))
    with repository(folder / FOLDER, *SHELLS) as load:
        sys.modules["plato.servers"].fedavg_personalized = shell("fedavg_personalized")
        prune = load("hermes_pruning").structured_pruning
        server = server_of(load("hermes_server"))
        server.aggregated_clients_model = dict.fromkeys(clients)
        kept = [torch.ones(WIDTH, dtype=start[DOWN].dtype) for _ in clients]
        nets = [network(world) for _ in clients]
        for round_ in range(1, case.rounds + 1):
            sent, updates = [], []
            for k, net in enumerate(nets):
                train(net, batches[k], kept[k], world)
                w = tensors(net)
                if round_ > WARMUP:
                    kept[k] = pruned_more(prune, w[DOWN].norm(dim=1) * w[UP].norm(dim=0), kept[k])
                own = masks(kept[k], w)
                sent.append({names[n]: v * own[n] if n in own else v for n, v in w.items()})
                updates.append(SimpleNamespace(
                    client_id=k, report=SimpleNamespace(num_samples=case.sizes[k])))
            server.masks_received = [
                [m.numpy().copy() for m in masks(one, start).values()] for one in kept]
            with np.errstate(all="ignore"):  # they divide by 0 where a mask ends
                asyncio.run(server.aggregate_weights(updates, None, copy.deepcopy(sent)))
            for k, net in enumerate(nets):
                server.selected_client_id = k
                own = server.customize_server_payload(None)
                put(net, {n: torch.as_tensor(own[theirs]) for n, theirs in names.items()})
    if len({tuple(one.tolist()) for one in kept}) == 1:
        raise ValueError("all clients pruned the same units: the case shows too little")
    return outcome(world, tensors(nets[0], HEAD), nets, BODY)
