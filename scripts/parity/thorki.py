"""Thorki beside an implementation from the written design, in plain loops over clients.

A large model (here the small network of ``net.py``) is trained by all, a small one (an MLP on the
frozen feature) by its client alone. A gate learns on a few images that neither saw how to mix
their outputs, from six numbers: confidence, margin and entropy of both.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedvlm.core.trees import Tree
from parity.figures import PAPER, Source, Values
from parity.net import encode, net_case, network, put, tensors
from parity.world import DTYPE, World

SOURCE = Source("Thorki", PAPER, "Thorki, WWW 2026")
GATE_RATE, CLASS_RATE, GATE_DECAY, STEPS = 1e-2, 5e-2, 1e-2, 100
CASES = {"feature adapter, linear head": net_case("Thorki", sizes=(15, 10, 10), loss=False)}


class Small(nn.Module):
    """The personal model: ``fc2 relu(fc1 z)``."""

    def __init__(self, start: Tree) -> None:
        super().__init__()
        self.p = nn.ParameterDict({
            n.replace(".", "_"): nn.Parameter(v.clone()) for n, v in start.items()
            if n.startswith("small")
        })

    def forward(self, z: Tensor) -> Tensor:
        """Return logits ``[B, C]``."""
        p = self.p
        hidden = F.linear(z, p["small_fc1_weight"], p["small_fc1_bias"]).relu()
        return F.linear(hidden, p["small_fc2_weight"], p["small_fc2_bias"])


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
