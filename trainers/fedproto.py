"""FedProto: clients share the mean feature of each class, and no weight at all.

Paper: Tan et al., FedProto: Federated Prototype Learning across Heterogeneous Clients, AAAI 2022.
Equations:
    client: CE + lambda mean_i |z_i - C_{y_i}|^2, z = x/|x|; then c_j = mean of its z of class j;
    server: C_j = sum_k n_kj c_kj / sum_k n_kj; predict argmin_j |z - C_j|.
    VARIANT published: z = x as it is, all squares are means over channels, and C_j is the plain
    mean over the clients that have class j.
Shared: none (class means and counts travel as extras)
Personal: all of PEFT
Frozen: both towers, the logit scale.
Defaults: lambda 1, prediction by the nearest prototype; a prompt and a feature adapter; VARIANT
    fixed: only features of unit length can be compared with the text features that stand for
    classes without an image, so that the untrained model is zero-shot CLIP.
Knobs: LAMBDA 0.05 to 10 log; PREDICT prototype | head.
Departures from the paper: features have unit length, and the distance is summed over channels (a
    mean over channels would all but vanish there); a class that no client has keeps the template's
    text feature, which is also where all classes start, and takes no part in the loss. PREDICT
    head classifies with the client's own text side instead.
Departures from the authors' code: VARIANT published computes it, but for the means, which are of
    the trained model (there of the last local epoch, while it trains), and for prediction among all
    classes (there among the client's own). Under fixed the server weighs means by samples, as the
    paper writes.
Extra data: none; a client tells how many samples of each class it has.
Cost: C (d + 1) numbers each way (ViT-B/16, C = 100: 51,300); one more pass over the images.
Claim: personal is higher than FedAvg's in setting disjoint.
Command: python federated_main.py --demo --trainer FedProto
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from fedvlm.method import (
    TRAINER_REGISTRY,
    Batch,
    Context,
    Option,
    PeftTrainer,
    Predictor,
    ServerContext,
    State,
    Tree,
    Updates,
    Upload,
    VLModel,
    cross_entropy,
    peft,
    prototypes,
)

MEAN, COUNT = "proto.mean", "proto.count"
FAR = -1e4  # score of a class that nobody has shown and no text describes


@TRAINER_REGISTRY.register("FedProto")
class FedProto(PeftTrainer):
    """See the module's card. A prototype of count 0 is a text feature, not a mean."""

    name = "FedProto"
    classic = True
    roles = {peft.BODY: "personal", peft.HEAD: "personal"}
    needs = (peft.BODY,)
    aggregators = ()  # class means only
    server_optim = False
    server_rules = {
        "proto/proto.count": lambda s: torch.where(
            s.total(s.sent(COUNT)) > 0, s.total(s.sent(COUNT)), s.old
        ),
        "proto/proto.mean": lambda s: torch.where(
            s.total(s.sent(COUNT))[:, None] > 0,
            s.mean(s.sent(MEAN), s.sent(COUNT) > 0 if s.trainer.published else s.sent(COUNT)),
            s.old,
        ),
    }
    extras_up = extras_down = (r"proto\..*",)
    tells_classes = True
    tells_single = ("FedProto's prototypes tell the feature and class of every image that is a "
                    "client's only one of its class")
    metrics = (r"(.+/)?loss", r"cls_loss", r"proto_loss")
    options = {
        "LAMBDA": Option(1.0, "weight of the distance to the shared prototypes", low=0.0),
        "PREDICT": Option("prototype", "predict with the nearest prototype, or with the client's "
                                       "own head",
                          choices=("prototype", "head")),
        "VARIANT": Option(
            "fixed", "features of unit length and means weighted by samples, or features and means "
            "as the released code takes them", choices=("published", "fixed"), neutral="fixed",
        ),
    }
    exempt = {"G4": "prototypes are feature statistics, available without training"}

    @property
    def open_vocabulary(self) -> bool:
        """Whether unseen classes stay defined: they have no prototype."""
        return super().open_vocabulary and self.cfg.PREDICT == "head"

    def unit(self, model: VLModel, p: Tree, x: Mapping[str, Tensor]) -> Tensor:
        """Return the representation ``[K, B, d]``: raw under published, else of length 1.

        A network's representation is never scaled: only CLIP's head reads directions.
        """
        z = self.representation(model, p, x)
        return F.normalize(z, dim=-1) if self.cosine and not self.published else z

    def predictor(self, model: VLModel, p: Tree) -> Predictor:
        """Return ``x -> -|z - C_j|^2``, or the head's logits where PREDICT says so."""
        if self.cfg.PREDICT == "head":
            return super().predictor(model, p)
        channels = p[MEAN].shape[-1] if self.published else 1
        if self.cosine:  # a class that nobody has shown has its text
            return lambda x: -square_distance(self.unit(model, p, x), p[MEAN]) / channels
        known = p[COUNT][:, None] > 0
        return lambda x: torch.where(
            known, -square_distance(self.unit(model, p, x), p[MEAN]) / channels, FAR
        )

    def forms(self) -> dict[str, str]:
        """Return what classifies."""
        if self.cfg.PREDICT == "head":
            return {"score": "cosine"}
        return {"score": "distance of raw features" if self.published else "distance"}

    def loss(self, model: VLModel, p: Tree, b: Batch) -> Tensor:
        """Return the cross-entropy of the client's own head, ``[K]``."""
        return self.supervised(model, p, b)[0]

    def init_server(self, ctx: ServerContext, start: Tree) -> State:
        """Return text features as prototypes of no sample yet; zeros where there are none."""
        anchor = ctx.model.anchor("template", 0) if self.cosine else torch.zeros(
            len(ctx.model.classnames), self.width(ctx.model),
            dtype=ctx.model.dtype, device=ctx.model.device,
        )
        return {"w": {}, "proto": {MEAN: anchor.clone(), COUNT: torch.zeros_like(anchor[:, 0])}}

    def download(self, ctx: ServerContext, server: State, client: int) -> Tree:
        """Return the prototypes; no weight is shared."""
        return server["proto"]

    def shared(self, server: State) -> Tree:
        """Return the prototypes: all that a new client would get."""
        return server["proto"]

    def client_update(self, ctx: Context, state: State, received: Tree) -> tuple[State, Upload]:
        """Train towards the shared prototypes, then take the means of one's own features."""
        loss = partial(self.prototype_loss, received=received)
        w = ctx.fit(state["w"], loss).params
        own = prototypes.class_means(
            ctx, lambda p, x: self.unit(ctx.model, p, x), w, *received[MEAN].shape[1:]
        )
        return state | {"w": w}, ctx.upload(w, extras={MEAN: own.mean, COUNT: own.count})

    def extra_forms(self, ctx: Context, start: Tree) -> Tree:
        """See ``Trainer.extra_forms``: a mean and a count of each class."""
        mean = torch.empty(
            len(ctx.model.classnames), self.width(ctx.model), dtype=ctx.model.dtype, device="meta"
        )
        return {MEAN: mean, COUNT: mean[:, 0]}

    def prototype_loss(
        self, model: VLModel, p: Tree, b: Batch, *, received: Tree
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return cross-entropy plus the distance to the shared prototypes, ``[K]``."""
        shared = b.cut(received)
        if self.cosine:
            z = self.unit(model, p, b.x)
            cls = cross_entropy(model.logits(z, self.text_features(model, p)), b)
        else:
            cls, z = self.supervised(model, p, b)
        gap = (z - prototypes.select_by_label(shared[MEAN], b.y)).square()
        gap = gap.mean(-1) if self.published else gap.sum(-1)
        has = b.w * (prototypes.select_by_label(shared[COUNT], b.y) > 0)
        near = (gap * has).sum(1) / b.w.sum(1)
        return cls + self.cfg.LAMBDA * near, {"cls_loss": cls, "proto_loss": near}

    def personalize(self, ctx: Context, state: State, received: Tree) -> Tree:
        """Return the client's model with the shared prototypes."""
        return state["w"] | received

    def aggregate(self, ctx: ServerContext, server: State, updates: Updates) -> State:
        """Average each class over the clients that have it; others keep what they had."""
        old = server["proto"]
        count = updates.extras[COUNT].cpu().double()
        means = updates.extras[MEAN].cpu().double()
        total = count.sum(0)
        share = (count > 0).double() if self.published else count
        mean = (means * share[..., None]).sum(0) / share.sum(0).clamp_min(1)[:, None]
        present = (total > 0).to(old[MEAN].device)
        return server | {"proto": {
            MEAN: torch.where(present[:, None], mean.to(old[MEAN]), old[MEAN]),
            COUNT: torch.where(present, total.to(old[COUNT]), old[COUNT]),
        }}


def square_distance(z: Tensor, means: Tensor) -> Tensor:
    """Return |z - C_j|^2, ``[K, B, C]``, of ``z [K, B, d]`` and ``means [K, C, d]``."""
    ends = z.square().sum(-1)[..., None] + means.square().sum(-1)[:, None]
    return ends - 2 * z @ means.mT
