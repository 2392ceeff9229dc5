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
Departures from the paper: its channels of convolutions are PEFT's units; contexts, heads and layer
    norms are exempt (a zero token still takes a place, a zero row deletes a class); scores are
    products of L2 norms; units are scored after the round's training, not before.
Departures from the authors' code: none was published. Known defects of a port are tested against:
    masks that nobody reads, so that all is averaged; pruned entries that grow again; a decision on
    the test set.
Extra data: the client's validation split, for the decision. A client without one never prunes.
Cost: FedAvg's, and one pass over the validation images. Uploads are counted dense, with one byte
    per unit for the mask; a sparse wire format would send 1 - pruned of the units.
Command: python federated_main.py --demo --trainer Hermes
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fedvlm.config.option import Option
from fedvlm.core.errors import ConfigError, DataError
from fedvlm.core.trees import State, Tree
from fedvlm.federation.aggregate import Update, require_finite, weighted_mean, weighted_sum
from fedvlm.federation.batches import Batch
from fedvlm.federation.context import Context, Upload
from fedvlm.federation.groups import TAG, Finetune
from fedvlm.federation.peft_trainer import PeftTrainer
from fedvlm.federation.trainer import TRAINER_REGISTRY

# Ending of a name -> where its units lie: a mask [..., U] shaped to multiply the tensor.
Shape = Callable[[Tensor], Tensor]
ROWS: Shape = lambda m: m.unsqueeze(-1)  # noqa: E731
COLUMNS: Shape = lambda m: m.unsqueeze(-2)  # noqa: E731
ENTRIES: Shape = lambda m: m  # noqa: E731
UNITS: dict[str, Shape] = {
    ".A": ROWS, ".B": COLUMNS, ".down": ROWS, ".up": COLUMNS,
    ".down.weight": ROWS, ".down.bias": ENTRIES, ".up.weight": COLUMNS,
}
MASK = "mask."
FEW = 0.1


