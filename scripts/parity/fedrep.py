"""FedRep beside its authors' ``main_fedrep.py``, run whole."""

from __future__ import annotations

from pathlib import Path

from parity.figures import AUTHORS, Source, Values
from parity.net import BODY, HEAD, NAMES, gradients, net_case, network, outcome, tensors
from parity.script import executed, script_arguments
from parity.world import World

SOURCE = Source(
    "FedRep", AUTHORS, "lgcollins/FedRep", "d82e62982e107bb3322541604f059c0ff28bd289",
    ("main_fedrep.py", "models/Update.py"),
    equal="loss, gradients, three rounds, the final ten head epochs, logits",
    differs="a feature adapter and a linear head on both sides; WEIGHTING uniform, as their script "
    "has it on CIFAR; its test is left out",
)
CASES = {"adapter, linear head": net_case(
    "FedRep", {"WEIGHTING": "uniform"}, epochs=3, momentum=0.5, decay=1e-4, rate=0.2,
)}


def other(world: World, folder: Path) -> Values:
    """Return the numbers of their script."""
    net = network(world)
    down, up, head = ([name] for name in NAMES.values())
    net.weight_keys = [down, up, head, [], []]
    args = script_arguments(world, alg="fedrep", local_rep_ep=1, local_updates=10**6)
    end = executed(world, folder, "main_fedrep.py", args, net, {
        "models.test": {"test_img_local_all": lambda *_, **__: (0.0, 0.0), "test_img_local": None},
        "models.language_utils": dict.fromkeys(
            ("get_word_emb_arr", "repackage_hidden", "process_x", "process_y")),
    })
    shared, clients = end["net_glob"], []
    for own in end["w_locals"].values():
        clients.append(network(world))
        state = shared.state_dict() | {head[0]: own[head[0]]}
        clients[-1].load_state_dict(state)
    return gradients(world) | outcome(world, tensors(shared, BODY), clients, HEAD)
