"""FedALA: each client learns, number by number, how much of the received model it takes.

Paper: Zhang et al., FedALA: Adaptive Local Aggregation for Personalized Federated Learning,
    AAAI 2023.
Equations: start of a client's round: w^ = w_l + (w_g - w_l) * W on the last LAYERS tensors, w_g
    below; W <- clip_[0,1](W - eta dF/dw^ * (w_g - w_l)) on a share of the data, until the losses
    are steady the first time, one pass later. Then F is trained from w^, and sent; server w_g =
    sum_k p_k w_k.
Shared: all of PEFT
Personal: none by name (W and the last local model stay with the client)
Frozen: both towers, the logit scale.
Defaults: eta 1, 80 % of the data, all tensors mixed; steady = standard deviation of the last ten
    losses below 0.1, at most 50 passes.
Knobs: MIX_LR 0.1 to 3 log; SHARE 0.2 to 1.
Departures from the paper: LAYERS counts trained tensors, image side first (0: all of them; a
    prompt or an adapter is few). The share of the data is whole batches, rounded up. The passes
    of the first time are bounded.
Departures from the authors' code: what is evaluated is the mixture with the newest received
    model, as there; W is learned for it anew and not kept.
Extra data: none.
Cost: FedAvg's bytes; a pass over the data per round for W, more the first time; again at each
    evaluation. Each client decides for itself when its losses are steady: the host reads one number
    per client and pass of the first time, and whose model moved once a round.
Claim: personal is higher than Ditto's in setting rivals.
Command: python federated_main.py --demo --trainer FedALA
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import torch
from torch import Tensor

from fedvlm.method import (
    TRAINER_REGISTRY,
    Batch,
    Context,
    Option,
    PeftTrainer,
    State,
    Tree,
    Upload,
    map_leaves,
    peft,
    pick,
    trees,
)

WINDOW = 10  # losses whose spread tells whether they are steady


@TRAINER_REGISTRY.register("FedALA")
class FedALA(PeftTrainer):
    """See the module's card. Slot ``mix`` holds W, slot ``ala`` whether it was learned before."""

    name = "FedALA"
    classic = True
    reads_old = True
    same_basis = True
    lora_refused = {"alternate": "mixes everything it receives into its own model, but half of "
                                 "it is not trained"}
    options = {
        "MIX_LR": Option(1.0, "step of the mixing weights (eta)", low=0.0),
        "SHARE": Option(0.8, "share of the data used to learn them", low=0.0, high=1.0,
                        low_open=True),
        "LAYERS": Option(0, "number of last trained tensors that are mixed; 0: all", low=0),
        "STEADY": Option(0.1, "first time: stop when the standard deviation of the last ten "
                              "losses is below this", low=0.0),
        "MAX_EPOCHS": Option(50, "first time: maximum number of passes", low=1),
    }

    def init_client(self, ctx: Context, start: Tree) -> State:
        """Return the start: all of the received model is taken."""
        ones = map_leaves(torch.ones_like, pick(start, self.mixed(ctx)))
        learned = torch.zeros((), device=ctx.model.device)
        return {"w": start, "mix": ones, "ala": {"learned": learned}}

    def mixed(self, ctx: Context) -> list[str]:
        """Return the names that are mixed: the last ones, image side first."""
        names = sorted(ctx.groups.shared, key=lambda n: self.role(n) != peft.BODY)
        return names[-self.cfg.LAYERS:] if self.cfg.LAYERS else names

    def client_update(self, ctx: Context, state: State, received: Tree) -> tuple[State, Upload]:
        """Mix, train from there, send."""
        start, slots = self.adapt(ctx, state, received, "ala")
        w = ctx.fit(start, self.loss).params
        return state | slots | {"w": w}, ctx.upload(w)

    def personalize(self, ctx: Context, state: State, received: Tree) -> Tree:
        """Return the mixture with the newest received model."""
        return self.adapt(ctx, state, received, "ala-personal")[0]

    def adapt(self, ctx: Context, state: State, got: Tree, tag: str) -> tuple[Tree, State]:
        """Return the clients' mixtures and their new slots; nothing where all is as received."""
        received = state["w"] | got
        old, new = (pick(t, self.mixed(ctx)) for t in (state["w"], received))
        gap, known = map_leaves(torch.sub, new, old), state["ala"]["learned"]
        moved = torch.stack([(v != 0).reshape(ctx.k, -1).any(1) for v in gap.values()]).any(0)
        choose, learned = torch.stack([moved, known > 0]).tolist()
        if not any(choose):  # nothing to choose from
            return received, {}
        mix, losses = state["mix"], [list[float]() for _ in choose]
        live = [k for k, chooses in enumerate(choose) if chooses]
        for turn in range(self.cfg.MAX_EPOCHS):
            at = trees.to_device(torch.tensor(live, dtype=torch.int64), known.device)
            mixed = [{n: v[at] for n, v in t.items()} for t in (received, old, gap, mix)]
            mine, value = self.one_pass(ctx.only(live), mixed, f"{tag}-{turn}")
            mix = {n: v.index_copy(0, at, mine[n]) for n, v in mix.items()}
            if not all(learned[k] for k in live):  # one pass is all that others take
                for k, loss in zip(live, value.tolist(), strict=True):
                    losses[k].append(loss)
            live = [k for k in live if not (learned[k] or self.steady(losses[k]))]
            if not live:
                break
        ala = {"learned": torch.where(moved, torch.ones_like(known), known)}
        return received | blend(old, gap, mix), {"mix": mix, "ala": ala}

    def steady(self, losses: list[float]) -> bool:
        """Say whether the last losses of a client hardly differ."""
        last = losses[-WINDOW:]
        if len(losses) <= WINDOW or not all(map(math.isfinite, last)):
            return False
        return statistics.pstdev(last) < float(self.cfg.STEADY)

    def one_pass(
        self, ctx: Context, trees: Sequence[Tree], tag: str
    ) -> tuple[Tree, Tensor]:
        """Learn the mixing weights on one share of the data; return them and the last losses.

        Args:
            trees: the model received, the old tensors, the gap, and the weights.
        """
        *fixed, mix = trees
        batches = list(ctx.batches(tag))
        counts = [sum(len(b.counts) > k for b in batches) for k in range(ctx.k)]
        shares = [math.ceil(self.cfg.SHARE * n) for n in counts]
        value = torch.zeros(ctx.k, dtype=ctx.model.dtype, device=ctx.model.device)
        for i, batch in enumerate(batches):
            k = sum(share > i for share in shares)  # the first of them: clients lie by size
            if not k:
                break
            received, old, gap = ({n: v[:k] for n, v in t.items()} for t in fixed)
            part = {n: v[:k] for n, v in mix.items()}
            new, now = self.mix_step(ctx, received, (old, gap), part, batch.part(k))
            mix = {n: torch.cat([new[n], v[k:]]) for n, v in mix.items()}
            value = torch.cat([now, value[k:]])
            ctx.counters["mix_steps"] += k
        return mix, value

    def mix_step(
        self, ctx: Context, received: Tree, pair: tuple[Tree, Tree], mix: Tree, batch: Batch
    ) -> tuple[Tree, Tensor]:
        """Take one step of W <- clip(W - eta dF/dw^ * (w_g - w_l)); return W and the losses."""
        old, gap = pair
        at = received | blend(old, gap, mix)
        value, _, grads = ctx.grad(
            at, self.loss, batch, list(mix), what="the local aggregation", log=None
        )
        eta = self.cfg.MIX_LR
        new = {n: (mix[n] - eta * g * gap[n]).clamp(0, 1) for n, g in grads.items()}
        return mix | new, value


def blend(old: Tree, gap: Tree, mix: Tree) -> Tree:
    """Return w_l + (w_g - w_l) * W."""
    return map_leaves(lambda w, g, m: w + g * m, old, gap, mix)
