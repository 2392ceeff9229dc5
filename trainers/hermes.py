"""Hermes: every client prunes its own model; what all of them kept is averaged.

Paper: Li et al., Hermes: An Efficient Federated Learning Framework for Heterogeneous Mobile
    Clients, MobiCom 2021.
Equations: client k has a mask m_k over units; it trains w_k . m_k with masked gradients. A unit is
    a LoRA component j (row j of A, column j of B) or a hidden channel j of an adapter (row and bias
    j of down, column j of up), its score |A_j| |B_j|: the norm of what it adds. After its local
    epochs, if it is accurate on its own validation images and has pruned less than TARGET, it
    prunes RATE of its original units more, lowest scores first, the same share in every layer.
    Server, entry by entry: kept by all: sum_k p_k w_k for everybody; OVERLAP intersection: else
    each client keeps its own (the global model its last); coverage: the mean over those who kept
    it. Unprunable tensors are averaged.
Shared: all of PEFT; downloads are per client
Personal: the mask, the pruned share, the best validation accuracy.
Frozen: both towers, the logit scale; a pruned unit stays zero.
Defaults: RATE 0.2, TARGET 0.5, so 20, 40, 50 %; accurate is at least 0.95 of the client's best so
    far (ACC_MODE abs: at least ACC_THR); no pruning in the first round (B and up start at zero).
Knobs: RATE 0.05 to 0.3; TARGET 0.2 to 0.8.
Departures from the paper: its channels of convolutions are PEFT's units; contexts, heads and layer
    norms are exempt (a zero token still takes a place, a zero row deletes a class); scores are
    products of L2 norms; units are scored after the round's training, not before.
Departures from the authors' code: none was published. Known defects of a port are tested against:
    masks that nobody reads, so that all is averaged; pruned entries that grow again; a decision on
    the test set.
Extra data: the client's validation split, for the decision. A client without one never prunes.
    HOLD_OUT h needs none: a stratified share h of its training images decides instead, and is
    not trained on in the rounds.
Cost: FedAvg's, and one pass over the validation images. Uploads hold the kept units only, each with
    4 bytes for its index per tensor, and one byte per unit for the mask; downloads are whole.
Claim: personal is higher than FedAvg's in setting dirichlet.
Command: python federated_main.py --demo --trainer Hermes
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fedvlm.method import (
    TAG,
    TRAINER_REGISTRY,
    Batch,
    ConfigError,
    Context,
    DataError,
    Finetune,
    Option,
    PeftTrainer,
    Rows,
    ServerContext,
    State,
    Tree,
    Updates,
    Upload,
    VLModel,
    channels,
    per_client,
    require_finite,
    trees,
    weighted_mean,
    weighted_sum,
)

# Ending of a name -> where its units lie: a mask [..., U] shaped to multiply the tensor.
ROWS, COLUMNS, ENTRIES = channels.UnitAxis(2, 0), channels.UnitAxis(2, 1), channels.UnitAxis(1, 0)
UNITS: dict[str, channels.UnitAxis] = {
    ".A": ROWS, ".B": COLUMNS, ".down": ROWS, ".up": COLUMNS,
    ".down.weight": ROWS, ".down.bias": ENTRIES, ".up.weight": COLUMNS,
}
MASK = "mask."
Units = Callable[[str], channels.Held]  # name -> sites of which it holds units, and where
FEW = 0.1


@TRAINER_REGISTRY.register("Hermes")
class Hermes(PeftTrainer):
    """See the module's card."""

    name = "Hermes"
    classic = True
    same_basis = True
    lora_refused = {
        "share_a": "prunes components, of which both factors are uploaded",
        "PRIVATE_RANK": "would prune tensors that are never averaged",
    }
    aggregators = ()  # entry by entry, over those who kept it
    server_optim = False
    server_rules = {"w/.*": lambda s: over_keepers(s)}
    extras_up = (r"mask\..+",)
    options = {
        "RATE": Option(0.2, "share of the original units pruned at a time", low=0, high=1),
        "TARGET": Option(0.5, "share at which pruning stops", low=0, high=1, high_open=True),
        "ACC_MODE": Option(
            "rel", "accuracy that triggers pruning: relative to the client's best so far, or "
                   "absolute",
            choices=("rel", "abs"),
        ),
        "ACC_THR": Option(0.95, "the accuracy that triggers pruning, from 0 to 1", low=0, high=1),
        "WARMUP": Option(1, "first rounds without pruning", low=0),
        "OVERLAP": Option(
            "intersection", "what is averaged: units that all clients kept, or each unit over "
                            "the clients that kept it",
            choices=("intersection", "coverage"),
        ),
        "HOLD_OUT": Option(
            0.0, "share of a client's training images used to decide on pruning instead "
            "of validation images, and not for training; 0: none", low=0, high=1, high_open=True,
            neutral=0.0,
        ),
    }
    exempt = {
        "G4": "pruning needs no learning rate",
        "G5": "pruned units leave the model",
    }

    @property
    def extra_data(self) -> str:
        """What decides on pruning, where it is no training image."""
        return "" if self.cfg.HOLD_OUT else "validation images decide on pruning"

    def trainables(self, model: VLModel, generator: torch.Generator) -> Tree:
        """Return what ``PEFT`` asks for.

        Raises:
            ConfigError: nothing in it can be pruned.
        """
        tree = super().trainables(model, generator)
        if not sites(tree, self.units(model)):
            raise ConfigError(
                f"{self.name} prunes channels that one layer of the network writes and one reads, "
                "with norms, activations and pooling between them, and found none: use another "
                "method" if self.network else
                "Hermes prunes adapters and LoRA, but neither is trained: set PEFT.VISUAL "
                "feature, lora "
                "or adapter, or PEFT.TEXT lora"
            )
        return tree

    def units(self, model: VLModel) -> Units:
        """Return what can be pruned: adapters and LoRA by name, a network's hidden channels."""
        found = self.hidden_channels(model)
        return (lambda name: found.get(name, ())) if self.network else unit

    def init_client(self, ctx: Context, start: Tree) -> State:
        """Return the common start with nothing pruned."""
        zero = trees.in_double(torch.zeros((), device=ctx.model.device))
        units = self.units(ctx.model)
        whole = {site: torch.ones_like(score) for site, score in scores(start, units).items()}
        return {"w": start, "mask": whole, "prune": {"pruned": zero, "best": zero.clone()}}

    # ---- client ---------------------------------------------------------------------------
    def client_update(self, ctx: Context, state: State, received: Tree) -> tuple[State, Upload]:
        """Train under the mask, then decide on more pruning, then send what is left."""
        share = self.cfg.HOLD_OUT
        part = ctx.subset("fit", share) if share else ctx
        state = state | {"w": self.masked_fit(part, state, received)}
        state = state | self.decide(part, state)
        units, mask = self.units(ctx.model), state["mask"]
        w = apply_mask(state["w"], mask, units)
        sent = {MASK + site: m > 0 for site, m in mask.items()}
        return state | {"w": w}, ctx.upload(w, extras=sent, rows=kept_units(w, mask, units))

    def masked_fit(self, ctx: Context, state: State, received: Tree, **how: Any) -> Tree:
        """Fit from the download; pruned units get no gradient and stay zero."""

        units = self.units(ctx.model)

        def keep(params: Tree, grads: Tree, batch: Batch) -> Tree:
            return apply_mask(grads, batch.cut(state["mask"]), units)

        start = apply_mask(state["w"] | received, state["mask"], units)
        return ctx.fit(start, self.loss, edit=keep, **how).params

    def extra_forms(self, ctx: Context, start: Tree) -> Tree:
        """See ``Trainer.extra_forms``: a mask over the units of each site."""
        return {MASK + site: m > 0 for site, m in scores(start, self.units(ctx.model)).items()}

    def accuracy(self, ctx: Context, w: Tree) -> Tensor:
        """Return the accuracy ``[K]`` on what decides: validation images, or those held out."""
        return ctx.accuracy(w, self.predict)

    def decide(self, ctx: Context, state: State) -> State:
        """Return masks and pruning records after this round's decisions, each client its own."""
        cfg, pruned, mask = self.cfg, state["prune"]["pruned"], state["mask"]
        accuracy = self.accuracy(ctx, state["w"]).to(pruned)
        best = torch.fmax(state["prune"]["best"], accuracy)  # NaN: no validation images
        bar = cfg.ACC_THR * (best if cfg.ACC_MODE == "rel" else torch.ones_like(best))
        if ctx.round > cfg.WARMUP:
            cut = (accuracy >= bar) & (pruned < cfg.TARGET)
            pruned = torch.where(cut, (pruned + cfg.RATE).clamp(max=cfg.TARGET), pruned)
            mask = {
                site: torch.where(
                    per_client(cut.to(score.device), score), kill(mask[site], score, pruned),
                    mask[site],
                )
                for site, score in scores(state["w"], self.units(ctx.model)).items()
            }
        return {"mask": mask, "prune": {"pruned": pruned, "best": best}}

    def personalize(self, ctx: Context, state: State, received: Tree) -> Tree:
        """Return the client's own model: its download under its mask."""
        return apply_mask(state["w"] | received, state["mask"], self.units(ctx.model))

    def finetune(self, ctx: Context, state: State, received: Tree, how: Finetune) -> Tree:
        """Fine-tune a copy under the mask."""
        return self.masked_fit(
            ctx, state, received, train=how.train, epochs=how.epochs, lr=how.lr or ctx.optim.lr,
            tag=TAG,
        )

    # ---- server ---------------------------------------------------------------------------
    def init_server(self, ctx: ServerContext, start: Tree) -> State:
        """Return the common start.

        Raises:
            DataError: no client has validation images, so none can ever prune.
        """
        if not ctx.roster.val.any() and not self.cfg.HOLD_OUT:
            raise DataError(
                "Hermes prunes by validation accuracy, and no client has validation images: set "
                "TRAINER.HERMES.HOLD_OUT 0.2 (that share of the training images decides instead), "
                "or DATASET.VAL_SHOTS above 0 where the dataset has a validation list"
            )
        return super().init_server(ctx, start)

    def download(self, ctx: ServerContext, server: State, client: int) -> Tree:
        """Return the client's own model; before its first upload, the global one."""
        return ctx.held.get(client).get("own", server["w"])

    def aggregate(self, ctx: ServerContext, server: State, updates: Updates) -> State:
        """Average by the overlap rule; keep one model per client."""
        for name, value in overlap(updates).items():
            ctx.log(name, value)
        blind = [c for c in updates.clients if not ctx.roster.val[c]]
        if blind and not self.cfg.HOLD_OUT:
            ctx.log("without_validation", blind)
        units = self.units(ctx.model)
        whole, each = average(updates, server["w"], self.cfg.OVERLAP, units)
        for k, client in enumerate(updates.clients):
            ctx.held.put(client, {"own": {n: v[k] for n, v in each.items()}})
        return server | {"w": whole}


