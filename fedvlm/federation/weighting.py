"""Weights of clients in an average where a paper wants the uniform mean."""

from __future__ import annotations

from torch import Tensor

from fedvlm.config_schema import Option
from fedvlm.federation.context import Context

SAMPLES, UNIFORM = "samples", "uniform"


def weighting(default: str) -> Option:
    """Return the option ``WEIGHTING`` of a method with its paper's choice as default."""
    return Option(
        default, "weight of a client in the average: its training samples, or the same for all",
        choices=(SAMPLES, UNIFORM),
    )


def client_weights(ctx: Context, kind: str) -> Tensor:
    """Return one weight per client, ``[K]``; a client without samples has 0 either way."""
    return (ctx.sizes > 0).to(ctx.sizes) if kind == UNIFORM else ctx.sizes
