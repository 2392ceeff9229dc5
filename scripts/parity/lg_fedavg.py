"""LG-FedAvg beside its authors' ``main_lg.py``, run whole."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import torch

from parity.figures import AUTHORS, Source, Values
from parity.net import BODY, HEAD, NAMES, gradients, net_case, network, outcome, tensors
from parity.script import executed, script_arguments
from parity.world import World

SOURCE = Source(
    "LG-FedAvg", AUTHORS, "pliang279/LG-FedAvg", "7af0568b2cae88922ebeacc021b1679815092f4e",
    ("main_lg.py", "models/Update.py"),
    differs="a feature adapter and a linear head on both sides; their script starts from a model "
    "that FedAvg trained, here from the common start; evaluated is the last round (theirs: the "
    "best on the test set)",
)
CASES = {"adapter, linear head": net_case("LG-FedAvg", momentum=0.5, rate=0.2)}


def other(world: World, folder: Path) -> Values:
    """Return the numbers of their script."""
    net = network(world)
    net.weight_keys = [[name] for name in NAMES.values()]
    args = script_arguments(world, load_fed="start.pt", num_layers_keep=1)

    def files() -> None:
        base = Path(f"save/{args.dataset}/{args.model}_iid{args.iid}_num{args.num_users}_"
                    f"C{args.frac}_le{args.local_ep}/shard{args.shard_per_user}/"
                    f"{args.results_save}")
        (base / "fed").mkdir(parents=True)
        users = {k: rows.copy() for k, rows in enumerate(world.rows)}
        (base / "dict_users.pkl").write_bytes(pickle.dumps((users, users)))
        torch.save(net.state_dict(), base / "fed" / args.load_fed)

    none = np.zeros(len(world.rows))
    end = executed(world, folder, "main_lg.py", args, net, {"models.test": {
        "test_img_local_all": lambda *_, **how: (none if how else 0.0, 0.0),
        "test_img_local": None,
        "test_img_avg_all": lambda net, *_, **how: (0.0, 0.0, net) if how else (0.0, 0.0),
        "test_img_ensemble_all": lambda *_, **__: (0.0, 0.0, 0.0),
    }}, files=files)
    clients = end["net_local_list"]
    return gradients(world) | outcome(world, tensors(clients[0], HEAD), clients, BODY)
