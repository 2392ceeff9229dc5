"""Mixtures of Gaussians of feature vectors: fitted to the images of one class, and drawn from."""

from __future__ import annotations

import torch
from sklearn.mixture import GaussianMixture
from torch import Tensor

SPHERICAL, DIAGONAL, FULL = COVARIANCES = ("spherical", "diag", "full")
FLOOR = 1e-6  # added to a variance, as scikit-learn does


def fit_mixture(
    z: Tensor, components: int, covariance: str, seed: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return shares ``[G]``, means ``[G, d]`` and covariances of a mixture, in float64.

    By expectation maximisation (scikit-learn). One component has a closed form; so has a fit of
    features that are not finite, whose moments then are not finite either.

    Args:
        z: features ``[n, d]``, n above G.
        components: G.
        covariance: ``spherical`` ``[G]``, ``diag`` ``[G, d]`` or ``full`` ``[G, d, d]``.
        seed: of the start of the maximisation.
    """
    z = z.double().cpu()
    if components > 1 and bool(z.isfinite().all()):
        found = GaussianMixture(
            components, covariance_type=covariance, tol=1e-12, max_iter=10_000, random_state=seed,
        ).fit(z.numpy())
        share, mean, spread = (torch.as_tensor(v).double()
                               for v in (found.weights_, found.means_, found.covariances_))
        return share, mean, spread
    centred = z - z.mean(0)
    each = centred.square().mean(0) + FLOOR
    whole = centred.T @ centred / len(z) + FLOOR * torch.eye(z.shape[1], dtype=z.dtype)
    one = {SPHERICAL: each.mean(), DIAGONAL: each, FULL: whole}[covariance]
    return torch.ones(1, dtype=z.dtype), z.mean(0)[None], one[None]


def draw_mixture(
    n: int, share: Tensor, mean: Tensor, spread: Tensor, generator: torch.Generator
) -> Tensor:
    """Return ``n`` features ``[n, d]`` of a mixture (see ``fit_mixture``), in float64."""
    share, mean, spread = (v.double().cpu() for v in (share, mean, spread))
    part = torch.multinomial(share, n, replacement=True, generator=generator)
    noise = torch.randn(n, mean.shape[-1], generator=generator, dtype=mean.dtype)
    if spread.ndim == 3:
        for g, matrix in enumerate(spread):  # a root of each, which need not have the full rank
            values, axes = torch.linalg.eigh(matrix)
            noise[part == g] = noise[part == g] @ (axes * values.clamp_min(0).sqrt()).mT
        return mean[part] + noise
    return mean[part] + noise * spread[part].sqrt().reshape(n, -1)
