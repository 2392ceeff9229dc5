"""FedBN: normalisation layers stay with their clients, all the rest is averaged.

Paper: Li et al., FedBN: Federated Learning on Non-IID Features via Local Batch Normalization,
    ICLR 2021.
Equations: min_{g, l_1..l_N} mean_k F_k(g, l_k), l_k the weights and biases of client k's
    normalisation layers; clients take E epochs of SGD on (g, l_k) jointly from the received g and
    their own l_k; server g = mean_k g_k.
Shared: all of PEFT but what is personal
Personal: image.ln.*, and the LayerNorms of adapters inside the tower (image.adapter.*.ln.*)
Frozen: both towers, the logit scale; statistics of BatchNorm layers (RN50), as everywhere.
Defaults: PEFT.LN, a prompt and a feature adapter; the mean is uniform, as in the paper.
Knobs: none.
Departures from the paper: CLIP's ViT has no BatchNorm. Its LayerNorms, two in a block, take that
    place: they have no running statistics, so that weights and biases are all there is to keep.
    What is trained is added to the frozen ones and starts at zero. PEFT.BLOCKS n takes the last n
    blocks; the norms before and behind all blocks stay frozen.
Departures from the authors' code: none known. A client that never trained has the frozen layers.
Extra data: none.
Cost: FedAvg's traffic; the image tower runs from the first trained block on (tokens are cached
    below it), at every step.
Claim: personal is higher than FedAvg [adapter]'s in setting rivals.
Command: python federated_main.py --demo --trainer FedBN
"""

from __future__ import annotations

from collections.abc import Sequence

from fedvlm.method import PERSONAL, TRAINER_REGISTRY, PeftTrainer, Rule


@TRAINER_REGISTRY.register("FedBN")
class FedBN(PeftTrainer):
    """FedAvg with personal normalisation layers (see the card)."""

    name = "FedBN"
    label_sets = True
    image_fits = (0,)
    classic = True
    weighting = "uniform"

    def check_peft(self) -> None:
        """Refuse to train no LayerNorm (``ConfigError``): it would be FedAvg."""
        self.require(
            self.spec.ln,
            "FedBN keeps trained LayerNorms at the clients, but without PEFT.LN none is "
            "trained: set PEFT.LN True, or use FedAvg",
        )

    def rules(self, names: Sequence[str]) -> Sequence[Rule]:
        """Return personal for normalisation layers, ``PEFT``'s rules for the others.

        Raises:
            ConfigError: there is no such layer.
        """
        self.require(any(map(self.is_norm, names)),
                     f"{self.name} keeps normalisation layers at the clients, and the network has "
                     "none that is trained: use FedAvg")
        return [
            (rule, PERSONAL if self.is_norm(name) else group)
            for name, (rule, group) in zip(names, super().rules(names), strict=True)
        ]
