"""Weights by similarity as two noised sums (``FED.DP.SIMILARITY``).

FedTV weighs tensor t of client k by exp(c_kt / tau), c_kt = cos(W_t + m_kt, W_t), and divides by
the sum of these weights. That sum cancels in every common factor, so that the aggregate's move is

    sum_k e_kt m_kt / sum_k e_kt,   e_kt = exp((c_kt - top_t) / tau),

a vector and a number for each tensor, to which each client adds its own term: moves m are cut to
length C, all tensors together, before the cosine is taken, and clients' images are not counted.

**What one client adds.** W_t is public, and |m_kt| <= C, so that c_kt lies between
sqrt(1 - (C / |W_t|)^2) (or -1, where C reaches W_t) and top_t = 1; of W_t = 0 all cosines are 0 and
so is top_t. So e_kt lies in [l_t, 1] whatever the client holds. The vectors e_kt m_kt of all
tensors together are no longer than C. From e_kt the middle (1 + l_t) / 2 is taken off, and added
again for the expected q N clients: the number moves by at most h_t = (1 - l_t) / 2. A client whose
every m_kt points along W_t reaches both bounds at once, so that the joint bound is tight.

**Noise.** N(0, (z_n C)^2) on the vectors and N(0, s_t^2) on the numbers are one mechanism of noise
z, 1 / z^2 = 1 / z_n^2 + sum_t h_t^2 / s_t^2, for a client more or less. The numbers get
s_t = 5 z sqrt(M) h_t (M: tensors with h_t > 0), a 25th of the budget, so z_n is at most 2.1 % more
than z, as beside the count of an adaptive bound.

**The ratio** is computed from the noised sums alone. A noised number is kept within
[max(q N l_t, 4 s_t), q N]: nearer to zero the noise of the ratio would have no bound.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedvlm.core.trees import Tree, in_double, per_client
from fedvlm.federation.aggregation.updates import Updates, cosines

SHARE, FLOOR = 5.0, 4.0  # noise of a number: in z sqrt(M) h; its least value: in that noise


@dataclass(frozen=True)
class Weights:
    """What is public of the weights of a round.

    Attributes:
        temperature: tau.
        half: h_t of every tensor, half of what e_t may span.
        top: the largest cosine.
    """

    temperature: float
    half: Mapping[str, float]
    top: Mapping[str, float]

    def middle(self, name: str) -> float:
        """Return the middle of the weights of a tensor."""
        return 1 - self.half[name]

    def noise(self, name: str, z: float) -> float:
        """Return s_t, the noise on the sum of the weights of a tensor."""
        moved = sum(h > 0 for h in self.half.values())
        return SHARE * z * math.sqrt(moved) * self.half[name]

    def of_clients(self, updates: Updates, factor: Tensor, home: Tree) -> dict[str, Tensor]:
        """Return e of every tensor, ``[K]`` float64 on the CPU, from the cut moves.

        Args:
            factor: ``[K]`` by which moves are cut.
            home: what all clients received, no client axis.
        """
        out = {}
        for name, rows in updates.params.items():
            start = in_double(updates.received[name])
            cut = start + per_client(factor.to(start.device), start) * (in_double(rows) - start)
            near = cosines(replace(updates, params={name: cut}), home)[name]
            apart = torch.tensor(near, dtype=torch.float64) - self.top[name]
            e = (apart / self.temperature).exp()
            out[name] = e.clamp(1 - 2 * self.half[name], 1)  # rounding, too, stays within
        return out

    def total(self, name: str, own: Tensor, expected: float) -> Tensor:
        """Return the sum of a tensor's weights ``own [K]``, of ``expected`` clients, no noise."""
        return expected * self.middle(name) + (own - self.middle(name)).sum()

    def kept(self, name: str, total: float, expected: float, z: float) -> float:
        """Return a noised sum of weights within what the ratio divides by."""
        least = max(expected * (1 - 2 * self.half[name]), FLOOR * self.noise(name, z))
        return max(min(total, expected), min(least, expected))


def weights_of(home: Tree, clip: float, temperature: float) -> Weights:
    """Return what is public of the weights of a round.

    Args:
        home: what all clients received of the shared tensors, no client axis.
        clip: C.
    """
    half, top = {}, {}
    for name, start in home.items():
        length = float(in_double(start).norm())
        if not length:
            half[name], top[name] = 0.0, 0.0
            continue
        part = min(clip / length, 1.0)
        below = part**2 / (1 + math.sqrt(1 - part**2)) if part < 1 else 2.0  # 1 - least cosine
        half[name], top[name] = -math.expm1(-below / temperature) / 2, 1.0
    return Weights(temperature, half, top)
