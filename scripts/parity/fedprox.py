"""FedProx beside its authors' server, clients and optimiser."""

from __future__ import annotations

from pathlib import Path

from parity.figures import AUTHORS, Source, Values
from parity.net import NAMES, gradients, net_case, outcome, tensors
from parity.tf_trainers import flearn_server
from parity.world import World

SOURCE = Source(
    "FedProx", AUTHORS, "litian96/FedProx", "d2a4501f319f1594b732d88315c5ca1a72855f50",
    ("flearn/trainers/fedprox.py", "flearn/trainers/fedbase.py", "flearn/models/client.py",
     "flearn/optimizer/pgd.py"),
    differs="a feature adapter and a linear head on both sides, whose gradient PyTorch takes on "
    "theirs too (there TensorFlow 1); no stragglers; steps without momentum",
)
CASES = {"mu 0.1": net_case("FedProx", epochs=3), "mu 2": net_case("FedProx", {"MU": 2.0}, epochs=3,
                                                                  rate=0.2)}


def other(world: World, folder: Path) -> Values:
    """Return the numbers of their server."""
    server = flearn_server(world, folder, "flearn.trainers.fedprox",
                           mu=world.case.options.get("MU", 0.1))
    net = server.client_model.net
    server.client_model.set_params(server.latest_model)
    return gradients(world) | outcome(world, tensors(net, NAMES), [net] * len(world.rows))
