"""TRIP: several contexts, mixed for each image by where its tokens cluster; averaged over clients.

Paper: Gong et al., Token-Level Prompt Mixture with Parameter-Free Routing for Federated Domain
    Generalization, IEEE Transactions on Image Processing 2025 (arXiv 2504.21063); of the text only
    the abstract was found.
Equations: an image's N tokens, as they leave the last block, form M clusters: from centres c_m =
    token floor(m N / M) and prices l = 0, up to 100 times: a token wants the m of least |x - c_m| +
    l_m; a cluster takes the cheapest that want it, at most R_m = floor(F floor(N/M)) + [m < N mod
    M], n_m of them; l_m += 1e-4 (n_m - R_m); c_m: their mean; of an empty one l_m = 0, c_m the
    token farthest from all centres; until the centres move by less than 1e-4 in the mean. Clusters
    and fixed orthogonal keys k_j pair so that the sum of cosines is largest; w_j: the share of all
    taken tokens that the cluster of key j took. Context v(x) = sum_j w_j v_j;
    logits_c = scale z . T_c(v(x)); CE + ALPHA H(softmax(scale z . T0), softmax(logits)), H(p, q) =
    -sum p log q. F is 1 in training, ROOM in prediction.
    server: v <- sum_k p_k v_k, sent to clients; global model a <- (a + r v) / (1 + r), r = b_t /
    (b_0 + sum_{s < t} b_s), b_i = (u_i (1 - u_i))^(B - 1), u_i = (i + 1/2) / (rounds + 1), B 0.2.
Shared: text.ctx.experts
Personal: none
Frozen: route.keys; both towers, the logit scale.
Defaults: M (EXPERTS) 4, N_CTX 16, ALPHA 1, ROOM 2, AdamW, lr 5e-4, ADAM_BETA2 0.98, ADAM_EPS 1e-7,
    weight decay 0.01 (the authors' script has up to 8 contexts of 32 tokens).
Knobs: ALPHA 0.1 to 10 log; EXPERTS 2 to 8 log.
Departures from the paper: not known. VARIANT published is the released code, in which round t has
    b_{t-1}, so that b_0 counts twice and the last never; fixed: b_t, one weight for each model.
Departures from the authors' code: clusters start at tokens in equal steps (there random ones);
    weights follow the view that is trained on (there the unaugmented image's); T0 has the data
    set's templates (there 80 of ImageNet); numbers travel in 32 bits (there 16); a constant rate
    (there times 0.8 each round); the model of the last round counts, not the best on validation.
Extra data: none.
Cost: ViT-B/16: 32,768 numbers each way; a text pass per image and step, as CoCoOp; up to 100 steps
    of clustering per image, and a number read by the host after each; EXPERTS! pairings compared;
    197 x 768 numbers an image are cached, and the last block runs in every step.
Claim: none.
Command: python federated_main.py --demo --trainer TRIP
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import permutations

import torch
import torch.nn.functional as F
from torch import Tensor

from fedvlm.method import (
    TRAINER_REGISTRY,
    Batch,
    Option,
    Predictor,
    ServerContext,
    State,
    Trainer,
    Tree,
    Updates,
    VLModel,
    blocks,
    contexts,
    cross_entropy,
    map_leaves,
    vision,
)

CTX, KEYS = "text.ctx.experts", "route.keys"
AVERAGE = "average"  # server slot: the global model
STEPS, PRICE, STILL = 100, 1e-4, 1e-4  # of the clustering
BETA = 0.2


@TRAINER_REGISTRY.register("TRIP")
class TRIP(Trainer):
    """See the module's card."""

    name = "TRIP"
    reads_templates = True
    groups = ((r"text\.ctx\.experts", "shared"), (r"route\.keys", "frozen"))
    metrics = (r"(.+/)?loss", r"(cls|zero_shot)_loss")
    options = {
        "EXPERTS": Option(4, "contexts that are mixed", low=1, high=8),
        "N_CTX": Option(16, "tokens of each context", low=1),
        "ALPHA": Option(1.0, "weight of the cross-entropy with the zero-shot prediction", low=0.0),
        "ROOM": Option(2.0, "tokens that a cluster may hold in prediction, as a multiple of an "
                            "equal share", low=1.0),
        "VARIANT": Option("published", "weight of each round's model in the global one: see the "
                                       "card", choices=("published", "fixed")),
    }
    server_rules = {"w/.*": lambda s: s.mean(), "average/.*": lambda s: moved(
        s.old, s.mean(), s.trainer.share(s.round, s.rounds))}

    def streams(self, model: VLModel) -> tuple[str, ...]:
        """Return what enters the last block."""
        return (vision.stream_name(len(model.vision.blocks) - 1),)

    def prompt_sets(self, batch_size: int) -> int:
        """Return one for each image."""
        return batch_size

    def trainables(self, model: VLModel, generator: torch.Generator) -> Tree:
        """Return the contexts ``[M, n_ctx, text_width]`` and orthogonal keys ``[M, width]``."""
        count = self.cfg.EXPERTS
        shape = (count, self.cfg.N_CTX, model.text_width)
        keys = torch.empty(count, model.vision.width)
        return {CTX: contexts.random_context(shape, generator),
                KEYS: torch.nn.init.orthogonal_(keys, generator=generator)}

    # ---- prediction -------------------------------------------------------------------------
    def mixed(self, model: VLModel, p: Tree, x: Mapping[str, Tensor], room: float
              ) -> tuple[Tensor, Tensor]:
        """Return features ``[K, B, d]`` of the frozen tower, and logits ``[K, B, C]``."""
        last = len(model.vision.blocks) - 1
        with torch.no_grad():
            z, rows = model.adapted_image(x, blocks.NoEdits(), taps=(last,))
            weights = route(rows[last], p[KEYS].unsqueeze(1), room)
        context = torch.einsum("kbm,kmnw->kbnw", weights, p[CTX])
        unit = F.normalize(z, dim=-1).unsqueeze(-1)
        return z, model.scale * (model.text(context) @ unit).squeeze(-1)

    def predictor(self, model: VLModel, p: Tree) -> Predictor:
        """Return ``x -> logits [K, B, C]``, with a text pass for every image."""
        return lambda x: self.mixed(model, p, x, self.cfg.ROOM)[1]

    def loss(self, model: VLModel, p: Tree, b: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss ``[K]`` and its parts."""
        z, logits = self.mixed(model, p, b.x, 1.0)
        zero_shot = model.logits(z, model.anchor("raw", 0)).softmax(-1)
        apart = -(zero_shot * logits.log_softmax(-1)).sum(-1)
        near = self.cfg.ALPHA * (apart * b.w).sum(1) / b.w.sum(1)
        cls = cross_entropy(logits, b)
        return cls + near, {"cls_loss": cls, "zero_shot_loss": near}

    # ---- server -----------------------------------------------------------------------------
    def init_server(self, ctx: ServerContext, start: Tree) -> State:
        """Return the start, which is also the global model's."""
        server = super().init_server(ctx, start)
        return server | {AVERAGE: dict(server["w"])}

    def shared(self, server: State) -> Tree:
        """Return the average over rounds."""
        return server[AVERAGE]

    def aggregate(self, ctx: ServerContext, server: State, updates: Updates) -> State:
        """Average over clients, then over rounds."""
        new, r = super().aggregate(ctx, server, updates), self.share(ctx.round, ctx.rounds)
        return new | {AVERAGE: map_leaves(
            lambda old, v: moved(old, v, r), server[AVERAGE], new["w"])}

    def share(self, round_: int, rounds: int) -> float:
        """Return r of a round, 1-based: its weight over that of all models before it."""
        at = [(i + 0.5) / (rounds + 1) for i in range(rounds + 1)]
        b = [(u * (1 - u)) ** (BETA - 1) for u in at]
        b = [b[0], *(b[:-1] if self.published else b[1:])]
        return b[round_] / sum(b[:round_])


def moved(old: Tensor, new: Tensor, r: float) -> Tensor:
    """Return the average of an old value, of weight 1, and a new one, of weight ``r``."""
    return (old + r * new) / (1 + r)


def route(tokens: Tensor, keys: Tensor, room: float) -> Tensor:
    """Return each key's share of the tokens, ``[..., M]``, of sum 1.

    Args:
        tokens: ``[..., N, width]``.
        keys: ``[..., M, width]``, axes before the last two as those of ``tokens`` or 1.
        room: how many times an equal share a cluster may hold.
    """
    count = keys.shape[-2]
    centres, sizes = clusters(tokens, count, room)
    near = F.normalize(centres, dim=-1) @ F.normalize(keys, dim=-1).mT  # [..., cluster, key]
    share = sizes / sizes.sum(-1, keepdim=True)
    found, best = share, near.new_full((), -torch.inf)
    for keyed in permutations(range(count)):  # cluster m to key keyed[m]; the first of equal ones
        total = sum((near[..., m, key] for m, key in enumerate(keyed)), near.new_zeros(()))
        moved = torch.stack([share[..., keyed.index(key)] for key in range(count)], -1)
        found = torch.where((total > best).unsqueeze(-1), moved, found)
        best = torch.maximum(total, best)
    return found


def clusters(x: Tensor, count: int, room: float) -> tuple[Tensor, Tensor]:
    """Return centres ``[..., M, width]`` and sizes ``[..., M]`` of the card's clusters.

    Args:
        x: tokens ``[..., N, width]``; images do not mix.
        count: M.
        room: F of the card.
    """
    n = x.shape[-2]
    at = torch.arange(count, device=x.device)
    most = int(n // count * room) + (at < n % count).to(x)  # [M]
    centres = x[..., at * n // count, :]
    sizes = x.new_zeros(centres.shape[:-1])
    price, done = sizes, sizes[..., 0] > 0
    for _ in range(STEPS):
        gap = torch.cdist(x, centres)
        cost, wish = (gap + price.unsqueeze(-2)).min(-1)  # [..., N]
        order = cost.argsort(dim=-1, stable=True)
        wants = F.one_hot(wish.gather(-1, order), count)  # [..., N, M], the cheapest first
        takes = wants * (wants.cumsum(-2) <= most)
        taken = torch.zeros_like(takes).scatter(
            -2, order.unsqueeze(-1).expand_as(takes), takes).to(x)
        size = taken.sum(-2)
        far = x.gather(-2, gap.min(-1).values.argmax(-1)[..., None, None].expand(
            *x.shape[:-2], 1, x.shape[-1]))
        some = (size > 0).unsqueeze(-1)
        new = torch.where(some, taken.mT @ x / size.clamp(min=1).unsqueeze(-1), far)
        sizes = torch.where(done.unsqueeze(-1), sizes, size)
        price = torch.where(some.squeeze(-1), price + PRICE * (size - most), 0.0)
        done = done | ((new - centres).norm(dim=-1).mean(-1) < STILL)
        centres = torch.where(done[..., None, None], centres, new)
        if not x.is_cuda and done.all():  # on a GPU the question costs more than the other steps
            break
    return centres, sizes
