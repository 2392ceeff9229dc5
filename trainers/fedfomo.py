"""FedFomo: each client mixes other clients' models into its own, by what they do to its own loss.

Paper: Zhang et al., Personalized Federated Learning with First Order Model Optimization, ICLR 2021.
Equations: client k, from a base b_k and with models t_n from the server:
        v_n = max(0, (L_k(b_k) - L_k(t_n)) / |t_n - b_k|), L_k the loss on validation images;
        t_k <- b_k + sum_n (v_n / sum v) (t_n - b_k), b_k itself where all v_n are 0;
    then E epochs of SGD on F_k; t_k goes to the server, which keeps it for the others;
    global model: sum_k p_k t_k.
    VARIANT published: b_k is the client's model before its last training, its trained one is among
    the t_n, and | | sums absolute values; fixed: b_k is its trained model, the t_n are M others',
    and | | is Euclidean, as in the paper.
Shared: all of PEFT; downloads are per client: its own model and those of M others
Personal: none by name; every client has a model of its own.
Frozen: both towers, the logit scale.
Defaults: M 5. Evaluated is t_k as mixed after the round; the global number is of the mean of the
    models that arrived last, which is also where a client starts that never worked.
Knobs: M 1 to 9.
Departures from the paper: PEFT tensors are trained; the others are drawn evenly (there by the
    weights of rounds before, with exploration), since those weights would have to travel. Of LoRA
    the factors are mixed.
Departures from the authors' code: none known under VARIANT published but the draw of the others;
    two equal models weigh 0. PFLlib adds 1e-5 to the distance.
Extra data: the client's validation split, for the weights. A client without one takes its training
    images, and without any it keeps its own model; if no client has validation images the run is
    refused.
Cost: FedAvg's upload, M + 1 models down, M + 1 passes over the validation images in every round and
    evaluation. The server keeps every client's model and sends it to others: it needs single
    models, so that no secure aggregation can stand before it.
Claim: personal is higher than FedAvg's in setting rivals.
Command: python federated_main.py --demo --trainer FedFomo
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedvlm.method import (
    TRAINER_REGISTRY,
    Batch,
    Context,
    DataError,
    Option,
    PeftTrainer,
    ServerContext,
    State,
    Tree,
    Updates,
    Upload,
    fill_newcomers,
    per_client,
    pick,
    weighted_mean,
)

OTHER = "fomo.{}.{}"  # number among those received, name
FIRST = "first"  # a client's slot: its model before its last training
KNOWN, IDS = "known", "clients"  # of whom the server has a model


@TRAINER_REGISTRY.register("FedFomo")
class FedFomo(PeftTrainer):
    """See the module's card."""

    name = "FedFomo"
    classic = True
    same_basis = True
    aggregators = ()  # nothing is averaged but for the report
    server_optim = False
    extras_down = (r"fomo\.\d+\..+",)
    extra_data = "clients weigh each other's models by their validation images"
    options = {
        "M": Option(5, "models of other clients that a client receives", low=1),
        "VARIANT": Option(
            "published", "what a client's mixture starts from: its model before its last training, "
            "as released, or the trained one", choices=("published", "fixed"), neutral="fixed",
        ),
    }

    # ---- client ---------------------------------------------------------------------------
    def init_client(self, ctx: Context, start: Tree) -> State:
        """Return the common start."""
        first = {FIRST: pick(start, ctx.groups.shared)} if self.published else {}
        return {"w": start, **first}

    def client_update(self, ctx: Context, state: State, received: Tree) -> tuple[State, Upload]:
        """Mix, train, send."""
        start = self.mixed(ctx, state, received)
        w = ctx.fit(start, self.loss).params
        first = {FIRST: pick(start, ctx.groups.shared)} if self.published else {}
        return state | first | {"w": w}, ctx.upload(w)

    def personalize(self, ctx: Context, state: State, received: Tree) -> Tree:
        """Return each client's own model, mixed with others of this round."""
        return self.mixed(ctx, state, received)

    def mixed(self, ctx: Context, state: State, received: Tree) -> Tree:
        """Return the base plus the weighted differences of the models received."""
        own = pick(received, ctx.groups.shared)
        w = state["w"] | own
        others = list[Tree]()
        while OTHER.format(len(others), ctx.groups.shared[0]) in received:
            here = len(others)
            others.append({n: received[OTHER.format(here, n)] for n in ctx.groups.shared})
        batch = ctx.whole("val", fallback="train")
        if not others or batch is None:
            return w
        if self.published:
            others, w = [own, *others], w | fill_newcomers(ctx, state[FIRST], own)
        with torch.no_grad():
            value = self.values(ctx, w, others, batch)
            share = value / value.sum(0).clamp(min=torch.finfo(value.dtype).tiny)
            return w | {
                n: w[n] + torch.stack([
                    per_client(s, w[n]) * (one[n] - w[n])
                    for s, one in zip(share, others, strict=True)
                ]).sum(0)
                for n in ctx.groups.shared
            }

    def values(self, ctx: Context, w: Tree, others: list[Tree], batch: Batch) -> Tensor:
        """Return v ``[M, K]``: by how much each of the others lowers the loss, per distance."""
        rows = []
        before = self.judged(ctx, w, batch)
        for one in others:
            gain = before - self.judged(ctx, w | one, batch)
            gaps = [(v - w[n]).reshape(len(v), -1) for n, v in one.items()]
            apart = [g.abs() if self.published else g.square() for g in gaps]
            far = torch.stack([g.sum(1) for g in apart]).sum(0)
            far = far if self.published else far.sqrt()
            rows.append(torch.where(far > 0, gain / far, 0.0).clamp(min=0))
        return torch.stack(rows)

    def judged(self, ctx: Context, w: Tree, batch: Batch) -> Tensor:
        """Return the loss ``[K]`` on ``batch``; 0 for a client without a sample."""
        out = self.loss(ctx.model, w, batch)
        value = out[0] if isinstance(out, tuple) else out
        value = torch.where(batch.w.sum(1) > 0, value, 0.0)
        ctx.check(value, "the validation loss of a mixed model", batch)
        return value

    # ---- server ---------------------------------------------------------------------------
    def init_server(self, ctx: ServerContext, start: Tree) -> State:
        """Return the common start; no client's model is known.

        Raises:
            DataError: no client has validation images to weigh models by.
        """
        if not ctx.roster.val.any():
            raise DataError(
                "FedFomo weighs models by validation loss, and no client has validation images: "
                "set DATASET.VAL_SHOTS above 0, or use another data set"
            )
        known = torch.zeros(0, dtype=torch.int64)
        return super().init_server(ctx, start) | {KNOWN: {IDS: known}}

    def download(self, ctx: ServerContext, server: State, client: int) -> Tree:
        """Return the client's own last model (the mean before its first) and M others.

        All clients of a round receive equally many: M, or one less than there are models.
        """
        known = server[KNOWN][IDS].tolist()
        order = torch.randperm(len(known), generator=ctx.stream("fomo", client)).tolist()
        drawn = [known[i] for i in order if known[i] != client][: max(len(known) - 1, 0)]
        tree = dict(ctx.held.get(client).get("own", server["w"]))
        for i, other in enumerate(drawn[: self.cfg.M]):
            tree |= {OTHER.format(i, n): v for n, v in ctx.held.get(other)["own"].items()}
        return tree

    def aggregate(self, ctx: ServerContext, server: State, updates: Updates) -> State:
        """Keep every model that arrived, and their mean for the report."""
        for k, client in enumerate(updates.clients):
            ctx.held.put(client, {"own": {n: v[k] for n, v in updates.params.items()}})
        blind = [c for c in updates.clients if not ctx.roster.val[c]]
        if blind:
            ctx.log("without_validation", blind)
        known = sorted({*server[KNOWN][IDS].tolist(), *updates.clients})
        ids = torch.tensor(known, dtype=torch.int64)
        return server | {"w": weighted_mean(updates), KNOWN: {IDS: ids}}
