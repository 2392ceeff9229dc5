"""Client-level differential privacy (``FED.DP``): clipped moves, a noised sum, and its accounting.

McMahan et al., Learning Differentially Private Recurrent Language Models, ICLR 2018: each client
takes part in a round by a coin of probability q (Poisson); its move, all tensors as one vector, is
cut to length C; the sum gets noise N(0, (z C)^2) in every number and is divided by q N, whoever
came. What the method's ``aggregate`` gets is this one noised mean, as if q N clients had sent it:
whatever it does with that is post-processing. Neighbours are federations with and without a client.

With a quantile the bound follows the moves (Andrew et al., Differentially Private Learning with
Adaptive Clipping, NeurIPS 2021): each round also counts who moved no further than C, with noise,
and C becomes C exp(-0.2 (share - quantile)). A client adds (move / C, +-1/2) to the two sums, so
that noise z_s C on the moves and s on the count are one mechanism of noise z with
1 / z^2 = 1 / z_s^2 + 1 / (2 s)^2 (theorem 1): epsilon is that of z.

Renyi accounting of the sampled Gaussian mechanism (Mironov et al. 2019, theorem 5),
to epsilon by Canonne et al. 2020 (proposition 12), chooses the noise: an upper bound. The epsilon
of a run is the tighter one by the distribution of the privacy loss, with the bound beside it.

The noise is drawn from the run's seed, in floating point: a simulation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.special import ndtr

from fedvlm.core import rng
from fedvlm.core.errors import ConfigError
from fedvlm.core.trees import State, Tree
from fedvlm.federation.aggregation.rules import move_norms
from fedvlm.federation.aggregation.sums import add_moves, of_each, reads_single
from fedvlm.federation.aggregation.updates import Updates

ORDERS = (
    *(1 + k / 10 for k in range(1, 100)), *range(11, 64), 80, 96, 128, 192, 256, 384, 512, 1024,
)
FEW = 50  # clients; below, the noise that hides one of them hides their sum
LARGEST, STEPS = 1e4, 30  # noise that is looked for
SLOT, BOUND, PACE = "dp", "bound", 0.2  # the server's slot of a bound that moves; how fast it does
PART, LEAST = 20, 2.5  # noise of the count: clients over this, or noises, the larger of the two
GRID, TAIL, WIDEST = 1 << 18, 1e-14, 200.0  # half of a grid's points; mass beyond it; its end
TRUST = "against the other clients and whoever gets the models; the server is trusted"


@dataclass(frozen=True)
class ClientPrivacy:
    """The mechanism of a run.

    Attributes:
        clip: C, the longest move of a client.
        noise: z, noise on the sum over C.
        delta: of (epsilon, delta).
        rate: q, probability that a client takes part in a round.
        clients: N, that may take part.
        seed: of the noise.
        quantile: share of moves that the bound is to leave uncut; 0: the bound stays.
    """

    clip: float
    noise: float
    delta: float
    rate: float
    clients: int
    seed: int
    quantile: float = 0.0

    @property
    def expected(self) -> float:
        """The fixed denominator q N."""
        return self.rate * self.clients

    @property
    def count_noise(self) -> float:
        """Noise on the count of moves within the bound: at most 2.1 % more on the moves."""
        return max(self.expected / PART, LEAST * self.noise) if self.noise else 0.0

    @property
    def move_noise(self) -> float:
        """Noise on the moves over the bound: what the count leaves of ``noise``."""
        if not self.quantile or not self.noise:
            return self.noise
        return (self.noise**-2 - (2 * self.count_noise) ** -2) ** -0.5

    def bound(self, server: State) -> float:
        """Return C of the round that starts from the server's state ``server``."""
        return float(server[SLOT][BOUND]) if SLOT in server else self.clip

    def follow(self, updates: Updates | None, bound: float, round_: int) -> State:
        """Return the server's slot with C of the next round; {}: C stays.

        Args:
            updates: of the round; None: nobody came.
            bound: C of the round.
        """
        if not self.quantile:
            return {}
        inside = 0.0
        if updates is not None:
            there = (updates.weight > 0).double().cpu()
            within = (move_norms(updates) <= bound).double().cpu()
            inside = float(((within - 0.5) * there).sum())
        stream = rng.stream(self.seed, "dp/count", round_)
        z = float(torch.randn((), generator=stream, dtype=torch.float64))
        share = 0.5 + (inside + self.count_noise * z) / self.expected
        ahead = bound * math.exp(-PACE * (share - self.quantile))
        return {SLOT: {BOUND: torch.tensor(ahead, dtype=torch.float64)}}

    def draw(self, round_: int, members: Sequence[int]) -> list[int]:
        """Return who takes part in a round: each of ``members`` by a coin of its own, ascending."""
        if self.rate >= 1:
            return list(members)
        coins = torch.rand(
            len(members), generator=rng.stream(self.seed, "dp/sample", round_), dtype=torch.float64
        )
        return [c for c, coin in zip(members, coins.tolist(), strict=True) if coin < self.rate]

    def release(
        self, updates: Updates | None, home: Tree, round_: int, bound: float = 0.0
    ) -> Updates:
        """Return the noised mean move of a round on top of ``home``, as the update of one client.

        Args:
            updates: of the round; None: nobody came, and the noise comes alone.
            home: what all clients received of the shared tensors, no client axis.
            bound: C of the round; 0: ``clip``.

        Raises:
            FedvlmError: a client received something else, or sends no floating-point numbers.
        """
        clip = bound or self.clip
        sums = {n: torch.zeros(v.shape, dtype=torch.float64) for n, v in home.items()}
        if updates is not None:
            norm = move_norms(updates)
            factor = (clip / norm.clamp_min(torch.finfo(norm.dtype).tiny)).clamp(max=1)
            factor = factor * (updates.weight.to(factor.device) > 0)
            add_moves(sums, updates, factor, home, "FED.DP")
        stream = rng.stream(self.seed, "dp/noise", round_)
        means = {}
        for name, total in sorted(sums.items()):
            z = torch.randn(total.shape, generator=stream, dtype=torch.float64)
            means[name] = (total + self.move_noise * clip * z) / self.expected
        return of_each(updates.clients[:1] if updates is not None else (0,), home, means)

    def repeat(self, released: Updates) -> Updates:
        """Return a released mean as the update of each of q N clients, whoever came.

        A server that counts the clients of a round (FedDyn, FedDecomp) counts what is expected.
        """
        count = max(1, round(self.expected))
        return Updates(
            tuple(range(count)), {n: v.expand(count, *v.shape[1:])
                                  for n, v in released.params.items()},
            torch.ones(count, dtype=torch.float64),
            received={n: v.expand(count, *v.shape[1:]) for n, v in released.received.items()},
        )

    def report(self, rounds: int, most: int) -> dict[str, Any]:
        """Return what results say: epsilon, delta, what is hidden from whom, and in words.

        Args:
            rounds: that were run, of at most ``most``.
        """
        bound = renyi_epsilon(self.rate, self.noise, rounds, self.delta)
        tight = loss_epsilon(self.rate, self.noise, rounds, self.delta)
        spent = bound if tight is None else min(tight, bound)
        said = "Renyi bound" if tight is None else f"by loss distributions; Renyi bound {bound:.4g}"
        drawn = (
            f"each of {self.clients} clients by a coin of {self.rate:g}" if self.rate < 1
            else f"all {self.clients} clients"
        )
        follows = (
            f" at first, then by the noised share of moves within it, quantile {self.quantile:g}: "
            f"noise {self.move_noise:.4g} on the moves and {self.count_noise:.4g} on the count"
        ) if self.quantile else ""
        words = (
            f"epsilon {spent:.4g} ({said}), delta {self.delta:g} for the presence of one client, "
            f"{TRUST}; noise from the seed: a simulation (clip {self.clip:g}{follows}, noise "
            f"{self.noise:.4g}, {rounds} rounds, {drawn} a round; evaluations and baselines are "
            "not covered)"
        )
        return {
            "epsilon": spent, "epsilon_bound": bound, "delta": self.delta, "releases": rounds,
            "unit": "client", "trust": TRUST, "noise": "seed", "clip": self.clip,
            "multiplier": self.noise, "rate": self.rate, "planned": most, "words": words,
        }


