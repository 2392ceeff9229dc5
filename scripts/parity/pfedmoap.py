"""pFedMoAP beside its authors' ``trainers/pfedmoap.py``, with their selection of experts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor

from fedvlm.core.rng import stream
from parity.authors import Names, Theirs, no_prompts, repository, settings, their_clip
from parity.figures import AUTHORS, Source, Values
from parity.world import DTYPE, Case, World

SOURCE = Source(
    "pFedMoAP", AUTHORS, "ljaiverson/pFedMoAP", "a481de35edc7c83244709f540f5fe573df4455dc",
    ("trainers/pfedmoap.py", "trainers/promptfl.py", "clip/model.py", "utils/fed_utils.py"),
    equal="logits with experts, three rounds: contexts, gates, choice of experts, mean",
    differs="their one shuffle of the clients is replaced by ours; experts are those of the round "
            "before (theirs depend on the order of the clients); a fresh optimiser per client and "
            "round; biases of keys, values and output are left out, whose gradient is zero",
)
CASES = {
    "all experts": Case("pFedMoAP", {"N_CTX": 4, "D_GATE": 64}, loss=False, rounds=2,
                        layers=1, epochs=1),
    "one expert": Case("pFedMoAP", {"N_CTX": 2, "D_GATE": 128, "EXPERTS": 1, "HEADS": 4,
                                    "SCALING": 3.0, "LAMBDA": 0.3}, loss=False, rate=0.1,
                       layers=1, epochs=1),
}
CTX = "text.ctx"
ZERO = ("gate.k.bias", "gate.v.bias", "gate.o.bias")  # they move all logits of an image alike


def other(world: World, folder: Path) -> Values:
    """Return the numbers of the authors' ``CustomCLIP`` and ``sparse_selection``."""
    case, o = world.case, world.case.options
    with patch.dict(os.environ, PROJECT=""), repository(folder, "prettytable") as load:
        clip = their_clip(world, load("clip.model"), no_prompts("PromptFL"))
        module = load("trainers.pfedmoap")
        count, most = len(case.sizes), o.get("EXPERTS", 9)
        node = {"N_CTX": o["N_CTX"], "CTX_INIT": "", "CSC": False, "CLASS_TOKEN_POSITION": "end",
                "GATING_HEADS": o.get("HEADS", 8), "GATING_EMBED_DIM": o["D_GATE"],
                "SCALING": o.get("SCALING", 10.0), "LMBDA": o.get("LAMBDA", 0.5)}
        cfg = settings(TRAINER={"PFEDMOAP": node}, INPUT={"SIZE": (case.image,) * 2},
                       DATASET={"USERS": count})
        net = module.CustomCLIP(cfg, world.names, clip).double().train()
        chooser = module.PFEDMOAP.__new__(module.PFEDMOAP)
        chooser.num_experts = min(most + 1, count)
        draw = stream(1, "expert-order")
        chooser.shuffled_all_indices = torch.randperm(count, generator=draw).tolist()
        chooser.random_selection_condition = lambda x, own, ctxs: x != own and ctxs[x] != []
        table = {CTX: net.prompt_learner.ctx} | {
            f"gate.{site}.{kind}": getattr(getattr(net.gating, f"W_{site}"), kind)
            for site in "qkvo" for kind in ("weight", "bias")
        }
        theirs = Theirs(world, loss=lambda x, y: F.cross_entropy(net(x), y), logits=net,
                        **Names(table).methods())
        return run(theirs, net, chooser, load("utils.fed_utils").average_weights)


def run(theirs: Theirs, net: Any, chooser: Any, average: Any) -> Values:
    """Return what is left after the rounds of their ``federated_main.py``."""
    world, count = theirs.world, len(theirs.world.case.sizes)
    common, gate = world.start[CTX], {n: v for n, v in world.start.items() if n != CTX}
    gates = [gate] * count
    last: list[Any] = [[] for _ in range(count)]

    def receive(client: int, sent: list[Any]) -> None:
        theirs.put({CTX: common, **gates[client]})
        net.nonlocal_ctx = [sent[i] for i in chooser.sparse_selection(client, sent)]
        net.nonlocal_text_features = None
        net._compute_nonlocal_text_features()

    for _ in range(world.case.rounds):
        sent: list[Any] = list(last)
        for client, rows in enumerate(world.rows):
            receive(client, last)
            theirs.fit(torch.from_numpy(rows))
            tree = {n: v.detach().clone() for n, v in theirs.get().items()}
            sent[client] = tree.pop(CTX)
            gates[client] = tree
        last = sent
        common = average(last, list(range(count)), list(world.case.sizes), islist=True)
    logits: list[Tensor] = []
    for client in range(count):
        receive(client, last)
        with torch.no_grad():
            logits.append(net(world.tests))
    found = {f"shared {CTX}": common.to(DTYPE), "logits": torch.stack(logits)}
    return found | {f"client{k} {n}": v for k, tree in enumerate(gates) for n, v in tree.items()
                    if n not in ZERO}