def overlap(updates: Updates) -> dict[str, Any]:
    """Return the share of units that all clients kept, and what each of them pruned."""
    kept = list(updates.extras.values())
    units = sum(m.shape[1] for m in kept)
    common = torch.cat([m.all(0) for m in kept]).sum()
    own = torch.cat(kept, 1).sum(1)
    both, *each = torch.cat([common.reshape(1), own]).tolist()  # one read
    share = both / units
    pruned = {str(c): 1 - n / units for c, n in zip(updates.clients, each, strict=True)}
    report: dict[str, Any] = {"overlap_fraction": share, "pruned": pruned}
    if share < FEW:
        report["warning"] = (
            f"clients have {100 * share:.0f} % of their prunable units in common, so "
            "very little is averaged; lower TRAINER.HERMES.TARGET or set OVERLAP coverage"
        )
    return report


def over_keepers(s: Any) -> Tensor:
    """Return the global tensor by OVERLAP, entry by entry, in a round of ``fedvlm check``."""
    sent, kept = s.sent(), torch.ones_like(s.sent())
    for site, place in s.trainer.units(s.model)(s.name):
        if MASK + site in s.updates.extras:
            kept = kept * place(s.sent(MASK + site))
    if s.trainer.cfg.OVERLAP == "intersection":
        return torch.where(kept.min(0).values > 0, s.mean(), s.old)
    by = s.weight.reshape(-1, *[1] * (sent.dim() - 1)) * kept
    return torch.where(by.sum(0) > 0, s.mean(by=by), s.old)


