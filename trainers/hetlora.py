"""HetLoRA: every client has a LoRA rank of its own, and gives up components that it does not need.

Paper: Cho et al., Heterogeneous LoRA for Federated Fine-tuning of On-Device Foundation Models,
    EMNLP 2024.
Equations: client k of rank r receives B[:, :r], A[:r]; with the tail T = [floor(GAMMA r), r): min
    F_k(B, A) + LAMBDA R_k, R_k = sum_layers |B[:, T]| |A[T]|; where R_k is smaller after the round
    than before it, the tail is cut: r = floor(GAMMA r). Server: zeros behind, then A = sum_k s_k
    A_k, B = sum_k s_k B_k, s_k = |B_k A_k| / sum_j |B_j A_j|.
Shared: image.lora.* (A, B), as many components as the client has left, and what else PEFT trains
Personal: none
Frozen: both towers, the logit scale.
Defaults: GAMMA 0.99, LAMBDA 0.0005; PEFT.RANK 8 at the server, PEFT.RANKS 2,4,8 of the clients at
    the start; LoRA in the image tower.
Knobs: GAMMA 0.5 to 0.99; LAMBDA 0.00001 to 0.1 log.
Departures from the paper: known from its abstract, figures and summaries; its text was not at hand,
    so GAMMA and LAMBDA are ours. R_k is summed over layers, and a client has one rank for all of
    them. At least one component stays; a cut takes at least one component where GAMMA is below 1.
    Other tensors than LoRA's are averaged by samples, and so is LoRA while all B A are zero.
Departures from the authors' code: there is none.
Extra data: none.
Cost: FedAvg's compute; traffic by the rank that a client has left, and 4 bytes for each component's
    index in a factor. What the server knows of a rank is how many components came.
Claim: personal is higher than FedAvg [lora]'s in setting rivals.
Command: python federated_main.py --demo --trainer HetLoRA
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedvlm.method import (
    TRAINER_REGISTRY,
    Batch,
    CfgNode,
    Context,
    Groups,
    Option,
    PeftTrainer,
    Portion,
    ServerContext,
    State,
    Tree,
    Updates,
    Upload,
    adapters,
    lora,
    rules,
)

SLOT, RANK = "lora", "lora.rank"  # of a client's state, and of what the server keeps of it
RULE = "by_norm"
A, B = adapters.FACTOR_A, adapters.FACTOR_B


@TRAINER_REGISTRY.register("HetLoRA")
class HetLoRA(PeftTrainer):
    """See the module's card."""

    name = "HetLoRA"
    label_sets = True
    aggregators = (rules.MEAN,)
    server_optim = False
    lora_taken = (RULE, "RANKS")
    server_rules = {r"w/.*\.lora\..*": lambda s: mean_by_norm(s)}
    options = {
        "GAMMA": Option(0.99, "share of its components that a client keeps when it prunes; 1: no "
                        "pruning", low=0.0, high=1.0, low_open=True),
        "LAMBDA": Option(0.0005, "weight of the norm of the tail in the loss", low=0.0),
    }
    exempt = {
        "G4": "clients have different ranks: the mean of truncated factors changes even without "
              "training",
        "G5": "clients have different ranks, and the norm of the tail is in the loss",
        "G6": "clients have different ranks",
    }

    def __init__(self, cfg: CfgNode) -> None:
        """Read what is trained.

        Raises:
            ConfigError: no LoRA is trained, or another rule is to average it.
        """
        super().__init__(cfg)
        self.require(self.spec.has_lora, "HetLoRA prunes the ranks of LoRA, but PEFT trains no "
                     "LoRA: add --peft lora (or text-lora, text-lora+lora)")
        self.require(
            self.spec.average == RULE, f"PEFT.LORA_AVG {self.spec.average}: HetLoRA weighs clients "
            f"by |B A|, which is PEFT.LORA_AVG {RULE}: set that, or use --trainer FedAvg"
        )

    def portion(self, round_: int, groups: Groups) -> Portion:
        """Return all: a client's rank is in its state."""
        return Portion()

    # ---- client ---------------------------------------------------------------------------
    def init_client(self, ctx: Context, start: Tree) -> State:
        """Return the start, and the client's first rank: its place in ``PEFT.RANKS``."""
        rank = torch.tensor(float(self.spec.rank_of(ctx.clients[0])))
        return {"w": start, SLOT: {RANK: rank.to(ctx.model.device, ctx.model.dtype)}}

    def client_update(self, ctx: Context, state: State, received: Tree) -> tuple[State, Upload]:
        """Train with a pull on the tail, prune where it has become shorter, send what is left."""
        start, rank = self.personalize(ctx, state, received), state[SLOT][RANK]
        left = (rank * self.cfg.GAMMA + 1e-6).floor().clamp_min(1)  # 10 * 0.7 is 6.9999999999999996
        tail = components(self.spec.rank, left, rank)
        weight = self.cfg.LAMBDA

        def pulled(params: Tree, grads: Tree, batch: Batch) -> Tree:
            slopes = tail_slopes(params, batch.cut(tail))
            return {n: g + weight * slopes[n] if n in slopes else g for n, g in grads.items()}

        w = ctx.fit(start, self.loss, edit=pulled).params
        rank = torch.where(tail_length(w, tail) < tail_length(start, tail), left, rank)
        w = first(w, components(self.spec.rank, torch.zeros_like(rank), rank))
        sent = dict.fromkeys(lora.shared_sites(w), rank.to(torch.int64))
        return state | {"w": w, SLOT: {RANK: rank}}, ctx.upload(w, ranks=sent)

    def personalize(self, ctx: Context, state: State, received: Tree) -> Tree:
        """Return the global model, of LoRA as many components as the client has left."""
        rank = state[SLOT][RANK]
        mine = components(self.spec.rank, torch.zeros_like(rank), rank)
        return first(state["w"] | received, mine)

    # ---- server ---------------------------------------------------------------------------
    def download(self, ctx: ServerContext, server: State, client: int) -> Tree:
        """Return the global model, of LoRA as many components as the client last sent."""
        known = ctx.held.get(client)
        rank = int(known[SLOT][RANK]) if known else self.spec.rank_of(client)
        if rank == self.spec.rank:
            return server["w"]
        return ctx.cut(server["w"], ranks=dict.fromkeys(lora.shared_sites(server["w"]), rank))

    def combine(self, ctx: ServerContext, updates: Updates) -> Tree:
        """Return the means weighted by |B A|, zeros standing for what was not sent."""
        padded = {
            site + end: torch.where(updates.sent(site + end), updates.params[site + end], 0)
            for site in lora.shared_sites(updates.params) for end in (A, B)
        }
        return super().combine(ctx, replace(updates, params=updates.params | padded))

    def aggregate(self, ctx: ServerContext, server: State, updates: Updates) -> State:
        """Return the new global model; note how many components each client sent."""
        name = next(iter(lora.shared_sites(updates.params))) + A
        sent = updates.sent(name).expand_as(updates.params[name])[:, :, 0].sum(1)
        for client, rank in zip(updates.clients, sent.tolist(), strict=True):
            ctx.held.put(client, {SLOT: {RANK: torch.tensor(float(rank))}})
        ctx.log("ranks", dict(zip(map(str, updates.clients), sent.tolist(), strict=True)))
        return super().aggregate(ctx, server, updates)


