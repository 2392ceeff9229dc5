"""Ditto beside its authors' server and clients."""

from __future__ import annotations

import copy
from pathlib import Path

from parity.figures import AUTHORS, Source, Values
from parity.net import NAMES, gradients, net_case, outcome, tensors
from parity.tf_trainers import flearn_server
from parity.world import World

SOURCE = Source(
    "Ditto", AUTHORS, "litian96/ditto", "26d9b29a62f3872dcdf071be08e897607c283bb4",
    ("flearn/trainers_MTL/ditto.py", "flearn/trainers_MTL/fedbase.py", "flearn/models/client.py"),
    differs="a feature adapter and a linear head on both sides, whose gradient PyTorch takes on "
    "theirs too (there TensorFlow 1); WEIGHTING uniform, as their server has it; no attackers, "
    "no choice of LAMBDA on validation images",
)
CASES = {"lambda 1": net_case("Ditto", {"WEIGHTING": "uniform"}, epochs=3)}


def other(world: World, folder: Path) -> Values:
    """Return the numbers of their server and clients."""
    server = flearn_server(
        world, folder, "flearn.trainers_MTL.ditto", lam=1.0, local_iters=world.case.epochs, q=0,
        dynamic_lam=False, num_corrupted=0, gradient_clipping=False, median=False, k_norm=False,
        krum=False, mkrum=False, sampling=1, boosting=False, random_updates=False,
    )
    learner, nets = server.client_model, []
    for arrays in server.local_models:
        learner.set_params(arrays)
        nets.append(copy.deepcopy(learner.net))
    learner.set_params(server.global_model)
    return gradients(world) | outcome(world, tensors(learner.net), nets, NAMES)
