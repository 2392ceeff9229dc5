"""TRIP beside its authors' clustering, ``CustomCLIP``, training and averaging."""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from open_clip.tokenizer import SimpleTokenizer
from scipy import stats
from torch import Tensor

from parity.authors import FrozenCLIP, Theirs, repository, their_clip
from parity.fedmedclip import doubled
from parity.figures import AUTHORS, Source, Values
from parity.pfllib import quiet
from parity.world import DTYPE, Case, World

SOURCE = Source(
    "TRIP", AUTHORS, "GongShuai8210/TRIP", "d4c8496c428c6560462e27e90491465b75f13570",
    ("utils/generate_weights_multi.py", "nets/coop2_NR_data.py", "methods/FedMoeP_NR_cos.py",
     "vanilla_clip/model.py"),
    differs="the towers with which their clustering runs (those of their training ask frozen "
            "weights for a gradient, and stop); clusters start at our tokens (there random ones); "
            "float64 in place of float32 and of the transfer's 16 bits; one rate in all rounds; "
            "templates of ours; the average over rounds, which stands inside their script's main "
            "part, is written out here with scipy's Beta density",
)
CASES = {
    "their AdamW": Case("TRIP", {"N_CTX": 5}, optimiser="adamw", rate=0.003, decay=0.01,
                        details={"betas": (0.9, 0.98), "eps": 1e-7}),
    "3 contexts": Case("TRIP", {"N_CTX": 4, "EXPERTS": 3, "ALPHA": 0.3}, rounds=0,
                       templates=("a photo of a {}.", "a sketch of a {}.")),
}
STUBS = ("sklearn", "sklearn.cluster", "sklearn.metrics", "fvcore", "fvcore.nn", "vanilla_clip",
         "vanilla_clip.clip")
CTX, KEYS = "text.ctx.experts", "route.keys"
Batch = tuple[Tensor, Tensor, Tensor, Tensor]


def other(world: World, folder: Path) -> Values:
    """Return the numbers of their model, ``train_CoOp`` and ``communication``."""
    with repository(folder, *STUBS) as load, patch.object(Tensor, "float", doubled), quiet():
        FrozenCLIP(world).install()  # their tokenizer's words are not in the repository
        sys.modules["vanilla_clip"].__path__ = [str(folder / "vanilla_clip")]
        vars(sys.modules["clip.simple_tokenizer"])["SimpleTokenizer"] = SimpleTokenizer
        script = load("methods.FedMoeP_NR_cos")
        script.tqdm = lambda x: x
        net = model(world, load("nets.coop2_NR_data"), load("vanilla_clip.model"))
        theirs = Side(world, net, load("utils.generate_weights_multi"))
        found = theirs.gradients()
        return found | theirs.trained(script) if world.case.rounds else found


def model(world: World, module: ModuleType, towers: ModuleType) -> Any:
    """Return their ``CustomCLIP`` over our towers."""
    c, o = world.case, world.trainer.cfg
    clip = their_clip(world, towers)
    module.__dict__["load_clip_to_cpu"] = lambda *_: clip
    args = SimpleNamespace(
        N_CTX=o.N_CTX, INPUT_SIZE=(c.image,) * 2, route_emb=c.vision_width, CSC=False, CTP="end",
        num_experts=o.EXPERTS, gamma=0.8, lamba=0.1, alpha=o.ALPHA,
    )
    net = module.CustomCLIP(args, world.names, clip).double()
    raw = [clip.encode_text(world.backbone.tokenize([t.format(n) for n in world.names]))
           for t in c.templates]
    net.fixed_embeddings = torch.stack(raw).mean(0)
    return net


class Side(Theirs):
    """Their model with the weights of their clustering."""

    def __init__(self, world: World, net: Any, routing: ModuleType) -> None:
        self.net, self.routing, self.keys = net, routing, world.start[KEYS]
        contexts = net.prompt_learner.VPTctxList

        def put(tree: dict[str, Tensor]) -> None:
            self.keys = tree[KEYS]
            for one, value in zip(contexts, tree[CTX], strict=True):
                one.data = value.clone()

        super().__init__(
            world, put=put, get=lambda: {CTX: torch.stack(list(contexts)).detach()},
            loss=lambda x, y: net(x, self.weights(x, 1.0), y, Training=True),
            logits=lambda x: net(x, self.weights(x, world.trainer.cfg.ROOM)),
            leaves=lambda: list(contexts),
            grads=lambda: {CTX: torch.stack([p.grad for p in contexts])},
        )

    def weights(self, images: Tensor, capacity: float) -> Tensor:
        """Return the weights of the contexts for images, ``[B, M]``."""
        count = len(self.keys)

        def steps(n: int) -> Tensor:
            return torch.arange(count) * n // count

        rows = []
        with torch.no_grad(), patch.object(torch, "randperm", steps):
            for tokens in self.net.image_encoder(images)[1]:
                _, centres, sizes, _ = self.routing.balanced_kmeans_lagrangian(
                    tokens, capacity=capacity, num_clusters=count, max_iters=100, eta=0.0001,
                    tol=1e-4, reinit_strategy="farthest")
                rows.append(self.routing.expert_weights(centres, self.keys, sizes))
        return torch.stack(rows)

    def trained(self, script: ModuleType) -> Values:
        """Return what the rounds give, with their training and averaging."""
        w, c = self.world, self.world.case
        self.put(w.start)
        server = self.net
        models = [copy.deepcopy(server) for _ in range(4)]
        args = SimpleNamespace(test_envs=[3])
        loaders: list[list[Batch]] = []
        for rows in w.rows:
            x = w.images[torch.from_numpy(rows)]
            share = self.weights(x, 1.0)
            loaders.append([(x, w.labels[torch.from_numpy(rows)], share, share)])
        density = [stats.beta.pdf((i + 0.5) / (c.rounds + 1), 0.2, 0.2) for i in range(c.rounds)]
        average, total = self.get()[CTX], density[0]
        for round_ in range(c.rounds):
            for one, loader in zip(models, loaders, strict=False):
                optimiser = torch.optim.AdamW(
                    one.prompt_learner.VPTctxList.parameters(), c.rate, weight_decay=c.decay,
                    **c.details)
                for _ in range(c.epochs):
                    script.train_CoOp(args, one, loader, optimiser, 0, "cpu")
            with patch.object(torch, "float16", DTYPE):  # their sum is made in it
                script.communication(args, server, models, [*w.shares, 0.0])
            new = density[round_] / total
            average = (average + new * self.get()[CTX]) / (1 + new)
            total += density[round_]
        found = {f"shared {CTX}": average}
        found |= {f"client{k} {CTX}": self.get()[CTX] for k in range(len(c.sizes))}
        with torch.no_grad():
            found["logits"] = self.logits(w.tests).expand(len(c.sizes), -1, -1).clone()
        return found
