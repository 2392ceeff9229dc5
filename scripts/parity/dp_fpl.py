"""DP-FPL beside its authors' ``trainers/DP_FPL.py`` and the server of their script."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from fedvlm.core import rng
from parity.authors import no_prompts, repository, settings, their_clip
from parity.figures import AUTHORS, Source, Values
from parity.world import NAMES, Case, World

SOURCE = Source(
    "DP-FPL", AUTHORS, "linhhtran/DP-FPL", "cce74b479525c6f3fc16586e54c93669c72c63c0",
    ("trainers/DP_FPL.py", "clip/model.py"), equal="three rounds (one step each), logits",
    differs="without noise (its size has a test of its own); gradients of single images are not "
            "clipped there, so the bound is out of reach in the first case and the batch's is "
            "clipped in the second (CLIPPING batch); q is drawn alike; plain SGD (there momentum, "
            "in one optimiser for all clients)",
)
OPTIONS = {"N_CTX": 4, "RANK": 2, "SIGMA": 0.0}
PLAIN: dict[str, Any] = {"epochs": 1, "momentum": 0.0, "decay": 0.0, "loss": False, "rate": 2.0,
                         "names": NAMES[:3], "sizes": (4, 2, 1)}
CASES = {
    "no bound": Case("DP-FPL", OPTIONS | {"CLIP": 1e9}, **PLAIN),
    "clipped batch": Case("DP-FPL", OPTIONS | {"CLIP": 0.02, "CLIPPING": "batch"}, **PLAIN),
}
SEED = 1  # of a plan


def other(world: World, folder: Path) -> Values:
    """Return the numbers of the authors' trainer, called as ``federated_main.py`` does."""
    o, c = world.trainer.cfg, world.case
    with repository(folder) as load:
        module = load("trainers.DP_FPL")
        clip = their_clip(world, load("clip.model"), no_prompts("DP_FPL"))
        cfg = settings(
            TRAINER={"DP_FPL": {"N_CTX": o.N_CTX}}, FACTORIZATION="dpfpl", RANK=o.RANK,
            INPUT={"SIZE": (c.image,) * 2}, NORM_THRESH=o.CLIP,
            NOISE=float(o.CLIPPING == "batch"),  # without it they clip nothing
        )
        net = module.CustomCLIP(cfg, world.names, clip).double()
        own = SimpleNamespace(
            model=net, cfg=cfg, std=0.0, dtype=torch.float64, parse_batch_train=lambda b: b,
            model_zero_grad=net.zero_grad, model_backward=lambda loss: loss.backward(),
        )
        optimiser = torch.optim.SGD(net.prompt_learner.parameters(), c.rate)
        own.model_update = optimiser.step
        module.compute_accuracy = lambda *_: [torch.zeros(())]
        with mock.patch.object(Tensor, "float", lambda self: self):
            return rounds(world, net, own, module.DP_FPL)


def starts(world: World, client: int, round_: int) -> Callable[..., Tensor]:
    """Return a ``torch.normal`` whose q of N(0, 1) is ours, and whose noise is 0."""
    seed = rng.seed_of(SEED, "factors/w", round_, client, 1, 0)
    shape, stream = (world.trainer.cfg.RANK, world.case.width), torch.Generator().manual_seed(seed)
    q = torch.randn(shape, generator=stream, dtype=torch.float64).T

    def normal(mean: float, std: float, size: tuple[int, ...], **_: Any) -> Tensor:
        return q.clone() if std == 1 else torch.zeros(size, dtype=torch.float64)

    return normal


def rounds(world: World, net: Any, own: Any, trainer: Any) -> Values:
    """Return shared and personal contexts and logits after the rounds, by their two passes."""
    c, start, learner = world.case, world.start, net.prompt_learner
    common, clients = start["text.global"].clone(), range(len(world.case.sizes))
    local = [start["text.u"] @ start["text.v"] + start["text.r"] for _ in clients]

    def place(client: int) -> None:
        learner.global_ctx.data, learner.local_ctx.data = common.clone(), local[client].clone()

    for round_ in range(1, c.rounds + 1):
        shared, whole = [], []
        for client, rows in enumerate(map(torch.from_numpy, world.rows)):
            place(client)
            with mock.patch("torch.normal", starts(world, client, round_)):
                trainer.forward_pass(own, (world.images[rows], world.labels[rows]))
            shared.append(learner.global_ctx.grad.clone())
            whole.append(learner.local_ctx.grad.clone())
        for client in clients:
            place(client)
            learner.local_ctx.grad = whole[client]  # there it is the last client's
            trainer.backward_pass(own, torch.stack(shared).mean(0))
            local[client] = learner.local_ctx.data.clone()
        common = learner.global_ctx.data.clone()
    logits = []
    for client in clients:
        place(client)
        with torch.no_grad(), mock.patch("torch.normal", starts(world, client, c.rounds)):
            logits.append(net(world.tests))
    found = {"shared text.global": common, "logits": torch.stack(logits)}
    for client in clients:
        with mock.patch("torch.normal", starts(world, client, c.rounds)):
            u, v, rest = trainer_factors(trainer)(local[client], world.trainer.cfg.RANK)
        found |= {f"client{client} text.u": u, f"client{client} text.v": v,
                  f"client{client} text.r": rest}
    return found


def trainer_factors(trainer: Any) -> Callable[[Tensor, int], tuple[Tensor, Tensor, Tensor]]:
    """Return ``factorize_ctx`` of the trainer's module."""
    found: Callable[..., tuple[Tensor, Tensor, Tensor]]
    found = trainer.forward_pass.__globals__["factorize_ctx"]
    return found
