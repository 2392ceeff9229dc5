"""The base of methods that do not care what is trained: they split it by role, body and head."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, TypeGuard

import torch
from torch import Tensor
from yacs.config import CfgNode

from fedvlm.core.errors import ConfigError
from fedvlm.core.trees import State, Tree
from fedvlm.federation.aggregation.lora import (
    RULES,
    LoraRule,
    fair,
    fold_factors,
    fresh,
    mean_by_rank,
    norm_weights,
    product_svd,
    residual,
    shared_sites,
    shares,
)
from fedvlm.federation.aggregation.rules import MEAN
from fedvlm.federation.aggregation.updates import Updates, require_finite, weighted_mean
from fedvlm.federation.groups import FROZEN, PERSONAL, SERVER, SHARED, Groups, Rule
from fedvlm.federation.local.sent import Portion
from fedvlm.federation.server import ServerContext
from fedvlm.federation.toolbox.roles import RoleTrainer
from fedvlm.federation.trainer import Trainer
from fedvlm.models.adapt import peft
from fedvlm.models.towers.adapters import (
    DELTA,
    FACTOR_A,
    FACTOR_B,
    PRIVATE_LORA,
    delta_name,
    is_factor,
)
from fedvlm.models.vlmodel import VLModel

NONE = peft.PeftSpec(text="none")  # of a network, which trains its own tensors
FACTORS = "factors"
AS_SENT = (FACTORS, "freeze_a", "share_a")  # what of LoRA travels, not how it is combined
WAYS_OUT = {
    peft.BODY: "PEFT.VISUAL feature, lora or adapter (--peft prompt+lora)",
    peft.HEAD: "PEFT.TEXT prompt or PEFT.HEAD linear (--peft prompt)",
}


class PeftTrainer(RoleTrainer):
    """FedAvg over the tensors that ``PEFT`` builds.

    Attributes:
        roles: group of each role: ``{"body": "shared", "head": "personal"}`` is FedPer's.
        needs: roles that must not be empty.
        must_train: the word of ``--peft`` without which it is another method; a run is refused.
        same_basis: the method compares or subtracts tensors of two rounds or two models.
        lora_refused: values of ``PEFT.LORA_AVG``, or ``RANKS`` or ``PRIVATE_RANK``, that do not go
            with the method, with the reason; what its hooks show is refused anyway.
        lora_taken: the same words, of what a ``combine`` of the class's own keeps to.
    """

    roles: ClassVar[Mapping[str, str]] = {peft.BODY: "shared", peft.HEAD: "shared"}
    needs: ClassVar[tuple[str, ...]] = ()
    must_train: ClassVar[str] = ""
    same_basis: ClassVar[bool] = False
    lora_refused: ClassVar[Mapping[str, str]] = {}
    lora_taken: ClassVar[Sequence[str]] = ()

    def __init__(self, cfg: CfgNode) -> None:
        """Read what is trained."""
        super().__init__(cfg)
        self.spec = NONE if self.network else peft.PeftSpec.of(cfg)
        if not self.network:
            self.check_peft()

    def check_peft(self) -> None:
        """Refuse what ``PEFT`` asks for where the method cannot use it (``ConfigError``)."""

    @property
    def open_vocabulary(self) -> bool:
        """Whether unseen classes stay defined: not with a linear head or contexts by class."""
        return self.spec.open_vocabulary

    @property
    def reads_templates(self) -> bool:
        """Whether images are compared with the templates: not with a head or learned prompts."""
        return not self.network and self.spec.head == "text" and self.spec.text != "prompt"

    @property
    def lora_rule(self) -> LoraRule:
        """What ``PEFT.LORA_AVG`` asks for; the plain mean of factors where there is no LoRA."""
        return RULES[self.spec.average if self.spec.has_lora else FACTORS]

    @property
    def aggregators(self) -> Sequence[str]:
        """All, unless LoRA's products are averaged: there is no rule but the mean for those."""
        return (MEAN,) if self.lora_rule.mean else super().aggregators

    @property
    def server_optim(self) -> bool:
        """Whether a server optimiser may be used: its moments need factors of one basis."""
        return not self.lora_rule.mean

    @property
    def linear(self) -> bool:
        """Whether a mean is enough: not of LoRA's products, and not of unequal ranks."""
        return not self.lora_rule.mean and not self.spec.ranks

    def trainables(self, model: VLModel, generator: torch.Generator) -> Tree:
        """Return what ``PEFT`` asks for.

        Raises:
            ConfigError: a role that the method needs is empty (the ways out are listed), or a
                rule of LoRA that does not go with the method.
        """
        tree = peft.build_tensors(self.spec, model, generator)
        for role in self.needs:
            if not any(self.role(name) == role for name in tree):
                raise ConfigError(
                    f"{self.name} needs something to train on the {role} side; set {WAYS_OUT[role]}"
                )
        if self.spec.has_lora:
            groups = zip(tree, self.rules(list(tree)), strict=False)  # its own come after these
            shared = [name for name, (_, group) in groups if group == SHARED]
            self._refuse_lora(shared)
            if self.lora_rule.folds:
                tree |= {
                    delta_name(s): torch.zeros(len(tree[s + FACTOR_B]), tree[s + FACTOR_A].shape[1])
                    for s in shared_sites(shared)
                }
        return tree | peft.private_lora(self.spec, model, generator)

    def _refuse_lora(self, shared: Collection[str]) -> None:
        """Refuse a rule, ranks or a second LoRA that do not go with the method.

        Raises:
            ConfigError: with the reason and a way out.
        """
        spec, refused = self.spec, self.lora_refused
        problems = {f"LORA_AVG {spec.average}": (
            refused.get(spec.average) or self._lora_problem(shared), "set it to factors or freeze_a"
        )}
        if spec.ranks:
            problems["RANKS"] = refused.get("RANKS") or self._rank_problem(shared), "leave it out"
        if spec.private_rank:
            problems["PRIVATE_RANK"] = refused.get("PRIVATE_RANK", ""), "leave it out"
        for key, (reason, way_out) in problems.items():
            who = self.name or type(self).__name__
            self.require(not reason, f"PEFT.{key}: {who} {reason}: {way_out}")

    def _lora_problem(self, shared: Collection[str]) -> str:
        rule, kind = self.lora_rule, type(self)
        if not rule.steady and self.same_basis:
            return (
                "compares a client's LoRA factors with the server's, but this rule makes new "
                "factors each round"
            )
        taken = self.spec.average in self.lora_taken
        if shared_sites(shared) and not taken and self.spec.average not in AS_SENT:
            if kind.combine is not PeftTrainer.combine:
                return (
                    "has its own aggregation rule, which does not declare (lora_taken) "
                    "that it follows this one"
                )
            if rule.mean and not calls_on(kind.aggregate, "combine", "aggregate"):
                return "does not average what clients send"
        if self.spec.average in (FACTORS, "freeze_a"):
            return ""
        if not shared_sites(shared):
            return "shares no LoRA, so there is none to average"
        if rule.mean and MEAN not in self.aggregators and not taken:
            return "does not average what clients send"
        if rule.turns and kind.aggregate is not PeftTrainer.aggregate:
            return ("does more with an upload than average it, but here half of it is not trained "
                    "each round")
        others = (kind.aggregate, kind.init_client, kind.download, kind.shared) != (
            PeftTrainer.aggregate, Trainer.init_client, PeftTrainer.download, Trainer.shared
        )
        if rule.folds and (others or self.same_basis or self.reads_old):
            return (
                "keeps models of earlier rounds, or has its own server step, but this rule "
                "changes the frozen layers below them"
            )
        return ""

    def _rank_problem(self, shared: Collection[str]) -> str:
        kind = type(self)
        if self.spec.average == "freeze_a":
            return "uses PEFT.LORA_AVG freeze_a, where all clients share one A of one rank"
        if not shared_sites(shared):
            return "shares no LoRA, but ranks apply to the download"
        if "RANKS" in self.lora_taken:
            return ""
        if kind.combine is not PeftTrainer.combine:
            return "has its own aggregation rule, which may treat missing parts as zero"
        if (kind.aggregate, kind.init_client, kind.download) != (
            PeftTrainer.aggregate, Trainer.init_client, PeftTrainer.download
        ):
            return "keeps or sends other models, which would have the full rank"
        return ""

    def rules(self, names: Sequence[str]) -> Sequence[Rule]:
        """Return one rule per tensor, by its role.

        Under ``freeze_a`` LoRA's A is frozen, under ``share_a`` its B is personal. A private LoRA
        is personal, and what the server adds to a layer the server's.
        """
        return [(re.escape(name), self._group(name)) for name in names]

    def _group(self, name: str) -> str:
        if PRIVATE_LORA in name:
            return PERSONAL
        if DELTA in name:
            return SERVER
        end = name[-len(FACTOR_A):] if is_factor(name) else ""
        by_rule = {("freeze_a", FACTOR_A): FROZEN, ("share_a", FACTOR_B): PERSONAL}
        return by_rule.get((self.spec.average, end)) or self.roles[self.role(name)]

    def portion(self, round_: int, groups: Groups) -> Portion:
        """Return LoRA's ranks by client, and which factor rests: A in odd rounds (RoLoRA).

        B comes first: it starts at zero, where A has no gradient.
        """
        end = FACTOR_A if round_ % 2 else FACTOR_B
        factors = groups.shared if self.lora_rule.turns else ()
        resting = tuple(n for n in factors if is_factor(n) and n.endswith(end))
        return Portion(resting, self.spec.ranks if self.spec.has_lora else ())

    def streams(self, model: VLModel) -> tuple[str, ...]:
        """Return image features, or what enters the first changed block of the image tower."""
        return (peft.common_stream(self.spec, model),)

    def combine(self, ctx: ServerContext, updates: Updates) -> Tree:
        """Return the aggregate; the mean of LoRA's products comes before any rule by name.

        Raises:
            DivergedError: the aggregate is not finite.
        """
        kind, p, weight = self.spec.average, updates.params, updates.weight.tolist()
        lora = shared_sites(p) if self.spec.has_lora else []
        tree = super().combine(ctx, updates)
        factors = {s + end: tree[s + end] for s in lora for end in (FACTOR_A, FACTOR_B)
                   if s + end in tree}
        if kind == "product_svd" and lora:
            tree |= require_finite(product_svd(p, weight, ordered=bool(self.spec.ranks)))
        elif kind == "fair" and lora:
            tree |= require_finite(fair(p, shares(weight), factors, self.spec.ridge))
        elif kind == "by_norm" and lora:
            own = replace(updates, params={n: p[n] for n in factors})
            tree |= weighted_mean(own, norm_weights(own.params, weight))
        elif kind == "by_rank" and lora:
            ranks = [self.spec.rank_of(c) for c in updates.clients]
            sent = {n: p[n] for n in factors}
            tree |= require_finite(mean_by_rank(sent, weight, ranks))
        elif self.lora_rule.turns:
            resting = self.portion(ctx.round, ctx.groups).resting
            tree = {n: v for n, v in tree.items() if n not in resting}
        return tree

    def aggregate(self, ctx: ServerContext, server: State, updates: Updates) -> State:
        """Return the server's state after a round; by ``residual`` and ``stack`` with layers moved.

        Raises:
            DivergedError: the new model is not finite.
        """
        new = super().aggregate(ctx, server, updates)
        if not self.lora_rule.folds:
            return new
        old, w, share = server["w"], new["w"], shares(updates.weight.tolist())
        old = {n: old[n] for n in ctx.groups.server}
        factors = {n: v for n, v in w.items() if is_factor(n)}
        if self.spec.average == "residual":
            moved = residual(updates.params, share, old, factors)
        else:
            moved = fold_factors(updates.params, share, old)
            moved = {n: v.to(old[n]) for n, v in moved.items()}
            moved |= fresh(factors, ctx.stream("lora.stack"))
        return new | {"w": w | require_finite(moved)}

    def download(self, ctx: ServerContext, server: State, client: int) -> Tree:
        """Return the global model, of LoRA as many components as the client has."""
        tree, rank = super().download(ctx, server, client), self.spec.rank_of(client)
        if not self.spec.has_lora or rank == self.spec.rank:
            return tree
        return ctx.cut(tree, ranks=dict.fromkeys(shared_sites(tree), rank))

    def text_features(self, model: VLModel, params: Tree) -> Tensor:
        """See ``peft.text_features``."""
        return peft.text_features(self.spec, model, params)

    def image_features(self, model: VLModel, params: Tree, x: Mapping[str, Tensor]) -> Tensor:
        """See ``peft.image_features``."""
        return peft.image_features(self.spec, model, params, x)


def takes_peft(method: type[Trainer]) -> TypeGuard[type[PeftTrainer]]:
    """Return whether ``PEFT`` says what a method trains: in CLIP, not over a network."""
    return issubclass(method, PeftTrainer) and not method.network


def calls_on(hook: Callable[..., object], *names: str) -> bool:
    """Tell whether the code of a hook calls one of ``names``, its base's own among them."""
    return bool({*names} & {*inspect.unwrap(hook).__code__.co_names})
