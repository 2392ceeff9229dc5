"""Privacy of one image or one group for methods that train by ``ctx.fit`` (``FED.DP.UNIT``).

DP-SGD (Abadi et al., Deep Learning with Differential Privacy, CCS 2016, algorithm 1): the gradient
of every single image, all trained tensors as one vector, is cut to length C; the sum over a batch
gets noise N(0, (z C)^2) in every number. By group the gradients of a batch that belong to one group
are added up first and their sum is cut.

Neighbours differ in one image of one client (in all images of one of its groups) that is replaced:
a sum moves by at most 2 C. Numbers of images, batches and sizes of groups are public. In a pass an
image is in one batch; a group of m images is in at most m of them, and each of these is a release.
Releases compose as ``toolbox.privacy`` says, without any gain of sampling: the batches of one
shuffle are no independent draws.

With ``poisson`` (``FED.DP.SAMPLING``) every step draws each image (group) of a client by a coin of
q = batch size over images, and the sum is divided by the batch size, whoever came. Neighbours then
differ in one image (group) that is replaced by nothing; the public count of images is held fixed,
since q and the divisor follow from it. A sum moves by at most C, and each step is one
Poisson-sampled Gaussian mechanism of rate q and noise z, which ``aggregation.accountant`` composes.
How many were drawn is a secret like the noise: counters tell what was expected, and passes through
the towers are not counted. What an optimiser, an ``edit`` or a server makes of a noised gradient is
post-processing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from fedvlm.core.errors import ConfigError, FedvlmError
from fedvlm.core.trees import Tree
from fedvlm.federation.aggregation.accountant import noise_for, renyi_epsilon, told_epsilon
from fedvlm.federation.batches import Batch
from fedvlm.federation.local.effort import Worked
from fedvlm.federation.toolbox.privacy import (
    Mechanism,
    add_noise,
    clip_by_part,
    epsilon_of,
    mean_gradient,
    multiplier,
    report_spending,
    sigma_for,
)

IMAGE, GROUP = "image", "group"
COUNTED = "noised_fits"  # the counter of a client's fits in a round
TRUST = "against everybody, the server too: each client adds the noise itself"
NOT_COVERED = "evaluations, validation images and baselines are not covered"


@dataclass(frozen=True)
class ImagePrivacy:
    """The mechanism of a run.

    Attributes:
        unit: ``image`` or ``group``.
        clip: C, the longest gradient of an image, or sum of those of a group in a batch.
        noise: z, noise on a batch's sum over C.
        delta: of (epsilon, delta).
        fits: of a client's round, the epochs of each; 0: as many as the run says.
        largest: by client the images of its largest group; {}: no groups are known. Of unit image
            it is not read.
        poisson: batches are drawn by coins, step by step.
    """

    unit: str
    clip: float
    noise: float
    delta: float
    fits: tuple[int, ...]
    largest: Mapping[int, int] = field(default_factory=dict)
    poisson: bool = False

    def enter(self, counters: Counter[str], epochs: int | None) -> None:
        """Count a fit of a round.

        Raises:
            FedvlmError: it is one that the method has not declared, so that no epsilon counts it.
        """
        at = counters[COUNTED]
        if at >= len(self.fits) or self.fits[at] != (epochs or 0):
            raise FedvlmError(
                f"FED.DP.UNIT {self.unit}: fit {at + 1} of a round is none that the method's "
                f"image_fits {self.fits} declare, so that no epsilon would count it"
            )
        counters[COUNTED] += 1

    @contextmanager
    def uncounted(self, passes: Counter[str]) -> Iterator[None]:
        """Leave counters of tower passes as they are, where they would tell how many were drawn."""
        before = Counter(passes)
        yield
        if self.poisson:
            for name in passes:
                passes[name] = before[name]

    def refuse(self, what: str) -> None:
        """Refuse what reads images without noise.

        Raises:
            FedvlmError: always.
        """
        raise FedvlmError(
            f"FED.DP.UNIT {self.unit}: the method calls ctx.{what}, which reads images without "
            "noise; such a method must not declare image_fits"
        )

    def noised(self, grads: Tree, batch: Batch) -> Tree:
        """Return the noised mean gradient of each client, ``[K, ...]``.

        Args:
            grads: of every single image, ``[K, B, ...]``; of padding 0.
        """
        if self.unit == GROUP:
            grads = sum_by_group(grads, batch.groups)
        count = batch.w.new_tensor(batch.counts) if self.poisson else None
        mean = mean_gradient(clip_by_part(grads, self.clip, [list(grads)]), batch, count)
        return add_noise(mean, batch, self.noise * self.clip, "dp/image", count)

    def spread(self, client: int, per_pass: int) -> int:
        """Return in how many batches of a pass a unit of a client may be."""
        return 1 if self.unit == IMAGE else min(self.largest.get(client, per_pass), per_pass)

    def report(self, work: Sequence[Worked]) -> dict[str, Any]:
        """Return epsilon, delta, what is hidden from whom, and in words.

        Args:
            work: of every client that was drawn, a number of steps for each of its fits.
        """
        how = Mechanism(self.noise, self.clip, self.delta, unit=self.unit)
        spent = self._drawn(work) if self.poisson else dict(report_spending(how, work))
        return spent | {
            "words": f"{spent['words']}, {TRUST}; {NOT_COVERED}", "unit": self.unit,
            "trust": TRUST, "clip": self.clip, "multiplier": self.noise,
        }

    def _drawn(self, work: Sequence[Worked]) -> dict[str, Any]:
        """Return what ``report_spending`` does, of steps that draw by coins."""
        bounds = {each: renyi_epsilon(each[0], self.noise, each[1], self.delta)
                  for each in _rates(work)}
        most, bound = 0.0, max(bounds.values(), default=0.0)
        for each in sorted(bounds, key=bounds.__getitem__, reverse=True):
            if bounds[each] <= most:
                break
            most = max(most, told_epsilon(each[0], self.noise, each[1], self.delta))
        words = (
            f"epsilon {most:.4g} (Renyi bound {bound:.4g}), delta {self.delta:g} for the presence "
            f"of one {self.unit} of a client, worst client (sigma {self.noise:g}, clip "
            f"{self.clip:g}, each {self.unit} drawn by a coin at every step)"
        )
        return {"epsilon": most, "epsilon_bound": bound, "delta": self.delta, "words": words,
                "releases": max((steps for _, steps in bounds), default=0)}


def _rates(work: Sequence[Worked]) -> list[tuple[float, int]]:
    """Return the rates of clients' draws with the number of their steps, largest rates first."""
    return sorted({(one.batch / one.size, sum(one.steps)) for one in work if one.size},
                  reverse=True)