def drowned(dp: ClientPrivacy, numbers: int) -> str:
    """Return what is to be said of the noise beside the sum.

    Args:
        numbers: that are shared.
    """
    length = dp.noise * dp.clip * math.sqrt(numbers)
    words = (
        f"FED.DP: the sum of about {dp.expected:g} moves of at most {dp.clip:g} gets noise of "
        f"length {length:.3g}"
    )
    if dp.clients >= FEW:
        return words
    return (
        f"{words}; with {dp.clients} clients, noise that hides one of them drowns their sum: use "
        f"{FEW} clients or more, or protect single images (DP-FPL)"
    )


# ---- accounting ----------------------------------------------------------------------------------
def renyi_epsilon(rate: float, noise: float, rounds: int, delta: float) -> float:
    """Return an epsilon of ``rounds`` Poisson-sampled Gaussian mechanisms; infinite without noise.

    Args:
        rate: q.
        noise: z, standard deviation over sensitivity.
    """
    if not rounds or not rate:
        return 0.0
    if not noise:
        return math.inf
    found = math.inf
    for order in ORDERS:
        spent = rounds * renyi_divergence(rate, noise, order)
        less = (math.log(delta) + math.log(order)) / (order - 1)
        found = min(found, spent + math.log1p(-1 / order) - less)
    return max(found, 0.0)


