"""Optimiser and learning rate of the scripts that pretrain and distil."""

from __future__ import annotations

import math
from typing import Any

import torch


def rate(done: float, step: int, peak: float) -> float:
    """Learning rate: short warm-up in steps, then a cosine over the share of the work done."""
    warm = min(1.0, (step + 1) / 300)
    return peak * warm * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * min(1.0, done))))


def make_optimiser(model: Any, peak: float) -> torch.optim.AdamW:
    """AdamW; no decay for gains, biases and the temperature."""
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": 0.05}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=peak, betas=(0.9, 0.98), eps=1e-6, foreach=True)
