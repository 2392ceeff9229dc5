"""Methods about the image side: the template's texts classify, and they are constant."""

from __future__ import annotations

from torch import Tensor

from fedvlm.core.trees import Tree
from fedvlm.federation.trainer import Trainer
from fedvlm.models.vlmodel import VLModel


class TemplateTrainer(Trainer):
    """Trains what changes the image feature or stands beside the scores; texts cost no pass."""

    def prompt_sets(self, batch_size: int) -> int:
        """Return 0: the texts are constant."""
        return 0

    def text_features(self, model: VLModel, p: Tree) -> Tensor:
        """Return the template's text features ``[K, C, d]``, K of the tree (1 of an empty one)."""
        clients = next((len(leaf) for leaf in p.values()), 1)
        return model.anchor("template", 0).expand(clients, -1, -1)