@TRAINER_REGISTRY.register("Hermes")
class Hermes(PeftTrainer):
    """See the module's card."""

    name = "Hermes"
    same_basis = True
    batched = False
    extras = (r"mask\..+",)
    extra_data = "clients decide on pruning by their validation images"
    options = {
        "RATE": Option(0.2, "share of the original units pruned at a time", low=0, high=1),
        "TARGET": Option(0.5, "share at which pruning ends", low=0, high=1, high_open=True),
        "ACC_MODE": Option(
            "rel", "accuracy to prune at: of the client's best so far, or absolute",
            choices=("rel", "abs"),
        ),
        "ACC_THR": Option(0.95, "that accuracy, from 0 to 1", low=0, high=1),
        "WARMUP": Option(1, "first rounds without pruning", low=0),
        "OVERLAP": Option(
            "intersection", "what is averaged: units all kept, or each by those who kept it",
            choices=("intersection", "coverage"),
        ),
    }
    exempt = {
        "G4": "pruning needs no learning rate",
        "G5": "pruned units leave the model",
    }

    def trainables(self, model: Any, generator: torch.Generator) -> Tree:
        """Return what ``PEFT`` asks for.

        Raises:
            ConfigError: nothing in it can be pruned, or LoRA's components do not last.
        """
        tree = super().trainables(model, generator)
        if not sites(tree):
            raise ConfigError(
                "Hermes prunes adapters and LoRA and finds neither: set PEFT.VISUAL feature, lora "
                "or adapter, or PEFT.TEXT lora"
            )
        return tree

    def init(self, ctx: Context, p0: Tree) -> State:
        """Return the common start with nothing pruned."""
        zero = torch.zeros((), dtype=torch.float64)
        whole = {site: torch.ones_like(score) for site, score in scores(p0).items()}
        return {"w": p0, "mask": whole, "prune": {"pruned": zero, "best": zero.clone()}}

    # ---- client ---------------------------------------------------------------------------
    def local(self, ctx: Context, c: State, d: Tree) -> tuple[State, Upload]:
        """Train under the mask, then decide on more pruning, then send what is left."""
        c = c | {"w": self.masked_fit(ctx, c, d)}
        c = c | self.decide(ctx, c)
        w = apply_mask(c["w"], c["mask"])
        sent = {MASK + site: m > 0 for site, m in c["mask"].items()}
        return c | {"w": w}, ctx.upload(w, extras=sent)

    def masked_fit(self, ctx: Context, c: State, d: Tree, **how: Any) -> Tree:
        """Fit from the download; pruned units get no gradient and stay zero."""

        def keep(p: Tree, grads: Tree, b: Batch) -> Tree:
            return apply_mask(grads, b.const["mask"])

        start = apply_mask(c["w"] | d, c["mask"])
        return ctx.fit(start, self.loss, edit=keep, const={"mask": c["mask"]}, **how)

    def accuracy(self, ctx: Context, w: Tree) -> Tensor:
        """Return the accuracy ``[K]`` on the client's validation split."""
        return ctx.accuracy(w, self.predict)

    def decide(self, ctx: Context, c: State) -> State:
        """Return mask and pruning record after this round's decision (K is 1)."""
        cfg = self.cfg
        accuracy, pruned = self.accuracy(ctx, c["w"]).cpu(), float(c["prune"]["pruned"])
        best = torch.fmax(c["prune"]["best"].cpu(), accuracy.double())  # NaN: no validation images
        bar = cfg.ACC_THR * (float(best) if cfg.ACC_MODE == "rel" else 1.0)
        mask = c["mask"]
        if ctx.round > cfg.WARMUP and float(accuracy) >= bar and pruned < cfg.TARGET:
            pruned = min(pruned + cfg.RATE, cfg.TARGET)
            mask = {site: kill(mask[site], s, pruned) for site, s in scores(c["w"]).items()}
        share = torch.full_like(c["prune"]["pruned"], pruned)
        ctx.logs.update({"val_accuracy": accuracy, "pruned": share})
        return {"mask": mask, "prune": {"pruned": share, "best": best.to(share)}}

    def personal(self, ctx: Context, c: State, d: Tree) -> Tree:
        """Return the client's own model: its download under its mask."""
        return apply_mask(c["w"] | d, c["mask"])

    def finetune(self, ctx: Context, c: State, d: Tree, how: Finetune) -> Tree:
        """Fine-tune a copy under the mask."""
        return self.masked_fit(
            ctx, c, d, train=how.train, epochs=how.epochs, lr=how.lr or ctx.optim.lr, tag=TAG
        )

    # ---- server ---------------------------------------------------------------------------
    def down(self, server: State, client: int) -> Tree:
        """Return the client's own model; before its first upload, the global one."""
        return server.get(f"client{client}", server["w"])

    def server(self, ctx: Context, server: State, updates: Sequence[Update]) -> State:
        """Average by the overlap rule; keep one model per client.

        Raises:
            DataError: no client has validation images, so none can ever prune.
        """
        ordered = sorted(updates, key=lambda u: u.client)
        blind = [u.client for u in ordered if math.isnan(u.metrics.get("val_accuracy", 0.0))]
        batcher: Any = ctx.batcher
        if len(blind) == len(ordered) and not any(len(part.val) for part in batcher.splits):
            raise DataError(
                "Hermes prunes by validation accuracy, and no client has validation images: set "
                "DATASET.VAL_SHOTS above 0, or take another dataset"
            )
        overlap = self.report_overlap(ordered)
        self.report.update(overlap | ({"without_validation": blind} if blind else {}))
        whole, own = aggregate(ordered, server["w"], self.cfg.OVERLAP)
        return server | {"w": whole} | {f"client{c}": tree for c, tree in own.items()}

    def report_overlap(self, updates: Sequence[Update]) -> dict[str, Any]:
        """Return the share of units that all clients kept, and what each of them pruned."""
        names = list(updates[0].extras)
        kept = [torch.stack([u.extras[n] for u in updates]) for n in names]
        share = sum(int(m.all(0).sum()) for m in kept) / sum(m.shape[1] for m in kept)
        pruned = {
            str(u.client): 1 - sum(int(m[k].sum()) for m in kept) / sum(m.shape[1] for m in kept)
            for k, u in enumerate(updates)
        }
        report: dict[str, Any] = {"overlap_fraction": share, "pruned": pruned}
        if share < FEW:
            report["warning"] = (
                f"clients have {100 * share:.0f} % of their prunable units in common: hardly "
                "anything is averaged; lower TRAINER.HERMES.TARGET or set OVERLAP coverage"
            )
        return report


