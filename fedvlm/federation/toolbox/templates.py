"""Methods whose texts are the template's, and constant; methods that train nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from fedvlm.core.trees import State, Tree
from fedvlm.federation.context import Context, Upload
from fedvlm.federation.trainer import Trainer
from fedvlm.models.vlmodel import VLModel


class TemplateTrainer(Trainer):
    """Trains what changes the image feature or stands beside the scores; texts cost no pass."""

    code_words: ClassVar[Sequence[str]] = ()  # templates of the authors' code, under ``published``

    @property
    def reads_templates(self) -> bool:
        """Whether clients' work reads the templates: the texts are theirs, or the code's words."""
        return not (self.code_words and self.published)

    def prompt_sets(self, batch_size: int) -> int:
        """Return 0: the texts are constant."""
        return 0

    def text_features(self, model: VLModel, p: Tree) -> Tensor:
        """Return the template's text features ``[K, C, d]``, K of the tree (1 of an empty one)."""
        clients = next((len(leaf) for leaf in p.values()), 1)
        if self.code_words and self.published:
            model = model.with_classes(model.classnames, self.code_words)
        return model.anchor("template", 0).expand(clients, -1, -1)


class TrainingFree(Trainer):
    """Trains nothing and sends nothing: rounds pass without work."""

    groups = ()
    metrics = ()
    unweighted = "trains nothing"
    exempt = {
        "G5": "there is nothing to train",
        "G11": "nobody trains",
        "G12": "no number depends on the seed",
        "G14": "no client trains, so training gives no non-finite number",
    }

    def trainables(self, model: VLModel, generator: torch.Generator) -> Tree:
        """Return no tensor."""
        return {}

    def client_update(self, ctx: Context, state: State, received: Tree) -> tuple[State, Upload]:
        """Do nothing and send nothing."""
        return state, ctx.upload({})
