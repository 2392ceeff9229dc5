"""Thorki beside an implementation from the written design, in plain loops over clients.

A large model (here the small network of ``net.py``) is trained by all, a small one (an MLP on the
frozen feature) by its client alone. A gate learns on a few images that neither saw how to mix
their outputs, from six numbers: confidence, margin and entropy of both.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedvlm.core import rng
from fedvlm.core.trees import Tree
from fedvlm.federation.batches import IndexSplit, SplitBatcher
from fedvlm.models.adapt.gates import build_gate
from parity.figures import READING, Source, Values
from parity.net import encode, net_case, network, put, tensors
from parity.world import DTYPE, World

SOURCE = Source(
    "Thorki", READING, "Thorki: Decoupling General and Personalized Knowledge with Collaborative "
    "Fusion, WWW 2026: title and release page",
    equal="three rounds, gates, logits",
    differs="neither paper nor code is to be had: a second implementation of the design that was "
    "written down for ours, whose small model (GELU, normalised features) is of our card; the same "
    "images adapt the gates on both sides, which start at the same numbers",
)
SEED, SHARE = 1, 0.2
GATE_RATE, CLASS_RATE, GATE_DECAY, STEPS = 1e-2, 5e-2, 1e-2, 100
SMALL_RATE, SMALL_DECAY = 1e-3, 1e-2
CASES = {"feature adapter, linear head": net_case("Thorki", sizes=(15, 10, 10), loss=False)}


class Small(nn.Module):
    """The personal model: ``fc2 gelu(fc1 LN(z))``."""

    def __init__(self, start: Tree) -> None:
        super().__init__()
        self.p = nn.ParameterDict({
            n.replace(".", "_"): nn.Parameter(v.clone()) for n, v in start.items()
            if n.startswith("small")
        })

    def forward(self, z: Tensor) -> Tensor:
        """Return logits ``[B, C]``."""
        p = self.p
        z = (z - z.mean(-1, keepdim=True)) / (z.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt()
        hidden = F.gelu(F.linear(z, p["small_fc1_weight"], p["small_fc1_bias"]))
        return F.linear(hidden, p["small_fc2_weight"], p["small_fc2_bias"])

    def tree(self) -> Tree:
        """Return its tensors under our names."""
        return {n.replace("_", "."): v.detach().clone() for n, v in self.p.items()}


def evidence(logits: Tensor) -> Tensor:
    """Return highest probability, its distance from the second and the entropy, ``[B, 3]``."""
    p = logits.softmax(-1)
    top = p.topk(2, dim=-1).values
    return torch.stack([top[:, 0], top[:, 0] - top[:, 1], -(p * p.log()).sum(-1)], -1)


def fused(gate: Tree, large: Tensor, small: Tensor) -> Tensor:
    """Return the mixture of scaled logits ``[B, C]``."""
    u = torch.cat([evidence(large), evidence(small)], -1)
    hidden = F.linear(u, gate["w1"], gate["b1"]).relu()
    share = torch.sigmoid(F.linear(hidden, gate["w2"], gate["b2"]) + gate["a"])
    return share * large + (1 - share) * small


def train_gate(gate: Tree, large: Tensor, small: Tensor, labels: Tensor) -> None:
    """Train the gate's tensors in place, all images in each step."""
    rest = [v for n, v in gate.items() if n != "a"]
    optimiser = torch.optim.AdamW([
        {"params": rest, "lr": GATE_RATE}, {"params": [gate["a"]], "lr": CLASS_RATE},
    ], weight_decay=GATE_DECAY)
    for _ in range(STEPS):
        loss = F.cross_entropy(fused(gate, large, small), labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()


def fit(net: nn.Module, z: Tensor, labels: Tensor, optimiser: torch.optim.Optimizer, epochs: int
        ) -> None:
    """Train a model by cross-entropy, all images in each step."""
    for _ in range(epochs):
        optimiser.zero_grad()
        F.cross_entropy(net(z), labels).backward()
        optimiser.step()


def parts(world: World) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return which images of each client train its models, and which the gate: drawn, as ours."""
    none, cpu = np.zeros(0, np.int64), torch.device("cpu")
    batcher = SplitBatcher(
        world, [IndexSplit(rows, none, none) for rows in world.rows], 1, SEED, 1, 1, cpu, DTYPE
    ).subset(range(len(world.rows)), "fit", SHARE)
    return [(np.array(batcher.splits[k].train), np.array(batcher.splits[k].val))
            for k in range(len(world.rows))]


def other(world: World, folder: Path) -> Values:
    """Return the server's model, the small models, the gates and logits after the rounds."""
    case, split = world.case, parts(world)
    z = encode(world, world.images)
    shares = [len(fit_) / sum(len(f) for f, _ in split) for fit_, _ in split]
    common = {n: v for n, v in world.start.items() if not n.startswith("small")}
    large, small = network(world, common), [Small(world.start) for _ in split]
    for _ in range(case.rounds):
        sent = []
        for (rows, _), own in zip(split, small, strict=True):
            put(large, common)
            fit(large, z[rows], world.labels[rows],
                torch.optim.SGD(large.parameters(), case.rate), case.epochs)
            sent.append(tensors(large))
            fit(own, z[rows], world.labels[rows],
                torch.optim.AdamW(own.parameters(), SMALL_RATE, weight_decay=SMALL_DECAY),
                case.epochs)
        common = {n: sum((s * tree[n] for s, tree in zip(shares, sent, strict=True)),
                         torch.zeros((), dtype=DTYPE)) for n in common}
    put(large, common)
    found, logits, tests = {f"shared {n}": v for n, v in common.items()}, [], encode(
        world, world.tests)
    for k, ((_, rows), own) in enumerate(zip(split, small, strict=True)):
        start = build_gate("conf_gate", len(world.names), rng.stream(SEED, "gate"))
        gate = {n.removeprefix("gate."): v.to(DTYPE).requires_grad_() for n, v in start.items()}
        with torch.no_grad():
            both = [net(z[rows]) for net in (large, own)]
            scale = [one.std(unbiased=False) for one in both]
        train_gate(gate, both[0] / scale[0], both[1] / scale[1], world.labels[rows])
        with torch.no_grad():
            logits.append(fused(gate, large(tests) / scale[0], own(tests) / scale[1]))
        found |= {f"client{k} {n}": v for n, v in own.tree().items()}
        found |= {f"client{k} gate.{n}": v.detach() for n, v in gate.items()}
    return found | {"logits": torch.stack(logits)}
