"""FedBABU: the body is trained under a head that never moves; the head comes last, on each client.

Paper: Oh et al., FedBABU: Toward Enhanced Representation for Federated Image Classification,
    ICLR 2022.
Equations: rounds: g_k <- E epochs of SGD on F_k(., l0), l0 the initial head, the same on all
    clients and in all rounds; server g = mean_k g_k. Evaluation: FT_EPOCHS epochs of SGD on F_k
    from (g, l0), of the head, the body or both (FT_PART), without upload.
Shared: the body of PEFT, image.*
Personal: none during the rounds; the fine-tuned copy of each client is its own
Frozen: the head, text.* or head.*, until the final phase trains a copy; both towers, the logit
    scale.
Defaults: FT_PART full (the authors' notebook), FT_EPOCHS 5, FT_LR 0 = OPTIM.LR, uniform mean
    (the authors divide by the number of clients). --finetune-epochs N sets another length, 0 leaves
    it out.
Knobs: FT_PART head | body | full; FT_EPOCHS 1 to 10.
Departures from the paper: the fixed head is CLIP's own, not a random one: with PEFT.HEAD linear the
    template's text features, with PEFT.TEXT prompt the features of the words "a photo of a" (or of
    PEFT.CTX_INIT), whatever PEFT.N_CTX. It keeps what the paper asks for, identical and untouched
    on all clients.
Departures from the authors' code: none known in a round: the head is outside the optimiser, there
    its learning rate is 0; fine-tuned is the last round's model (there the best on the test set).
    PFLlib fine-tunes each client's last local body, since the last aggregate is never sent; here
    every client starts from the aggregate. FT_LR is constant (1e-3 in the authors' notebook).
Extra data: none.
Cost: ViT-B/16 with defaults: 32,768 numbers trained and sent each way; the text pass of each step
    has the same result; the final phase adds 5 epochs per client, once.
Claim: personal is higher than FedAvg (ft)'s in setting dirichlet.
Command: python federated_main.py --demo --trainer FedBABU
"""

from __future__ import annotations

import torch

from fedvlm.method import (
    SHARED,
    TRAINER_REGISTRY,
    Context,
    Finetune,
    Option,
    PeftTrainer,
    State,
    Tree,
    Upload,
    VLModel,
    contexts,
    peft,
    weighting,
)

HEAD_WORDS = "a photo of a"
FT_PARTS = {"head": (peft.HEAD,), "body": (peft.BODY,), "full": (peft.BODY, peft.HEAD)}


@TRAINER_REGISTRY.register("FedBABU")
class FedBABU(PeftTrainer):
    """FedAvg of the body under a fixed head; each client's copy is fine-tuned (see the card)."""

    name = "FedBABU"
    label_sets = True
    image_fits = (0,)
    classic = True
    roles = {peft.BODY: "shared", peft.HEAD: "frozen"}
    needs = (peft.BODY, peft.HEAD)
    options = {
        "FT_PART": Option("full", "what the final phase trains", choices=tuple(FT_PARTS)),
        "FT_EPOCHS": Option(5, "epochs of the final phase", low=0),
        "FT_LR": Option(0.0, "constant learning rate of the final phase; 0: OPTIM.LR", low=0.0),
        "WEIGHTING": weighting("uniform"),
    }

    def trainables(self, model: VLModel, generator: torch.Generator) -> Tree:
        """Return body and head; a context without ``PEFT.CTX_INIT`` is that of ``HEAD_WORDS``."""
        tree = super().trainables(model, generator)
        if "text.ctx" in tree and not self.spec.ctx_init:
            classes = tree["text.ctx"].shape[:-2]
            tree["text.ctx"] = contexts.word_context(model, HEAD_WORDS).repeat(*classes, 1, 1)
        return tree

    def client_update(self, ctx: Context, state: State, received: Tree) -> tuple[State, Upload]:
        """Train the body only."""
        w = ctx.fit(state["w"] | received, self.loss, train=(SHARED,)).params
        return state | {"w": w}, ctx.upload(w)

    def own_finetune(self) -> Finetune:
        """Return the final phase of the method."""
        return Finetune(
            int(self.cfg.FT_EPOCHS), FT_PARTS[self.cfg.FT_PART], float(self.cfg.FT_LR)
        )
