"""Feature adapters on joint-embedding features, batched over a leading client axis.

Dynamic visual fusion: a per-sample softmax over several views of one feature (FedTV, DVF).

Fusion of two classifiers by their logits alone: gates that start at the average.

Nothing here knows what the logits are of. z_F = alpha z_G + (1 - alpha) z_S; trees have a leading
client axis ``[K, ...]`` in ``fuse_fusion`` and ``share``, none in ``gate``.

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

Learned text contexts, with a leading client axis ``K`` and ``N`` prompt sets per client.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from fedvlm.core.trees import Tree

OUTPUTS = ("softmax", "sigmoid", "residual")


def gate_adapter(name: str, width: int, output: str, generator: torch.Generator) -> Tree:
    """Return the two square weights ``{name}.fc1.weight``, ``{name}.fc2.weight`` ``[d, d]``.

    Uniform in +-1/sqrt(d), torch's default for a linear layer. For ``residual`` the second is
    zero, so that the start is the frozen feature bit for bit.
    """
    bound = width**-0.5

    def uniform() -> Tensor:
        return (torch.rand(width, width, generator=generator) * 2 - 1) * bound

    first, second = uniform(), uniform()
    if output == "residual":
        second = torch.zeros_like(second)
    return {f"{name}.fc1.weight": first, f"{name}.fc2.weight": second}


def apply_gate(p: Tree, name: str, x: Tensor, output: str) -> Tensor:
    """Return the adapted features ``[K, B, d]`` of ``x [K, B, d]``.

    h = W2 relu(W1 x); ``softmax``: softmax_channels(h) * x (FedTV as published), ``sigmoid``:
    sigmoid(h) * x, ``residual``: x + h.
    """
    hidden = torch.relu(x @ p[f"{name}.fc1.weight"].mT)
    h = hidden @ p[f"{name}.fc2.weight"].mT
    if output == "softmax":
        return torch.softmax(h, -1) * x
    if output == "sigmoid":
        return torch.sigmoid(h) * x
    return x + h




def fusion_weights(
    name: str, width: int, hidden: int, key_bias: bool, generator: torch.Generator
) -> Tree:
    """Return query and key maps ``[hidden, width]`` with biases ``[hidden]``, torch's default init.

    The key bias cancels in the softmax; without ``key_bias`` it does not exist.
    """
    bound = width**-0.5

    def uniform(*shape: int) -> Tensor:
        return (torch.rand(shape, generator=generator) * 2 - 1) * bound

    tree = {
        f"{name}.query.weight": uniform(hidden, width),
        f"{name}.query.bias": uniform(hidden),
        f"{name}.key.weight": uniform(hidden, width),
        f"{name}.key.bias": uniform(hidden),
    }
    if not key_bias:
        del tree[f"{name}.key.bias"]
    return tree


def fuse(
    p: Tree, name: str, x: Tensor, views: Sequence[Tensor], scaled: bool = False
) -> tuple[Tensor, Tensor]:
    """Fuse ``views`` (each ``[K, B, d]``) with a query from ``x [K, B, d]``.

    q = Wq x + bq, k_j = Wk x_j + bk, w = softmax_j(q . k_j), z = sum_j w_j x_j; ``scaled``
    divides the scores by sqrt(hidden).

    Returns:
        z ``[K, B, d]``, not normalised, and the weights ``[K, B, J]``.
    """
    q = x @ p[f"{name}.query.weight"].mT + p[f"{name}.query.bias"].unsqueeze(1)
    stacked = torch.stack(list(views), 2)  # [K, B, J, d]
    key = stacked @ p[f"{name}.key.weight"].mT.unsqueeze(1)
    if f"{name}.key.bias" in p:
        key = key + p[f"{name}.key.bias"][:, None, None]
    scores = (key * q.unsqueeze(2)).sum(-1)
    if scaled:
        scores = scores / q.shape[-1] ** 0.5
    weights = torch.softmax(scores, -1)
    return (weights.unsqueeze(-1) * stacked).sum(2), weights


KINDS = ("conf_gate", "gate_mlp", "gate_scalar", "concat_mlp", "classwise", "average")
HIDDEN = {"conf_gate": 8, "gate_mlp": 32, "gate_scalar": 32, "concat_mlp": 32}
BIAS = "gate.a"  # per class; learns with a rate of its own
CONFIDENCES = 3


def gate(kind: str, classes: int, generator: torch.Generator, hidden: int = 0) -> Tree:
    """Return a new gate's tensors, float32; ``hidden`` 0 is the kind's own width.

    Every gate's last layer is zero: it starts at the average. ``concat_mlp`` starts at random.
    """
    tree: Tree = {}
    width = hidden or HIDDEN.get(kind, 0)
    if width:
        into = 2 * CONFIDENCES if kind == "conf_gate" else 2 * classes
        out = classes if kind in ("gate_mlp", "concat_mlp") else 1
        tree = {
            "gate.w1": _uniform((width, into), into, generator),
            "gate.b1": _uniform((width,), into, generator),
            "gate.w2": torch.zeros(out, width), "gate.b2": torch.zeros(out),
        }
        if kind == "concat_mlp":
            tree["gate.w2"] = _uniform((out, width), width, generator)
    if kind in ("conf_gate", "classwise"):
        tree[BIAS] = torch.zeros(classes)
    return tree


def _uniform(shape: tuple[int, ...], fan_in: int, generator: torch.Generator) -> Tensor:
    return (torch.rand(shape, generator=generator) * 2 - 1) * fan_in**-0.5


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


def fuse_fusion(kind: str, p: Tree, z_g: Tensor, z_s: Tensor) -> Tensor:
    """Return fused logits ``[K, B, C]``; see ``share``."""
    if kind == "concat_mlp":
        return _mlp(p, _joined(z_g, z_s))
    alpha = share(kind, p, z_g, z_s)
    return z_s + alpha * (z_g - z_s)  # equal logits stay what they are, bit for bit


def _joined(z_g: Tensor, z_s: Tensor) -> Tensor:
    classes = z_g.shape[-1:]
    return torch.cat([F.layer_norm(z_g, classes), F.layer_norm(z_s, classes)], -1)


def _mlp(p: Tree, x: Tensor) -> Tensor:
    hidden = torch.relu(x @ p["gate.w1"].mT + p["gate.b1"].unsqueeze(1))
    return hidden @ p["gate.w2"].mT + p["gate.b2"].unsqueeze(1)


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



INIT_STD = 0.02  # CoOp's standard deviation of a random context


def low_rank_prompt(
    n_prompts: int, n_ctx: int, width: int, rank: int, generator: torch.Generator
) -> Tree:
    """Return FedTV's prompt factors: sigma, U, S ~ N(0, 0.02^2) and orthonormal U, V.

    Shapes: ``text.sigma [N, n_ctx, width]``, ``text.U [N, n_ctx, rank]`` (orthonormal columns),
    ``text.S [N, rank]``, ``text.V [N, rank, width]`` (orthonormal rows).
    """

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator) * INIT_STD

    def orthonormal(rows: int, columns: int) -> Tensor:
        one = [
            torch.nn.init.orthogonal_(torch.empty(rows, columns), generator=generator)
            for _ in range(n_prompts)
        ]
        return torch.stack(one)

    return {
        "text.sigma": normal(n_prompts, n_ctx, width),
        "text.U": orthonormal(n_ctx, rank),
        "text.S": normal(n_prompts, rank),
        "text.V": orthonormal(rank, width),
    }


def personal_prompt(p: Tree) -> Tensor:
    """Return P = sigma + U diag(S) V, ``[K, N, n_ctx, width]``."""
    return p["text.sigma"] + (p["text.U"] * p["text.S"].unsqueeze(-2)) @ p["text.V"]


def orthogonality(p: Tree, squared: bool) -> Tensor:
    """Return sum_n ||U'U - I||_F + ||VV' - I||_F per client, ``[K]`` (squared norms on request).

    The un-squared norm has no gradient at its minimum, where only rounding noise would decide:
    below a few hundred units of rounding its value and subgradient are defined as zero.
    """
    u, v = p["text.U"], p["text.V"]
    return _gap(u.mT @ u, squared).sum(-1) + _gap(v @ v.mT, squared).sum(-1)


def _gap(gram: Tensor, squared: bool) -> Tensor:
    eye = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    square = (gram - eye).square().sum((-2, -1))
    if squared:
        return square
    above = square > (256 * torch.finfo(gram.dtype).eps) ** 2
    return torch.where(above, torch.where(above, square, 1.0).sqrt(), 0.0)
