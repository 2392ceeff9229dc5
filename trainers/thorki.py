"""Thorki: a federated large model, a small personal model, and a gate that fuses their outputs.

Paper: Decoupling General and Personalized Knowledge with Collaborative Fusion for Personalized
    Federated Learning (Thorki), WWW 2026. This is an interpretation: only the title and the
    README were there; fusion, losses and all numbers below are ours.
Equations:
    D_k = fit + adaptation (stratified, ADAPT_RATIO);
    large G: CE(z_G, y) on fit, server: sum_k p_k G_k, p_k by |fit|;
    small S_k: CE(z_S, y) + DISTILL_BETA KL(p_G || p_S) on fit; z_S = W2 gelu(W1 LN(f)) of the
        frozen image feature f (SMALL mlp), or of the pixels (SMALL tower: three 3x3 convolutions of
        stride 2 with 16, 32 and 64 channels and GELU, their mean over places, a linear layer);
    gate: z_F = a z_G + (1 - a) z_S, a_c = sigmoid(w2 relu(W1 u + b1) + b2 + a_c), u the largest
        probability, its lead and the entropy of both; CE(z_F, y) on adaptation, G and S fixed,
        each one's logits divided by their standard deviation there.
Shared: all of PEFT (G; LoRA of both factors, averaged separately: mean(B) mean(A) is not mean(BA))
Personal: small.* (S); the gate, trained anew at every evaluation, a function of state and seed.
Frozen: both towers, the logit scale.
Defaults: LoRA of rank 8 on attention, AdamW 1e-3; SMALL mlp of 64 hidden units, AdamW 1e-3;
    ADAPT_RATIO 0.2 (3 of 16); gate AdamW 1e-2 (0.05 per class), decay 1e-2, 100 full-batch steps.
    FUSION also gate_mlp, gate_scalar, concat_mlp (worse than averaging at few shots), classwise,
    average.
Knobs: SMALL_LR 0.0001 to 0.01 log; DISTILL_BETA 0 to 1.
Departures from the paper: not known (its text was not available). S is an MLP on frozen features,
    or a tower that starts untrained. On texts (20 Newsgroups over a BERT) G is LoRA and a linear
    head in the encoder, and S the MLP on the frozen encoder's feature.
Departures from the authors' code: not known (it was not available).
Extra data: none; the adaptation set is the client's own and nothing else trains on it. A client
    whose classes have one image each has none: its models are averaged.
Cost: G's traffic only; S and the gate stay. The MLP's features are cached; SMALL tower reads
    pixels, so that images are decoded at every step.
Claim: personal is higher than FedAvg's in setting vit.
Command: python federated_main.py --demo --trainer Thorki
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from fedvlm.method import (
    PERSONAL,
    SHARED,
    TAG,
    TRAINER_REGISTRY,
    Batch,
    Context,
    DataError,
    Finetune,
    OptimSpec,
    Option,
    PeftTrainer,
    Predictor,
    Rule,
    State,
    Tree,
    Upload,
    VLModel,
    adaptation,
    cross_entropy,
    gates,
    per_client,
    rng,
    small,
    trees,
)

SMALL = r"small\..*"
ON, SPREAD = "gate.on", "gate.spread"  # trained at all; standard deviations of both models' logits


@TRAINER_REGISTRY.register("Thorki")
class Thorki(PeftTrainer):
    """See the module's card."""

    name = "Thorki"
    classic = True
    title = "Thorki (interpretation)"
    metrics = (r"(small/)?loss",)
    exempt = {"G5": "trains on the fit part of its samples only"}
    server_rules = {"weight": "of the part fit, without the adaptation part"}
    options = {
        "SMALL": Option(
            small.MLP, "the small model: an MLP on the frozen feature, or a convolutional tower on "
            "pixels", choices=small.KINDS, neutral=small.MLP,
        ),
        "SMALL_HIDDEN": Option(64, "hidden width of the small model, if an MLP", low=1),
        "SMALL_LR": Option(1e-3, "AdamW learning rate of the small model", low=0.0),
        "SMALL_WD": Option(1e-2, "weight decay of the small model", low=0.0),
        "SMALL_EPOCHS": Option(0, "local epochs of the small model; 0: FED.LOCAL_EPOCHS", low=0),
        "DISTILL_BETA": Option(0.0, "weight of KL(large || small) in the small model's loss",
                               low=0.0),
        "ADAPT_RATIO": Option(0.2, "share of the training samples that adapt the gate", low=0.0,
                              high=1.0, high_open=True),
        "FUSION": Option("conf_gate", "how outputs are fused", choices=gates.KINDS),
        "FUSION_HIDDEN": Option(0, "hidden width of the gate; 0 is the kind's own", low=0),
        "FUSION_LR": Option(1e-2, "AdamW learning rate of the gate", low=0.0),
        "FUSION_CLASS_LR": Option(5e-2, "learning rate of the gate's term per class", low=0.0),
        "FUSION_WD": Option(1e-2, "weight decay of the gate", low=0.0),
        "FUSION_STEPS": Option(100, "full-batch steps of the gate", low=0),
        "LOGIT_NORM": Option("std", "divide logits by their standard deviation over the "
                             "adaptation set", choices=("std", "none")),
    }

    @property
    def open_vocabulary(self) -> bool:
        """The small model knows its training classes only."""
        return False

    def trainables(self, model: VLModel, generator: torch.Generator) -> Tree:
        """Return what ``PEFT`` asks for, and the small model ``small.*``."""
        large, classes = super().trainables(model, generator), len(model.classnames)
        if self.cfg.SMALL == small.TOWER:
            return large | small.small_tower(classes, generator)
        hidden = int(self.cfg.SMALL_HIDDEN)
        return large | small.small_mlp(model.embed_dim, hidden, classes, generator)

    def streams(self, model: VLModel) -> tuple[str, ...]:
        """Return what G starts from, and what S reads: the frozen image feature, or pixels."""
        own = "pixels" if self.cfg.SMALL == small.TOWER else "features"
        return tuple(dict.fromkeys([*super().streams(model), own]))

    def rules(self, names: Sequence[str]) -> Sequence[Rule]:
        """Return ``PEFT``'s rules, and ``small.*`` as personal."""
        large = [n for n in names if not re.fullmatch(SMALL, n)]
        return [*super().rules(large), (SMALL, PERSONAL)]

    # ---- models ---------------------------------------------------------------------------
    def large(self, model: VLModel, p: Tree) -> Predictor:
        """Return ``x -> z_G``."""
        return super().predictor(model, p)

    def small(self, model: VLModel, p: Tree, x: Mapping[str, Tensor]) -> Tensor:
        """Return z_S ``[K, B, C]``, from the frozen image feature or from pixels."""
        if self.cfg.SMALL == small.TOWER:
            return small.tower_logits(p, x["pixels"].to(model.device, model.dtype))
        return small.mlp_logits(p, model.image(x))

    def predictor(self, model: VLModel, p: Tree) -> Predictor:
        """Return ``x -> z_F`` where ``p`` has a gate, else ``x -> z_G`` (the global model)."""
        large = self.large(model, p)
        if ON not in p:
            return large

        def fused(x: Mapping[str, Tensor]) -> Tensor:
            scale = p[SPREAD][:, :, None, None]
            z_g, z_s = large(x) / scale[:, 0], self.small(model, p, x) / scale[:, 1]
            on = per_client(p[ON] > 0, z_g)
            return torch.where(on, gates.mix_logits(self.cfg.FUSION, p, z_g, z_s), (z_g + z_s) / 2)

        return fused

    def forms(self) -> dict[str, str]:
        """Return the kind of the gate."""
        return {"gate": self.cfg.FUSION}

    def small_loss(self, model: VLModel, p: Tree, b: Batch) -> Tensor:
        """Return S's loss ``[K]``."""
        z = self.small(model, p, b.x)
        loss = cross_entropy(z, b)
        if self.cfg.DISTILL_BETA:
            with torch.no_grad():
                teacher = self.large(model, p)(b.x).log_softmax(-1)
            gap = F.kl_div(z.log_softmax(-1), teacher, reduction="none", log_target=True).sum(-1)
            loss = loss + self.cfg.DISTILL_BETA * (gap * b.w).sum(1) / b.w.sum(1)
        return loss

    def both(self, model: VLModel, p: Tree, b: Batch) -> Tensor:
        """Return the sum of both models' losses ``[K]``; they share no tensor."""
        return cross_entropy(self.large(model, p)(b.x), b) + self.small_loss(model, p, b)

    # ---- client ---------------------------------------------------------------------------
    def client_update(self, ctx: Context, state: State, received: Tree) -> tuple[State, Upload]:
        """Train G, then S, on the fit part."""
        cfg, fit = self.cfg, ctx.subset("fit", self.cfg.ADAPT_RATIO)
        rule = OptimSpec("adamw", cfg.SMALL_LR, weight_decay=cfg.SMALL_WD)
        w = fit.fit(state["w"] | received, self.loss, train=(SHARED,)).params
        w = fit.fit(
            w, self.small_loss, train=(SMALL,), epochs=cfg.SMALL_EPOCHS or None, lr=cfg.SMALL_LR,
            tag="small", optim=rule,
        ).params
        return state | {"w": w}, fit.upload(w)

    def personalize(self, ctx: Context, state: State, received: Tree) -> Tree:
        """Return G as aggregated, S, and a gate trained on the adaptation part."""
        return self.gated(ctx, state["w"] | received)

    def finetune(self, ctx: Context, state: State, received: Tree, how: Finetune) -> Tree:
        """Train copies of G and S on the fit part, then the gate."""
        fit = ctx.subset("fit", self.cfg.ADAPT_RATIO)
        w = fit.fit(
            state["w"] | received, self.both, train=how.train, epochs=how.epochs,
            lr=how.lr or ctx.optim.lr, tag=TAG,
        ).params
        return self.gated(ctx, w)

    def gated(self, ctx: Context, p: Tree) -> Tree:
        """Return ``p`` with the gate's tensors; G and S stay as they are.

        A client without adaptation samples takes the scale of its logits from its training part.

        Raises:
            DataError: no client of the chunk has a training image.
        """
        cfg = self.cfg
        b = ctx.subset("fit", cfg.ADAPT_RATIO).whole("val", fallback="train")
        if b is None or b.present is None:
            raise DataError(f"round {ctx.round}: clients {list(ctx.clients)} have no samples")
        with torch.no_grad():
            z = [self.large(ctx.model, p)(b.x), self.small(ctx.model, p, b.x)]
        scale = [gates.spread(one, b.w) if cfg.LOGIT_NORM == "std" else torch.ones_like(b.w[:, 0])
                 for one in z]
        draw = rng.stream(ctx.seed, "gate")
        start = gates.build_gate(cfg.FUSION, z[0].shape[-1], draw, cfg.FUSION_HIDDEN)
        start = trees.expand(trees.cast(start, z[0].dtype, z[0].device), ctx.k)
        how = adaptation.GateFit(
            cfg.FUSION, cfg.FUSION_STEPS, cfg.FUSION_LR, cfg.FUSION_CLASS_LR, cfg.FUSION_WD
        )
        on = b.present
        z_g, z_s = (one / s[:, None, None] for one, s in zip(z, scale, strict=True))
        fitted = how(start, z_g, z_s, b.y, b.w * on[:, None])
        return p | fitted | {ON: on, SPREAD: torch.stack(scale, 1)}
