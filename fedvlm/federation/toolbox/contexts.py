"""Methods about a learned context: one that is shared, or a shared one beside a client's own."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedvlm.config.option import Option
from fedvlm.core.trees import State, Tree, per_client
from fedvlm.federation.batches import Batch
from fedvlm.federation.context import Context
from fedvlm.federation.groups import Finetune
from fedvlm.federation.trainer import Predictor, Trainer, cross_entropy
from fedvlm.models.adapt.contexts import GLOBAL, LOCAL, TRAINED, random_context, start_context
from fedvlm.models.vlmodel import VLModel


class ContextTrainer(Trainer):
    """FedAvg of one context ``text.ctx [n, text_width]`` that may start as words."""

    groups = ((r"text\.ctx", "shared"),)
    options = {
        "N_CTX": Option(4, "number of context tokens with random initialisation", low=1),
        "CTX_INIT": Option("a photo of a", "words that initialise the context; '' is random"),
    }

    def trainables(self, model: VLModel, generator: torch.Generator) -> Tree:
        """Return the context."""
        return {"text.ctx": start_context(model, self.cfg.CTX_INIT, self.cfg.N_CTX, generator)}


class PairTrainer(Trainer):
    """A shared context and one that stays with its client.

    The model of somebody who has not trained yet, the global one among them, has the shared context
    in both places: an untrained one of its own would be noise.
    """

    groups = ((r"text\.ctx\.global", "shared"), (r"text\.ctx\.local", "personal"))
    options = {"N_CTX": Option(16, "context tokens", low=1)}
    exempt = {"G4": "a client's own context is used from its first round on, trained or not"}

    def trainables(self, model: VLModel, generator: torch.Generator) -> Tree:
        """Return both contexts ``[n_ctx, text_width]``, N(0, 0.02^2)."""
        shape = (self.cfg.N_CTX, model.text_width)
        return {name: random_context(shape, generator) for name in (GLOBAL, LOCAL)}

    def prompt_sets(self, batch_size: int) -> int:
        """Return 2."""
        return 2

    def texts(self, model: VLModel, p: Tree) -> tuple[Tensor, Tensor]:
        """Return the text features of the shared and of the client's own context, ``[K, C, d]``."""
        if p[GLOBAL].shape == p[LOCAL].shape:
            both = model.text(torch.stack([p[GLOBAL], p[LOCAL]], 1)).unbind(1)
            return both[0], both[1]
        return model.text(p[GLOBAL]), model.text(p[LOCAL])

    def blend(self, shared: Tensor, own: Tensor) -> Tensor:
        """Return the text features that classify, ``[K, C, d]``; by default the client's own."""
        return own

    def classify(self, model: VLModel, p: Tree, texts: tuple[Tensor, Tensor]) -> Predictor:
        """Return ``x -> logits`` by the two sets of text features; by default by ``blend``."""
        text = self.blend(*texts)
        return lambda x: model.logits(self.image_features(model, p, x), text)

    def settled(self, model: VLModel, p: Tree) -> tuple[Tensor, Tensor]:
        """Return ``texts``; without an own context the shared one takes its place."""
        shared, own = self.texts(model, p)
        on = p.get(TRAINED)
        own = shared if on is None else torch.where(per_client(on > 0, own), own, shared)
        return shared, own

    def text_features(self, model: VLModel, p: Tree) -> Tensor:
        """Return ``blend`` of the settled texts."""
        return self.blend(*self.settled(model, p))

    def predictor(self, model: VLModel, p: Tree) -> Predictor:
        """Return ``x -> logits`` by the settled texts."""
        return self.classify(model, p, self.settled(model, p))

    def loss(
        self, model: VLModel, p: Tree, b: Batch
    ) -> Tensor | tuple[Tensor, Mapping[str, Tensor]]:
        """Return the cross-entropy with the client's own context, ``[K]``."""
        return cross_entropy(self.classify(model, p, self.texts(model, p))(b.x), b)

    def personalize(self, ctx: Context, state: State, received: Tree) -> Tree:
        """Return the client's model, and whether it has trained."""
        return state["w"] | received | {TRAINED: (~ctx.fresh).to(ctx.model.dtype)}

    def finetune(self, ctx: Context, state: State, received: Tree, how: Finetune) -> Tree:
        """Return the trained models; an own context that never trained starts as the shared one.

        From then on it counts. A shorter one starts as the shared one's first tokens.
        """
        w = state["w"] | received
        start = torch.where(
            per_client(ctx.fresh, w[LOCAL]), w[GLOBAL][:, : w[LOCAL].shape[1]], w[LOCAL]
        )
        tuned = super().finetune(ctx, state | {"w": w | {LOCAL: start}}, received, how)
        return tuned | {TRAINED: torch.ones_like(tuned[TRAINED])}
