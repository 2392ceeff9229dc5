"""HetLoRA beside an implementation from the paper's equations, in plain loops."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from fedvlm.core.trees import Tree
from parity.figures import PAPER, Source, Values
from parity.towers import scores, template_texts, with_lora
from parity.world import Case, World

SOURCE = Source(
    "HetLoRA", PAPER, "Cho et al., Heterogeneous LoRA for Federated Fine-tuning of On-Device "
    "Foundation Models, EMNLP 2024",
    equal="four rounds: truncation, tail's norms, pruned ranks, mean by norms, logits",
    differs="the tail's norms are summed over layers, a client's rank holds for all layers",
)
RANKS, RANK, ALPHA, GAMMA, LAMBDA = (2, 4, 8), 8, 8.0, 0.5, 0.8
CASES = {"pruning": Case(
    "HetLoRA", {"GAMMA": GAMMA, "LAMBDA": LAMBDA},
    {"PEFT.VISUAL": "lora", "PEFT.TEXT": "none", "PEFT.RANK": RANK, "PEFT.ALPHA": ALPHA,
     "PEFT.RANKS": "(2, 4, 8)", "PEFT.LORA_AVG": "by_norm"}, rounds=4, loss=False, rate=0.1,
)}


def cut(tree: Tree, rank: int) -> Tree:
    """Return the first components."""
    return {n: (v[:rank] if n.endswith(".A") else v[:, :rank]).clone() for n, v in tree.items()}


def padded(tree: Tree) -> Tree:
    """Return factors of the whole rank, zeros behind."""
    return {n: F.pad(v, (0, 0, 0, RANK - len(v)) if n.endswith(".A")
                     else (0, RANK - v.shape[1])) for n, v in tree.items()}


def layers(tree: Tree) -> list[tuple[Tensor, Tensor]]:
    """Return (B, A) of every layer."""
    return [(tree[n[:-1] + "B"], a) for n, a in tree.items() if n.endswith(".A")]


def tail(tree: Tree, rank: int) -> Tensor:
    """Return the sum over layers of |B[:, T]| |A[T]|."""
    first = int(GAMMA * rank)
    parts = [b[:, first:].norm() * a[first:].norm() for b, a in layers(tree)]
    return torch.stack(parts).sum()


def other(world: World, folder: Path) -> Values:
    """Return what is left after the rounds."""
    case, texts = world.case, template_texts(world)
    scale, ranks, common = ALPHA / RANK, list(RANKS), dict(world.start)
    for _ in range(case.rounds):
        sent, norms = [], []
        for client, rows in enumerate(world.rows):
            rank = ranks[client]
            tree = {n: v.requires_grad_() for n, v in cut(common, rank).items()}
            before = float(tail(tree, rank).detach())
            optimiser = torch.optim.SGD(tree.values(), case.rate, case.momentum,
                                        weight_decay=case.decay)
            for _ in range(case.epochs):
                logits = scores(world, world.images[rows], texts, with_lora(tree, scale))
                loss = F.cross_entropy(logits, world.labels[rows]) + LAMBDA * tail(tree, rank)
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
            tree = {n: v.detach() for n, v in tree.items()}
            if float(tail(tree, rank)) < before:
                ranks[client] = max(1, int(GAMMA * rank))
                tree = cut(tree, ranks[client])
            sent.append(padded(tree))
            norms.append(torch.stack([(b @ a).square().sum() for b, a in layers(tree)]).sum()
                         .sqrt())
        shares = [n / sum(norms) for n in norms]
        common = {n: sum((s * t[n] for s, t in zip(shares, sent, strict=True)), torch.zeros(()))
                  for n in common}
    if ranks == list(RANKS):
        raise ValueError("nobody pruned: the case shows too little")
    with torch.no_grad():
        logits = torch.stack([
            scores(world, world.tests, texts, with_lora(cut(common, rank), scale))
            for rank in ranks
        ])
    return {f"shared {n}": v for n, v in common.items()} | {"logits": logits}
