"""FedDecomp: every trained part is a shared one plus a small private one, trained in turn.

Paper: Wu et al., Decoupling General and Personalized Knowledge in Federated Learning via Additive
    and Low-rank Decomposition, ACM Multimedia 2024.
Equations: W_k = S + B_k A_k; per round first B_k, A_k for PRIVATE_EPOCHS with S fixed, then S for
    the epochs that are left with B_k, A_k fixed; server S <- mean_k S_k over all clients.
Shared: all of PEFT
Personal: *.private.*
Frozen: both towers, the logit scale.
Defaults: RANK 4, PRIVATE_EPOCHS 1; a prompt and a feature adapter. The shared part's epochs go on
    with the schedule's clock and the views where the private ones ended.
Knobs: RANK 2 to 16 log.
Departures from the paper: the towers are frozen, so S is what PEFT trains. LoRA (PEFT.VISUAL lora,
    PEFT.TEXT lora) gets a private LoRA of rank RANK in the same layers, the paper's own W = S + BA
    with the frozen layer in S, both scaled by PEFT.ALPHA / PEFT.RANK; a prompt or a linear head
    gets a low-rank term of its own. With PEFT.VISUAL feature and adapter, which are not linear, a
    second, smaller adapter (width RANK) stands behind the image feature. All private parts start
    without effect.
    VARIANT published: as released, the mean is over all clients, of which those that did not work
    still have the S that they received; fixed: over the clients of the round.
Departures from the authors' code: none known in a step and at the server; there S is all of a
    network's weights.
Extra data: none.
Cost: FedAvg's bytes and compute, plus the private parts.
Claim: personal is higher than FedRep's in setting rivals.
Command: python federated_main.py --demo --trainer FedDecomp
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fedvlm.method import (
    PERSONAL,
    SHARED,
    TRAINER_REGISTRY,
    Context,
    Option,
    PeftTrainer,
    Rule,
    ServerContext,
    State,
    Tree,
    Updates,
    Upload,
    VLModel,
    adapters,
    peft,
    rules,
)

DOWN, UP = "image.private.down", "image.private.up"
LEFT, RIGHT = ".private.left", ".private.right"
WITH_TERM = ("text.ctx", "head.weight")  # matrices that get a low-rank term; never both trained


def released_mean(s: Any) -> Tensor:
    """Return S after a round of ``fedvlm check``."""
    whole = s.trainer.cfg.VARIANT == "fixed"
    moved: Tensor = (s.mean() - s.old) * (1 if whole else len(s.weight) / s.members)
    return s.old + moved


@TRAINER_REGISTRY.register("FedDecomp")
class FedDecomp(PeftTrainer):
    """See the module's card."""

    name = "FedDecomp"
    weighting = "uniform"
    aggregators = rules.EVERY
    server_optim = True
    linear = True
    server_rules = {"w/.*": released_mean}
    options = {
        "RANK": Option(4, "rank, or hidden width, of the private parts", low=1),
        "PRIVATE_EPOCHS": Option(1, "local epochs that train the private parts", low=1),
        "VARIANT": Option("published", "mean over all clients (published) or those of the round "
                                       "(fixed)",
                          choices=("published", "fixed"), neutral="fixed"),
    }
    phases = True
    lora_refused = {"PRIVATE_RANK": "already has a private LoRA of TRAINER.FEDDECOMP.RANK"}
    exempt = {"G5": "shared and private parts are trained in turn, never together"}

    def trainables(self, model: VLModel, generator: torch.Generator) -> Tree:
        """Return what PEFT builds, and private parts."""
        tree = super().trainables(model, generator)
        rank, d = self.cfg.RANK, model.embed_dim
        private: Tree = {}
        for tower, kind in (("image", self.spec.visual), ("text", self.spec.text)):
            if kind == "lora":
                key = "TRAINER.FEDDECOMP.RANK"
                own = peft.tower_lora(self.spec, model, tower, generator, rank, key)
                private |= {n.replace(".lora.", adapters.PRIVATE_LORA): v for n, v in own.items()}
        if self.spec.visual != "lora" and any(peft.role(name) == peft.BODY for name in tree):
            private[DOWN] = uniform((rank, d), generator)
            private[UP] = torch.zeros(d, rank)
        for name in (n for n in WITH_TERM if n in tree):
            *sets, rows, columns = tree[name].shape  # a context by class: one term each
            private[name + LEFT] = torch.zeros(*sets, rows, rank)
            private[name + RIGHT] = uniform((*sets, rank, columns), generator)
        return tree | private

    def rules(self, names: Sequence[str]) -> Sequence[Rule]:
        """Return personal for the private parts, shared for the others."""
        return [
            (rule, PERSONAL if ".private." in name else group)
            for name, (rule, group) in zip(names, super().rules(names), strict=True)
        ]

    def text_features(self, model: VLModel, p: Tree) -> Tensor:
        """Return the classifier of shared plus private tensors, ``[K, C, d]``."""
        whole = {
            n: v + p[n + LEFT] @ p[n + RIGHT] if n + LEFT in p else v for n, v in p.items()
        }
        return super().text_features(model, whole)

    def image_features(self, model: VLModel, p: Tree, x: Mapping[str, Tensor]) -> Tensor:
        """Return features of the shared and the private part, ``[K, B, d]``."""
        z = super().image_features(model, p, x)
        if DOWN not in p:
            return z
        return z + F.gelu(z @ p[DOWN].mT) @ p[UP].mT

    def init_server(self, ctx: ServerContext, start: Tree) -> State:
        """Return the shared start.

        Raises:
            ConfigError: no local epoch is left for the shared parts.
        """
        own = self.cfg.PRIVATE_EPOCHS
        self.require(
            own < ctx.epochs,
            f"FedDecomp trains private and shared parts in turn: TRAINER.FEDDECOMP.PRIVATE_EPOCHS "
            f"is {own} of {ctx.epochs} local epochs; set --local-epochs {own + 1} or more",
        )
        return super().init_server(ctx, start)

    def client_update(self, ctx: Context, state: State, received: Tree) -> tuple[State, Upload]:
        """Train the private parts, then the shared ones; send those."""
        own = self.cfg.PRIVATE_EPOCHS
        start = state["w"] | received
        w = ctx.fit(start, self.loss, train=(PERSONAL,), epochs=own, tag="private").params
        w = ctx.fit(w, self.loss, train=(SHARED,), epochs=ctx.epochs - own, after=own).params
        return state | {"w": w}, ctx.upload(w)

    def aggregate(self, ctx: ServerContext, server: State, updates: Updates) -> State:
        """Return the mean; published: with the old S of clients that did not work."""
        tree = self.combine(ctx, updates)
        share = len(updates.clients) / (len(ctx.roster.train) - len(ctx.roster.unseen))
        if self.published and share < 1:
            tree = {n: server["w"][n].lerp(v, share) for n, v in tree.items()}
        return ctx.server_step(server, tree)


def uniform(shape: Sequence[int], generator: torch.Generator) -> Tensor:
    """Return ``[..., columns]`` uniform in +-1/sqrt(columns)."""
    return (torch.rand(tuple(shape), generator=generator) * 2 - 1) * shape[-1] ** -0.5