@cache
def renyi_divergence(rate: float, noise: float, order: float) -> float:
    """Return the Renyi divergence of an order above 1 of one sampled Gaussian mechanism.

    log E[((1 - q) + q exp((2 x - 1) / (2 z^2)))^order] / (order - 1), x ~ N(0, z^2), by the
    trapezoidal rule, which is exact to rounding for such an integrand.
    """
    if rate >= 1:
        return order / (2 * noise**2)
    step = noise / 16
    x = torch.arange(-12 * noise, order + 12 * noise, step, dtype=torch.float64)
    likelihood = torch.logaddexp(
        torch.full_like(x, math.log1p(-rate)), math.log(rate) + (2 * x - 1) / (2 * noise**2)
    )
    density = -x.square() / (2 * noise**2) - math.log(noise * math.sqrt(2 * math.pi))
    whole = float(torch.logsumexp(order * likelihood + density, 0)) + math.log(step)
    return max(whole, 0.0) / (order - 1)


def loss_epsilon(rate: float, noise: float, rounds: int, delta: float) -> float | None:
    """Return an epsilon by the distribution of the privacy loss, composed by FFT.

    Losses are rounded up to a grid, what lies above the grid counts as delta, and both directions
    (a client more, a client less) are looked at: an upper bound, within ``rounds`` steps of the
    grid (Koskela et al., AISTATS 2020; Meiser and Mohammadi, CCS 2018). None where the loss is
    beyond ``WIDEST``: the Renyi bound is all there is.
    """
    if not rounds or not rate:
        return 0.0
    wide = renyi_epsilon(rate, noise, rounds, TAIL)
    if not wide < WIDEST:
        return None
    grid = torch.arange(-GRID, GRID, dtype=torch.float64) * (wide / GRID)
    return max(_composed(below, rounds, delta) for below in _loss_below(rate, noise, grid))


