"""SCAFFOLD beside PFLlib's ``SCAFFOLD``."""

from __future__ import annotations

from pathlib import Path

from parity.figures import OTHERS, Source, Values
from parity.net import gradients, net_case, outcome, tensors
from parity.pfllib import COMMIT, REPOSITORY, served
from parity.world import World

SOURCE = Source(
    "SCAFFOLD", OTHERS, REPOSITORY, COMMIT,
    ("system/flcore/servers/serverscaffold.py", "system/flcore/clients/clientscaffold.py",
     "system/flcore/optimizers/fedoptimizer.py"),
    differs="a feature adapter and a linear head on both sides",
)
CASES = {
    f"server rate {rate}": net_case("SCAFFOLD", {"SERVER_LR": rate}, epochs=3, rate=0.2)
    for rate in (1.0, 0.7)
}


def other(world: World, folder: Path) -> Values:
    """Return the numbers of their server and clients."""
    server = served(world, folder / "system", "flcore.servers.serverscaffold", "SCAFFOLD",
                    server_learning_rate=world.case.options["SERVER_LR"])
    net = server.global_model
    return gradients(world) | outcome(world, tensors(net), [net] * len(world.rows))
