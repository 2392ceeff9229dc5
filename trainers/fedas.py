"""FedAS: the received body is aligned to the client's old features; Fisher traces weigh the mean.

Paper: Yang et al., FedAS: Bridging Inconsistency in Personalized Federated Learning, CVPR 2024.
Equations:
    alignment: p_c = mean of f(x; old local body) over class c; on a copy of the received body
        sum_c MSE(f(x_c), p_c) per batch, ALIGN_EPOCHS of plain SGD; then CE on body and head;
    Fisher trace: F_k = sum over batches |grad mean NLL(batch)|^2 at the trained model;
    server: body <- sum_k F_k body_k / sum_k F_k; all zero: by samples.
Shared: the body of PEFT, image.*
Personal: head (text.*, head.*); never sent
Frozen: both towers, the logit scale.
Defaults: alignment one epoch at 0.01, from a client's second round on; Fisher over all trained
    tensors in batches of 16; a feature adapter and a linear head that starts as text features.
Knobs: ALIGN_LR 0.001 to 1 log; ALIGN_EPOCHS 1 to 3.
Departures from the paper: features are CLIP's adapted ones, un-normalised (of unit length their
    mean squared error is too small to align anything; ALIGN_REDUCTION sum is for that).
Departures from the authors' code: alignment works on a copy (there every client moves the one
    global model, so that later clients receive it aligned to earlier ones); no batch is dropped,
    so clients of any size are aligned and have a trace; a client's first round is not aligned
    (there it is; SKIP_FIRST False); alignment takes the run's batches (there
    16 samples); heads are not sent; clients that are not chosen compute nothing. Evaluated is, as
    there, the client's own trained model, before the next download. ALIGN_* and FIM_* are flat
    names.
    The weights are what the method defines, and know it: F_k grows with the number of batches and
    with smaller ones (FIM_BATCH), uses the client's labels, and falls as a client fits well, so
    that on easy data the less trained client weighs more. AGG samples (or data) and uniform switch
    them off, ALIGN no the alignment.
Extra data: none.
Cost: the body's bytes and one number of samples; two more passes over the images for prototypes
    and alignment, one for the trace (FIM_MODE sample: one per sample).
Claim: personal is higher than FedPer's in setting participation.
Command: python federated_main.py --demo --trainer FedAS
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from fedvlm.method import (
    PERSONAL,
    SHARED,
    TRAINER_REGISTRY,
    Batch,
    Context,
    OptimSpec,
    Option,
    PeftTrainer,
    ServerContext,
    State,
    Tree,
    Updates,
    Upload,
    VLModel,
    fill_newcomers,
    peft,
    per_client,
    prototypes,
    rules,
    trees,
)

COUNT = "fedas.samples"


@TRAINER_REGISTRY.register("FedAS")
class FedAS(PeftTrainer):
    """See the module's card."""

    name = "FedAS"
    classic = True
    reads_old = True
    metrics = (r"(align/)?loss",)
    roles = {peft.BODY: SHARED, peft.HEAD: PERSONAL}
    needs = (peft.BODY, peft.HEAD)
    aggregators = (rules.MEAN,)  # its weights are the method
    server_optim = False
    extras_up = (r"fedas\.samples",)
    exempt = {"G5": "the received body is aligned before it is trained"}
    options = {
        "ALIGN": Option(True, "align the received body before training"),
        "ALIGN_LR": Option(0.01, "learning rate of the alignment (for LoRA 0.1 to 1)", low=0.0),
        "ALIGN_EPOCHS": Option(1, "passes of the alignment over the data", low=1),
        "ALIGN_REDUCTION": Option("mean", "squared error, summed or averaged over "
                                          "channels", choices=("mean", "sum")),
        "ALIGN_FEATURE": Option("unnormalised", "features that are aligned",
                                choices=("unnormalised", "normalised")),
        "SKIP_FIRST": Option(True, "no alignment at a client's first round"),
        "FIM_PARAMS": Option("all", "tensors used for the Fisher trace", choices=("all", "shared")),
        "FIM_MODE": Option("batch", "gradients of batch means, or of single samples",
                           choices=("batch", "sample")),
        "FIM_BATCH": Option(16, "most samples per gradient in mode batch", low=1),
        "AGG": Option("fim", "weights of the mean: Fisher traces, samples, or equal",
                      choices=("fim", "samples", "uniform"), aliases={"data": "samples"}),
    }

    # ---- client ---------------------------------------------------------------------------
    def client_update(self, ctx: Context, state: State, received: Tree) -> tuple[State, Upload]:
        """Align a copy of the received body, train all, take the Fisher trace."""
        w = ctx.fit(self.aligned(ctx, state, received), self.loss).params
        weight = self.fisher(ctx, w) if self.weighting == "own" else None
        extras = {COUNT: ctx.sizes.to(ctx.model.device, ctx.model.dtype)}
        return state | {"w": w}, ctx.upload(w, weight, extras)

    def extra_forms(self, ctx: Context, start: Tree) -> Tree:
        """See ``Trainer.extra_forms``: a number of samples."""
        return {COUNT: torch.empty((), dtype=ctx.model.dtype, device="meta")}

    def personalize(self, ctx: Context, state: State, received: Tree) -> Tree:
        """Return the client's own model; the shared body where it never trained."""
        return fill_newcomers(ctx, state["w"], received)

    def aligned(self, ctx: Context, state: State, body: Tree) -> Tree:
        """Return the client's model with the received body, aligned where that is due."""
        received = state["w"] | body
        new = ctx.fresh & self.cfg.SKIP_FIRST
        if not self.cfg.ALIGN or (self.cfg.SKIP_FIRST and all(ctx.newcomers)):
            return received
        own = prototypes.class_means(
            ctx, lambda p, x: self.features(ctx.model, p, x), state["w"],
            len(ctx.model.classnames), self.width(ctx.model),
        )
        moved = ctx.fit(
            received, partial(self.align_loss, means=own.mean), train=(SHARED,),
            epochs=self.cfg.ALIGN_EPOCHS, lr=self.cfg.ALIGN_LR, tag="align",
            optim=OptimSpec("sgd", self.cfg.ALIGN_LR, momentum=0.0, weight_decay=0.0),
        ).params
        return {n: torch.where(per_client(new, v), received[n], v) for n, v in moved.items()}

    def features(self, model: VLModel, p: Tree, x: Mapping[str, Tensor]) -> Tensor:
        """Return the features that are aligned, ``[K, B, d]``."""
        z = self.representation(model, p, x)
        return F.normalize(z, dim=-1) if self.cfg.ALIGN_FEATURE == "normalised" else z

    def align_loss(self, model: VLModel, p: Tree, b: Batch, *, means: Tensor) -> Tensor:
        """Return the sum over classes of the mean squared distance to the old mean, ``[K]``.

        Args:
            means: the clients' class means before the round, ``[K, C, d]``.
        """
        old = b.cut(means)
        square = (self.features(model, p, b.x) - prototypes.select_by_label(old, b.y)).square()
        each = square.mean(-1) if self.cfg.ALIGN_REDUCTION == "mean" else square.sum(-1)
        member = prototypes.membership(b, old.shape[1])  # [K, B, C]
        per_class = (member * each[..., None]).sum(1) / member.sum(1).clamp_min(1)
        return per_class.sum(1)

    # ---- weights --------------------------------------------------------------------------
    @property
    def weighting(self) -> str:
        """What AGG says; the Fisher trace is a weight of the method's own."""
        return "own" if self.cfg.AGG == "fim" else str(self.cfg.AGG)

    def fisher(self, ctx: Context, w: Tree) -> Tensor:
        """Return the trace of the empirical Fisher information at ``w``, ``[K]``, float64."""
        names = ctx.trained(w, (SHARED,) if self.cfg.FIM_PARAMS == "shared" else (SHARED, PERSONAL))
        size = 1 if self.cfg.FIM_MODE == "sample" else int(self.cfg.FIM_BATCH)
        trace = trees.in_double(torch.zeros(ctx.k, device=ctx.model.device))
        for batch in ctx.batches("fisher"):
            for piece in pieces(batch, size):
                k = len(piece.y)
                grads = ctx.grad(piece.cut(w), self.loss, piece, names, log=None).grads
                for g in grads.values():
                    trace[:k] += trees.in_double(g).reshape(k, -1).square().sum(1)
        ctx.check(trace, "the Fisher trace")
        return torch.where(torch.isfinite(trace), trace, 0.0)  # such a client is left out

    def aggregate(self, ctx: ServerContext, server: State, updates: Updates) -> State:
        """Average the bodies with the clients' weights; by samples if all weights are zero."""
        weight = updates.weight
        if not float(weight.sum()) > 0:
            weight = updates.extras[COUNT].cpu().double()
        total = sum(weight.tolist())
        ctx.log("aggregation_weights", [w / total for w in weight.tolist()])
        return server | {"w": self.combine(ctx, replace(updates, weight=weight))}


def pieces(b: Batch, size: int) -> Iterator[Batch]:
    """Cut a batch along its samples; clients are sorted by size, so empty rows come last."""
    for i in range(0, b.y.shape[1], size):
        yield b.part(sum(count > i for count in b.counts), i, i + size)
