"""The adaptation set: a part of a client's own training samples, and a fusion gate trained on it.

A pure function of labels and seed splits ``train`` into ``fit`` and ``adaptation``; what trains on
``fit`` never sees the rest. Modality-agnostic: labels and logits only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedvlm.core import rng
from fedvlm.core.trees import State, Tree
from fedvlm.federation.batches import Batcher, IndexSplit
from fedvlm.federation.context import Context
from fedvlm.federation.optim import Adam
from fedvlm.models.adapt.gates import BIAS, mix_logits

Work = Callable[[Context, State], State]


def split(labels: Tensor, ratio: float, seed: int) -> tuple[Tensor, Tensor]:
    """Return positions (fit, adaptation) of ``labels [n]``, both ascending.

    Stratified: of n samples of a class round(ratio n) adapt, at least one and never all; a class
    with one sample stays in fit. Ratio 0 takes none. Equal labels and seeds give equal splits.
    """
    generator = rng.stream(seed, "adaptation")
    adapts = torch.zeros(len(labels), dtype=torch.bool)
    for label in labels.unique().tolist() if ratio > 0 else []:
        here = (labels == label).nonzero().flatten()
        n = len(here)
        if n > 1:
            count = min(max(int(ratio * n + 0.5), 1), n - 1)
            adapts[here[torch.randperm(n, generator=generator)[:count]]] = True
    return (~adapts).nonzero().flatten(), adapts.nonzero().flatten()


def split_train(ctx: Context, ratio: float) -> Any:
    """Return the chunk's batcher with ``train`` the fit part and ``val`` the adaptation part."""
    batcher: Any = ctx.batcher
    parts = {c: client_split(batcher, c, ratio, ctx.seed) for c in ctx.clients}
    return replace(batcher, splits=parts)


def client_split(batcher: Any, client: int, ratio: float, seed: int) -> IndexSplit:
    """Return one client's fit part as ``train`` and its adaptation part as ``val``."""
    whole = batcher.splits[client]
    indices = torch.as_tensor(np.array(whole.train), dtype=torch.int64)
    fit, ada = split(batcher.source.labels[indices], ratio, seed)
    return IndexSplit(indices[fit].numpy(), indices[ada].numpy(), whole.test)


def held_out_indices(batcher: Any, ratio: float | None, seed: int) -> list[int]:
    """Return all clients' adaptation parts, ascending; with ``ratio`` None their validation."""
    clients = range(len(batcher.splits))
    parts = [
        batcher.splits[k].val if ratio is None else client_split(batcher, k, ratio, seed).val
        for k in clients
    ]
    return sorted({int(i) for part in parts for i in part})


def on_subset(ctx: Context, batcher: Batcher, state: State, work: Work) -> State:
    """Return ``work(context, state)`` on another batcher's samples.

    A context wants its clients by falling number of samples: they are sorted for ``work``, and
    slots and logs come back in the order of ``ctx``.
    """
    sizes = batcher.sizes(ctx.clients)
    order = torch.tensor(sorted(range(ctx.k), key=lambda i: (-sizes[i], i)), dtype=torch.int64)
    back = order.argsort()
    inner = replace(ctx, batcher=batcher, clients=[ctx.clients[i] for i in order], logs={})
    new = work(inner, _pick(state, order))
    ctx.logs.update({name: value[back] for name, value in inner.logs.items()})
    return _pick(new, back)


def _pick(state: State, index: Tensor) -> State:
    if torch.equal(index, torch.arange(len(index))):
        return state
    return {s: {n: v[index.to(v.device)] for n, v in t.items()} for s, t in state.items()}


def train_sizes(ctx: Context, batcher: Batcher) -> Tensor:
    """Return the training samples of ``batcher`` per client of ``ctx``, ``[K]``, float64."""
    return replace(ctx, batcher=batcher).sizes


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
