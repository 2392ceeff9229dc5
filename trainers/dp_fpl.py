"""DP-FPL: a shared context beside a low-rank personal one, per-sample clipped and noised.

Paper: Tran et al., Privacy-Preserving Personalized Federated Prompt Learning for Multimodal Large
    Language Models, ICLR 2025.
Equations: P = p_G + u v + r; per sample i: g_i = grad CE_i, scaled to |(g_u, g_v)| <= CLIP and
    |g_pG| <= CLIP; G = mean_i g_i + N(0, (SIGMA CLIP / B)^2); p_G steps by G_pG, W = u v + r by
    (G_u v + u G_v + u u' G_u v) / 10; then W is factored anew from a drawn q ~ N(0, 1) [w, RANK]:
    u = orth(W q), v = orth(W' u)', r = W - u v; server p_G = mean_k p_G,k.
Shared: text.global
Personal: text.u, text.v, text.r
Frozen: both towers, the logit scale.
Defaults: N_CTX 16, RANK 8, CLIP 10, SIGMA 1, DELTA 1e-5, ACCOUNTANT gaussian, FACTORS orthonormal,
    CLIPPING single, WEIGHTING uniform; plain SGD lr 0.001. Without SIGMA no noise is added and
    nothing guaranteed; RESIDUAL false leaves r out. With it no loss leaves a client, nor is one
    shown: it would be an exact number of private images.
Knobs: RANK 2 to 16 log.
Departures from the paper: all noise is added by the client, to p_G too (there by the server, to the
    average): over sites, whose noise is a secret, the server need not be trusted (in a simulation
    the seed gives the noise away); several local steps are allowed (there one a round);
    sigma is given and epsilon follows (docs/privacy.md), for one image replaced by another.
Departures from the authors' code: gradients are clipped sample by sample (there the batch's, which
    bounds no sample's part: CLIPPING batch, whose epsilon is none); plain SGD (there momentum and
    decay, in one optimiser for all clients); every batch of round 1 counts (there only its last
    one); each client's W steps by its own gradient (there all by the last client's, whose images
    would so reach the others). The sign of the third part of W's gradient and its tenth are the
    public code's. FACTORS projected steps u and v themselves, factors with v = u' W from the last
    v, and was fedvlm 0.2's, with WEIGHTING samples; the test set chooses nothing; an accountant.
Extra data: none.
Cost: ViT-B/16: 8,192 numbers each way (8.2k, the paper); 12,416 trained, 8,192 of the residual
    follow from them; one text pass per sample and step.
Claim: personal is higher than PromptFL's in setting disjoint.
Command: python federated_main.py --demo --trainer DP-FPL
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fedvlm.method import (
    TRAINER_REGISTRY,
    Batch,
    Context,
    Option,
    State,
    Step,
    Trainer,
    Tree,
    Upload,
    VLModel,
    Worked,
    contexts,
    descend,
    per_client,
    privacy,
    rates,
    trees,
    weighting,
)

SHARED, U, V, REST = "text.global", "text.u", "text.v", "text.r"
PARTS = ((U, V), (SHARED,))  # each is clipped by itself
TENTH = 0.1  # of the personal part's gradient, as in the public code
SINGLE, BATCH = "single", "batch"
ORTHONORMAL, PROJECTED = "orthonormal", "projected"


@TRAINER_REGISTRY.register("DP-FPL")
class DPFPL(Trainer):
    """See the module's card. Tensors: global, r [n_ctx, w]; u [n_ctx, rank]; v [rank, w]."""

    name = "DP-FPL"
    groups = ((r"text\.global", "shared"), (r"text\.[uvr]", "personal"))
    trains_by = "descent"
    options = {
        "N_CTX": Option(16, "context tokens", low=1),
        "RANK": Option(8, "rank of the personal part", low=1),
        "CLIP": Option(10.0, "bound on the norm of a sample's gradient", low=0.0, low_open=True),
        "SIGMA": Option(1.0, "noise on a sum of gradients, as a multiple of the clipping bound; "
                             "0: none", low=0.0),
        "DELTA": Option(
            1e-5, "delta of (epsilon, delta)", low=0.0, low_open=True, high=1.0, high_open=True
        ),
        "ACCOUNTANT": Option(
            privacy.GAUSSIAN, "exact without amplification by sampling; or with sampling, one "
                              "step per round",
            choices=(privacy.GAUSSIAN, privacy.SAMPLED),
        ),
        "RESIDUAL": Option(True, "keep the residual of the low-rank personal part"),
        "FACTORS": Option(
            ORTHONORMAL, "the personal part is factored from a new draw into two orthonormal "
            "factors and steps as a whole, or from the last v into u and its projection, which "
            "step themselves", choices=(ORTHONORMAL, PROJECTED), neutral=PROJECTED,
        ),
        "CLIPPING": Option(
            SINGLE, "whose gradient is clipped: each image's, or the batch's as in the public "
            "code, which guarantees nothing (epsilon none)", choices=(SINGLE, BATCH),
            neutral=SINGLE,
        ),
        "WEIGHTING": weighting("uniform", neutral="samples"),
    }
    exempt = {
        "G5": "clipped samples, noise and a power iteration are not plain SGD",
        "G6": "the noise differs between clients",
    }

    def __init__(self, cfg: Any) -> None:
        """Refuse what the accounting would not cover, or could not be made of."""
        super().__init__(cfg)
        if self.cfg.SIGMA:  # a loss is not noised, and no epsilon counts it
            self.metrics = ()
        after = max(0, int(getattr(getattr(cfg, "FED", None), "FINETUNE_EPOCHS", 0)))
        self.require(
            not (after and self.cfg.SIGMA), f"--finetune-epochs {after}: it trains without noise, "
            "so DP-FPL's epsilon would be invalid; drop it, or set TRAINER.DP-FPL.SIGMA 0"
        )
        if self.cfg.ACCOUNTANT == privacy.SAMPLED:
            self.require(
                int(cfg.FED.LOCAL_STEPS) == 1, "TRAINER.DP-FPL.ACCOUNTANT sampled needs one draw "
                "per round: set FED.LOCAL_STEPS 1, or use gaussian"
            )
            privacy.renyi()  # says before any work that the package is not there

    def prompt_sets(self, batch_size: int) -> int:
        """Return one for each sample of a batch."""
        return batch_size

    def trainables(self, model: VLModel, generator: torch.Generator) -> Tree:
        """Return p_G ~ N(0, 0.02^2), and a random personal part of the same, factored."""
        n, w, rank = self.cfg.N_CTX, model.text_width, self.cfg.RANK
        self.require(
            min(n, w) >= rank, f"TRAINER.DP-FPL.RANK {rank} is above {min(n, w)}, the smaller of "
            "N_CTX and the text width; lower it or raise N_CTX"
        )
        shared, whole = (contexts.random_context((n, w), generator) for _ in range(2))
        start = contexts.random_context((1, rank, w), generator)
        kept = self.cfg.FACTORS == ORTHONORMAL
        u, v, rest = (t[0] for t in (orthonormal if kept else projected)(whole[None], start))
        return {SHARED: shared, U: u, V: v, REST: rest * float(self.cfg.RESIDUAL or kept)}

    def text_features(self, model: VLModel, p: Tree) -> Tensor:
        """Return the text features of P, ``[K, C, d]``; without RESIDUAL r is not in it."""
        own = whole_of(p) if self.cfg.RESIDUAL else p[U] @ p[V]
        return model.text(p[SHARED] + own)

    def client_update(self, ctx: Context, state: State, received: Tree) -> tuple[State, Upload]:
        """Take noised steps; p_G travels."""
        w = ctx.loop({"w": state["w"] | received}, partial(self.step, ctx))["w"]
        return state | {"w": w}, ctx.upload(w)

    def step(
        self, ctx: Context, slots: State, batches: tuple[Batch, ...], step: Step
    ) -> State:
        """Return the tensors after a noised step and a power iteration."""
        p, b = slots["w"], batches[0]
        rate, what = rates(ctx, step), f"local step {step.index}"
        if self.cfg.FACTORS == ORTHONORMAL:
            start = drawn(p[V], b)
            p = p | dict(zip((U, V, REST), orthonormal(whole_of(p), start), strict=True))
            grads = self.gradient(ctx, p, b, what)
            new = descend(p, {SHARED: grads[SHARED], REST: slope(p, grads)}, rate)
            u, v, rest = orthonormal(whole_of(new), start)
            moved = new | {U: u, V: v, REST: rest}
        else:
            grads = self.gradient(ctx, p, b, what)
            new = descend(p, grads, rate)
            u, v, rest = projected(whole_of(new), new[V])
            moved = new | {U: u, V: v, REST: rest if self.cfg.RESIDUAL else new[REST]}
        p = slots["w"]
        if not isinstance(rate, Tensor):
            return {"w": moved if rate else p}
        on = rate != 0  # where nothing is learnt nothing is factored anew
        return {"w": {n: torch.where(per_client(on, x), x, p[n]) for n, x in moved.items()}}

    def gradient(self, ctx: Context, p: Tree, b: Batch, what: str) -> Tree:
        """Return the mean of clipped single gradients, or the batch's clipped one, with noise."""
        if self.cfg.CLIPPING == BATCH:
            return self.of_batch(ctx, p, b, what)
        _, each = ctx.grad_each(
            p, self.loss, b, [SHARED, U, V], most=b.y.numel(), what=what,
            log=None if self.cfg.SIGMA else "",
        )
        mean = privacy.mean_gradient(privacy.clip_by_part(each, self.cfg.CLIP, PARTS), b)
        return privacy.add_noise(mean, b, self.cfg.SIGMA * self.cfg.CLIP, "dp")

    def of_batch(self, ctx: Context, p: Tree, b: Batch, what: str) -> Tree:
        """Return the batch's gradient, each tensor scaled to a norm of CLIP, with noise.

        The public code's server adds noise of SIGMA CLIP / B, divided by the clients, to the mean
        of p_G: so has the mean of what the clients add here.
        """
        log = None if self.cfg.SIGMA else ""
        grads = ctx.grad(p, self.loss, b, [SHARED, U, V], what=what, log=log).grads
        rows = {n: g.unsqueeze(1) for n, g in grads.items()}
        each = privacy.clip_by_part(rows, self.cfg.CLIP, [(n,) for n in rows])
        grads, std = {n: g.squeeze(1) for n, g in each.items()}, self.cfg.SIGMA * self.cfg.CLIP
        own = privacy.add_noise({n: grads[n] for n in (U, V)}, b, std, "dp")
        clients = int(self.root.FED.CLIENTS)
        sent = privacy.add_noise({SHARED: grads[SHARED]}, b, std / clients**0.5, "dp/shared")
        return own | sent

    def privacy(self, work: Sequence[Worked]) -> Mapping[str, Any]:
        """Return epsilon and delta of the client that has spent most."""
        c = self.cfg
        if c.CLIPPING == BATCH:
            none = privacy.report_spending(privacy.Mechanism(0.0, c.CLIP, c.DELTA), work)
            return {**none, "epsilon": None, "words": "no bound on epsilon (the gradient of a "
                    "batch is clipped, which bounds no single image)"}
        sampled = c.ACCOUNTANT == privacy.SAMPLED
        how = privacy.Mechanism(c.SIGMA, c.CLIP, c.DELTA, len(PARTS), sampled)
        return privacy.report_spending(how, work)


