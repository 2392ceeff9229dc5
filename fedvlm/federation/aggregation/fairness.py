"""Weights from losses: q-FFL and agnostic federated learning (``FED.WEIGHTING``).

Both read F_k, client k's mean training loss at the model that it received. A client computes it
before it trains and sends it as the metric ``received_loss``, which is a release
(``Trainer.releases``). p_k is the weight that the run would give the client otherwise.

**q-FFL** minimises sum_k p_k F_k^(q+1) / (q+1), so that clients with high losses count more. Its
step is q-FedAvg's (Li et al. 2020, Fair Resource Allocation in Federated Learning, ICLR,
algorithm 2): with L = 1 / learning rate and d_k = w - w_k

    w' = w - sum_k p_k F_k^q L d_k / sum_k p_k (q F_k^(q-1) |L d_k|^2 + L F_k^q).

The denominator bounds the curvature of F^(q+1), so that no new learning rate has to be found.
With q = 0 it is the mean by p_k.

**agnostic** minimises the worst mixture of clients (Mohri et al. 2019, Agnostic Federated Learning,
ICML, algorithm 1): the server takes the mean by weights lambda, which lie on the simplex, and moves
them uphill, lambda' = projection of lambda + rate F onto the simplex. lambda begins equal for all.

Both are written as new weights, and for q-FFL shorter moves, of the same uploads: a method's own
``aggregate`` takes the mean of these as of any others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedvlm.core.errors import ConfigError, FedvlmError
from fedvlm.core.trees import State, Tree, in_double
from fedvlm.federation.aggregation.rules import AUTO, EVERY, MEAN, move_norms
from fedvlm.federation.aggregation.updates import Updates
from fedvlm.federation.groups import AGNOSTIC, Q_FFL, RECEIVED

SLOT, LAMBDA = "weighting", "lambda"  # in the server's state


@dataclass(frozen=True)
class Fairness:
    """What ``FED.WEIGHTING`` q_ffl or agnostic asks for.

    Attributes:
        kind: ``q_ffl`` or ``agnostic``.
        q: exponent of q-FFL, from 0.
        rate: of agnostic's step on its weights.
        lipschitz: q-FFL's L: 1 / learning rate of the clients.
    """

    kind: str
    q: float
    rate: float
    lipschitz: float

    def start(self, members: Sequence[int], clients: int) -> State:
        """Return the slot that the server keeps: lambda of every client, ``[N]`` float64."""
        if self.kind != AGNOSTIC:
            return {}
        first = torch.zeros(clients, dtype=torch.float64)
        first[list(members)] = 1.0 / len(members)
        return {SLOT: {LAMBDA: first}}

    def weigh(self, server: State, updates: Updates) -> tuple[Updates, State, dict[str, float]]:
        """Return the updates under their new weights, the slot after the round, and the weights.

        Raises:
            FedvlmError: a client's loss is missing, not finite, or below zero under q-FFL.
        """
        losses = self._losses(updates)
        if self.kind == AGNOSTIC:
            kept, at = server[SLOT][LAMBDA], list(updates.clients)
            moved, weights = torch.zeros_like(kept, device="cpu"), kept.cpu()[at]
            moved[at] = project(weights + self.rate * losses)
            new = {SLOT: {LAMBDA: moved.to(kept.device)}}
            updates = replace(updates, weight=weights)
        else:
            new = dict[str, Tree]()
            updates = self._q_fair(updates, losses)
            weights = updates.weight / updates.weight.sum()
        return updates, new, dict(zip(map(str, updates.clients), weights.tolist(), strict=True))

    def _losses(self, updates: Updates) -> Tensor:
        if RECEIVED not in updates.metrics:
            raise FedvlmError(f"FED.WEIGHTING {self.kind}: no client sent its loss ({RECEIVED})")
        losses = updates.metrics[RECEIVED].double()
        for client, loss, weight in zip(
            updates.clients, losses.tolist(), updates.weight.tolist(), strict=True
        ):
            odd = not abs(loss) < float("inf") or (loss < 0 and self.kind == Q_FFL)
            if odd and weight > 0:
                raise FedvlmError(f"FED.WEIGHTING {self.kind}: client {client} sent the loss "
                                  f"{loss:g}")
        return torch.where(updates.weight > 0, losses, 0.0)

    def _q_fair(self, updates: Updates, losses: Tensor) -> Updates:
        """Return the updates whose weighted mean is q-FedAvg's step."""
        p, q = updates.weight, self.q
        if q == 0 or not updates.params:
            return updates
        least = torch.finfo(torch.float64).tiny
        level = losses.clamp_min(least)
        power = p * level**q
        moves = move_norms(updates).cpu().square() * self.lipschitz
        bound = p * q * level ** (q - 1) * moves
        total = power.sum()
        if not total > 0:  # no loss anywhere: nobody moves
            return replace(updates, params={n: v.contiguous() for n, v in updates.received.items()})
        short = float(total / (total + bound.sum()))
        params: Tree = {}
        for name, sent in updates.params.items():
            home = in_double(updates.received[name])
            params[name] = (home + short * (in_double(sent) - home)).to(sent)
        return replace(updates, params=params, weight=power)


def project(values: Tensor) -> Tensor:
    """Return the nearest point of the simplex to ``values [n]`` (Duchi et al. 2008, figure 1)."""
    ordered = values.sort(descending=True).values
    sums = ordered.cumsum(0) - 1
    steps = torch.arange(1, len(values) + 1, dtype=values.dtype, device=values.device)
    count = int((ordered * steps > sums).sum())
    out = (values - sums[count - 1] / count).clamp_min(0)
    return out / out.sum()


def check_fairness(
    kind: str, method: str, aggregators: Sequence[str], rule: str, own: bool, plain: bool,
    everybody: bool, private: bool,
) -> None:
    """Refuse weights from losses where the server takes no mean, or would give losses away.

    Args:
        kind: ``q_ffl`` or ``agnostic``.
        method: its name.
        aggregators: rules by name that the method takes.
        rule: ``FED.AGGREGATOR``.
        own: the method weighs its clients itself.
        plain: its aggregate is the mean by weights where no rule is named.
        everybody: all clients answer in every round.
        private: the run has client-level privacy (``FED.DP``).

    Raises:
        ConfigError: such a run.
    """
    what = f"FED.WEIGHTING {kind}"
    if own or not set(EVERY) <= set(aggregators) or not (plain or rule == MEAN):
        mend = (", or FED.AGGREGATOR mean" if set(EVERY) <= set(aggregators) and not own else "")
        raise ConfigError(f"{what}: the server of {method} takes no plain mean of its clients; set "
                          f"FED.WEIGHTING auto{mend}")
    if rule not in (AUTO, MEAN):
        raise ConfigError(f"{what}: FED.AGGREGATOR {rule} has weights of its own or none; use mean")
    if private:
        raise ConfigError(f"{what} needs each client's loss, and FED.DP.CLIP lets nothing of a "
                          "single client leave; drop one of the two")
    if kind == AGNOSTIC and not everybody:
        raise ConfigError(f"{what} needs the loss of every client in every round; set FED.FRAC 1 "
                          "and no FED.UNRELIABLE, or FED.WEIGHTING q_ffl")
