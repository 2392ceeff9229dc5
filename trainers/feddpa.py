"""FedDPA: a shared LoRA and one of the client's own, mixed image by image.

Paper: Yang et al., Dual-Personalizing Adapter for Federated Foundation Models, NeurIPS 2024.
Equations: layer W + (1 - a) B_g A_g + a B_l A_l. Image x of client k: a = LAMBDA mean_s cos(z(x),
    z(x_s)), z the feature of the tower with the own adapter alone, x_s INSTANCES of the client's
    training images, un-augmented. MODE T, each round: the own adapter trains at a = WEIGHT with
    the received B_g A_g fixed, then the shared one alone (a = 0); server mean_k (B_k, A_k),
    under VARIANT fixed sum_k p_k (B_k, A_k).
    MODE F: the shared one alone; after the last round the own one starts as it and trains alone.
Shared: image.lora.*, and what else PEFT trains
Personal: image.private.lora.*
Frozen: both towers, the logit scale.
Defaults: MODE T, WEIGHT 0.5, LAMBDA 0.5, INSTANCES 5, EPOCHS 1 (F); both of PEFT.RANK 8.
Knobs: LAMBDA 0.1 to 1; WEIGHT 0.1 to 0.9.
Departures from the paper: known from its abstract, figures and public code, not from its text. The
    adapters are in CLIP's image tower, and an image's representation is its feature (there the last
    token's of a language model). A client that never trained an own adapter, and the global model,
    have a = 0.
    VARIANT published: as released, the server takes the plain mean, own adapters train from the
    second round on, and no gradient passes through the shared product beside them; fixed: sum_k
    p_k, from the first round on, and the whole gradient.
Departures from the authors' code: INSTANCES are drawn once for a client and round (there for each
    test text).
Extra data: none. A personal model holds INSTANCES image features of its client, which are not sent.
Cost: T: two fits per round, F: one; an image is predicted in two passes through the tower. Sent as
    FedAvg with LoRA.
Claim: personal is higher than FedAvg [lora]'s in setting rivals.
Command: python federated_main.py --demo --trainer FedDPA
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from fedvlm.method import (
    PERSONAL,
    SHARED,
    TAG,
    TRAINER_REGISTRY,
    Batch,
    CfgNode,
    Context,
    Finetune,
    Option,
    PeftTrainer,
    State,
    Tree,
    Upload,
    VLModel,
    adapters,
    cross_entropy,
    frozen_linear,
    peft,
    per_client,
)

SLOT, TRAINED = "dual", "dual.trained"  # of a client's state: 1 where its own adapter has trained
REFERENCE, SHARE = "dual.reference", "dual.share"  # of a personal model: [K, S, d], [K, S]
LATE = "F"


@TRAINER_REGISTRY.register("FedDPA")
class FedDPA(PeftTrainer):
    """See the module's card."""

    name = "FedDPA"
    published_weighting = "uniform"
    options = {
        "MODE": Option("T", "T: own adapters train in every round; F: after the last one, from "
                       "the shared one", choices=("T", LATE), neutral="T"),
        "VARIANT": Option("published", "weight of a client, and own adapter in its first round: "
                                       "see the card",
                          choices=("published", "fixed"), neutral="fixed",
                          moved={"T": "MODE", LATE: "MODE"}),
        "WEIGHT": Option(0.5, "weight of the own adapter during training (T)", low=0.0, high=1.0),
        "LAMBDA": Option(0.5, "maximum weight of the own adapter", low=0.0, high=1.0),
        "INSTANCES": Option(5, "training images that an image is compared with", low=1),
        "EPOCHS": Option(1, "epochs of the own adapter after the last round (F)", low=1),
    }
    exempt = {"G4": "a client's own adapter is used from its first round on, trained or not; "
                    "reference images are drawn in each round"}
    lora_refused = {
        "PRIVATE_RANK": "already has a personal LoRA of rank PEFT.RANK",
        "RANKS": "has a personal LoRA of full rank PEFT.RANK",
    }

    def __init__(self, cfg: CfgNode) -> None:
        """Read what is trained.

        Raises:
            ConfigError: no LoRA in the image tower, or one in the text tower; under MODE F a final
                fine-tuning that does not train the own adapter, and it alone.
        """
        super().__init__(cfg)
        self.require(self.spec.visual == "lora", "FedDPA mixes two LoRAs image by image: "
                     "PEFT.VISUAL must be lora (--peft lora, prompt+lora, head+lora)")
        self.require(self.spec.text != "lora", "FedDPA weighs adapters image by image, but the "
                     "text tower sees no image: PEFT.TEXT must be none or prompt (--peft lora, "
                     "prompt+lora)")
        fed = getattr(cfg, "FED", None)
        if self.cfg.MODE != LATE or fed is None:
            return
        self.require(fed.FINETUNE_TRAIN in ("own", "personal"), "FedDPA's MODE F trains the own "
                     "adapter alone after the last round: FED.FINETUNE_TRAIN must be own or "
                     f"personal, not {fed.FINETUNE_TRAIN}")
        self.require(fed.FINETUNE_EPOCHS != 0, "FedDPA's MODE F trains the own adapter after "
                     "the last round alone: FED.FINETUNE_EPOCHS 0 is FedAvg with LoRA; drop it, "
                     "or set TRAINER.FEDDPA.MODE T")

    def trainables(self, model: VLModel, generator: torch.Generator) -> Tree:
        """Return what PEFT builds, and the own adapter in the same layers."""
        tree = super().trainables(model, generator)
        own = peft.tower_lora(self.spec, model, "image", generator)
        return tree | {n.replace(adapters.LORA, adapters.PRIVATE_LORA): v for n, v in own.items()}

    # ---- model ----------------------------------------------------------------------------
    def features(
        self, model: VLModel, p: Tree, x: Mapping[str, Tensor], share: Tensor | None = None,
        cut: bool = False,
    ) -> Tensor:
        """Return image features ``[K, B, d]``, not normalised.

        Args:
            share: of the own adapter, ``[K, B]`` or ``[K, 1]``; None: the shared one alone.
            cut: no gradient through the shared one's output.
        """
        edits = adapters.TreeEdits("image", p, self.spec.scale)
        if share is not None:
            edits = MixedEdits("image", p, self.spec.scale, own_adapter(p), share, cut)
        return model.adapted_image(x, edits)[0]

    def image_features(self, model: VLModel, params: Tree, x: Mapping[str, Tensor]) -> Tensor:
        """Return features mixed image by image; of a model without references the shared ones."""
        return self.features(model, params, x, self.share(model, params, x))

    def own_features(self, model: VLModel, p: Tree, x: Mapping[str, Tensor]) -> Tensor:
        """Return normalised features of the tower with the own adapter alone, ``[K, B, d]``."""
        own = adapters.TreeEdits("image", {**p, **own_adapter(p)}, self.spec.scale)
        return F.normalize(model.adapted_image(x, own)[0], dim=-1)

    def share(self, model: VLModel, p: Tree, x: Mapping[str, Tensor]) -> Tensor | None:
        """Return LAMBDA times the mean cosine to the references, ``[K, B]``; None without any."""
        if REFERENCE not in p:
            return None
        near = self.own_features(model, p, x) @ p[REFERENCE].mT  # [K, B, S]
        return self.cfg.LAMBDA * (near @ p[SHARE][..., None]).squeeze(-1)

    def mixed_loss(self, model: VLModel, p: Tree, b: Batch, share: float) -> Tensor:
        """Return the cross-entropy ``[K]`` where the own adapter counts ``share``."""
        weight = torch.full((len(b.y), 1), share, dtype=model.dtype, device=b.y.device)
        z = self.features(model, p, b.x, weight, self.published)
        return cross_entropy(model.logits(z, self.text_features(model, p)), b)

    # ---- client ---------------------------------------------------------------------------
    def init_client(self, ctx: Context, start: Tree) -> State:
        """Return the start; the own adapter has not trained."""
        none = torch.zeros((), dtype=ctx.model.dtype, device=ctx.model.device)
        return {"w": start, SLOT: {TRAINED: none}}

    def client_update(self, ctx: Context, state: State, received: Tree) -> tuple[State, Upload]:
        """Train the own adapter beside the received one (T), then the shared one alone."""
        start = state["w"] | received
        if self.cfg.MODE == LATE or (self.published and ctx.round == 1):
            w = ctx.fit(start, self.loss, train=(SHARED,)).params
            return state | {"w": w}, ctx.upload(w)

        def beside(model: VLModel, p: Tree, b: Batch) -> Tensor:
            return self.mixed_loss(model, p, b, self.cfg.WEIGHT)

        own = ctx.fit(start, beside, train=(PERSONAL,), tag="own").params
        w = ctx.fit(own, self.loss, train=(SHARED,)).params
        on = {SLOT: {TRAINED: torch.ones_like(state[SLOT][TRAINED])}}
        return state | {"w": w} | on, ctx.upload(w)

    def personalize(self, ctx: Context, state: State, received: Tree) -> Tree:
        """Return both adapters, and what images are compared with (none where F trains later)."""
        w = state["w"] | received
        return w if self.cfg.MODE == LATE else self.referred(ctx, w, state[SLOT][TRAINED])

    def own_finetune(self) -> Finetune:
        """Return F's training of the own adapter; T has none."""
        if self.cfg.MODE != LATE:
            return Finetune()
        return Finetune(int(self.cfg.EPOCHS), (PERSONAL,))

    def finetune(self, ctx: Context, state: State, received: Tree, how: Finetune) -> Tree:
        """Return the models after the last round's training of ``how.train``.

        F: the own adapter starts as the shared one and trains alone. T: goes on beside it.
        """
        start, late = state["w"] | received, self.cfg.MODE == LATE
        if late:
            start |= {
                n.replace(adapters.LORA, adapters.PRIVATE_LORA): v
                for n, v in start.items() if is_shared(n)
            }

        def last(model: VLModel, p: Tree, b: Batch) -> Tensor:
            return self.mixed_loss(model, p, b, 1.0 if late else self.cfg.WEIGHT)

        lr = how.lr or ctx.optim.lr
        w = ctx.fit(start, last, train=how.train, epochs=how.epochs, lr=lr, tag=TAG).params
        return self.referred(ctx, w, torch.ones_like(state[SLOT][TRAINED]))

    def referred(self, ctx: Context, w: Tree, on: Tensor) -> Tree:
        """Return the model with features of INSTANCES training images, and each one's share.

        Args:
            on: ``[K]``, 1 where the own adapter counts.
        """
        most = int(self.cfg.INSTANCES)
        b = ctx.draw("instances", most)
        if b is None:  # nobody of the chunk has training images
            return w
        with torch.no_grad():
            z = self.own_features(ctx.model, w, b.x)
        real = b.w.to(z)
        share = real / real.sum(1, keepdim=True).clamp_min(1) * per_client(on, real)
        # Padding may show another client's image. As many rows for whoever is beside whom.
        z, rest = z * real.unsqueeze(-1), most - z.shape[1]
        return w | {REFERENCE: F.pad(z, (0, 0, 0, rest)), SHARE: F.pad(share, (0, rest))}


