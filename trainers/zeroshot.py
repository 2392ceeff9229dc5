"""ZeroShot: CLIP as it is, with the data set's template; nothing is trained.

Paper: Radford et al., Learning Transferable Visual Models From Natural Language Supervision,
    ICML 2021.
Equations: logits = scale x/|x| . T0, T0 the normalised mean of the templates' text features.
Shared: none
Personal: none
Frozen: everything.
Defaults: DATASET.TEMPLATE or the set's own; FED.ROUNDS 1, since every round gives the same numbers.
Knobs: none.
Departures from the paper: no ensemble of 80 prompts unless the data set's templates say so.
Departures from the authors' code: none known.
Extra data: none.
Cost: no byte travels, no step is taken; one text pass per class list.
Claim: none.
Command: python federated_main.py --demo --trainer ZeroShot
"""

from __future__ import annotations

from torch import Tensor

from fedvlm.method import TRAINER_REGISTRY, TrainingFree, Tree, VLModel


@TRAINER_REGISTRY.register("ZeroShot")
class ZeroShot(TrainingFree):
    """No tensors: rounds pass without work (see the card)."""

    name = "ZeroShot"
    label_sets = True
    reads_templates = True

    def text_features(self, model: VLModel, p: Tree) -> Tensor:
        """Return the template's text features ``[1, C, d]``, the same for every client."""
        anchor: Tensor = model.anchor("template", 0)
        return anchor[None]
