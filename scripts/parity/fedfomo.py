"""FedFomo beside its authors' ``Federation``."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from parity.authors import repository
from parity.figures import AUTHORS, Source, Values
from parity.net import NAMES, Net, Pair, arguments, encode, gradients, net_case, network, outcome
from parity.pfllib import quiet
from parity.world import World

SOURCE = Source(
    "FedFomo", AUTHORS, "NVlabs/FedFomo", "fe04f6641407bce4fc58ea3fbf8cb314f9af8629",
    ("federation.py", "federated/utils.py", "federated/configs.py"),
    differs="a feature adapter and a linear head on both sides; every client asks for the models "
    "of all others (theirs: drawn by earlier weights); first_model and the l1 distance, as in "
    "their commands; their local SGD is repeated here",
)
CASES = {"all others": net_case("FedFomo", {"M": 2}, rate=0.2, held=(3, 2, 2))}


class FomoClient:
    """What their federation asks of a client."""

    def __init__(self, world: World, at: int, train: Pair, val: Pair) -> None:
        self.id, self.world, self.train, self.val = at, world, train, val
        self.model, self.train_size, self.last_active_round = network(world), len(train[1]), 0
        self.criterion = self.device = self.args = None
        self.client_weights = np.zeros(len(world.rows))
        self.client_weights_over_time: list[Any] = []
        self.model_weights_over_time: list[Any] = []
        self.optim = self.scheduler = None
        self.population = arguments(num_clients=len(world.rows))
        self.others: list[FomoClient] = []

    def fit(self) -> None:
        """Train for the case's epochs."""
        self.first_model = Net(self.world)
        self.first_model.load_state_dict(self.model.state_dict())
        rule = torch.optim.SGD(self.model.parameters(), self.world.case.rate)
        for _ in range(self.world.case.epochs):
            rule.zero_grad()
            F.cross_entropy(self.model(self.train[0]), self.train[1]).backward()
            rule.step()

    def eval(self, epoch: int, model: Net, args: Any) -> float:
        """Return the validation loss."""
        with torch.no_grad():
            return float(F.cross_entropy(model(self.val[0]), self.val[1]))

    def get_federating_clients(self, **_: Any) -> list[FomoClient]:
        """Return the client and all others."""
        clients = [self, *(c for c in self.others if c is not self)]
        self.federating_client_ids = [c.id for c in clients]
        return clients

    def update_model(self, state: Any) -> None:
        """Take a new model."""
        self.model, self.optim, self.scheduler = Net(self.world), None, None
        self.model.load_state_dict(state)


def other(world: World, folder: Path) -> Values:
    """Return the numbers of their federation."""
    z = encode(world, world.images)
    pairs = [[(z[rows], world.labels[rows]) for rows in side] for side in (world.rows, world.val)]
    clients = [FomoClient(world, k, *own) for k, own in enumerate(zip(*pairs, strict=True))]
    args = arguments(baseline_model="first_model", no_model_delta_norm=False, eval_by_class=False,
                     model_delta_norm="l1", debugging=False, fed_momentum=False)
    with repository(folder) as load, quiet():
        for name, members in {"federated.args": {"args": args},
                              "federated.network": {"get_net": lambda *_: Net(world)}}.items():
            module = sys.modules[name] = ModuleType(name)
            vars(module).update(members)
        theirs = load("federation")
        theirs.cfg.CLIENT_WEIGHT.BASELINE, theirs.cfg.CLIENT_WEIGHT.WEIGHT_DELTA = "first_model", 1
        theirs.cfg.SEED = 0
        for _ in range(world.case.rounds):
            for client in clients:
                client.others = clients
                client.fit()
            federation = theirs.Federation(clients, 0)
            shared = {n: federation.avg_model_params[at].clone() for n, at in NAMES.items()}
            federation.compute_client_weights(0, federated_models=[], available_clients=clients)
            federation.federate(last_global_model=clients[0].model)
    return gradients(world) | outcome(world, shared, [c.model for c in clients], NAMES)
