"""What a run has spent of its clients' privacy, from how often their images were in a batch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedvlm.core.errors import ConfigError
from fedvlm.federation.local.effort import Worked
from fedvlm.federation.toolbox.privacy import epsilon_of, multiplier, sampled_epsilon


@dataclass(frozen=True)
class Mechanism:
    """A Gaussian mechanism over batches.

    Attributes:
        sigma: noise on a sum of clipped gradients, in bounds.
        clip: the bound, for the words.
        delta: of (epsilon, delta).
        parts: vectors of a release, each with a bound and noise of its own.
        sampled: count the gain of drawing a batch (one step a round); else none.
    """

    sigma: float
    clip: float
    delta: float
    parts: int = 1
    sampled: bool = False

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
                "ACCOUNTANT sampled: a client took several steps in a round, which share out one "
                "shuffle and are no independent draws; set FED.LOCAL_STEPS 1, or ACCOUNTANT "
                "gaussian"
            )
        return sampled_epsilon(self.noise, one.size, one.batch, sum(one.steps), self.delta)


def spending(how: Mechanism, work: Sequence[Worked]) -> Mapping[str, Any]:
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
        f"epsilon {most:.4g}, delta {how.delta:g} for one image of a client replaced by another, "
        f"of the client that spent most ({settings}, {gain} gain of sampling)"
    ) if bounded else f"no bound on epsilon ({settings})"
    return {
        "epsilon": most if bounded else None, "delta": how.delta, "releases": times,
        "words": words,
    }