@dataclass(frozen=True)
class MixedEdits(adapters.TreeEdits):
    """Two LoRAs in the same layers, each image with its own share of them.

    Attributes:
        own: factors of the second under the first one's names.
        share: of the second, ``[K, B]`` or ``[K, 1]``; the first has the rest.
        closed: no gradient passes through the first one's output.
    """

    own: Mapping[str, Tensor] = field(default_factory=dict)
    share: Tensor = field(default_factory=lambda: torch.zeros(1, 1))
    closed: bool = False

    def linear(
        self, block: int, site: str, x: Tensor, weight: Tensor, bias: Tensor | None, factor: float
    ) -> Tensor:
        """Return W x + (1 - a) B_g A_g x + a B_l A_l x of ``x [K, B, n, in]``."""
        name = f"{self.tower}.lora.{block}.{site}"
        if name + adapters.FACTOR_A not in self.p:
            return super().linear(block, site, x, weight, bias, factor)
        out, shape = frozen_linear(x, weight, bias), x.shape[:-1]
        flat, by = x.flatten(1, -2), self.share[:, :, None, None]
        for p, part in ((self.p, 1 - by), (self.own, by)):
            low = flat.bmm(p[name + adapters.FACTOR_A].mT).view(*shape, -1) * part
            high = low.flatten(1, -2).bmm((self.scale * factor * p[name + adapters.FACTOR_B]).mT)
            out = out + (high.detach() if self.closed and p is self.p else high).view(*shape, -1)
        return out

    def cut(self, images: slice) -> MixedEdits:
        """Return the edits of a part of the batch."""
        return self if self.share.shape[1] == 1 else replace(self, share=self.share[:, images])


def is_shared(name: str) -> bool:
    """Tell whether a tensor is a factor of the shared adapter."""
    return adapters.LORA in name and adapters.PRIVATE_LORA not in name


def own_adapter(p: Mapping[str, Tensor]) -> Tree:
    """Return the factors of the own adapter under the shared one's names."""
    private, shared = adapters.PRIVATE_LORA, adapters.LORA
    return {n.replace(private, shared): v for n, v in p.items() if private in n}