# ---- units ------------------------------------------------------------------------------------
def unit(name: str) -> channels.Held:
    """Return (site, where its units lie) of a prunable tensor, else nothing."""
    if ".lora." not in name and ".adapter" not in name:
        return ()
    ending = max((e for e in UNITS if name.endswith(e)), key=len, default="")
    return ((name.removesuffix(ending), UNITS[ending]),) if ending else ()


def sites(tree: Tree, units: Units = unit) -> dict[str, list[str]]:
    """Return the names of each site's tensors, for sites with both their sides."""
    members: dict[str, list[str]] = {}
    for name in tree:
        for site, _ in units(name):
            members.setdefault(site, []).append(name)
    return {site: names for site, names in members.items() if len(names) > 1}


def scores(tree: Tree, units: Units = unit) -> Tree:
    """Return the score of every unit, ``[..., U]`` by site: the product of its two norms."""
    out = {}
    for site, names in sites(tree, units).items():
        at = {n: place for n in names for of, place in units(n) if of == site}
        (rows,) = [at[n].norms(tree[n]) for n in names if (at[n].rank > 1, at[n].axis) == (True, 0)]
        (columns,) = [at[n].norms(tree[n]) for n in names if at[n].axis]
        out[site] = rows * columns
    return out


def apply_mask(tree: Tree, mask: Tree, units: Units = unit) -> Tree:
    """Return ``tree`` with pruned units zero; masks ``[..., U]`` by site, tensors ``[..., *]``."""
    out = dict(tree)
    for name in tree:
        for site, place in units(name):
            if site in mask:
                out[name] = out[name] * place(mask[site]).to(out[name])
    return out


