"""A fusion gate trained on samples that a client holds out of its training (modality-agnostic)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fedvlm.core.trees import State, Tree
from fedvlm.federation.optim import Adam
from fedvlm.models.adapt.gates import BIAS, mix_logits


@dataclass(frozen=True)
class GateFit:
    """How a gate is trained: AdamW on the whole adaptation set at every step.

    Attributes:
        kind: of ``gates.KINDS``.
        steps, lr, weight_decay: of AdamW.
        class_lr: rate of the term per class.
    """

    kind: str = "conf_gate"
    steps: int = 100
    lr: float = 1e-2
    class_lr: float = 5e-2
    weight_decay: float = 1e-2

    def __call__(self, p: Tree, z_g: Tensor, z_s: Tensor, y: Tensor, w: Tensor) -> Tree:
        """Return the trained gates.

        Args:
            p: gates ``[K, ...]``.
            z_g, z_s: logits ``[K, N, C]`` of one scale; no gradient reaches them.
            y, w: labels and weights ``[K, N]``; a client without weight keeps its start's output.
        """
        rule = Adam(weight_decay=self.weight_decay, decoupled=True)
        states: dict[str, State] = {name: {} for name in p}
        for t in range(1, self.steps + 1 if p else 1):
            leaves = {n: v.detach().requires_grad_() for n, v in p.items()}
            with torch.enable_grad():
                loss = self.loss(leaves, z_g.detach(), z_s.detach(), y, w)
                grads = torch.autograd.grad(loss.sum(), list(leaves.values()))
            for name, g in zip(leaves, grads, strict=True):
                rate = [self.class_lr if name == BIAS else self.lr]
                new, states[name] = rule.step({name: p[name]}, {name: g}, states[name], rate, t)
                p = p | new
        return p

    def loss(self, p: Tree, z_g: Tensor, z_s: Tensor, y: Tensor, w: Tensor) -> Tensor:
        """Return the mean cross-entropy of the fused logits, ``[K]``; 0 without samples."""
        z = mix_logits(self.kind, p, z_g, z_s)
        each = F.cross_entropy(z.flatten(0, 1), y.flatten(), reduction="none").view_as(w)
        return (each * w).sum(1) / w.sum(1).clamp_min(1)
