"""AFL: a linear classifier in closed form, from one message of each client.

Paper: He et al., AFL: A Single-Round Analytic Approach for Federated Learning with Pre-trained
    Models, CVPR 2025.
Equations: client C_k = Z_k'Z_k + GAMMA I, W_k = C_k^-1 Z_k'Y_k, Y one-hot; server C = sum_k C_k -
    K GAMMA I, W = (C + R I)^+ sum_k C_k W_k: with R = 0 the least-squares solution on all clients'
    images, however they are dealt. logits = z W. VARIANT published: R = 0. fixed: the R of least
    (|Y - Z W|^2 / n) / (1 - 1.2 tr(C (C + R I)^-1) / n)^2, n the images of all.
    With SHARES a client adds t log((n_c + 0.1) / sum_c (n_c + 0.1)), n_c its training images of
    class c; t the factor of 0 to 1 that is right most often on training images left out one by
    one, of the classifier and of n_c, clients alike.
Shared: head.weight (the server's solution; clients send C_k and W_k as extras)
Personal: none; with SHARES head.bias, of the client's own images at every evaluation, never sent.
Frozen: both towers.
Defaults: GAMMA 1, KEEP 0, VARIANT fixed, SHARES False, one round. Before it head.weight is the
    template's text features.
Knobs: KEEP 0.01 to 1000 log; UNIT False | True.
Departures from the paper: two clients' solutions are not folded into one another one by one, but
    the sums are formed that this comes to. VARIANT fixed keeps a ridge, without which the solution
    fits noise where images are about as many as channels. It is leave-one-out with all leverages at
    their mean (generalised cross-validation): exact leave-one-out needs every image's leverage
    under the sum of all, a second exchange; leaving whole clients out needs none, but chooses
    the largest ridge where clients have classes of their own. KEEP above 0 is the ridge itself.
    SHARES takes that second exchange: t is chosen in every round from the second on, by its
    clients, on the classifier they received. A t of each client's own needs no exchange, and lost 3
    to 8 points of personal accuracy in three settings (EuroSAT, DTD): few images often say 0.
Departures from the authors' code: VARIANT published is theirs, which removes the ridges after the
    sum and keeps none; fixed and SHARES are ours.
Extra data: none; a client's C_k and W_k together tell the sum of its features of each class.
Cost: ViT-B/16, C = 100: 313,344 numbers up in float64, 51,200 down; no training, no text pass.
    Under FED.SECURE_SUM only sum_k Z_k'Z_k and sum_k Z_k'Y_k over all sites leave. A client counts
    once, in whatever round it is drawn. SHARES: 262,145 numbers more down, 8 more up, two rounds.
    The bias stays at the client (C_k and W_k tell about as much); what share of its images each
    factor gets right leaves it. A personal model that is given away tells the class shares.
Claim: personal is higher than FedAvg [feature+head]'s in setting dirichlet.
Command: python federated_main.py --demo --trainer AFL
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fedvlm.method import (
    TRAINER_REGISTRY,
    CfgNode,
    Context,
    Option,
    Predictor,
    Rule,
    ServerContext,
    State,
    Trainer,
    Tree,
    Updates,
    Upload,
    VLModel,
    moments,
)

HEAD, BIAS, GRAM, WEIGHT = "head.weight", "head.bias", "afl.gram", "afl.weight"
RIGHT, INVERSE, TEMPER = "afl.right", "afl.inverse", "afl.temper"  # of SHARES
SUMS = "sums"  # slot of the server


@TRAINER_REGISTRY.register("AFL")
class AFL(Trainer):
    """See the module's card."""

    name = "AFL"
    groups: Sequence[Rule] = ((r"head\.weight", "shared"),)
    extras_up: Sequence[str] = (r"afl\.(gram|weight)",)
    tells_classes = True
    tells_single = ("AFL's sums tell the feature and class of every image that is a client's "
                    "only one of its class")
    metrics = ()
    weighting = "uniform"
    unweighted = "solves a ridge regression in closed form, without a loss by classes"
    aggregators = ()  # sums of sufficient statistics
    server_optim = False
    server_rules = {
        "sums/gram": lambda s: s.old + s.total(without_ridge(s), s.first),
        "sums/cross": lambda s: s.old + s.total(s.sent(GRAM) @ s.sent(WEIGHT).mT, s.first),
        "sums/count": lambda s: s.old + s.total(s.sizes, s.first),
        "w/.*": "solves the normal equations of the sums",
    }
    open_vocabulary = False
    options = {
        "GAMMA": Option(1.0, "ridge parameter of the clients' solutions, removed by the server",
                        low=0.0, low_open=True),
        "KEEP": Option(0.0, "ridge parameter of the final solution; 0: the variant's", low=0.0),
        "UNIT": Option(False, "use features of length 1 instead of unnormalised ones"),
        "VARIANT": Option("fixed", "published: no ridge in the end; fixed: one chosen by "
                          "cross-validation", choices=("published", "fixed"), neutral="published"),
        "SHARES": Option(False, "add a multiple of the log of each client's class shares to its "
                         "scores; takes two rounds", neutral=False),
    }
    exempt = moments.CLOSED_FORM

    def __init__(self, cfg: CfgNode) -> None:
        """Declare what SHARES sends beside the sums."""
        super().__init__(cfg)
        if not self.cfg.SHARES:
            return
        self.groups = ((r"head\.weight", "shared"), (r"head\.bias", "personal"))
        self.extras_up = (r"afl\.(gram|weight|right)",)
        self.extras_down = (r"afl\.(inverse|temper)",)
        self.require(cfg.FED.ROUNDS > 1, "TRAINER.AFL.SHARES True needs a second round, which "
                     "chooses the factor of the class shares: set --rounds 2")

    def trainables(self, model: VLModel, generator: torch.Generator) -> Tree:
        """Return the template's text features ``[C, d]``; zeros where there is no text tower."""
        classes = len(model.classnames)
        bias = {BIAS: torch.zeros(classes)} if self.cfg.SHARES else {}
        if not model.has_text:
            return {HEAD: torch.zeros(classes, model.embed_dim)} | bias
        return {HEAD: model.anchor("template", 0).detach().clone().cpu().float()} | bias

    def prompt_sets(self, batch_size: int) -> int:
        """Return 0: nothing goes through the text tower."""
        return 0

    def image_features(self, model: VLModel, p: Tree, x: Mapping[str, Tensor]) -> Tensor:
        """Return z, ``[K, B, d]``."""
        z = model.image(x)
        return F.normalize(z, dim=-1) if self.cfg.UNIT else z

    def text_features(self, model: VLModel, p: Tree) -> Tensor:
        """Return the rows of the classifier, ``[K, C, d]``."""
        return p[HEAD]

    def predictor(self, model: VLModel, p: Tree) -> Predictor:
        """Return ``x -> z W``, with SHARES plus the bias."""
        bias = p[BIAS][..., None, :] if BIAS in p else 0.0
        return lambda x: self.image_features(model, p, x) @ p[HEAD].mT + bias

    def client_update(self, ctx: Context, state: State, received: Tree) -> tuple[State, Upload]:
        """Send C_k and W_k, with SHARES what each factor gets right; nothing is trained."""
        model = ctx.model
        m = moments.compute_moments(
            ctx, lambda p, x: self.image_features(model, p, x), *received[HEAD].shape[1:]
        )
        ctx.check_tree({"features": m.gram}, "the sum over the training images")
        eye = torch.eye(m.gram.shape[-1], dtype=m.gram.dtype, device=m.gram.device)
        gram = m.gram + self.cfg.GAMMA * eye
        extras = {GRAM: gram, WEIGHT: torch.linalg.solve_ex(gram, m.total.mT)[0].mT}
        if self.cfg.SHARES:
            extras[RIGHT] = moments.compute_answers(
                ctx, lambda p, x: self.image_features(model, p, x), received[HEAD].mT.to(gram),
                received[INVERSE].to(gram), m.count,
            )
        return state, ctx.upload(received, extras=extras, only=())

    def personalize(self, ctx: Context, state: State, received: Tree) -> Tree:
        """Return the shared head, with SHARES and the client's own bias."""
        if not self.cfg.SHARES:
            return super().personalize(ctx, state, received)
        head = received[HEAD]
        sizes = ctx.class_sizes[:, : head.shape[1]]
        bias = received[TEMPER].to(head) * moments.log_shares(sizes).to(head)
        return {HEAD: head, BIAS: bias.where(sizes.sum(-1, keepdim=True) > 0, 0.0)}

    def extra_forms(self, ctx: Context, start: Tree) -> Tree:
        """See ``Trainer.extra_forms``: C_k and W_k, in float64."""
        own = start[HEAD].double()
        right = {RIGHT: own.new_zeros(len(moments.TEMPERS))} if self.cfg.SHARES else {}
        return {GRAM: own.mT @ own, WEIGHT: own} | right

    def summands(self, extras: Tree) -> Tree:
        """Return Z_k'Z_k and Z_k'Y_k."""
        gram = extras[GRAM]
        eye = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
        return {GRAM: gram - self.cfg.GAMMA * eye, WEIGHT: gram @ extras[WEIGHT].mT}

    def from_sums(self, sums: Tree) -> Tree:
        """Return C_k and W_k of a client with these."""
        eye = torch.eye(len(sums[GRAM]), dtype=sums[GRAM].dtype)
        gram = sums[GRAM] + self.cfg.GAMMA * eye
        return {GRAM: gram, WEIGHT: torch.linalg.solve(gram, sums[WEIGHT]).mT}

    def init_server(self, ctx: ServerContext, start: Tree) -> State:
        """Return the start and sums of nobody."""
        classes, width = start[HEAD].shape
        zeros: dict[str, tuple[int, ...]] = {"gram": (width, width), "cross": (width, classes)}
        if self.cfg.VARIANT == "fixed":
            zeros["count"] = ()
        sums = {n: torch.zeros(s, dtype=torch.float64) for n, s in zeros.items()}
        more = {INVERSE: sums["gram"], TEMPER: sums["gram"][0, :1]} if self.cfg.SHARES else {}
        return {"w": super().init_server(ctx, start)["w"] | more, SUMS: sums}

    def shared(self, server: State) -> Tree:
        """Return the head."""
        return {HEAD: server["w"][HEAD]}

    def aggregate(self, ctx: ServerContext, server: State, updates: Updates) -> State:
        """Add those who are not in the sums yet, without their ridges, and solve."""
        sums = dict(server[SUMS])
        for k in moments.newcomers(ctx, updates):
            gram, own = (updates.extras[n][k].to(sums["gram"]) for n in (GRAM, WEIGHT))
            eye = torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
            sums["gram"] = sums["gram"] + (gram - self.cfg.GAMMA * eye)
            sums["cross"] = sums["cross"] + gram @ own.mT
            if "count" in sums:
                sums["count"] = sums["count"] + int(ctx.roster.train[updates.clients[k]])
        keep = float(self.cfg.KEEP)
        if "count" in sums and not keep:
            keep = float(moments.best_ridge(sums["gram"], sums["cross"], sums["count"]))
            ctx.log("ridge", keep)
        w = server["w"]
        w = w | {HEAD: moments.ridge(sums["gram"], sums["cross"], keep).mT.to(w[HEAD])}
        if self.cfg.SHARES:
            right = torch.stack(list(updates.extras[RIGHT].cpu())).sum(0)
            temper = moments.TEMPERS[int(right.argmax())]  # of equals the smallest
            ctx.log("temper", temper)
            eye = torch.eye(len(sums["gram"])).to(sums["gram"])
            w |= {INVERSE: torch.linalg.pinv(sums["gram"] + keep * eye),
                  TEMPER: torch.full_like(w[TEMPER], temper)}
        return server | {"w": w, SUMS: sums}


def without_ridge(s: Any) -> Tensor:
    """Return Z_k'Z_k of the card, ``[K, d, d]``, in a round of ``fedvlm check``."""
    gram = s.sent(GRAM)
    return gram - s.trainer.cfg.GAMMA * torch.eye(gram.shape[-1])
