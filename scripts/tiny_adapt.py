"""How much a little prompt tuning gains: CoOp with 16 shots on cached image features."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from tiny_gate import image_features, text_features
from tiny_tasks import ZeroShotTask
from torch import Tensor

CONTEXT, SHOTS, STEPS = 8, 16, 300


def prompted(model: Any, context: Tensor, tokens: Tensor) -> Tensor:
    """Unit text features [C, D] of `SOT, context [P, W], name, EOT` for name ids [C, L]."""
    words = model.token_embedding(tokens)
    size = len(context)
    shared = context.unsqueeze(0).expand(len(tokens), -1, -1)
    x = torch.cat([words[:, :1], shared, words[:, 1:]], dim=1)
    length = x.shape[1]
    x = x + model.positional_embedding[:length]
    x = model.ln_final(model.transformer(x, attn_mask=model.attn_mask[:length, :length]))
    ends = tokens.argmax(dim=1) + size
    return F.normalize(x[torch.arange(len(tokens)), ends] @ model.text_projection, dim=-1)


def few_shot(labels: NDArray[np.int64], seed: int) -> tuple[Tensor, Tensor]:
    """Indices of `SHOTS` images of each class for training, and of all others for the test."""
    rng = np.random.default_rng(seed)
    picks = [rng.permutation(np.flatnonzero(labels == k))[:SHOTS] for k in range(labels.max() + 1)]
    train = np.concatenate(picks)
    test = np.setdiff1d(np.arange(len(labels)), train)
    return torch.from_numpy(train), torch.from_numpy(test)


def coop(model: Any, tokenizer: Any, task: ZeroShotTask, seed: int) -> dict[str, float]:
    """Zero-shot and tuned accuracy in per cent on the images that were not drawn."""
    model.eval().requires_grad_(False)
    features, labels = image_features(model, task.images), torch.from_numpy(task.labels)
    train, test = few_shot(task.labels, seed)
    zero = (features @ text_features(model, tokenizer, task).T).argmax(1)
    tokens = tokenizer([f"{name}." for name in task.names])
    tokens = tokens[:, : int(tokens.argmax(dim=1).max()) + 1]
    generator = torch.Generator().manual_seed(seed)
    width = model.token_embedding.weight.shape[1]
    context = (0.02 * torch.randn(CONTEXT, width, generator=generator)).requires_grad_(True)
    optimiser = torch.optim.Adam([context], lr=0.02)
    scale = model.logit_scale.exp()
    for step in range(STEPS):
        optimiser.param_groups[0]["lr"] = 0.01 * (1 + np.cos(np.pi * step / STEPS))
        index = train[torch.randperm(len(train), generator=generator)[:128]]
        scores = scale * features[index] @ prompted(model, context, tokens).T
        optimiser.zero_grad()
        F.cross_entropy(scores, labels[index]).backward()
        optimiser.step()
    with torch.no_grad():
        tuned = (features @ prompted(model, context, tokens).T).argmax(1)
    share = {"zero_shot": zero, "tuned": tuned}
    return {k: round(100 * float((v == labels)[test].float().mean()), 2) for k, v in share.items()}