def kept_units(tree: Tree, mask: Tree, units: Units = unit) -> dict[str, Rows]:
    """Return which units of each prunable tensor are left, by masks ``[K, U]``.

    Of a tensor that holds units of two sites those that it writes are counted: rows are cut along
    one axis.
    """
    left = {}
    for site, m in mask.items():
        left[site] = torch.where(m > 0, torch.arange(m.shape[-1], device=m.device), -1)
    out = {}
    for name in tree:
        held = [(place.axis, site, place) for site, place in units(name) if site in left]
        for axis, site, place in sorted(held, key=lambda h: h[0])[:1]:
            out[name] = Rows(place.along(left[site]), axis - place.rank)
    return out


def kill(mask: Tensor, score: Tensor, share: Tensor) -> Tensor:
    """Return masks ``[K, U]`` with ``share [K]`` of all units dead: those before, then the lowest.

    The count is rounded half up.
    """
    dead = (share * mask.shape[-1] + 0.5 + 1e-9).floor().to(mask.device)
    rank = torch.where(mask > 0, score, -1.0).argsort(dim=-1, stable=True).argsort(dim=-1)
    return torch.where(rank < per_client(dead, rank), 0.0, mask)


def average(
    updates: Updates, previous: Tree, rule: str, units: Units = unit
) -> tuple[Tree, Tree]:
    """Return the global model, and every client's own ``[K, ...]``, entry by entry.

    Args:
        updates: masks ``[K, U]`` bool in ``extras``.
        previous: the last global model; kept where nothing is averaged.
        rule: ``intersection`` or ``coverage``.
        units: what can be pruned.

    Raises:
        DivergedError: the aggregate is not finite.
    """
    mean, weights = weighted_mean(updates), updates.weight.tolist()
    whole: Tree = {}
    each: Tree = {}
    for name, plain in mean.items():
        sent = updates.params[name]
        kept = torch.ones_like(sent)
        for site, place in units(name):
            if MASK + site in updates.extras:
                kept = kept * place(updates.extras[MASK + site]).to(sent)
        if units(name):
            sent = sent * kept  # a unit that was not sent came in as its client received it
        if rule == "coverage":
            cover = weighted_sum(kept, weights)
            total = weighted_sum(sent, weights)
            whole[name] = torch.where(cover > 0, total / cover, previous[name])
            each[name] = whole[name] * kept
        else:
            common = kept.bool().all(0)
            whole[name] = torch.where(common, plain, previous[name])
            each[name] = torch.where(common, plain, sent)
    return require_finite(whole), each
