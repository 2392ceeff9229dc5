"""pFedMe beside its authors' server and users."""

from __future__ import annotations

import copy
from pathlib import Path

from parity.authors import repository
from parity.figures import AUTHORS, Source, Values
from parity.net import NAMES, data, gradients, net_case, network, outcome, tensors
from parity.pfllib import quiet
from parity.world import World

SOURCE = Source(
    "pFedMe", AUTHORS, "CharlieDinh/pFedMe", "caf24b1f954d4381bd9b4d104ee7eff389e1489b",
    ("FLAlgorithms/servers/serverpFedMe.py", "FLAlgorithms/servers/serverbase.py",
     "FLAlgorithms/users/userpFedMe.py", "FLAlgorithms/users/userbase.py",
     "FLAlgorithms/optimizers/fedoptimizer.py"),
    differs="a feature adapter and a linear head on both sides",
)
CASES = {
    f"beta {beta}": net_case("pFedMe", {"BETA": beta, "STEPS": 3}, epochs=2, rate=0.05)
    for beta in (1.0, 0.5)
}


def other(world: World, folder: Path) -> Values:
    """Return the numbers of their server and users."""
    c = world.case
    batches = [list(zip(*pair, strict=True)) for pair in data(world)]
    with repository(folder, "h5py", "matplotlib", "matplotlib.pyplot") as load, quiet():
        given = load("utils.model_utils")
        given.read_data = lambda _: (range(len(batches)),)
        given.read_user_data = lambda k, *_: (k, batches[k], batches[k])
        server = load("FLAlgorithms.servers.serverpFedMe").pFedMe(
            "cpu", "", "pFedMe", (network(world), "Mclr_CrossEntropy"), max(c.sizes), c.rate,
            c.options["BETA"], 15.0, c.rounds, c.epochs, "", len(c.sizes), c.options["STEPS"], 0.01,
            0,
        )
        for name in ("evaluate", "evaluate_personalized_model", "save_results", "save_model"):
            setattr(server, name, lambda: None)
        server.train()
        nets = []
        for user in server.users:
            user.update_parameters(user.persionalized_model_bar)  # as test_persionalized_model
            nets.append(copy.deepcopy(user.model))
    return gradients(world) | outcome(world, tensors(server.model), nets, NAMES)