def _loss_below(rate: float, noise: float, grid: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield, for both directions, the grid and the probability of a loss at or below each point.

    The loss is log((1 - q) + q exp((2 x - 1) / (2 z^2))), x from the mixture; or less that, x from
    N(0, z^2).
    """
    def at(loss: Tensor) -> Tensor:
        """Return the x of a loss of the first direction; below all losses minus infinity."""
        inside = (torch.exp(loss) - (1 - rate)) / rate
        return torch.where(inside > 0, noise**2 * inside.clamp_min(1e-300).log() + 0.5, -math.inf)

    x, mirrored = at(grid), at(-grid)
    yield grid, (1 - rate) * ndtr(x / noise) + rate * ndtr((x - 1) / noise)
    yield grid, ndtr(-mirrored / noise)


def _composed(direction: tuple[Tensor, Tensor], rounds: int, delta: float) -> float:
    """Return the epsilon of ``rounds`` mechanisms of a loss, by its distribution on a grid."""
    grid, below = direction
    mass = torch.diff(below, prepend=below.new_zeros(1))
    lost = TAIL + rounds * float(1 - below[-1])
    # A loss of 0 stands first, so that the sum of several wraps to its own place.
    one = torch.fft.rfft(torch.roll(mass, -GRID))
    whole = torch.roll(torch.fft.irfft(one**rounds, n=2 * GRID), GRID).clamp_min(0)

    def above(epsilon: float) -> bool:
        gain = 1 - torch.exp((epsilon - grid).clamp(max=0))
        return float((gain * whole).sum()) + lost > delta

    low, high = 0.0, float(grid[-1])
    if not above(low):
        return 0.0
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if above(middle) else (low, middle)
    return high


def noise_for(epsilon: float, delta: float, rate: float, rounds: int) -> float:
    """Return the least noise z for an epsilon by the Renyi bound, rounded up to four digits.

    Raises:
        ConfigError: no noise up to ``LARGEST`` reaches it.
    """
    def above(noise: float) -> bool:
        return renyi_epsilon(rate, noise, rounds, delta) > epsilon

    if above(LARGEST):
        raise ConfigError(
            f"FED.DP.EPSILON {epsilon:g}: no noise up to {LARGEST:g} reaches it in {rounds} rounds "
            f"at delta {delta:g}; raise FED.DP.EPSILON, or lower --rounds or FED.FRAC"
        )
    return _round_up(_least(above))


def _least(above: Callable[[float], bool]) -> float:
    """Return where a falling condition ends, between 1e-3 and ``LARGEST``."""
    low, high = math.log(1e-3), math.log(LARGEST)
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if above(math.exp(middle)) else (low, middle)
    return math.exp(high)


def _round_up(value: float) -> float:
    scale = 10.0 ** (3 - math.floor(math.log10(value)))
    return math.ceil(value * scale - 1e-9) / scale


# ---- what is refused -----------------------------------------------------------------------------
def check_cover(
    method: str, *, rule: str, beyond: str, own_privacy: bool, patience: int, proxy: str,
) -> None:
    """Refuse a run of which the noised sum is not all that leaves the clients for the models.

    Args:
        rule: ``FED.AGGREGATOR``.
        beyond: why a sum of moves is not enough (``federation.aggregation.sums.beyond_sums``).
        own_privacy: the method has a guarantee of its own.
        patience: ``FED.PATIENCE``.
        proxy: whose images the server trains on.

    Raises:
        ConfigError: such a run, with the reason.
    """
    reasons = {
        beyond: bool(beyond),
        "it has noise of its own; set FED.DP.CLIP 0": own_privacy,
        "its server trains on validation images of clients": proxy == "clients",
    }
    for why, holds in reasons.items():
        if holds:
            raise ConfigError(f"FED.DP does not cover {method}: {why}")
    if reads_single(rule):
        raise ConfigError(
            f"FED.DP with FED.AGGREGATOR {rule}: the rule reads single updates, or their median, "
            "which no noise covers; drop FED.AGGREGATOR"
        )
    if patience:
        raise ConfigError(
            "FED.DP with --rounds auto: when the run ends would tell of the clients' validation "
            "images; give --rounds N"
        )


def make_privacy(
    *, clip: float, noise: float, epsilon: float, delta: float, rate: float, clients: int,
    rounds: int, seed: int, quantile: float = 0.0,
) -> ClientPrivacy:
    """Return the mechanism that ``FED.DP`` asks for.

    Raises:
        ConfigError: a key is missing or contradicts another, or the epsilon cannot be reached.
    """
    if not clip:
        raise ConfigError(
            "FED.DP.CLIP 0: differential privacy needs a bound on a client's move that no data "
            "chose; set FED.DP.CLIP, such as 0.1 (update_norm in metrics.jsonl of a run on public "
            "images shows the size)"
        )
    if bool(noise) == bool(epsilon):
        raise ConfigError(
            "FED.DP: set one of FED.DP.EPSILON (the noise follows) and FED.DP.NOISE (epsilon "
            "follows)"
        )
    if not delta or delta >= 1 / clients:
        raise ConfigError(
            f"FED.DP.DELTA {delta:g}: give a delta above 0 and below 1/{clients}: a mechanism of "
            "delta 1/N may publish one of N clients as it is; 1e-5 is usual"
        )
    return ClientPrivacy(
        clip, noise or noise_for(epsilon, delta, rate, rounds), delta, rate, clients, seed,
        quantile,
    )
