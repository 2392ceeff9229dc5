"""What the numbers of a secure sum are: one vector for all that a round adds up.

In this order: the clients' moves by tensor; sums of a method's own, one for each of its extras
(``Trainer.summands``); with weights by similarity one number for each tensor, the sum of them; then
the sum of the clients' weights, and how many sites there are. All lie under one mask and are read
at once or not at all: a method that needs more than a mean needs no second question, over which
other sites could be asked than in the first.

**Weights by similarity.** Client k weighs n_k e_kt in tensor t (n_k: images, or 1), with

    e_kt = exp((cos(W_t + m_kt, W_t) - 1) / tau),

(``aggregation.two_sums``; -0 in the place of -1 where W_t = 0). W_t is the model that all sites of
the sum received, and masks of unlike models do not cancel; so each client computes its own weight,
from its own move. The aggregate sum_k n_k e_kt m_kt / sum_k n_k e_kt is that of
``similarity_aware``, whose weights are the same but for a factor that cancels.

Moves and weights by similarity are sent as parts of all images of the round, the sums of a method's
own in the same proportion: whatever enters fixed point is of the size of a mean.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedvlm.core.errors import ConfigError, FedvlmError, QuorumError
from fedvlm.core.trees import Tree, expand, in_double
from fedvlm.distributed.sums import masks
from fedvlm.distributed.terms import SECURE, Refused
from fedvlm.federation.aggregation.rules import AggregateSpec
from fedvlm.federation.aggregation.sums import add_moves, weighs_by
from fedvlm.federation.aggregation.two_sums import weights_of
from fedvlm.federation.aggregation.updates import NOTHING, Updates
from fedvlm.federation.trainer import Trainer

LEAST = 2.0**-16  # sum of a tensor's weights: the mean then keeps 2^-24 of itself, as float32 does


@dataclass(frozen=True)
class Total:
    """What a secure sum tells.

    Attributes:
        mean: mean move by tensor, float64, no client axis.
        own: sums of the method's own, float64.
    """

    mean: Mapping[str, Tensor]
    own: Mapping[str, Tensor]


@dataclass(frozen=True)
class SumVector:
    """The places of a round's numbers.

    Attributes:
        shapes: of the shared tensors, by name.
        own: of the sums of the method's own.
        temperature: of weights by similarity; 0: clients weigh by images, or all the same.
        whole: the most that all clients of the round weigh together.
    """

    shapes: Mapping[str, torch.Size]
    own: Mapping[str, torch.Size]
    temperature: float
    whole: float

    @property
    def weighed(self) -> tuple[str, ...]:
        """The tensors with weights of their own."""
        return tuple(self.shapes) if self.temperature else ()

    def __len__(self) -> int:
        """Return how many numbers there are."""
        return sum(s.numel() for some in (self.shapes, self.own) for s in some.values()) + (
            len(self.weighed) + 2)

    def sizes(self) -> dict[str, int]:
        """Return the bytes of each tensor on its way."""
        weights = dict.fromkeys(self.weighed, 8)
        return {n: 8 * shape.numel() + weights.get(n, 0) for n, shape in self.shapes.items()} | {
            n: 8 * shape.numel() for n, shape in self.own.items()}

    def encode(self, trainer: Trainer, updates: Updates | None) -> np.ndarray:
        """Return what a site adds: its clients' numbers in fixed point, uint64.

        Args:
            updates: of its clients; None: all were dropped.

        Raises:
            Refused: a number is too large for fixed point, or ``whole`` is not all weights.
        """
        moves = {n: torch.zeros(s, dtype=torch.float64) for n, s in self.shapes.items()}
        own = {n: torch.zeros(s, dtype=torch.float64) for n, s in self.own.items()}
        weights, weight = dict.fromkeys(self.weighed, 0.0), 0.0
        if updates is not None:
            weight = float(updates.weight.sum())
            home = {n: v[0] for n, v in updates.received.items()}
            by: Tensor | dict[str, Tensor] = updates.weight / self.whole
            if self.temperature:
                near = weights_of(home, math.inf, self.temperature).of_clients(
                    updates, torch.ones(len(updates), dtype=torch.float64), home)
                by = {n: updates.weight / self.whole * e for n, e in near.items()}
                weights |= {n: float(v.sum()) for n, v in by.items()}
            add_moves(moves, updates, by, home, SECURE)
            if own:
                own |= {n: in_double(v).sum(0).cpu() / self.whole
                        for n, v in trainer.summands(updates.extras).items()}
        flat = torch.cat([*(v.reshape(-1) for v in (*moves.values(), *own.values())),
                          torch.tensor([*weights.values()], dtype=torch.float64)]).numpy()
        if not weight <= self.whole <= masks.HEAVIEST:
            raise Refused("the weights of a secure sum are not those that were told")
        if len(flat) and not np.abs(flat).max() <= masks.REACH * weight / self.whole:
            raise Refused(f"a client moved a number by more than {masks.REACH:g}, or adds more "
                          "than that to a sum: too far for a secure sum")
        return np.concatenate([
            masks.to_fixed(flat), masks.to_fixed(np.array([weight]), masks.WEIGHT_BITS),
            np.ones(1, np.uint64),
        ])

    def decode(self, total: np.ndarray, sites: int, round_: int) -> Total:
        """Return what the sum of ``sites`` sites tells.

        Raises:
            QuorumError: it is no sum of what honest sites send.
            ConfigError: weights by similarity are too small for fixed point.
            FedvlmError: all weights are zero.
        """
        numbers = masks.from_fixed(total[:-2])
        weight = float(masks.from_fixed(total[-2:-1], masks.WEIGHT_BITS)[0])
        near = numbers[len(numbers) - len(self.weighed) :]
        most = (weight + sites * 2.0**-masks.WEIGHT_BITS) / self.whole + sites * 2.0**-masks.BITS
        honest = np.all(np.abs(numbers) <= masks.REACH) and np.all((near >= 0) & (near <= most))
        if int(total[-1]) != sites or not 0 <= weight <= self.whole or not honest:
            raise QuorumError(
                f"round {round_}: the masks of the sites do not cancel: a site masked other than "
                "it agreed to (which one cannot be known); the state of round "
                f"{round_ - 1} is kept; run the same command again to continue"
            )
        if not weight:
            raise FedvlmError(NOTHING)
        by = dict(zip(self.weighed, near.tolist(), strict=True))
        for name, least in by.items():
            if least < LEAST:
                raise ConfigError(
                    f"round {round_}: the weights by similarity of '{name}' add up to {least:.2g}, "
                    f"and a secure sum divides by {LEAST:.2g} or more: raise the temperature "
                    f"{self.temperature:g} (FED.SAA_TEMP, or the method's own key, such as "
                    "TRAINER.FEDTV.SAA_TEMP)"
                )
        shapes = {**self.shapes, **self.own}
        parts = torch.from_numpy(numbers[: len(numbers) - len(near)].copy()).split(
            [s.numel() for s in shapes.values()])
        found = {n: part.view(s) for part, (n, s) in zip(parts, shapes.items(), strict=True)}
        return Total(
            {n: found[n] / by[n] if by else found[n] * (self.whole / weight) for n in self.shapes},
            {n: found[n] * self.whole for n in self.own},
        )


def vector_of(
    trainer: Trainer, spec: AggregateSpec, round_: int, whole: float, home: Tree, forms: Tree | None
) -> SumVector:
    """Return the places of the numbers of a round; server and sites know them alike.

    Args:
        spec: what ``FED`` says of the aggregation.
        home: what all clients received of the shared tensors, no client axis.
        forms: of the method's extras (``Trainer.extra_forms``).
    """
    temperature, since = weighs_by(trainer, spec)
    own = trainer.summands(expand(forms, 1)) if forms else {}
    return SumVector(
        {n: home[n].shape for n in sorted(home)},
        {n: own[n].shape[1:] for n in sorted(own)},
        temperature if round_ >= since else 0.0, whole,
    )
