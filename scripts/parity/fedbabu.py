"""FedBABU beside its authors' ``main_fed.py``, run whole, and their fine-tuning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from parity.authors import repository
from parity.figures import AUTHORS, Source, Values
from parity.net import BODY, HEAD, data, gradients, net_case, network, outcome, tensors
from parity.script import executed, script_arguments
from parity.world import World

SOURCE = Source(
    "FedBABU", AUTHORS, "jhoon-oh/FedBABU", "e34c15b4288224f0af1bc13670bc0cdc373c9576",
    ("main_fed.py", "models/Update.py", "analysis.ipynb"),
    equal="loss, gradients, three rounds, five epochs of fine-tuning, logits",
    differs="a feature adapter and a linear head on both sides; no milestones of the learning rate "
    "(theirs at half and three quarters of the rounds); fine-tuned is the last round's model "
    "(theirs: the best on the test set), at the run's rate, with its own LocalUpdate, which "
    "takes the same steps as the notebook",
)
CASES = {
    part: net_case("FedBABU", {"FT_PART": part}, momentum=0.9, rate=0.1)
    for part in ("full", "head")
}


class Steady(int):
    """A number of rounds whose halves and quarters never come."""

    def __floordiv__(self, other: object) -> int:
        return -1

    def __mul__(self, other: object) -> Steady:
        return self


def other(world: World, folder: Path) -> Values:
    """Return the numbers of their script and of the fine-tuning of its notebook."""
    c, net = world.case, network(world)
    args = script_arguments(world, local_upt_part="body", aggr_part="body",
                            epochs=Steady(c.rounds), local_ep_pretrain=0)
    end = executed(world, folder, "main_fed.py", args, net, {
        "models.test": dict.fromkeys(("test_img", "test_img_local", "test_img_local_all")),
    })
    shared = tensors(end["net_local_list"][0], BODY)
    rates = {"body_lr": c.rate if c.options["FT_PART"] == "full" else 0.0, "head_lr": c.rate}
    clients = end["net_local_list"]
    with repository(folder) as load:
        update: Any = load("models.Update")
        for client, (z, y) in zip(clients, data(world), strict=True):
            local = update.LocalUpdate(args, list(zip(z, y, strict=True)), range(len(y)))
            local.train(client, local_eps=5, **rates)
    own = (*BODY, *HEAD) if c.options["FT_PART"] == "full" else HEAD
    return gradients(world) | outcome(world, shared, clients, own)
