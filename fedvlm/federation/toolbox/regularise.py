"""Small parts that many methods share: the proximal pull, and clients that all weigh the same."""

from __future__ import annotations

from torch import Tensor

from fedvlm.config.option import Option
from fedvlm.core.trees import Tree
from fedvlm.federation.batches import Batch
from fedvlm.federation.context import Context, Edit

SAMPLES, UNIFORM = "samples", "uniform"


def pull(anchor: str, strength: float) -> Edit:
    """Return an edit that adds ``strength (p - anchor)``, the slope of strength / 2 |p - anchor|^2.

    The anchor is a tree of ``const``: ``ctx.fit(p, loss, edit=pull("d", 0.1), const={"d": d})``;
    tensors that it lacks are left alone. Strength 0 changes no bit. Sources: Li et al. 2020
    (FedProx, eq. 2), Li et al. 2021 (Ditto, algorithm 1).
    """

    def edit(p: Tree, grads: Tree, b: Batch) -> Tree:
        home = b.const[anchor]
        return {
            n: g + strength * (p[n] - home[n]) if strength and n in home else g
            for n, g in grads.items()
        }

    return edit


def weighting(default: str) -> Option:
    """Return the option ``WEIGHTING`` of a method with its paper's choice as default."""
    return Option(
        default, "weight of a client in the average: its training samples, or the same for all",
        choices=(SAMPLES, UNIFORM),
    )


def client_weights(ctx: Context, kind: str) -> Tensor:
    """Return one weight per client, ``[K]``; a client without samples has 0 either way."""
    return (ctx.sizes > 0).to(ctx.sizes) if kind == UNIFORM else ctx.sizes
