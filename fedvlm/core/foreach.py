"""Arithmetic on lists of tensors: one call for all leaves of a tree, one or two kernels on a GPU.

``torch._foreach_*`` (there since PyTorch 2.0, used by torch.optim) where this build has them, else
a loop; both give the bits of the operation on each tensor. No other module uses these names. On
CUDA one kernel serves all tensors only if they are dense and lists agree in strides (PyTorch's
``ForeachUtils.h``); otherwise each tensor gets a kernel of its own (``in_rows``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

Tensors = Sequence[Tensor]
NUMBER = (float, int)


def in_rows(xs: Tensors) -> list[Tensor]:
    """Return CUDA tensors contiguous, the same numbers; others as they are.

    A gradient of a transposed weight is not, and a client's first tensors, expanded, are not: one
    copy of each then saves a kernel a tensor in every operation that follows.
    """
    return [x.contiguous() if x.is_cuda else x for x in xs]


def add(xs: Tensors, ys: Tensors, alpha: float = 1.0) -> list[Tensor]:
    """Return ``x + alpha y`` of each pair."""
    return _each("add", xs, ys, alpha=alpha)


def mul(xs: Tensors, by: float | Tensors) -> list[Tensor]:
    """Return ``x * by``: one number for all, or a tensor (which may broadcast) for each."""
    return _each("mul", xs, by)


def div(xs: Tensors, by: float) -> list[Tensor]:
    """Return ``x / by``."""
    return _each("div", xs, by)


def shift(xs: Tensors, by: float) -> list[Tensor]:
    """Return ``x + by``."""
    return _each("add", xs, by)


def sqrt(xs: Tensors) -> list[Tensor]:
    """Return the roots."""
    return _each("sqrt", xs)


def lerp(xs: Tensors, ys: Tensors, weight: float) -> list[Tensor]:
    """Return ``x + weight (y - x)``."""
    return _each("lerp", xs, ys, weight)


def addcmul(xs: Tensors, ys: Tensors, zs: Tensors, value: float = 1.0) -> list[Tensor]:
    """Return ``x + value y z``; ``z`` may broadcast."""
    return _each("addcmul", xs, ys, zs, value=value)


def addcdiv(xs: Tensors, ys: Tensors, zs: Tensors, value: float = 1.0) -> list[Tensor]:
    """Return ``x + value y / z``."""
    return _each("addcdiv", xs, ys, zs, value=value)


def tensor_norms(xs: Tensors) -> list[Tensor]:
    """Return the length of each tensor, 0-d: not finite if a number in it is not.

    Nor if the squares overflow: who finds one looks again, number by number.
    """
    if not xs or not hasattr(torch, "_foreach_norm"):
        return [torch.linalg.vector_norm(x) for x in xs]
    return list(torch._foreach_norm(list(xs)))


def _each(name: str, xs: Tensors, *others: Any, **how: Any) -> list[Tensor]:
    if not xs:
        return []
    fused = getattr(torch, f"_foreach_{name}", None)
    if fused is not None:
        return list(fused(list(xs), *(o if isinstance(o, NUMBER) else list(o) for o in others),
                          **how))
    one = getattr(torch, name)
    rest = [[o] * len(xs) if isinstance(o, NUMBER) else o for o in others]
    return [one(*row, **how) for row in zip(xs, *rest, strict=True)]
