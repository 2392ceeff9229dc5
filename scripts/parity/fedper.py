"""FedPer beside PFLlib's ``FedPer``."""

from __future__ import annotations

from pathlib import Path

from parity.figures import OTHERS, Source, Values
from parity.net import BODY, HEAD, gradients, net_case, outcome, tensors
from parity.pfllib import COMMIT, REPOSITORY, served
from parity.world import World

SOURCE = Source(
    "FedPer", OTHERS, REPOSITORY, COMMIT,
    ("system/flcore/servers/serverper.py", "system/flcore/clients/clientper.py"),
    differs="a feature adapter and a linear head on both sides, plain SGD; the mean of their "
    "server is by samples, as ours",
)
CASES = {"adapter, linear head": net_case("FedPer")}


def other(world: World, folder: Path) -> Values:
    """Return the numbers of their server and clients."""
    server = served(world, folder / "system", "flcore.servers.serverper", "FedPer",
                    after=lambda server, _: server.send_models())
    nets = [client.model for client in server.clients]
    return gradients(world) | outcome(world, tensors(nets[0], BODY), nets, HEAD)
