"""The proximal pull: the gradient of ``strength / 2 |p - anchor|^2``, added before the step."""

from __future__ import annotations

from fedvlm.errors import ConfigError
from fedvlm.federation.batches import Batch
from fedvlm.federation.context import Edit
from fedvlm.federation.trees import Tree
from fedvlm.models.peft import PeftSpec


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


def require_same_basis(owner: str, spec: PeftSpec) -> None:
    """Refuse an averaging of LoRA after which a client's factors and the server's do not compare.

    Raises:
        ConfigError: ``PEFT.LORA_AVG product_svd`` with LoRA: it gives new factors each round.
    """
    if spec.average == "product_svd" and "lora" in (spec.text, spec.visual):
        raise ConfigError(
            f"{owner} compares a client's own LoRA factors with the server's, and PEFT.LORA_AVG "
            "product_svd makes other factors of the same product each round: set it to factors or "
            "freeze_a"
        )