def noise_of_draws(
    epsilon: float, delta: float, work: Sequence[Worked], tight: bool = False
) -> float:
    """Return the noise with which no client's draws spend more than ``epsilon``.

    Args:
        tight: see ``accountant.noise_for``.

    Raises:
        ConfigError: none reaches it.
    """
    noise = 0.0
    for rate, steps in _rates(work):
        if not noise or renyi_epsilon(rate, noise, steps, delta, epsilon) > epsilon and not (
            tight and told_epsilon(rate, noise, steps, delta) <= epsilon
        ):
            try:
                noise = noise_for(epsilon, delta, rate, steps, tight)
            except ConfigError:
                raise ConfigError(
                    f"FED.DP.EPSILON {epsilon:g}: no noise reaches it in {steps} steps that draw "
                    f"{100 * rate:.3g} % of a client's images at delta {delta:g}; raise "
                    "FED.DP.EPSILON, or lower --rounds or --batch-size"
                ) from None
    return noise


def sum_by_group(grads: Tree, groups: Tensor | None) -> Tree:
    """Return the sums of each batch's gradients by group, at the place of a group's first image.

    Args:
        grads: ``[K, B, ...]``; of padding 0.
        groups: numbers ``[K, B]``.

    Raises:
        FedvlmError: the batch does not know its groups.
    """
    if groups is None:
        raise FedvlmError("FED.DP.UNIT group: a batch does not know the groups of its images")
    same = groups[:, :, None] == groups[:, None, :]
    first = same.to(torch.uint8).argmax(2)  # [K, B]: the first image of each one's group
    at = torch.nn.functional.one_hot(first, groups.shape[1]).mT  # [K, place, image]
    return {n: (at.to(g.dtype) @ g.reshape(*g.shape[:2], -1)).view_as(g) for n, g in grads.items()}