def components(count: int, start: Tensor, stop: Tensor) -> Tensor:
    """Return which of ``count`` components lie from ``start`` to before ``stop``: bool.

    Args:
        start, stop: of each client, ``[K]``.

    Returns:
        ``[K, count]``.
    """
    at = torch.arange(count, device=start.device)
    return (at >= start[:, None]) & (at < stop[:, None])


def first(tree: Tree, there: Tensor) -> Tree:
    """Return the tree with LoRA's other components zero; ``there [K, r]``."""
    out = dict(tree)
    for site in lora.shared_sites(tree):
        out[site + A] = torch.where(there[:, :, None], tree[site + A], 0)
        out[site + B] = torch.where(there[:, None], tree[site + B], 0)
    return out


def tail_length(tree: Tree, tail: Tensor) -> Tensor:
    """Return sum_layers |B[:, T]| |A[T]|, ``[K]`` (Cho et al. 2024, rank self-pruning).

    Args:
        tree: LoRA factors ``[K, r, in]`` and ``[K, out, r]`` among others.
        tail: the components T, ``[K, r]`` bool.
    """
    each = [a.norm(dim=(1, 2)) * b.norm(dim=(1, 2)) for a, b in _tails(tree, tail).values()]
    return torch.stack(each).sum(0)


def tail_slopes(tree: Tree, tail: Tensor) -> Tree:
    """Return the gradient of ``tail_length`` for every factor; 0 where a norm is zero."""
    out: Tree = {}
    for site, (a, b) in _tails(tree, tail).items():
        length_a, length_b = (v.norm(dim=(1, 2))[:, None, None] for v in (a, b))
        least = torch.finfo(a.dtype).tiny
        out[site + A] = length_b * a / length_a.clamp_min(least)
        out[site + B] = length_a * b / length_b.clamp_min(least)
    return out


def _tails(tree: Tree, tail: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """Return A[T] and B[:, T] of each LoRA, zero elsewhere."""
    kept = first(tree, tail)
    return {s: (kept[s + A], kept[s + B]) for s in lora.shared_sites(tree)}


def mean_by_norm(s: Any) -> Tensor:
    """Return the mean by s_k of the card, zeros behind, in a round of ``fedvlm check``."""
    whole = {n: torch.where(s.updates.sent(n), s.sent(n), 0) for n in s.updates.params}
    square = [(whole[site + B] @ whole[site + A]).square().sum((1, 2))
              for site in lora.shared_sites(whole)]
    return s.mean(whole[s.name], torch.stack(square).sum(0).sqrt())
