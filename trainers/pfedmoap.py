"""pFedMoAP: other clients' contexts are experts; a local attention mixes their text features.

Paper: Luo et al., Mixture of Experts Made Personalized: Federated Prompt Learning for
    Vision-Language Models, ICLR 2025.
Equations: z_p, T_p: every (d / D_GATE)-th channel of z = x/|x| and of T; per class E = {T_p(v_k)}
    and {T_p(v_j)}, j the clients whose contexts came; T_M = MHA(q = z_p, k = v = E) with HEADS
    heads and scores times SCALING; logits = scale (z_p . T_M + LAMBDA z . T(v_k)); CE; server v =
    sum_k p_k v_k, and everybody's last context for the others.
Shared: text.ctx (as it is also sent on to other clients)
Personal: gate.*
Frozen: both towers, the logit scale; the experts within a round.
Defaults: EXPERTS 9 beside the own (10 in all), D_GATE 128, HEADS 8, SCALING 10, LAMBDA 0.5, SGD lr
    0.002 and 0.01 for the gate.
Knobs: LAMBDA 0.1 to 0.9; SCALING 1 to 30 log.
Departures from the paper: experts are drawn at random, as in the public code; SELECT nearest takes
    those at the smallest distance from the client's own last context, as the paper writes. DRAW
    run: by one order for the whole run, and none in a client's first round, as released; DRAW
    round: anew in each round for each client, from round 2 on. The scores' factor is the public
    code's. A gate that never trained with experts is left out: logits = scale z . T(v_k).
    VARIANT fixed takes cosines to T_M and divides by sqrt(D_GATE / HEADS); published a plain inner
    product, which grows with W_v and W_o, as released.
Departures from the authors' code: experts are those of the round before; there a client also gets
    what others sent in this round, so that their order matters, and one in its first round keeps
    the experts of the client before it. Evaluated is the mean's context with the own gate; there
    a client's last own one.
Extra data: none.
Cost: ViT-B/16: 8,192 numbers up, (1 + EXPERTS) x 8,192 down; one packed text pass per step and one
    per expert and round. The server keeps every client's context and sends it to others: it needs
    single models, so that no secure aggregation can stand before it.
Claim: personal is higher than PromptFL's in setting disjoint.
Command: python federated_main.py --demo --trainer pFedMoAP
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
    Finetune,
    Option,
    Predictor,
    ServerContext,
    State,
    Trainer,
    Tree,
    Updates,
    Upload,
    VLModel,
    attention,
    contexts,
    cross_entropy,
    layers,
    per_client,
    rng,
    weighted_mean,
)

CTX, EXPERT = "text.ctx", "expert.{}.ctx"
SEEN, IDS = "seen", "clients"  # of whom the server has a context
LEARNT, GATED = "gate", "mixture.trained"  # 1 where the client's gate has trained with experts


@TRAINER_REGISTRY.register("pFedMoAP")
class PFedMoAP(Trainer):
    """See the module's card."""

    name = "pFedMoAP"
    groups = ((r"text\.ctx", "shared"), (r"gate\..*", "personal"))
    extras_down = (r"expert\.\d+\.ctx",)
    aggregators = ()  # experts are single contexts
    server_optim = False
    exempt = {"G4": "experts are received, trained or not"}
    options = {
        "N_CTX": Option(16, "context tokens", low=1),
        "EXPERTS": Option(9, "contexts of other clients that a client receives", low=1),
        "SELECT": Option("random", "how they are chosen: at random, or nearest to the client's "
                                   "last one",
                         choices=("random", "nearest")),
        "DRAW": Option("run", "order in which they are drawn: one for the run, or a new one for "
                              "each client and round",
                       choices=("run", "round"), neutral="round"),
        "D_GATE": Option(128, "maximum number of channels of the gate", low=1),
        "HEADS": Option(8, "maximum number of heads of the gate", low=1),
        "SCALING": Option(10.0, "scale of the gate's scores", low=0.0, low_open=True),
        "LAMBDA": Option(0.5, "weight of the logits of the client's own context", low=0.0),
        "VARIANT": Option("published", "published or fixed: see the card",
                          choices=("published", "fixed")),
    }

    def trainables(self, model: VLModel, generator: torch.Generator) -> Tree:
        """Return the context and the gate's four maps with biases."""
        shape = (self.cfg.N_CTX, model.text_width)
        width = min(int(self.cfg.D_GATE), model.embed_dim)
        start = contexts.random_context(shape, generator)
        return {CTX: start, **attention.attention_tree("gate", width, generator)}

    # ---- client ---------------------------------------------------------------------------
    def init_client(self, ctx: Context, start: Tree) -> State:
        """Return the start; the gate has not trained."""
        return {"w": start, LEARNT: {GATED: torch.zeros(())}}

    def client_update(self, ctx: Context, state: State, received: Tree) -> tuple[State, Upload]:
        """Train context and gate; the experts' text features are computed once."""
        with torch.no_grad():
            experts = self.experts(ctx.model, received)
        on = torch.ones_like(ctx.fresh) if self.cfg.DRAW == "round" else ~ctx.fresh
        loss = partial(self.mixed_loss, experts=experts, on=on)
        start = {n: v for n, v in (state["w"] | received).items() if n in ctx.groups.of}
        w = ctx.fit(start, loss).params
        w |= {n: torch.where(per_client(on, v), v, start[n]) for n, v in w.items() if n != CTX}
        return self.learnt(state, received, on) | {"w": w}, ctx.upload(w)

    def learnt(self, state: State, received: Tree, on: Tensor) -> State:
        """Return the state after training with what came: where ``on [K]``, the gate has learnt."""
        if EXPERT.format(0) not in received:
            return state
        before = state[LEARNT][GATED]
        return state | {LEARNT: {GATED: torch.maximum(before, on.to(before))}}

    def personalize(self, ctx: Context, state: State, received: Tree) -> Tree:
        """Return the client's model with the experts, and whether its gate counts."""
        return super().personalize(ctx, state, received) | state[LEARNT]

    def finetune(self, ctx: Context, state: State, received: Tree, how: Finetune) -> Tree:
        """Return the trained models: with experts, every gate trains and counts."""
        on = torch.ones_like(state[LEARNT][GATED])
        return super().finetune(ctx, self.learnt(state, received, on), received, how)

    def mixed_loss(
        self, model: VLModel, p: Tree, b: Batch, *, experts: Tensor | None, on: Tensor
    ) -> Tensor:
        """Return the cross-entropy ``[K]``; of the chunk: ``experts [K, E, C, d]``, ``on [K]``."""
        if experts is None:
            return cross_entropy(self.classify(model, p, None)(b.x), b)
        return cross_entropy(self.classify(model, p | {GATED: b.cut(on)}, b.cut(experts))(b.x), b)

    def experts(self, model: VLModel, p: Tree) -> Tensor | None:
        """Return the text features of the contexts that came, ``[K, E, C, d]``; None without."""
        came = [p[n] for n in map(EXPERT.format, range(self.cfg.EXPERTS)) if n in p]
        return model.text(torch.stack(came, 1)) if came else None

    def predictor(self, model: VLModel, p: Tree) -> Predictor:
        """Return ``x -> logits`` with the experts among ``p``."""
        return self.classify(model, p, self.experts(model, p))

    def text_features(self, model: VLModel, p: Tree) -> Tensor:
        """Return those of the client's own context, ``[K, C, d]``."""
        return model.text(p[CTX])

    def classify(self, model: VLModel, p: Tree, experts: Tensor | None) -> Predictor:
        """Return ``x -> logits``; without experts or a trained gate the own context's alone."""
        own = self.text_features(model, p)
        if experts is None:
            return lambda x: model.logits(self.image_features(model, p, x), own)
        width = p["gate.q.weight"].shape[-1]
        heads = layers.fitting_heads(width, int(self.cfg.HEADS))
        fixed, on = self.cfg.VARIANT == "fixed", p.get(GATED)
        factor = self.cfg.SCALING / ((width / heads) ** 0.5 if fixed else 1.0)
        texts = pool(torch.cat([own.unsqueeze(1), experts], 1), width).transpose(1, 2)
        key, value = (layers.split(layers.linear(p, f"gate.{n}", texts), heads) for n in "kv")

        def logits(x: Mapping[str, Tensor]) -> Tensor:
            z = F.normalize(self.image_features(model, p, x), dim=-1)
            small = pool(z, width)
            query = layers.split(layers.linear(p, "gate.q", small), heads)  # [K, B, H, e]
            scores = torch.einsum("kbhe,kcnhe->kbchn", query, key) * factor
            mixed = torch.einsum("kbchn,kcnhe->kbche", scores.softmax(-1), value).flatten(-2)
            out = layers.linear(p, "gate.o", mixed)  # [K, B, C, width]
            if fixed:
                small, out = F.normalize(small, dim=-1), F.normalize(out, dim=-1)
            near = (out @ small.unsqueeze(-1)).squeeze(-1)
            both = model.scale * (near + self.cfg.LAMBDA * z @ own.mT)
            if on is None:
                return both
            return torch.where(per_client(on > 0, both), both, model.scale * z @ own.mT)

        return logits

    # ---- server ---------------------------------------------------------------------------
    def init_server(self, ctx: ServerContext, start: Tree) -> State:
        """Return the common start; no client's context is there yet."""
        none = torch.zeros(0, dtype=torch.int64)
        return super().init_server(ctx, start) | {SEEN: {IDS: none}}

    def download(self, ctx: ServerContext, server: State, client: int) -> Tree:
        """Return the mean, and the last contexts of EXPERTS others.

        All clients of a round receive equally many: EXPERTS, or one less than there are contexts.
        """
        seen = server[SEEN][IDS].tolist()
        others = [c for c in seen if c != client]
        count = min(self.cfg.EXPERTS, max(len(seen) - 1, 0))
        if not count:
            return server["w"]
        if self.cfg.DRAW == "run":
            rank = expert_order(ctx.seed, len(ctx.roster.train))
            others.sort(key=rank.index)
        else:
            draw = torch.randperm(len(others), generator=ctx.stream("experts", client)).tolist()
            others = [others[i] for i in draw]
        own = ctx.held.get(client).get("own")
        if self.cfg.SELECT == "nearest" and own is not None:
            others = nearest(own[CTX], {c: ctx.held.get(c)["own"][CTX] for c in others})
        return server["w"] | {
            EXPERT.format(i): ctx.held.get(c)["own"][CTX] for i, c in enumerate(others[:count])
        }

    def aggregate(self, ctx: ServerContext, server: State, updates: Updates) -> State:
        """Return the mean, and keep every context that arrived."""
        for k, client in enumerate(updates.clients):
            ctx.held.put(client, {"own": {CTX: updates.params[CTX][k]}})
        ids = sorted({*server[SEEN][IDS].tolist(), *updates.clients})
        return server | {
            "w": weighted_mean(updates), SEEN: {IDS: torch.tensor(ids, dtype=torch.int64)}
        }


def expert_order(seed: int, clients: int) -> list[int]:
    """Return all clients in the order in which a run of this seed takes its experts."""
    return torch.randperm(clients, generator=rng.stream(seed, "expert-order")).tolist()


def pool(x: Tensor, width: int) -> Tensor:
    """Return ``width`` channels of ``x [..., d]``, every (d // width)-th."""
    return x[..., :: x.shape[-1] // width][..., :width]


def nearest(own: Tensor, others: Mapping[int, Tensor]) -> list[int]:
    """Return the keys of ``others`` by rising distance from ``own``."""
    far = torch.stack([(v - own).norm() for v in others.values()])
    ids = list(others)
    return [ids[i] for i in far.argsort(stable=True).tolist()]
