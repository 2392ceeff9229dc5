"""FedALA beside its authors' server, clients and ``ALA``."""

from __future__ import annotations

from pathlib import Path

from parity.figures import AUTHORS, Source, Values
from parity.net import HEAD, NAMES, gradients, net_case, outcome, tensors
from parity.pfllib import served
from parity.world import World

SOURCE = Source(
    "FedALA", AUTHORS, "TsingZ0/FedALA", "a7a9b21342859005f22fc0bffbdb1846975de53b",
    ("system/flcore/servers/serverALA.py", "system/flcore/clients/clientALA.py",
     "system/utils/ALA.py"),
    differs="a feature adapter and a linear head on both sides; all of a client's images learn the "
    "mixing weights, which are those of the last evaluation",
)
CASES = {
    f"layers {layers}": net_case("FedALA", {"SHARE": 1.0, "LAYERS": layers, "MIX_LR": 2.0},
                                 epochs=2, rate=0.2)
    for layers in (0, 1)
}


def other(world: World, folder: Path) -> Values:
    """Return the numbers of their server and clients."""
    server = served(world, folder / "system", "flcore.servers.serverALA", "FedALA", eta=2.0,
                    rand_percent=100, layer_idx=world.case.options["LAYERS"],
                    after=lambda server, _: server.send_models())
    nets = [client.model for client in server.clients]
    own = HEAD if world.case.options["LAYERS"] == 1 else NAMES
    return gradients(world) | outcome(world, tensors(server.global_model), nets, own)
