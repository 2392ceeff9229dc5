"""Tip-Adapter-F: the keys of a cache of each client's own images are trained; nothing is sent.

Paper: Zhang et al., Tip-Adapter: Training-free Adaption of CLIP for Few-shot Classification, ECCV
    2022; here as a local reference.
Equations: logits = scale z . T0 + ALPHA sum_i exp(-BETA (1 - z . k_i)) onehot(y_i) over the
    client's training images i; z = x/|x|; k_i starts as z_i and is trained by CE, y_i is not.
Shared: none
Personal: tip.keys, and the labels beside them
Frozen: both towers, the logit scale.
Defaults: ALPHA 1, BETA 5.5, CAPACITY 512; AdamW lr 0.001, ADAM_EPS 1e-4, cosine. The global model,
    and a client that has not worked, is zero-shot CLIP.
Knobs: ALPHA 0.1 to 10 log; BETA 1 to 20 log.
Departures from the paper: rounds and local epochs of the run in place of 20 epochs, with a fresh
    optimiser in each round (OPTIM.KEEP_STATE true keeps it).
Departures from the authors' code: none known in cache, loss and step; keys start as one plain
    view (there the mean of ten random crops); ALPHA and BETA are set, and the last epoch counts
    (there ALPHA and BETA are searched for, and the best epoch on the test images is kept).
Extra data: none.
Cost: no byte travels; CAPACITY x d numbers stay with each client (ViT-B/16: 262,144), of which N_k
    x d are trained; no text pass in a step.
Claim: personal is higher than logistic regression's in setting disjoint.
Command: python federated_main.py --demo --trainer Tip-Adapter-F
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from fedvlm.method import (
    TRAINER_REGISTRY,
    Batch,
    ConfigError,
    Context,
    Option,
    Predictor,
    State,
    TemplateTrainer,
    Tree,
    Upload,
    VLModel,
    cross_entropy,
)

KEYS, VALUES, CACHE = "tip.keys", "tip.values", "cache"


@TRAINER_REGISTRY.register("Tip-Adapter-F")
class TipAdapterF(TemplateTrainer):
    """See the module's card. Tensors: keys [CAPACITY, d]; values [CAPACITY, C], zero where free."""

    name = "Tip-Adapter-F"
    groups = ((r"tip\.keys", "personal"),)
    open_vocabulary = False  # the cache is of the classes that it was made for
    options = {
        "ALPHA": Option(1.0, "weight of the cache", low=0.0),
        "BETA": Option(5.5, "sharpness of the cache affinities", low=0.0),
        "CAPACITY": Option(512, "maximum number of training images of a client", low=1),
    }

    exempt = {
        "G4": "a client's cache is filled when it first trains, at any learning rate",
        "G5": "trained tensors are initialised with the client's own images",
    }

    def trainables(self, model: VLModel, generator: torch.Generator) -> Tree:
        """Return an empty cache."""
        return {KEYS: torch.zeros(int(self.cfg.CAPACITY), model.embed_dim)}

    def predictor(self, model: VLModel, p: Tree) -> Predictor:
        """Return ``x -> logits``; without labels beside the keys zero-shot CLIP's."""
        text = self.text_features(model, p)

        def logits(x: Mapping[str, Tensor]) -> Tensor:
            z = F.normalize(self.image_features(model, p, x), dim=-1)
            out = model.logits(z, text)
            if VALUES not in p:
                return out
            near = torch.exp(-self.cfg.BETA * (1 - z @ p[KEYS].mT))
            return out + self.cfg.ALPHA * near @ p[VALUES]

        return logits

    def init_client(self, ctx: Context, start: Tree) -> State:
        """Return an empty cache: it is filled when the client works for the first time."""
        shape = (int(self.cfg.CAPACITY), len(ctx.model.classnames))
        empty = torch.zeros(shape, dtype=ctx.model.dtype, device=ctx.model.device)
        return {"w": start, CACHE: {VALUES: empty}}

    def client_update(self, ctx: Context, state: State, received: Tree) -> tuple[State, Upload]:
        """Fill what is empty, then train the keys."""
        keys, values = self.filled(ctx, state["w"][KEYS], state[CACHE][VALUES])

        def loss(model: VLModel, p: Tree, b: Batch) -> Tensor:
            return cross_entropy(self.predict(model, p | {VALUES: b.cut(values)}, b.x), b)

        w = ctx.fit({KEYS: keys}, loss).params
        return state | {"w": w, CACHE: {VALUES: values}}, ctx.upload(w)

    def filled(self, ctx: Context, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and labels; of clients without any those of their training images.

        Raises:
            ConfigError: a client has more images than the cache has places.
        """
        b, places = ctx.whole("train"), int(self.cfg.CAPACITY)
        if b is None:
            return keys, values
        count = b.y.shape[1]
        if count > places:
            raise ConfigError(
                f"TRAINER.TIP-ADAPTER-F.CAPACITY {places}: a client has {count} training images; "
                f"set it to {count} or more"
            )
        with torch.no_grad():
            z = F.normalize(ctx.model.image(b.x), dim=-1) * b.w[..., None]
        label = F.one_hot(b.y, values.shape[-1]).to(values) * b.w[..., None].to(values)
        room = (0, 0, 0, places - count)
        new = values.flatten(1).sum(1) == 0
        at = new[:, None, None]
        return torch.where(at, F.pad(z, room), keys), torch.where(at, F.pad(label, room), values)

    def personalize(self, ctx: Context, state: State, received: Tree) -> Tree:
        """Return keys and labels."""
        return state["w"] | state[CACHE]
