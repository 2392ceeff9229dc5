"""FedMGP beside its authors' ``trainers/fedmgp.py`` and the server of ``federated_core``."""

from __future__ import annotations

from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from fedvlm.core import rng
from fedvlm.core.trees import Tree
from parity.authors import Theirs, repository, settings, their_clip
from parity.figures import AUTHORS, Source, Values
from parity.world import Case, World

SOURCE = Source(
    "FedMGP", AUTHORS, "weihao-bo/FedMGP", "3a026970df7bf409a29c342ed4d1635882c79f99",
    ("trainers/fedmgp.py", "federated_core/trainers/fedmgp_learner.py", "clip/model.py",
     "configs/trainers/FedMGP/base2novel_vit_b16.yaml"),
    differs="both sides draw groups with the same uniform numbers, ours (theirs are from seeds of "
            "42 + client + round); a fresh optimiser per client and round",
)
SIZES = {"GROUPS": 3, "SENT": 2}
CASES = {"2 of 3 groups": Case("FedMGP", SIZES), "temperature 0.1": Case("FedMGP", SIZES | {
    "TEMP": 0.1, "DIV": 3})}
TEXT, IMAGE = "text.prompt.groups", "image.prompt.groups"
PAIRS = ((TEXT, "text.prompt.sent", "prompt_learner.ctx"),
         (IMAGE, "image.prompt.sent", "visual.VPT"))
SEED = 1  # of a plan


class Draws:
    """Our uniform numbers for their ``torch.multinomial`` and ``torch.randperm``."""

    def __init__(self, groups: int) -> None:
        self.groups, self.left = groups, list[Tensor]()
        self.round, self.client, self.side = 1, 0, "text"

    def noise(self, side: str) -> Tensor:
        """Return Gumbel noise of each group."""
        generator = rng.stream(SEED, f"groups/{side}", self.round, self.client)
        uniform = torch.rand(self.groups, generator=generator, dtype=torch.float64)
        return -torch.log(-torch.log(uniform.clamp(1e-12, 1 - 1e-12)))

    def randperm(self, n: int) -> Tensor:
        """Return the order of the noise: an even draw without replacement."""
        return self.noise("both").argsort(descending=True)

    def multinomial(self, shares: Tensor, n: int) -> Tensor:
        """Return the largest of log share + noise among those that are left, as one draw."""
        if len(shares) == self.groups:
            self.left = list(self.noise(self.side))
        best = (shares.log() + torch.stack(self.left)).argmax()
        del self.left[int(best)]
        return best


def other(world: World, folder: Path) -> Values:
    """Return the numbers of the authors' ``CustomCLIP`` and ``FedMGPLearner``."""
    c, o = world.case, world.trainer.cfg
    node = {
        "N_CTX_VISION": o.TOKENS, "N_CTX_TEXT": o.TOKENS, "NUM_PROMPTS_VISION": o.GROUPS,
        "NUM_PROMPTS_TEXT": o.GROUPS, "CTX_INIT": o.CTX_INIT, "PROMPT_DEPTH_VISION": 1,
        "PROMPT_DEPTH_TEXT": 1, "USE_DIVERGENT_LOSS": True, "DIVERGENT_LOSS_WEIGHT": o.DIV,
        "TOPK": o.SENT, "AGGREGATE_HIGHEST_SIM": True, "SELECT_MODE": "similarity",
        "INFERENCE_MODE": "average", "PROBABILISTIC_SELECTION": True, "TEMPERATURE": o.TEMP,
        "DIVERGENT_LOSS_TYPE": "l1",
    }
    stubs = ("prettytable", "scipy.cluster", "scipy.cluster.hierarchy", "sklearn.cluster")
    with repository(folder, *stubs) as load, redirect_stdout(StringIO()):
        design = {"trainer": "FedMGP", "vision_depth": 1, "language_depth": 1,
                  "vision_ctx": o.TOKENS, "language_ctx": o.TOKENS,
                  "vision_num_prompts": o.GROUPS, "language_num_prompts": o.GROUPS}
        clip = their_clip(world, load("clip.model"), design)
        cfg = settings(TRAINER={"FEDMGP": node}, INPUT={"SIZE": (c.image,) * 2},
                       DATASET={"USERS": len(c.sizes)})
        net = load("trainers.fedmgp").CustomCLIP(cfg, world.names, clip).double()
        learner = net.prompt_learner
        net.image_encoder.VPT.requires_grad_(True)

        tensors = {TEXT: learner.ctx, IMAGE: net.image_encoder.VPT}
        theirs = Theirs.of(
            world, tensors, lambda x, y: net.train()(x, y)[0], lambda x: net.eval()(x)
        )
        server = load("federated_core.trainers.fedmgp_learner").FedMGPLearner
        return theirs.gradients() | federated(theirs, server, cfg)


def federated(theirs: Theirs, kind: Any, cfg: Any) -> Values:
    """Return what their server and clients come to after the rounds."""
    world = theirs.world
    o, clients = world.trainer.cfg, range(len(world.case.sizes))
    server, draws = object.__new__(kind), Draws(o.GROUPS)
    server.cfg, server.text_prompt_ranks, server.vision_prompt_ranks = cfg, {}, {}
    start = {  # the first SENT are what a client receives in round 1
        n: torch.cat([world.start[sent], world.start[name][o.SENT :]]) for name, sent, n in PAIRS
    }
    server.client_weights = {
        "local": [{n: v.clone() for n, v in start.items()} for _ in clients], "components": {},
    }
    server._initialize_components_storage()
    ranked, picked = server._rank_prompts_by_similarity, server._probabilistic_prompt_selection

    def rank(*args: Any, is_vision: bool) -> Any:
        draws.side = "image" if is_vision else "text"
        return ranked(*args, is_vision=is_vision)

    def pick(similar: Any, topk: int, client: int, *args: Any) -> Any:
        draws.client = client
        return picked(similar, topk, client, *args)

    def seeded(seed: int) -> None:  # of the first round: 42 + client
        draws.client = seed - 42

    server._rank_prompts_by_similarity, server._probabilistic_prompt_selection = rank, pick
    component: Tree = {}
    for server.current_round in range(1, world.case.rounds + 1):
        draws.round = server.current_round
        for client in clients:
            local = server.client_weights["local"][client]
            theirs.put({name: local[n].clone() for name, _, n in PAIRS})
            theirs.fit(torch.from_numpy(world.rows[client]))
            tree = theirs.get()
            server._store_components(client, {n: tree[name] for name, _, n in PAIRS})
        first = draws.round == 1
        with mock.patch("torch.multinomial", draws.multinomial), mock.patch(
            "torch.randperm", draws.randperm
        ), mock.patch("torch.manual_seed", seeded if first else lambda seed: None):
            component = server.aggregate_models(list(clients))
        server.update_client_models(list(clients), component)
    found = {
        f"shared {sent}": torch.stack([component[f"{n}_{i}"][0] for i in range(o.SENT)])
        for _, sent, n in PAIRS
    }
    logits = []
    for client, local in enumerate(server.client_weights["local"]):
        theirs.put({name: local[n] for name, _, n in PAIRS})
        found |= {f"client{client} {name}": local[n] for name, _, n in PAIRS}
        with torch.no_grad():
            logits.append(theirs.logits(world.tests))
    return found | {"logits": torch.stack(logits)}
