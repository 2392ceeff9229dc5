"""APFL beside its authors' FedTorch: mixed logits, derivative of the share, mean of the clients."""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F

from parity.authors import repository
from parity.figures import AUTHORS, Source, Values
from parity.net import NAMES, data, encode, net_case, network, tensors
from parity.world import World

SOURCE = Source(
    "APFL", AUTHORS, "MLOPTPSU/FedTorch", "ab8068dbc96804a5c1a8b898fd115175cfebfe75",
    ("fedtorch/comms/utils/eval.py", "fedtorch/comms/utils/flow_utils.py",
     "fedtorch/comms/algorithms/federated/fedavg.py"),
    equal="mixed logits, share, three rounds",
    differs="a feature adapter and a linear head on both sides; VARIANT published (fixed is the "
    "default); their loop over batches is repeated here; evaluated is the mixture with the "
    "aggregate (theirs: with the client's own model)",
)
SHELLS = tuple(f"fedtorch.{name}" for name in (
    "logs.logging", "logs.checkpoint", "logs.meter", "components.dataset", "components.metrics",
    "comms.algorithms.distributed", "utils.auxiliary"))
RATE, START, DECAY = 0.05, 0.25, 0.02
CASES = {"learnt share": net_case("APFL", {
    "VARIANT": "published", "ALPHA": START, "ALPHA_LR": RATE, "ALPHA_L2": DECAY, "ALPHA_MIN": 0,
    "EVERY": "round",
}, rate=RATE, loss=False)}


def aggregated(module: Any, server: torch.nn.Module, clients: list[torch.nn.Module]) -> None:
    """Put the mean that their ``fedavg_aggregation`` computes into ``server``.

    Each client's difference goes through their function in turn; its gather is a list of one.
    """
    parts: list[list[torch.Tensor]] = []
    args = SimpleNamespace(graph=SimpleNamespace(rank=0), quantized=False, comm_time=[0.0],
                           federated_type="apfl", lr_scale_at_sync=1.0, out_momentum=False)
    module.deepcopy_model = lambda *_: None
    for net in clients:
        seen: list[torch.Tensor] = []
        module.dist = SimpleNamespace(
            gather=lambda value, seen=seen, **_: seen.append(value.clone()),
            broadcast=lambda *_, **__: None,
        )
        optimiser = SimpleNamespace(step=lambda **_: None)
        module.fedavg_aggregation(args, server, net, None, list(range(len(clients))), optimiser)
        parts.append(seen)
    for parameter, *differences in zip(server.parameters(), *parts, strict=True):
        parameter.data = parameter.data - sum(differences)


def other(world: World, folder: Path) -> Values:
    """Return the server's model, the clients' models and shares, and logits after the rounds."""
    case, batches = world.case, data(world)
    server, shares = network(world), [START] * len(case.sizes)
    own = [network(world) for _ in case.sizes]
    with repository(folder, *SHELLS) as load:
        inference = load("fedtorch.comms.utils.eval").inference_personal
        update = load("fedtorch.comms.utils.flow_utils").alpha_update
        sys.path.insert(0, str(folder / "fedtorch/comms/algorithms/federated"))
        mean = load("fedavg")
        for _ in range(case.rounds):
            nets = [copy.deepcopy(server) for _ in case.sizes]
            for k, (net, private, (x, y)) in enumerate(zip(nets, own, batches, strict=True)):
                optimisers = [torch.optim.SGD(n.parameters(), RATE) for n in (net, private)]
                for epoch in range(case.epochs):
                    optimisers[0].zero_grad()
                    F.cross_entropy(net(x), y).backward()
                    optimisers[0].step()
                    for optimiser in optimisers:
                        optimiser.zero_grad()
                    loss, _ = inference(private, net, shares[k], F.cross_entropy, (1,), x, y)
                    loss.backward()
                    optimisers[1].step()
                    if epoch == 0:
                        shares[k] = float(update(net, private, shares[k], RATE))
            aggregated(mean, server, nets)
    z, found = encode(world, world.tests), {f"shared {n}": v for n, v in tensors(server).items()}
    with torch.no_grad():
        found["logits"] = torch.stack([
            a * private(z) + (1 - a) * server(z) for a, private in zip(shares, own, strict=True)])
    if {0.0, 1.0} & set(shares):
        raise ValueError("a share reached its bound: the case shows too little")
    for k, (a, private) in enumerate(zip(shares, own, strict=True)):
        found |= {f"client{k} private.{n}": v for n, v in tensors(private, NAMES).items()}
        found[f"client{k} alpha"] = torch.tensor(a, dtype=torch.float64)
    return found