def whole_of(p: Tree) -> Tensor:
    """Return the personal context u v + r, ``[K, n_ctx, w]``."""
    return p[U] @ p[V] + p[REST]


def projected(whole: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return u (orthonormal columns), v and what they leave, by one power iteration from ``v``."""
    u, _ = torch.linalg.qr(whole @ v.mT)
    v = u.mT @ whole
    return u, v, whole - u @ v


def slope(p: Tree, grads: Tree) -> Tensor:
    """Return the gradient that W steps by, of those of its orthonormal factors."""
    left = grads[U] @ p[V]
    return TENTH * (left + p[U] @ grads[V] + p[U] @ (p[U].mT @ left))


def drawn(v: Tensor, b: Batch) -> Tensor:
    """Return a start ``[K, rank, w]`` ~ N(0, 1) for each client of a loop's step.

    Raises:
        ValueError: the batch is of no loop's step.
    """
    rows = []
    for row in range(len(v)):
        seed = b.seed("factors", row)
        if seed is None:
            raise ValueError("a start can be drawn only within a step of a loop")
        stream = torch.Generator().manual_seed(seed)
        rows.append(torch.randn(v.shape[1:], generator=stream, dtype=torch.float64))
    return trees.to_device(torch.stack(rows).to(v.dtype), v.device)


def orthonormal(whole: Tensor, start: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return u (orthonormal columns), v (orthonormal rows) and what they leave of ``whole``."""
    u = orthonormal_columns(whole @ start.mT)
    v = orthonormal_columns(whole.mT @ u).mT
    return u, v, whole - u @ v


def orthonormal_columns(x: Tensor) -> Tensor:
    """Return what Gram and Schmidt make of the columns of ``x [K, n, r]``."""
    q, r = torch.linalg.qr(x)
    sign = torch.where(r.diagonal(dim1=-2, dim2=-1) < 0, -1.0, 1.0).to(q)
    return q * sign.unsqueeze(-2)
