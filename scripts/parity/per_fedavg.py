"""Per-FedAvg beside PFLlib's ``PerAvg``."""

from __future__ import annotations

import copy
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedvlm.federation.batches import IndexSplit, SplitBatcher, step_slices
from parity.figures import OTHERS, Source, Values
from parity.net import Pair, encode, gradients, net_case, outcome, tensors
from parity.pfllib import COMMIT, REPOSITORY, served
from parity.world import DTYPE, World

RATE = 0.1
SOURCE = Source(
    "Per-FedAvg", OTHERS, REPOSITORY, COMMIT,
    ("system/flcore/servers/serverperavg.py", "system/flcore/clients/clientperavg.py",
     "system/flcore/optimizers/fedoptimizer.py"),
    differs="a feature adapter and a linear head on both sides; MODE fo, BETA_LR equal to ALPHA_LR "
    "and STEPS 1, as there; equal weights of the clients on both sides (there by samples); both "
    "cut each epoch's images into the same halves",
)
CASES = {"first order": net_case(
    "Per-FedAvg", {"MODE": "fo", "ALPHA_LR": RATE, "STEPS": 1}, rate=RATE,
)}


def other(world: World, folder: Path) -> Values:
    """Return the numbers of their server and clients; they train twice an epoch in each round."""
    c, none, calls = world.case, np.zeros(0, np.int64), Counter[int]()
    batcher = SplitBatcher(
        world, [IndexSplit(rows, none, none) for rows in world.rows], max(c.sizes), 1, 1, c.epochs,
        torch.device("cpu"), DTYPE,
    )
    z = encode(world, world.images)

    def prepare(server: Any) -> None:
        for k, client in enumerate(server.clients):
            def load(size: int, k: int = k) -> list[Pair]:
                at, calls[k] = calls[k], calls[k] + 1
                order = batcher._shuffled(k, at // c.epochs + 1, at % c.epochs, "w")
                return [(z[order], world.labels[order])]

            client.load_train_data = load
            client.batch_size = step_slices(c.sizes[k], max(c.sizes), 2)[0][0][1]
            client.train_samples = 1

    server = served(world, folder / "system", "flcore.servers.serverperavg", "PerAvg",
                    prepare=prepare, local_epochs=1)
    nets = []
    for k, client in enumerate(server.clients):
        client.set_parameters(server.global_model)
        client.load_train_data = lambda size, k=k: [(z[world.rows[k]], world.labels[world.rows[k]])]
        client.train_one_step()
        nets.append(copy.deepcopy(client.model))
    return gradients(world) | outcome(world, tensors(server.global_model), nets, tensors(nets[0]))
