"""FedAvg over LoRA of mixed ranks (PEFT.RANKS) beside the papers' rules, in plain loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from fedvlm.core.trees import Tree
from parity.figures import PAPER, Source, Values
from parity.hetlora import cut, layers
from parity.towers import scores, template_texts, with_lora
from parity.world import DTYPE, Case, World

SOURCE = Source(
    "FedAvg", PAPER, "rules of LoRA with mixed ranks: FedIT 2024, FlexLoRA 2024, FLoRA 2024, "
    "FedEx-LoRA 2025",
    equal="LoRA of ranks 2, 4, 8: factors (where they are unique) and logits of each client",
    differs="product_svd and stack: one round, logits alone (factors of a product are not unique, "
            "FLoRA's are drawn anew)",
)
RANKS, RANK, ALPHA = (2, 4, 8), 8, 8.0


def case(rule: str, rounds: int) -> Case:
    """Return the case of a rule."""
    keys = {"PEFT.VISUAL": "lora", "PEFT.TEXT": "none", "PEFT.RANK": RANK, "PEFT.ALPHA": ALPHA,
            "PEFT.RANKS": "(2, 4, 8)", "PEFT.LORA_AVG": rule}
    return Case("FedAvg", {}, keys, rounds=rounds, loss=False, rate=0.1, sizes=(4, 3, 2))


CASES = {
    "factors": case("factors", 1), "residual": case("residual", 2),
    "product_svd": case("product_svd", 1), "stack": case("stack", 1),
}


@dataclass
class Server:
    """Factors that clients receive, and what was added to W."""

    factors: Tree
    change: Tree


Rule = Callable[[Server, Sequence[Tree], Sequence[float]], Server]


def mean(trees: Sequence[Tree], shares: Sequence[float]) -> Tree:
    """Return the weighted mean of factors, zeros behind short ones."""
    whole = [{n: F.pad(v, (0, 0, 0, RANK - len(v)) if n.endswith(".A") else (0, RANK - v.shape[1]))
              for n, v in tree.items()} for tree in trees]
    return {n: sum((s * t[n] for s, t in zip(shares, whole, strict=True)),
                   torch.zeros((), dtype=DTYPE)) for n in trees[0]}


def products(tree: Tree) -> Tree:
    """Return B A of every layer, by the layer's name."""
    names = [n[:-2] for n in tree if n.endswith(".A")]
    return {n: b @ a for n, (b, a) in zip(names, layers(tree), strict=True)}


def mean_product(trees: Sequence[Tree], shares: Sequence[float]) -> Tree:
    """Return sum_k p_k B_k A_k."""
    each = [products(tree) for tree in trees]
    return {n: sum((s * t[n] for s, t in zip(shares, each, strict=True)),
                   torch.zeros((), dtype=DTYPE)) for n in each[0]}


def factors(server: Server, sent: Sequence[Tree], shares: Sequence[float]) -> Server:
    """FedIT with zero padding."""
    return Server(mean(sent, shares), server.change)


def residual(server: Server, sent: Sequence[Tree], shares: Sequence[float]) -> Server:
    """FedEx-LoRA: what the means' product misses is added to W."""
    new, target = mean(sent, shares), mean_product(sent, shares)
    missed = {n: target[n] - p for n, p in products(new).items()}
    return Server(new, {n: server.change.get(n, 0) + v for n, v in missed.items()})


def product_svd(server: Server, sent: Sequence[Tree], shares: Sequence[float]) -> Server:
    """FlexLoRA: the best factors of the mean product, by falling singular value."""
    found: Tree = {}
    for name, target in mean_product(sent, shares).items():
        u, s, v = torch.linalg.svd(target, full_matrices=False)
        found |= {f"{name}.A": v[:RANK], f"{name}.B": u[:, :RANK] * s[:RANK]}
    return Server(found, server.change)


def stack(server: Server, sent: Sequence[Tree], shares: Sequence[float]) -> Server:
    """FLoRA: the mean product is added to W, and factors begin again."""
    none = {n: torch.zeros_like(v) for n, v in server.factors.items()}
    return Server(none, mean_product(sent, shares))


def other(world: World, folder: Path) -> Values:
    """Return what is left after the rounds."""
    rule = str(world.case.keys["PEFT.LORA_AVG"])
    rules: dict[str, Rule] = {r.__name__: r for r in (factors, residual, product_svd, stack)}
    start = {n: v for n, v in world.start.items() if ".lora." in n}
    texts, server = template_texts(world), Server(start, {})
    for _ in range(world.case.rounds):
        sent = [fit(world, torch.from_numpy(rows), cut(server.factors, rank), server.change, texts)
                for rows, rank in zip(world.rows, RANKS, strict=True)]
        server = rules[rule](server, sent, world.shares)
    with torch.no_grad():
        logits = torch.stack([scores(world, world.tests, texts, changed(
            cut(server.factors, rank), server.change)) for rank in RANKS])
    unique = rule not in ("product_svd", "stack")
    return {"logits": logits} | {f"shared {n}": v for n, v in server.factors.items() if unique}


def changed(tree: Tree, change: Tree) -> Callable[..., Tensor]:
    """Return layers of W + s (change + B A)."""
    scale = ALPHA / RANK
    low = with_lora(tree, scale)

    def layer(block: int, site: str, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        name = f"image.lora.{block}.{site}"
        whole = weight + scale * change[name] if name in change else weight
        return low(block, site, x, whole, bias)

    return layer


def fit(world: World, rows: Tensor, tree: Tree, change: Tree, texts: Tensor) -> Tree:
    """Return a client's factors after its epochs."""
    case = world.case
    leaves = [v.requires_grad_() for v in tree.values()]
    optimiser = torch.optim.SGD(leaves, case.rate, case.momentum, weight_decay=case.decay)
    for _ in range(case.epochs):
        logits = scores(world, world.images[rows], texts, changed(tree, change))
        loss = F.cross_entropy(logits, world.labels[rows])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return {n: v.detach() for n, v in tree.items()}