# ---- units ------------------------------------------------------------------------------------
def unit(name: str) -> tuple[str, Shape] | None:
    """Return (site, where its units lie) of a prunable tensor, else None."""
    if ".lora." not in name and ".adapter" not in name:
        return None
    ending = max((e for e in UNITS if name.endswith(e)), key=len, default="")
    return (name.removesuffix(ending), UNITS[ending]) if ending else None


def sites(tree: Tree) -> dict[str, list[str]]:
    """Return the names of each site's tensors, for sites with both their sides."""
    members: dict[str, list[str]] = {}
    for name in tree:
        at = unit(name)
        if at is not None:
            members.setdefault(at[0], []).append(name)
    return {site: names for site, names in members.items() if len(names) > 1}


def scores(tree: Tree) -> Tree:
    """Return the score of every unit, ``[..., U]`` by site: the product of its two norms."""
    out = {}
    for site, names in sites(tree).items():
        rows = [tree[n].norm(dim=-1) for n in names if UNITS[n.removeprefix(site)] is ROWS]
        columns = [tree[n].norm(dim=-2) for n in names if UNITS[n.removeprefix(site)] is COLUMNS]
        out[site] = rows[0] * columns[0]
    return out


def apply_mask(tree: Tree, mask: Tree) -> Tree:
    """Return ``tree`` with pruned units zero; masks ``[..., U]`` by site, tensors ``[..., *]``."""
    out = dict(tree)
    for name, value in tree.items():
        at = unit(name)
        if at is not None and at[0] in mask:
            out[name] = value * at[1](mask[at[0]]).to(value)
    return out


def kill(mask: Tensor, score: Tensor, share: float) -> Tensor:
    """Return a mask ``[K, U]`` with ``share`` of all units dead: those before, then the lowest."""
    dead = int(share * mask.shape[-1] + 0.5 + 1e-9)
    order = torch.where(mask > 0, score, -1.0).argsort(dim=-1, stable=True)
    return mask.scatter(-1, order[..., :dead], 0.0)


def aggregate(
    updates: Sequence[Update], previous: Tree, rule: str
) -> tuple[Tree, dict[int, Tree]]:
    """Return the global model and every client's own, entry by entry.

    Args:
        updates: by ascending client; masks ``[U]`` bool in ``extras``.
        previous: the last global model; kept where nothing is averaged.
        rule: ``intersection`` or ``coverage``.

    Raises:
        DivergedError: the aggregate is not finite.
    """
    mean, weights = weighted_mean(updates), [u.weight for u in updates]
    whole: Tree = {}
    own: dict[int, Tree] = {u.client: {} for u in updates}
    for name, plain in mean.items():
        at = unit(name)
        mine = [u.params[name] for u in updates]
        if at is None or MASK + at[0] not in updates[0].extras:
            kept = [torch.ones_like(plain)] * len(updates)
        else:
            kept = [at[1](u.extras[MASK + at[0]]).to(plain).expand_as(plain) for u in updates]
        if rule == "coverage":
            cover = weighted_sum(kept, weights)
            total = weighted_sum([w * m for w, m in zip(mine, kept, strict=True)], weights)
            average = torch.where(cover > 0, total / cover, previous[name])
            shares = [average * m for m in kept]
        else:
            common = torch.stack(kept).bool().all(0)
            average = torch.where(common, plain, previous[name])
            shares = [torch.where(common, plain, w) for w in mine]
        whole[name] = average
        for u, value in zip(updates, shares, strict=True):
            own[u.client][name] = value
    return require_finite(whole), own
