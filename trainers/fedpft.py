"""FedPFT: clients send mixtures of Gaussians of their features, the server trains a head on draws.

Paper: Beitollahi et al., Parametric Feature Transfer: One-shot Federated Learning with Foundation
    Models, 2024, arXiv 2402.01862.
Equations: client k, class c: z ~ sum_g pi_g N(mu_g, S_g), fitted to the features of its n_kc images
    by expectation maximisation. server: for every client and class n_kc draws of its mixture; the
    head minimises CE(W z + b) on all draws together.
Shared: head.weight, head.bias (the server's; clients send pi, mu, S and n_kc as extras)
Personal: none
Frozen: both towers.
Defaults: MIXTURES 1, COVARIANCE spherical, HEAD_LR 1e-4, HEAD_EPOCHS 50, HEAD_BATCH 32 (AdamW), one
    round. Before it the head is zero.
Knobs: MIXTURES 1 | 2 | 5; HEAD_LR 1e-5 to 0.1 log.
Departures from the paper: features are those of CLIP's joint space; numbers travel in 32 bits
    (there 16); no differential privacy (its theorem bounds full covariances of features of length
    1), no decentralised chain.
Departures from the authors' code: their baseline for Flower draws with scikit-learn's generator,
    starts at PyTorch's random layer and rounds mixtures to 16 bits; else it computes the same
    (docs/authors.md). As there, a class of at most MIXTURES images is left out: its mixture would
    be these images.
Extra data: none; the mean of few images tells much of them, and with MIXTURES above 1 a component
    may hold a single image, whose feature it is.
Cost: ViT-B/16, C = 100, spherical: 51,500 numbers up, 51,300 down; no training at the clients.
Claim: none.
Command: python federated_main.py --demo --trainer FedPFT
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from fedvlm.method import (
    TRAINER_REGISTRY,
    CfgNode,
    Context,
    Option,
    Predictor,
    ServerContext,
    State,
    Trainer,
    Tree,
    Updates,
    Upload,
    VLModel,
    mixtures,
)

HEAD, BIAS = "head.weight", "head.bias"
SHARE, MEAN, SPREAD, COUNT = (f"pft.{n}" for n in ("share", "mean", "spread", "count"))
KNOWN, IDS = "known", "ids"  # slot of the server: whose mixtures are held
LARGEST_SEED = 2**31 - 1


@TRAINER_REGISTRY.register("FedPFT")
class FedPFT(Trainer):
    """See the module's card."""

    name = "FedPFT"
    groups = ((r"head\.(weight|bias)", "shared"),)
    extras_up = (r"pft\.(share|mean|spread|count)",)
    tells_classes = True
    metrics = ()
    weighting = "uniform"
    aggregators = ()  # mixtures
    server_optim = False
    server_rules = {
        "w/.*": "trained on draws from all mixtures, a draw for each image",
    }
    open_vocabulary = False
    unweighted = "trains no client; the server's draws have each class as often as its images"
    options = {
        "MIXTURES": Option(1, "components of a class's mixture", low=1),
        "COVARIANCE": Option("spherical", "of a component: one variance, one for each channel, or "
                             "a matrix", choices=mixtures.COVARIANCES),
        "HEAD_LR": Option(1e-4, "AdamW's learning rate at the server", low=0.0),
        "HEAD_EPOCHS": Option(50, "passes of the server over its draws", low=1),
        "HEAD_BATCH": Option(32, "draws in a step", low=1),
        "UNIT": Option(False, "use features of length 1 instead of unnormalised ones"),
    }
    exempt = {
        "G5": "clients take no step",
        "G11": "clients take no step",
    }

    def __init__(self, cfg: CfgNode) -> None:
        """Say what mixtures of several components tell; a class of one image is in none."""
        super().__init__(cfg)
        if self.cfg.MIXTURES > 1:
            self.tells_single = ("a component of FedPFT's mixtures may be a single image: it then "
                                 "tells that image's feature and class")

    def trainables(self, model: VLModel, generator: torch.Generator) -> Tree:
        """Return a head of zeros."""
        classes = len(model.classnames)
        return {HEAD: torch.zeros(classes, model.embed_dim), BIAS: torch.zeros(classes)}

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
        """Return ``x -> W z + b``."""
        return lambda x: self.image_features(model, p, x) @ p[HEAD].mT + p[BIAS][..., None, :]

    # ---- client ---------------------------------------------------------------------------
    def client_update(self, ctx: Context, state: State, received: Tree) -> tuple[State, Upload]:
        """Send the mixture of each class; nothing is trained."""
        rows: list[list[Tensor]] = [[] for _ in range(ctx.k)]
        labels: list[list[Tensor]] = [[] for _ in range(ctx.k)]
        with torch.no_grad():
            for b in ctx.batches("mixtures"):
                z, y, real = self.image_features(ctx.model, {}, b.x).cpu(), b.y.cpu(), b.w.cpu() > 0
                at = range(len(z)) if b.rows is None else b.rows.tolist()
                for i, k in enumerate(at):
                    rows[k].append(z[i][real[i]])
                    labels[k].append(y[i][real[i]])
        sent = []
        for k, client in enumerate(ctx.clients):
            form = {n: torch.zeros_like(v[k], device="cpu")
                    for n, v in self.extra_forms(ctx, received).items()}
            if rows[k]:
                z, y = torch.cat(rows[k]), torch.cat(labels[k])
                self.fit_classes(form, z, y, ctx.stream("mixtures", client))
            sent.append(form)
        extras = {n: torch.stack([one[n] for one in sent]).to(ctx.model.device) for n in sent[0]}
        ctx.check_tree(extras, "of the training images' features")
        return state, ctx.upload(received, extras=extras, only=())

    def fit_classes(self, into: Tree, z: Tensor, y: Tensor, generator: torch.Generator) -> None:
        """Write the mixtures of one client's classes into zeros.

        Args:
            into: ``pft.share [C, G]``, ``pft.mean [C, G, d]``, ``pft.spread [C, G, ...]``,
                ``pft.count [C]``.
            z, y: features ``[n, d]`` and classes ``[n]``.
            generator: of the starts of expectation maximisation.
        """
        seeds = torch.randint(LARGEST_SEED, into[COUNT].shape, generator=generator).tolist()
        parts = int(self.cfg.MIXTURES)
        for c in y.unique().tolist():
            own = z[y == c]
            if len(own) <= parts:
                continue
            found = mixtures.fit_mixture(own, parts, self.cfg.COVARIANCE, seeds[c])
            for name, value in zip((SHARE, MEAN, SPREAD), found, strict=True):
                into[name][c, :len(value)] = value.to(into[name])
            into[COUNT][c] = len(own)

    def extra_forms(self, ctx: Context, start: Tree) -> Tree:
        """See ``Trainer.extra_forms``: shares, means, covariances, and images of each class."""
        head = start[HEAD]
        mean = head.unsqueeze(-2).expand(*head.shape[:-1], int(self.cfg.MIXTURES), -1)
        share = mean[..., 0]
        spread = {"spherical": share, "diag": mean,
                  "full": mean[..., None] * mean[..., None, :]}[self.cfg.COVARIANCE]
        return {SHARE: share, MEAN: mean, SPREAD: spread, COUNT: head[..., 0]}

    # ---- server ---------------------------------------------------------------------------
    def init_server(self, ctx: ServerContext, start: Tree) -> State:
        """Return the start and nobody's mixtures."""
        none = torch.zeros(0, dtype=torch.int64)
        return super().init_server(ctx, start) | {KNOWN: {IDS: none}}

    def aggregate(self, ctx: ServerContext, server: State, updates: Updates) -> State:
        """Hold the mixtures that arrived, draw from all that are held, and train the head."""
        for k, client in enumerate(updates.clients):
            ctx.held.put(client, {"mixtures": {n: v[k] for n, v in updates.extras.items()}})
        known = sorted({*server[KNOWN][IDS].tolist(), *updates.clients})
        drawn = [self.draw(ctx.held.get(c)["mixtures"], ctx.stream("draw", c)) for c in known]
        z, y = (torch.cat([one[i] for one in drawn]) for i in (0, 1))
        w = server["w"]
        if len(y):
            w = self.train_head(ctx.start, z.to(w[HEAD]), y.to(w[HEAD].device), ctx.stream("head"))
        return server | {"w": w, KNOWN: {IDS: torch.tensor(known, dtype=torch.int64)}}

    def draw(self, held: Tree, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return as many features ``[n, d]`` and classes ``[n]`` as a client has images."""
        held = {name: v.cpu() for name, v in held.items()}
        drawn, classes = [held[MEAN].new_zeros(0, held[MEAN].shape[-1]).double()], list[int]()
        for c in held[COUNT].nonzero()[:, 0].tolist():
            n = int(held[COUNT][c])
            share, mean, spread = (held[name][c] for name in (SHARE, MEAN, SPREAD))
            drawn.append(mixtures.draw_mixture(n, share, mean, spread, generator))
            classes += [c] * n
        return torch.cat(drawn), torch.tensor(classes, dtype=torch.int64)

    def train_head(self, start: Tree, z: Tensor, y: Tensor, generator: torch.Generator) -> Tree:
        """Return the head after HEAD_EPOCHS passes over features ``[n, d]`` and classes ``[n]``."""
        head = {n: start[n].detach().clone().to(z).requires_grad_() for n in (HEAD, BIAS)}
        optimiser = torch.optim.AdamW(head.values(), lr=self.cfg.HEAD_LR)
        with torch.enable_grad():
            for _ in range(self.cfg.HEAD_EPOCHS):
                order = torch.randperm(len(y), generator=generator).to(y.device)
                for rows in order.split(self.cfg.HEAD_BATCH):
                    optimiser.zero_grad()
                    F.cross_entropy(z[rows] @ head[HEAD].mT + head[BIAS], y[rows]).backward()
                    optimiser.step()
        return {n: v.detach() for n, v in head.items()}
