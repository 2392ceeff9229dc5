"""Record-level differential privacy: clipping of single samples, Gaussian noise, its accounting.

A step releases the mean of its samples' clipped gradients plus noise (Abadi et al. 2016). Two data
sets are neighbours if one image of one client is replaced by another: number of images, batches and
weights are public. In one pass a sample is in one batch, so a pass is one release, whatever its
number of steps (parallel composition over disjoint batches). Releases compose to one Gaussian
mechanism, whose epsilon is exact (Balle and Wang 2018, theorem 8; Dong et al. 2022, corollary 1).
Where a round takes one step, its batch is a uniform draw without replacement, and Renyi accounting
may use that (Wang et al. 2019), by the package dp-accounting.

In a simulation the noise comes from the run's seeds: this measures what privacy costs in accuracy,
and whoever knows the seed can subtract it. A site with images of its own draws it from a secret
that never leaves it (``distributed.noise``), by SHAKE-256. Either is floating-point noise
(docs/privacy.md).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.special import erfcx, ndtr, ndtri
from torch import Tensor

from fedvlm.core.errors import ConfigError
from fedvlm.core.trees import Tree, per_client, to_device
from fedvlm.federation.aggregation.accountant import crossing
from fedvlm.federation.batches import Batch
from fedvlm.federation.local.effort import Worked

GAUSSIAN, SAMPLED = "gaussian", "sampled"
REPLACED = 2.0  # bounds by which a sum moves at most where one sample is replaced by another
TOP = 1e8  # an epsilon that nobody reaches
HALVINGS = 200


def clip_by_part(grads: Tree, bound: float, parts: Sequence[Sequence[str]]) -> Tree:
    """Return every sample's gradient scaled down to a norm of ``bound``, part by part.

    Args:
        grads: leaves ``[K, B, ...]``, as of ``Context.grad_each``.
        parts: names of leaves whose joint norm is bounded; leaves of no part stay.
    """
    out = dict(grads)
    for names in parts:
        there = [n for n in names if n in grads]
        if not there:
            continue
        rows = [grads[n].reshape(*grads[n].shape[:2], -1) for n in there]
        size = torch.stack([v.square().sum(2) for v in rows]).sum(0).sqrt()
        factor = (bound / size.clamp_min(torch.finfo(size.dtype).tiny)).clamp(max=1)
        for n in there:
            out[n] = grads[n] * factor.reshape(*factor.shape, *([1] * (grads[n].dim() - 2)))
    return out


def mean_gradient(grads: Tree, batch: Batch, count: Tensor | None = None) -> Tree:
    """Return the means over each client's samples, ``[K, ...]``; padding (weight 0) is out.

    Args:
        count: what sums are divided by, ``[K]``; None: the samples of each client.
    """
    count = batch.w.sum(1) if count is None else count
    out = {}
    for name, g in grads.items():
        weight = batch.w.reshape(*batch.w.shape, *([1] * (g.dim() - 2)))
        total = (g * weight).sum(1)
        out[name] = total / per_client(count.to(total.dtype), total)
    return out


def add_noise(
    tree: Tree, batch: Batch, std: float, purpose: str, count: Tensor | None = None
) -> Tree:
    """Return the tree plus N(0, (std / B_k)^2) in every number, B_k the samples of client k.

    ``count`` ``[K]``, where it is given, is B instead.

    The draws are a function of model seed (or the client's secret, ``Batch.secret``), purpose, fit,
    round, client and step; no client shares any with another. Without noise (``std`` 0) the tree
    comes back as it is.

    Raises:
        ValueError: the batch is of no loop's step, so that nothing says which noise is due.
    """
    if not std:
        return tree
    draws: dict[str, list[Tensor]] = {n: [] for n in tree}
    for row in range(len(batch.y)):
        seed = batch.seed(purpose, row)
        if seed is None:
            raise ValueError("noise can be drawn only within a step of a loop")
        stream, secret = torch.Generator().manual_seed(seed), batch.secret(purpose, row)
        for n in sorted(tree):
            shape = tree[n].shape[1:]
            draws[n].append(
                secret_normal(secret + n.encode(), shape) if secret
                else torch.randn(shape, generator=stream, dtype=torch.float64)
            )
    count = batch.w.sum(1) if count is None else count
    out = {}
    for n, v in tree.items():
        z = to_device(torch.stack(draws[n]).to(v.dtype), v.device)
        out[n] = v + per_client((std / count).to(v.dtype), v) * z
    return out


def secret_normal(key: bytes, shape: Sequence[int]) -> Tensor:
    """Return numbers ~ N(0, 1) in float64 that only who has ``key`` can draw.

    SHAKE-256 of the key, 52 bits a number (with a half more they are exact, and never 0 or 1),
    through the normal quantile function.
    """
    count = math.prod(shape)
    raw = np.frombuffer(hashlib.shake_256(key).digest(8 * count), dtype="<u8")
    uniform = ((raw >> np.uint64(12)).astype(np.float64) + 0.5) / 2.0**52
    return torch.from_numpy(ndtri(uniform)).reshape(tuple(shape))


def multiplier(sigma: float, parts: int = 1) -> float:
    """Return noise over sensitivity of one release of ``parts`` vectors with a bound each.

    Args:
        sigma: standard deviation of the noise on a sum of gradients, in bounds.
    """
    return sigma / (REPLACED * math.sqrt(parts))


def gaussian_delta(epsilon: float, noise: float, releases: int = 1) -> float:
    """Return the least delta of ``releases`` Gaussian mechanisms (Balle and Wang, theorem 8).

    Args:
        noise: standard deviation over sensitivity, of each.
    """
    mu = math.sqrt(releases) / noise
    near, far = mu / 2 - epsilon / mu, mu / 2 + epsilon / mu
    tail = math.exp(-near * near / 2) * float(erfcx(far / math.sqrt(2))) / 2  # e^eps Phi(-far)
    return max(float(ndtr(near)) - tail, 0.0)


def epsilon_of(noise: float, releases: int, delta: float) -> float:
    """Return the least epsilon of ``releases`` Gaussian mechanisms; infinite without noise."""
    if not releases:
        return 0.0
    if not noise:
        return math.inf
    low, high = 0.0, 1.0
    if gaussian_delta(low, noise, releases) <= delta:
        return low
    while gaussian_delta(high, noise, releases) > delta:
        low, high = high, 2 * high
        if high > TOP:
            return math.inf
    return crossing(low, high, lambda e: gaussian_delta(e, noise, releases) > delta, HALVINGS)


def sigma_for(epsilon: float, delta: float, releases: int, parts: int = 1) -> float:
    """Return the least sigma that ``epsilon_of`` allows; see ``multiplier``."""
    return crossing(
        1e-6, 1e6, lambda s: epsilon_of(multiplier(s, parts), releases, delta) > epsilon, HALVINGS
    )


def sampled_epsilon(noise: float, size: int, batch: int, steps: int, delta: float) -> float:
    """Return an epsilon of steps that draw ``batch`` of ``size`` samples without replacement.

    Raises:
        ConfigError: see ``renyi``.
    """
    if not steps:
        return 0.0
    if not noise:
        return math.inf
    package, accountant = renyi()
    event = package.dp_event
    accountant.compose(
        event.SampledWithoutReplacementDpEvent(size, batch, event.GaussianDpEvent(noise)), steps
    )
    return float(accountant.get_epsilon(delta))


def renyi() -> tuple[Any, Any]:
    """Return the package dp-accounting and its Renyi accountant, one sample replaced by another.

    Raises:
        ConfigError: it is not installed, or too old.
    """
    try:
        import dp_accounting  # optional: fedvlm[dp]
        from dp_accounting.rdp import RdpAccountant  # optional: fedvlm[dp]
    except ImportError:
        raise ConfigError(
            f"ACCOUNTANT {SAMPLED} needs dp-accounting 0.4 or newer: pip install 'fedvlm[dp]', or "
            f"use {GAUSSIAN}"
        ) from None
    relation = dp_accounting.NeighboringRelation.REPLACE_ONE
    return dp_accounting, RdpAccountant(neighboring_relation=relation)


@dataclass(frozen=True)
class Mechanism:
    """A Gaussian mechanism over batches.

    Attributes:
        sigma: noise on a sum of clipped gradients, in bounds.
        clip: the bound, for the words.
        delta: of (epsilon, delta).
        parts: vectors of a release, each with a bound and noise of its own.
        sampled: count the gain of drawing a batch (one step a round); else none.
        unit: what is hidden: one ``image`` or one ``group``, all images of it.
    """

    sigma: float
    clip: float
    delta: float
    parts: int = 1
    sampled: bool = False
    unit: str = "image"

    @property
    def noise(self) -> float:
        """Noise over sensitivity of a release."""
        return multiplier(self.sigma, self.parts)

    def epsilon(self, one: Worked) -> float:
        """Return the epsilon of a client.

        Raises:
            ConfigError: gain of sampling is asked for where a round takes several steps.
        """
        if not self.sampled or one.per_pass <= 1:
            return epsilon_of(self.noise, one.passes, self.delta)
        if any(steps > 1 for steps in one.steps):
            raise ConfigError(
                "ACCOUNTANT sampled: a client made several steps in a round on one shuffle, "
                "which are not independent draws; set FED.LOCAL_STEPS 1, or ACCOUNTANT gaussian"
            )
        return sampled_epsilon(self.noise, one.size, one.batch, sum(one.steps), self.delta)


def report_spending(how: Mechanism, work: Sequence[Worked]) -> Mapping[str, Any]:
    """Return ``epsilon`` (None: no bound), ``delta``, ``releases`` and ``words``, for the results.

    They are of the client that has spent most.

    Args:
        work: of the clients that worked; empty: nobody has, and nothing is spent.
    """
    each = {one: how.epsilon(one) for one in dict.fromkeys(work)}
    most = max(each.values(), default=0.0)
    drawn = any(one.per_pass > 1 for one, spent in each.items() if spent == most)
    times = max((one.passes for one in each), default=0)
    bounded = math.isfinite(most)
    gain = "with" if how.sampled and drawn else "no"  # a batch of all images is no draw
    settings = f"sigma {how.sigma:g}, clip {how.clip:g}"
    words = (
        f"epsilon {most:.4g}, delta {how.delta:g} for replacing one {how.unit} of a client, worst "
        f"client ({settings}, {gain} gain of sampling)"
    ) if bounded else f"no bound on epsilon ({settings})"
    return {
        "epsilon": most if bounded else None, "delta": how.delta, "releases": times,
        "words": words,
    }
