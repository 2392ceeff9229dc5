"""Fusion of two classifiers by their logits alone: gates that start at the average.

Nothing here knows what the logits are of. z_F = alpha z_G + (1 - alpha) z_S; trees have a leading
client axis ``[K, ...]`` in ``mix_logits`` and ``share``, none in ``build_gate``.

=========== ================================================================== ==================
kind        alpha                                                              parameters
=========== ================================================================== ==================
conf_gate   sigmoid(w2 relu(W1 u + b1) + b2 + a_c), u: confidence of both      8h + 1 + C
gate_mlp    sigmoid(MLP of both logits, layer-normalised), per class           (2C+1)h + (h+1)C
gate_scalar the same, one number per sample                                    (2C+1)h + h + 1
classwise   sigmoid(a_c)                                                       C
average     1/2                                                                0
concat_mlp  no alpha: z_F is the MLP's output                                  (2C+1)h + (h+1)C
=========== ================================================================== ==================
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fedvlm.core.trees import Tree
from fedvlm.models.towers.adapters import uniform

KINDS = ("conf_gate", "gate_mlp", "gate_scalar", "concat_mlp", "classwise", "average")
HIDDEN = {"conf_gate": 8, "gate_mlp": 32, "gate_scalar": 32, "concat_mlp": 32}
BIAS = "gate.a"  # per class; learns with a rate of its own
CONFIDENCES = 3


def build_gate(kind: str, classes: int, generator: torch.Generator, hidden: int = 0) -> Tree:
    """Return a new gate's tensors, float32; ``hidden`` 0 is the kind's own width.

    Every gate's last layer is zero: it starts at the average. ``concat_mlp`` starts at random.
    """
    tree: Tree = {}
    width = hidden or HIDDEN.get(kind, 0)
    if width:
        into = 2 * CONFIDENCES if kind == "conf_gate" else 2 * classes
        out = classes if kind in ("gate_mlp", "concat_mlp") else 1
        tree = {
            "gate.w1": uniform((width, into), into, generator),
            "gate.b1": uniform((width,), into, generator),
            "gate.w2": torch.zeros(out, width), "gate.b2": torch.zeros(out),
        }
        if kind == "concat_mlp":
            tree["gate.w2"] = uniform((out, width), width, generator)
    if kind in ("conf_gate", "classwise"):
        tree[BIAS] = torch.zeros(classes)
    return tree


def confidence(z: Tensor) -> Tensor:
    """Return (largest probability, its lead over the second, entropy in nats), ``[..., 3]``."""
    log_p = z.log_softmax(-1)
    p = log_p.exp()
    top = p.topk(min(2, p.shape[-1]), -1).values
    lead = top[..., 0] - top[..., -1] if p.shape[-1] > 1 else top[..., 0]
    return torch.stack([top[..., 0], lead, -(p * log_p).sum(-1)], -1)


def share(kind: str, p: Tree, z_g: Tensor, z_s: Tensor) -> Tensor:
    """Return alpha, the first model's share: ``[K, B, C]``, or ``[K, B, 1]`` where classes agree.

    Args:
        kind: of ``KINDS`` but ``concat_mlp``.
        p: a gate's tensors ``[K, ...]``.
        z_g, z_s: logits ``[K, B, C]``, of one scale.
    """
    if kind == "average":
        return torch.full_like(z_g[..., :1], 0.5)
    if kind == "classwise":
        return torch.sigmoid(p[BIAS].unsqueeze(1)).expand_as(z_g)
    if kind == "conf_gate":
        both = torch.cat([confidence(z_g), confidence(z_s)], -1)
        return torch.sigmoid(_mlp(p, both) + p[BIAS].unsqueeze(1))
    return torch.sigmoid(_mlp(p, _joined(z_g, z_s)))


def mix_logits(kind: str, p: Tree, z_g: Tensor, z_s: Tensor) -> Tensor:
    """Return fused logits ``[K, B, C]``; see ``share``."""
    if kind == "concat_mlp":
        return _mlp(p, _joined(z_g, z_s))
    alpha = share(kind, p, z_g, z_s)
    return z_s + alpha * (z_g - z_s)  # equal logits stay what they are, bit for bit


def spread(z: Tensor, w: Tensor) -> Tensor:
    """Return the standard deviation of each client's logits ``[K]``, at least a tiny number.

    Args:
        z: ``[K, N, C]``.
        w: 1 for a sample, 0 for padding, ``[K, N]``.
    """
    count = (w.sum(1) * z.shape[-1]).clamp_min(1)
    mean = (z * w[..., None]).sum((1, 2)) / count
    square = ((z - mean[:, None, None]).square() * w[..., None]).sum((1, 2)) / count
    return square.sqrt().clamp_min(1e-6)


def _joined(z_g: Tensor, z_s: Tensor) -> Tensor:
    classes = z_g.shape[-1:]
    return torch.cat([F.layer_norm(z_g, classes), F.layer_norm(z_s, classes)], -1)


def _mlp(p: Tree, x: Tensor) -> Tensor:
    hidden = torch.relu(x @ p["gate.w1"].mT + p["gate.b1"].unsqueeze(1))
    return hidden @ p["gate.w2"].mT + p["gate.b2"].unsqueeze(1)