def check_method(
    method: str, unit: str, *, fits: Sequence[int], network: bool, trains_by: str,
    extras: Sequence[str], own_privacy: bool, own_weight: bool, finetune: int, early_stop: int,
) -> None:
    """Refuse a method of which more leaves the clients, or their noise, than noised gradients.

    Args:
        fits: what the method declares as ``image_fits``.
        network: it runs over a network of the user's.
        trains_by: ``fit``, ``loop`` or ``descent``.
        extras: what an upload carries beside shared tensors.
        own_privacy: the method has a guarantee of its own.
        own_weight: the client tells its weight.
        finetune: epochs of the final fine-tuning.
        early_stop: ``FED.EARLY_STOP``.

    Raises:
        ConfigError: such a method, with the reason.
    """
    reasons = {
        "it has noise of its own; set FED.DP.CLIP 0": own_privacy,
        "it trains by a loop of its own, not by ctx.fit": trains_by != "fit",
        f"its clients send {', '.join(extras)} beside the shared tensors": bool(extras),
        "its clients tell weights that depend on their images": own_weight,
        "its network may mix the images of a batch (BatchNorm), so that no image has a gradient of "
        "its own; take a method over CLIP": network,
        "its loss or its clients' other work looks at several images at once, or has not been "
        "looked through (image_fits in trainers/)": not fits,
        "FED.EARLY_STOP ends a client's work by its validation images; set it to 0": early_stop > 0,
        f"its final fine-tuning ({finetune} epochs) trains without noise; set --finetune-epochs 0":
            finetune > 0,
    }
    for why, holds in reasons.items():
        if holds:
            raise ConfigError(f"FED.DP.UNIT {unit} does not cover {method}: {why}")


def make_image_privacy(
    start: ImagePrivacy, *, epsilon: float, work: Sequence[Worked], largest: int, sites: bool,
    tight: bool = False,
) -> ImagePrivacy:
    """Return the mechanism that ``FED.DP`` asks for, with the noise that ``epsilon`` needs.

    Args:
        start: with the noise that was given; 0: ``epsilon`` chooses it.
        epsilon: of the whole run; 0: the noise is given.
        work: of every client, in all rounds that are planned.
        largest: images of the largest client.
        sites: clients are parties, which know of themselves only.
        tight: see ``noise_of_draws``.

    Raises:
        ConfigError: a key is missing or contradicts another.
    """
    unit, delta = start.unit, start.delta
    if unit == GROUP and sites:
        raise ConfigError(
            "FED.DP.UNIT group: a site's list of images does not tell groups; use FED.DP.UNIT "
            "image, or simulate with FED.ENGINE local"
        )
    if unit == GROUP and not start.largest:
        raise ConfigError(
            "FED.DP.UNIT group: nothing says which images belong together; give --groups COLUMN "
            "(a column such as patient), or FED.DP.UNIT image"
        )
    if not start.clip:
        raise ConfigError(
            "FED.DP.CLIP 0: differential privacy needs a bound on a gradient that no data chose; "
            f"set FED.DP.CLIP, such as 1 (here it bounds the gradient of one {unit})"
        )
    if bool(start.noise) == bool(epsilon):
        raise ConfigError(
            "FED.DP: set one of FED.DP.EPSILON (the noise follows) and FED.DP.NOISE (epsilon "
            "follows)"
        )
    if not delta or delta * max(largest, 1) >= 1:
        raise ConfigError(
            f"FED.DP.DELTA {delta:g}: give a delta above 0 and below 1/{largest}, one over the "
            "images of the largest client; 1e-5 is usual"
        )
    if start.noise:
        return start
    releases = max((one.passes for one in work), default=0)
    noise = (noise_of_draws(epsilon, delta, work, tight) if start.poisson
             else sigma_for(epsilon, delta, max(releases, 1)))
    if not start.poisson and epsilon_of(multiplier(noise), max(releases, 1), delta) > epsilon:
        raise ConfigError(
            f"FED.DP.EPSILON {epsilon:g}: no noise reaches it in {releases} releases at delta "
            f"{delta:g}; raise FED.DP.EPSILON, or lower --rounds"
        )
    if sites:
        raise ConfigError(
            f"FED.DP.EPSILON {epsilon:g}: sites that do not know each other's images need one "
            f"noise; give FED.DP.NOISE {noise:.4g} instead, which reaches it here"
        )
    return replace(start, noise=noise)


def beside_the_sum(how: ImagePrivacy, numbers: int, batch: int) -> str:
    """Return what is to be said of the noise beside a batch's sum.

    Args:
        numbers: that are trained.
        batch: images of a batch.
    """
    length = how.noise * how.clip * math.sqrt(numbers)
    return (
        f"FED.DP.UNIT {how.unit}: the sum of a batch's gradients, {batch} of at most "
        f"{how.clip:g}, gets noise of length {length:.3g}"
    )
