"""The proximal pull: the gradient of ``strength / 2 |p - anchor|^2``, added before the step."""

from __future__ import annotations

from fedvlm.federation.batches import Batch
from fedvlm.federation.context import Edit
from fedvlm.federation.trees import Tree


def pull(anchor: str, strength: float) -> Edit:
    """Return an edit that adds ``strength (p - anchor)`` to every gradient.

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
