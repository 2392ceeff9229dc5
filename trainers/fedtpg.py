"""FedTPG: one network for all clients makes the context out of the class names.

Paper: Qiu et al., Federated Text-driven Prompt Generation for Vision-Language Models, ICLR 2024.
Equations: h = MHA(q = LN(Q), k = v = LN(E)), E the frozen text features of the class names, Q
    learned; v = h + W2 GEGLU(W1 LN(h)); T_c = TextEnc([SOS, v, name_c]); CE
    over the client's own classes; server: mean_k (VARIANT fixed: sum_k p_k).
Shared: text.net.*
Personal: none
Frozen: both towers, the logit scale.
Defaults: N_CTX 4, HEADS 4, FF 4, SGD lr 0.003 (the authors'; 500 epochs there).
Knobs: none.
Departures from the paper: CLASSES all gives every client the names of all classes of the run;
    there (CLASSES own) a client reads and separates those of its own training images alone.
Departures from the authors' code: none known where the text width is that of the joint embedding;
    other towers get a linear layer at the end. VARIANT published: the server takes the mean of the
    clients, as released; fixed: sum_k p_k. The optional self-attention (off there) is left out.
Extra data: none.
Cost: ViT-B/16: 4,206,080 numbers each way with 4 tokens, 4,208,128 with 8 (published by FedMGP:
    4,208.1k); one packed text pass per step.
Claim: new is higher than PromptFL's in setting unseen.
Command: python federated_main.py --demo --trainer FedTPG
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from fedvlm.method import (
    TRAINER_REGISTRY,
    Batch,
    Context,
    Option,
    State,
    Trainer,
    Tree,
    Upload,
    VLModel,
    attention,
    contexts,
    cross_entropy,
    layers,
)

NET = "text.net"


@TRAINER_REGISTRY.register("FedTPG")
class FedTPG(Trainer):
    """See the module's card."""

    name = "FedTPG"
    published_weighting = "uniform"
    groups = ((r"text\.net\..*", "shared"),)
    options = {
        "N_CTX": Option(4, "context tokens", low=1),
        "HEADS": Option(4, "maximum number of attention heads", low=1),
        "FF": Option(4, "ratio of the feed-forward layer's width to the feature width", low=1),
        "CLASSES": Option("own", "class names used in training: all of the run, or only those "
                          "of the client's images", choices=("all", "own")),
        "VARIANT": Option("published", "weight of a client at the server: the same for all "
                          "(published), by its training samples (fixed)",
                          choices=("published", "fixed"), neutral="fixed"),
    }

    def trainables(self, model: VLModel, generator: torch.Generator) -> Tree:
        """Return queries, attention, feed-forward layer and their norms.

        A linear layer leads out where the text tower's width is not that of its features.
        """
        d = model.embed_dim
        tree = {f"{NET}.queries": contexts.random_context((self.cfg.N_CTX, d), generator)}
        tree |= attention.cross_tree(NET, d, self.cfg.FF, generator)
        if model.text_width != d:
            tree |= layers.layer(f"{NET}.out", (model.text_width, d), generator)
        return tree

    def context(self, model: VLModel, p: Tree, mask: Tensor | None = None) -> Tensor:
        """Return the context ``[K, n_ctx, text_width]`` for this model's class names.

        Args:
            mask: which names are read, ``[K, C]``; None: all.
        """
        queries = p[f"{NET}.queries"]
        names = model.with_classes(model.classnames, ("{}",)).anchor("template", 0)
        seen = None if mask is None else mask[:, None]
        x = attention.cross_attend(
            p, NET, self.cfg.HEADS, queries, names.expand(len(queries), -1, -1), seen
        )
        return layers.linear(p, f"{NET}.out", x) if f"{NET}.out.weight" in p else x

    def text_features(self, model: VLModel, p: Tree) -> Tensor:
        """Return T(v), ``[K, C, d]``."""
        return model.text(self.context(model, p))

    def client_update(self, ctx: Context, state: State, received: Tree) -> tuple[State, Upload]:
        """Train, with the names of all classes or of the client's own."""
        if self.cfg.CLASSES == "all":
            return super().client_update(ctx, state, received)
        loss = partial(self.own_loss, held=ctx.classes)
        w = ctx.fit(state["w"] | received, loss).params
        return state | {"w": w}, ctx.upload(w)

    def own_loss(self, model: VLModel, p: Tree, b: Batch, *, held: Tensor) -> Tensor:
        """Return the cross-entropy over the classes that each client holds, ``[K]``."""
        mask = b.cut(held)
        text = model.text(self.context(model, p, mask), mask)
        logits = model.logits(self.image_features(model, p, b.x), text, mask)
        return cross_entropy(logits, b)
