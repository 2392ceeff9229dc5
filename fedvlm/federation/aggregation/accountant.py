"""Epsilon of Poisson-sampled Gaussian mechanisms, and the noise for one.

Renyi accounting of the sampled Gaussian mechanism (Mironov et al. 2019, theorem 5),
to epsilon by Canonne et al. 2020 (proposition 12): an upper bound. The epsilon of a run is the
tighter one by the distribution of the privacy loss, with the bound beside it. It chooses the noise
of new runs; the bound chose it before (``FED.DP.TIGHT``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cache

import torch
from torch import Tensor
from torch.special import ndtr

from fedvlm.core.errors import ConfigError

ORDERS = (
    *(1 + k / 10 for k in range(1, 100)), *range(11, 64), 80, 96, 128, 192, 256, 384, 512, 1024,
)
LARGEST, STEPS = 1e4, 30  # noise that is looked for
SECANTS, UNUSED = 10, 2e-4  # steps to a tight noise, and the part of epsilon it may leave
GRID, TAIL, WIDEST = 1 << 18, 1e-14, 200.0  # half of a grid's points; mass beyond it; its end
COARSE, SURE = 16, 1e-9  # of so many orders one comes first; a gap that no rounding has made


def renyi_epsilon(
    rate: float, noise: float, rounds: int, delta: float, enough: float | None = None
) -> float:
    """Return an epsilon of ``rounds`` Poisson-sampled Gaussian mechanisms; infinite without noise.

    The least over all orders. Divergences rise with the order and are 0 or more, so that most
    orders cannot have it and are not computed.

    Args:
        rate: q.
        noise: z, standard deviation over sensitivity.
        enough: only whether it is above this is asked; then no other digit counts.
    """
    if not rounds or not rate:
        return 0.0
    if not noise:
        return math.inf
    found, before = math.inf, 0.0
    for order in (*ORDERS[::COARSE], *ORDERS):
        before = 0.0 if order == ORDERS[0] else before
        less = (math.log(delta) + math.log(order)) / (order - 1)
        least = max(rounds * (before - 1e-3 * SURE) * (1 - SURE), 0.0)
        if least + math.log1p(-1 / order) - less > (found if enough is None else enough):
            continue
        before = renyi_divergence(rate, noise, order)
        found = min(found, rounds * before + math.log1p(-1 / order) - less)
        if enough is not None and found <= enough:
            break
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


@cache
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

    ends, mass = grid[GRID:], whole[GRID:]  # losses above 0: no other is above an epsilon
    beyond = torch.stack((mass, mass * torch.exp(-ends))).flip(1).cumsum(1).flip(1)

    def above(epsilon: float) -> bool:
        """Compare the sum over all losses; its two parts by tables, where they leave no doubt."""
        at = min(int(torch.searchsorted(ends, epsilon)), GRID - 1)
        more, less = beyond[:, at].tolist()
        gap = more - math.exp(epsilon) * less + lost - delta
        if abs(gap) > SURE * (more + lost + delta):
            return gap > 0
        gain = 1 - torch.exp((epsilon - grid).clamp(max=0))
        return float((gain * whole).sum()) + lost > delta

    return crossing(0.0, float(grid[-1]), above, STEPS) if above(0.0) else 0.0


def told_epsilon(rate: float, noise: float, rounds: int, delta: float) -> float:
    """Return what results say: epsilon by the distribution of the loss, or the smaller bound."""
    bound = renyi_epsilon(rate, noise, rounds, delta)
    tight = loss_epsilon(rate, noise, rounds, delta)
    return bound if tight is None else min(tight, bound)


def noise_for(epsilon: float, delta: float, rate: float, rounds: int, tight: bool = False) -> float:
    """Return the least noise z for an epsilon by the Renyi bound, rounded up to four digits.

    Args:
        tight: by ``told_epsilon``, to four digits or 0.02 % of epsilon; about six of its calls.

    Raises:
        ConfigError: no noise up to ``LARGEST`` reaches it.
    """
    def above(noise: float) -> bool:
        return renyi_epsilon(rate, noise, rounds, delta, epsilon) > epsilon

    if above(LARGEST):
        raise ConfigError(
            f"FED.DP.EPSILON {epsilon:g}: no noise up to {LARGEST:g} reaches it in {rounds} rounds "
            f"at delta {delta:g}; raise FED.DP.EPSILON, or lower --rounds or FED.FRAC"
        )
    least = crossing(math.log(1e-3), math.log(LARGEST), lambda v: above(math.exp(v)), STEPS)
    enough = _round_up(math.exp(least))
    return _tighten(epsilon, delta, rate, rounds, enough) if tight else enough


def _tighten(epsilon: float, delta: float, rate: float, rounds: int, enough: float) -> float:
    """Return what is left of a noise that is enough, by secants of log epsilon over log noise."""
    def point(noise: float) -> tuple[float, float]:
        spent = told_epsilon(rate, noise, rounds, delta)
        return math.log(noise), math.log(max(spent, 1e-12) / epsilon)

    least, low = enough, 0.0
    new = point(enough)
    old, slope = new, -1.0  # where noise is large, epsilon is about one over it
    for _ in range(SECANTS):
        unit = 10.0 ** (math.floor(math.log10(least)) - 3)
        if -UNUSED <= new[1] <= 0 or least - low < 1.5 * unit:
            break
        noise = _round_up(math.exp(new[0] - new[1] / slope))
        noise = _round_up(min(max(noise, low + unit), least - unit))
        old, new = new, point(noise)
        least, low = (noise, low) if new[1] <= 0 else (least, noise)
        slope = min((new[1] - old[1]) / (new[0] - old[0]), -0.1)
    return least


def crossing(low: float, high: float, above: Callable[[float], bool], halvings: int) -> float:
    """Return where a falling condition ends, from the side where it no longer holds."""
    for _ in range(halvings):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if above(middle) else (low, middle)
    return high


def _round_up(value: float) -> float:
    scale = 10.0 ** (3 - math.floor(math.log10(value)))
    return math.ceil(value * scale - 1e-9) / scale
