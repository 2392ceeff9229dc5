"""The base of methods that do not care what is trained: they split it by role, body and head."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor
from yacs.config import CfgNode

from fedvlm.core.errors import ConfigError
from fedvlm.core.trees import Tree
from fedvlm.federation.aggregation.rules import MEAN
from fedvlm.federation.aggregation.updates import Updates, require_finite
from fedvlm.federation.groups import Rule
from fedvlm.federation.server import ServerContext
from fedvlm.federation.trainer import Trainer
from fedvlm.models.adapt import peft
from fedvlm.models.adapt.average import average_peft
from fedvlm.models.towers.adapters import FACTOR_A, is_factor
from fedvlm.models.vlmodel import VLModel

WAYS_OUT = {
    peft.BODY: "PEFT.VISUAL feature, lora or adapter (--peft prompt+lora)",
    peft.HEAD: "PEFT.TEXT prompt or PEFT.HEAD linear (--peft prompt)",
}


class PeftTrainer(Trainer):
    """FedAvg over the tensors that ``PEFT`` builds.

    Attributes:
        roles: group of each role: ``{"body": "shared", "head": "personal"}`` is FedPer's.
        needs: roles that must not be empty.
        same_basis: the method compares or subtracts tensors of two rounds or two models.
    """

    roles: ClassVar[Mapping[str, str]] = {peft.BODY: "shared", peft.HEAD: "shared"}
    needs: ClassVar[tuple[str, ...]] = ()
    same_basis: ClassVar[bool] = False

    def __init__(self, cfg: CfgNode) -> None:
        """Read what is trained."""
        super().__init__(cfg)
        self.spec = peft.PeftSpec.of(cfg)

    @property
    def open_vocabulary(self) -> bool:
        """Whether unseen classes stay defined: not with a linear head or contexts by class."""
        return self.spec.open_vocabulary

    @property
    def averages_products(self) -> bool:
        """Whether LoRA is averaged as products (``PEFT.LORA_AVG product_svd``)."""
        return self.spec.average == "product_svd" and (
            "lora" in (self.spec.text, self.spec.visual)
        )

    @property
    def aggregators(self) -> Sequence[str]:
        """All, unless LoRA's products are averaged: there is no rule but the mean for those."""
        return (MEAN,) if self.averages_products else super().aggregators

    @property
    def server_optim(self) -> bool:
        """Whether a server optimiser may be used: its moments need factors of one basis."""
        return not self.averages_products

    def trainables(self, model: VLModel, generator: torch.Generator) -> Tree:
        """Return what ``PEFT`` asks for.

        Raises:
            ConfigError: a role that the method needs is empty (the ways out are listed), or LoRA
                averaged so that factors of two rounds do not compare.
        """
        if self.same_basis and self.averages_products:
            raise ConfigError(
                f"{self.name} compares a client's own LoRA factors with the server's, and "
                "PEFT.LORA_AVG product_svd makes other factors of the same product each round: set "
                "it to factors or freeze_a"
            )
        tree = peft.build(self.spec, model, generator)
        for role in self.needs:
            if not any(peft.role(name) == role for name in tree):
                raise ConfigError(
                    f"{self.name} needs something to train on the {role} side; "
                    f"set {WAYS_OUT[role]}"
                )
        return tree

    def rules(self, names: Sequence[str]) -> Sequence[Rule]:
        """Return one rule per tensor, by its role; under ``freeze_a`` LoRA's A is frozen."""
        fixed = self.spec.average == "freeze_a"
        return [
            (re.escape(name), "frozen" if fixed and is_factor(name) and name.endswith(FACTOR_A)
             else self.roles[peft.role(name)])
            for name in names
        ]

    def streams(self, model: VLModel) -> tuple[str, ...]:
        """Return image features, or what enters the first changed block of the image tower."""
        block = peft.first_block(self.spec, model)
        return ("features",) if block is None else (f"tokens.{block}",)

    def combine(self, ctx: ServerContext, updates: Updates) -> Tree:
        """Return the aggregate; the mean of LoRA's products comes before any rule by name.

        Raises:
            DivergedError: the aggregate is not finite.
        """
        if not self.averages_products:
            return super().combine(ctx, updates)
        each = [{n: v[k] for n, v in updates.params.items()} for k in range(len(updates))]
        return require_finite(average_peft(each, updates.weight.tolist(), "product_svd"))

    def text_features(self, model: VLModel, params: Tree) -> Tensor:
        """See ``peft.text_features``."""
        return peft.text_features(self.spec, model, params)

    def image_features(self, model: VLModel, params: Tree, x: Mapping[str, Tensor]) -> Tensor:
        """See ``peft.image_features``."""
        return peft.image_features(self.spec, model, params, x)
