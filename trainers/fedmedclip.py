"""FedMedCLIP: a masked attention over channels, averaged, and a masked network of the client's own.

Paper: Wu and Chaddad, Federated CLIP for Resource-Efficient Heterogeneous Medical Image
    Classification, AAAI 2026 (arXiv 2511.07929); of the text only the abstract was found.
Equations: a masked layer is L(x) = (m W) x + b, m_o = 1[mean_i |W_oi| - t_o > 0.01], t trained.
    a(x) = softmax(L2 relu(N(L1 x))), N: each image to mean 0 and variance 1 over its channels;
    z = a(x) x / |a(x) x|, s = z . T the cosines to the class texts;
    o(z) = L6 r(L5 r(L4 r(L3 z))), r = relu after a BatchNorm over the batch.
    Loss: CLIP's of the batch's images and texts + CE(o, y) + KL_WEIGHT (KL(P|Q) + KL(Q|P)) / 2, a
    mean over classes; P_c, Q_c: softmax over the batch's images of s_c / 2, of o_c / 2.
    Prediction: (H_o p + H_p q) / (H_o + H_p) of p = softmax(scale s), q = softmax(o), H the
    entropies; the global model: p. server: mean_k W_k.
Shared: image.adapter.fc1.*, image.adapter.fc2.*
Personal: head.fc1.*, head.fc2.*, head.fc3.*, head.fc4.*, head.norm1.*, head.norm2.*, head.norm3.*,
    head.batches (the norms' means and variances are kept, too)
Frozen: both towers, the logit scale.
Defaults: AdamW, lr 5e-4, of the head 1e-4, ADAM_BETA2 0.98, ADAM_EPS 1e-6, weight decay 0.02 (the
    script's; its README says 5e-5 and 1e-3), KL_WEIGHT 0.04.
Knobs: KL_WEIGHT 0.004 to 0.4 log.
Departures from the paper: not known. VARIANT published is the released code: an argument of the
    mask passes its gradient only where its size is above 1, so that thresholds stay at 0; an
    entropy is -sum p log softmax(p); the class texts are "a picture of a c". fixed: the gradient
    passes where that size is at most 1, the entropy is -sum p log p, the data set's templates.
Departures from the authors' code: numbers travel in 32 bits (there 16); a constant rate (there
    times 0.97 each round); the scale is the backbone's (there also 100); a layer of which at most
    one row in 100 is left gets thresholds 0 after the step (there in the next one); a batch of
    one image has loss 0 (there it is left out). No noise on test images; the model of the last
    round counts, not the best on validation.
Extra data: none.
Cost: ViT-B/16, C = 100: 526,336 trained and sent each way, 843,976 more trained at home and
    3,073 that follow the batches; no text pass in a step, and a second pass through both small
    networks for the norms' statistics.
Claim: none.
Command: python federated_main.py --demo --trainer FedMedCLIP
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from fedvlm.method import (
    PERSONAL,
    SHARED,
    TRAINER_REGISTRY,
    Batch,
    Context,
    Option,
    Predictor,
    State,
    Step,
    TemplateTrainer,
    Tree,
    Upload,
    VLModel,
    contrast,
    cross_entropy,
    layers,
    optimise,
)

FIRST, SECOND = "image.adapter.fc1", "image.adapter.fc2"
HIDDEN, LAST, BATCHES = (1, 2, 3), "head.fc4", "head.batches"
MASKED = (FIRST, SECOND, *(f"head.fc{i}" for i in HIDDEN), LAST)
LEAST, KEPT = 0.01, 0.01  # of a row to be used; of a layer's rows, for its thresholds to stay
MOMENTUM, EPS = 0.1, 1e-5  # of the norms
TEMPERATURE, TINY = 2.0, 1e-8


@TRAINER_REGISTRY.register("FedMedCLIP")
class FedMedCLIP(TemplateTrainer):
    """See the module's card."""

    name = "FedMedCLIP"
    code_words = ("a picture of a {}",)
    groups = (
        (r"image\.adapter\.fc[12]\.(weight|bias|threshold)", "shared"),
        (r"head\.(fc[1-4]|norm[1-3])\..*|head\.batches", "personal"),
    )
    weighting = "uniform"
    trains_by = "loop"
    open_vocabulary = False
    options = {
        "VARIANT": Option("published", "gradient of the masks, entropy and class texts: see the "
                                       "card", choices=("published", "fixed")),
        "KL_WEIGHT": Option(0.04, "weight of the divergence between both outputs", low=0.0),
    }
    exempt = {"G4": "the norms' means and variances follow the batches at any learning rate"}

    def trainables(self, model: VLModel, generator: torch.Generator) -> Tree:
        """Return masked layers with thresholds 0, norms as torch's, and a count of 0 batches."""
        d, tree = model.embed_dim, {BATCHES: torch.zeros(())}
        for name in MASKED:
            rows = len(model.classnames) if name == LAST else d
            tree |= layers.layer(name, (rows, d), generator)
            tree[f"{name}.threshold"] = torch.zeros(rows)
        for i in HIDDEN:
            tree |= layers.norm(f"head.norm{i}", d)
            tree |= {f"head.norm{i}.mean": torch.zeros(d), f"head.norm{i}.var": torch.ones(d)}
        return tree

    # ---- network ----------------------------------------------------------------------------
    def mask(self, p: Tree, name: str) -> Tensor:
        """Return a layer's mask ``[K, out]`` of 0 and 1, with the gradient of the card."""
        above = p[f"{name}.weight"].abs().mean(-1) - p[f"{name}.threshold"]
        passing = above.abs() > 1 if self.published else above.abs() <= 1
        way = above * passing
        return (above > LEAST).to(above) + (way - way.detach())

    def masked(self, p: Tree, name: str, x: Tensor) -> Tensor:
        """Return the layer's output ``[K, B, out]`` of ``x [K, B, in]``."""
        weight = p[f"{name}.weight"] * self.mask(p, name).unsqueeze(-1)
        return layers.linear(p | {f"{name}.weight": weight}, name, x)

    def image_features(self, model: VLModel, p: Tree, x: Mapping[str, Tensor]) -> Tensor:
        """Return z of the card, ``[K, B, d]``."""
        z = model.image(x)
        inner = self.masked(p, FIRST, z)
        inner = F.layer_norm(inner, inner.shape[-1:], eps=EPS).relu()
        return F.normalize(self.masked(p, SECOND, inner).softmax(-1) * z, dim=-1)

    def private(self, p: Tree, z: Tensor, w: Tensor | None = None) -> tuple[Tensor, Tree]:
        """Return ``o(z) [K, B, C]`` and the statistics of the batch.

        Args:
            z: ``[K, B, d]``.
            w: 1 for a sample, 0 for padding, ``[K, B]``: the norms use the batch's mean and
                variance, and these are returned, the variance over n - 1. None: they use what
                the client kept.
        """
        found: Tree = {}
        for i in HIDDEN:
            z, norm = self.masked(p, f"head.fc{i}", z), f"head.norm{i}"
            if w is None:
                mean, var = p[f"{norm}.mean"], p[f"{norm}.var"]
            else:
                share = (w / w.sum(1, keepdim=True)).unsqueeze(-1)
                mean = (z * share).sum(1)
                var = ((z - mean.unsqueeze(1)).square() * share).sum(1)
                n = w.sum(1, keepdim=True)
                found |= {f"{norm}.mean": mean, f"{norm}.var": var * n / (n - 1).clamp(min=1)}
            unit = (z - mean.unsqueeze(1)) * (var + EPS).rsqrt().unsqueeze(1)
            z = (unit * p[f"{norm}.weight"].unsqueeze(1) + p[f"{norm}.bias"].unsqueeze(1)).relu()
        return self.masked(p, LAST, z), found

    def predictor(self, model: VLModel, p: Tree) -> Predictor:
        """Return ``x ->`` log probabilities; of a head that saw no batch nothing enters them."""
        text = self.text_features(model, p)

        def mixed(x: Mapping[str, Tensor]) -> Tensor:
            z = self.image_features(model, p, x)
            near = model.logits(z, text).log_softmax(-1)
            own = self.private(p, z)[0].log_softmax(-1)
            h_near, h_own = (self.entropy(v) + TINY for v in (near, own))
            total = (h_near + h_own).log()
            both = torch.logaddexp(near + h_own.log() - total, own + h_near.log() - total)
            return torch.where((p[BATCHES] > 0)[:, None, None], both, near)

        return mixed

    def entropy(self, logs: Tensor) -> Tensor:
        """Return the card's entropy ``[..., 1]`` of log probabilities ``[..., C]``."""
        share = logs.exp()
        return -(share * (share.log_softmax(-1) if self.published else logs)).sum(-1, keepdim=True)

    # ---- training ---------------------------------------------------------------------------
    def loss(self, model: VLModel, p: Tree, b: Batch) -> Tensor:
        """Return the loss ``[K]``, 0 for a batch of one image."""
        z, text = self.image_features(model, p, b.x), self.text_features(model, p)
        out = self.private(p, z, b.w)[0]
        own = torch.stack([t[y] for t, y in zip(text, b.y, strict=True)])  # [K, B, d]
        total = contrast.symmetric_contrast(model.logits(z, own), b.w) + cross_entropy(out, b)
        total = total + self.cfg.KL_WEIGHT * divergence(z @ text.mT, out, b.w)
        return total * (b.w.sum(1) > 1)

    def client_update(self, ctx: Context, state: State, received: Tree) -> tuple[State, Upload]:
        """Train both parts together; the norms' means and variances follow the batches."""
        p = state["w"] | received
        names = [n for n in ctx.trained(p, (SHARED, PERSONAL))
                 if n != BATCHES and not n.endswith((".mean", ".var"))]

        def body(slots: State, batches: tuple[Batch, ...], step: Step) -> State:
            batch, w = batches[0], slots["w"]
            grads = ctx.grad(w, self.loss, batch, names, what=f"local step {step.index}").grads
            with torch.no_grad():
                kept = self.follow(ctx.model, w, batch)
            new = optimise(ctx, slots, "w", grads, step)
            return new | {"w": revived(new["w"] | kept)}

        w = ctx.loop({"w": p}, body)["w"]
        return state | {"w": w}, ctx.upload(w)

    def follow(self, model: VLModel, p: Tree, b: Batch) -> Tree:
        """Return the kept statistics after a batch; one of a single image moves none."""
        found = self.private(p, self.image_features(model, p, b.x), b.w)[1]
        several = (b.w.sum(1) > 1).to(b.w)
        rate = MOMENTUM * several.unsqueeze(-1)
        return {n: p[n] + rate * (v - p[n]) for n, v in found.items()} | {
            BATCHES: p[BATCHES] + several}


def divergence(one: Tensor, other: Tensor, w: Tensor) -> Tensor:
    """Return the mean of both KL divergences, over classes, ``[K]``.

    Args:
        one, other: outputs ``[K, B, C]``; a class's distribution is over the images of the batch.
        w: 1 for a sample, 0 for padding, ``[K, B]``.
    """
    none = (w == 0).unsqueeze(-1)
    p, q = ((v / TEMPERATURE).masked_fill(none, contrast.OUT).log_softmax(1)
            for v in (one, other))
    return ((p.exp() - q.exp()) * (p - q)).sum(1).mean(-1) / 2


def revived(p: Tree) -> Tree:
    """Return a tree in which thresholds are 0 where they leave a layer almost no row."""
    new = dict(p)
    for name in MASKED:
        at = f"{name}.threshold"
        used = (p[f"{name}.weight"].abs().mean(-1) - p[at] > LEAST).to(p[at]).mean(-1, keepdim=True)
        new[at] = torch.where(used > KEPT, p[at], torch.zeros_like(p[at]))
    return new
