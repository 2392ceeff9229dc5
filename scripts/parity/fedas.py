"""FedAS beside its authors' server and clients."""

from __future__ import annotations

import copy
import types
from pathlib import Path
from typing import Any

from parity.figures import AUTHORS, Source, Values
from parity.net import BODY, NAMES, gradients, net_case, outcome, tensors
from parity.pfllib import served
from parity.world import World

SOURCE = Source(
    "FedAS", AUTHORS, "xiyuanyang45/FedAS", "1a4f5fdb0111a11e92559f6caaa1392e4c181ac1",
    ("system/flcore/servers/serveras.py", "system/flcore/clients/clientas.py"),
    differs="a feature adapter and a linear head on both sides; a client aligns a copy of the "
    "global model (theirs is moved by every client in turn, which PFLlib's version of the same "
    "file mends in the same way); they align in the first round too, here SKIP_FIRST False",
)
CASES = {"aligned": net_case("FedAS", {"SKIP_FIRST": False}, rate=0.1)}


def other(world: World, folder: Path) -> Values:
    """Return the numbers of their server and clients."""
    def prepare(server: Any) -> None:
        for client in server.clients:
            theirs = type(client).set_parameters

            def on_a_copy(self: Any, model: Any, progress: float, theirs: Any = theirs) -> None:
                theirs(self, copy.deepcopy(model), progress)

            client.set_parameters = types.MethodType(on_a_copy, client)

    server = served(world, folder / "system", "flcore.servers.serveras", "FedAS",
                    prepare=prepare, yxy_hyper=0.0, wo_local=False, wo_global=False)
    nets = [client.model for client in server.clients]
    shared = tensors(server.global_model, BODY)
    return gradients(world) | outcome(world, shared, nets, NAMES)
