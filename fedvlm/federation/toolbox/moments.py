"""First and second moments of a client's features by class, and closed forms on sums of them.

Moments add up over clients, so that what is computed of their sum is what one computer with all
images would have computed: a ridge regression, or a Gaussian discriminant.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fedvlm.core.trees import Tree, in_double
from fedvlm.federation.aggregation.updates import Updates
from fedvlm.federation.context import Context
from fedvlm.federation.server import ServerContext
from fedvlm.federation.toolbox.prototypes import Features, membership

COUNTED = "counted"  # slot of a client at the server
TAG = "moments"  # one shuffle for every caller: sums run in the same order, whoever asks
CLOSED_FORM = {  # of a trainer that computes of these sums: ``Trainer.exempt``
    "G4": "closed form: there is no learning rate",
    "G5": "closed form: there is no gradient descent",
    "G11": "nobody takes a step",
}
RIDGES = tuple(10 ** (-i / 2) for i in range(17))  # candidates in traces of z z', falling
FREEDOM = 1.2  # of the parameters that a fit uses (Kim and Gu 2004: 1.2 to 1.4)
SHARES = (1.0, 0.3, 0.1, 0.03, 0.01)  # candidates for the identity's share, falling
TEMPERS = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)  # of log class shares beside a ridge's scores
SMOOTH = 0.1  # images of every class that a client is taken to have besides its own
ABSENT = -1e4  # score of a class that nobody has an image of


@dataclass(frozen=True)
class Moments:
    """Sums over samples, float64; leading axes are free (``[K, ...]`` of K clients).

    Attributes:
        count: samples per class, ``[..., C]``.
        total: sum of the features of each class, ``[..., C, d]``.
        gram: sum of z z' over all samples, ``[..., d, d]``.
    """

    count: Tensor
    total: Tensor
    gram: Tensor

    @property
    def mean(self) -> Tensor:
        """Class means ``[..., C, d]``; zeros for a class without a sample."""
        return self.total / self.count.clamp_min(1)[..., None]

    @property
    def within(self) -> Tensor:
        """Scatter of the samples around the means of their classes, ``[..., d, d]``."""
        return self.gram - self.total.mT @ self.mean


def compute_moments(ctx: Context, features: Features, classes: int, width: int) -> Moments:
    """Return the moments of ``features({}, x) [K, B, width]`` over each client's training split.

    Args:
        ctx: the chunk of clients.
        features: as for ``prototypes.class_means``; nothing is trained.
        classes, width: C and d.
    """
    place = ctx.model.device
    count = in_double(torch.zeros(ctx.k, classes, device=place))
    total = in_double(torch.zeros(ctx.k, classes, width, device=place))
    gram = in_double(torch.zeros(ctx.k, width, width, device=place))
    with torch.no_grad():
        for batch in ctx.batches(TAG):
            z, member = in_double(features({}, batch.x)), in_double(membership(batch, classes))
            at = slice(len(z)) if batch.rows is None else batch.rows.to(total.device)
            count[at] += member.sum(1)
            total[at] += member.mT @ z
            gram[at] += (z * member.sum(-1)[..., None]).mT @ z
    return Moments(count, total, gram)


def newcomers(ctx: ServerContext, updates: Updates) -> Iterator[int]:
    """Yield the rows of clients that no sum holds yet, and hold them as counted: each once."""
    for k, client in enumerate(updates.clients):
        if not ctx.held.get(client):
            ctx.held.put(client, {COUNTED: {COUNTED: torch.ones(())}})
            yield k


def ridge(gram: Tensor, cross: Tensor, strength: float = 0.0) -> Tensor:
    """Return the W ``[..., d, C]`` that minimises |Z W - Y|^2 + strength |W|^2.

    Without ``strength`` it is the least-squares solution of least norm, where several fit.

    Args:
        gram, cross: Z'Z ``[..., d, d]`` and Z'Y ``[..., d, C]``, float64.
        strength: of the ridge, from 0.
    """
    eye = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    if strength > 0:
        return torch.linalg.solve(gram + strength * eye, cross)
    return torch.linalg.pinv(gram, hermitian=True) @ cross


def left_out_errors(gram: Tensor, cross: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
    """Return the candidate ridges ``[..., R]`` and the error of each on images left out.

    Left out one by one, image i has the error e_i / (1 - h_i), e_i that of the solution with it and
    h_i its leverage z_i' (Z'Z + ridge)^-1 z_i. Of sums only their mean is known: with tr(H) / n in
    the place of every h_i it is generalised cross-validation (Golub, Heath and Wahba,
    Technometrics 1979), (|Y - Z W|^2 / n) / (1 - FREEDOM tr(H) / n)^2. FREEDOM above 1 is for fewer
    images than channels, where it would else take next to no ridge (Kim and Gu, J. R. Stat. Soc. B
    2004). It does not depend on how the images are dealt.

    Args:
        gram, cross: Z'Z ``[..., d, d]`` and Z'Y ``[..., d, C]``, Y one-hot, float64.
        n: images, ``[...]``.
    """
    values, axes = torch.linalg.eigh(gram)
    values, n = values.clamp_min(0)[..., None, :], n.clamp_min(1)[..., None]
    trace = values.sum(-1).clamp_min(torch.finfo(values.dtype).tiny)
    ridges = trace * torch.tensor(RIDGES, dtype=values.dtype, device=values.device)
    square = (axes.mT @ cross).square().sum(-1)[..., None, :]
    sums = values + ridges[..., None]
    error = n + (square * (values / sums - 2) / sums).sum(-1)
    left = 1 - FREEDOM * (values / sums).sum(-1) / n
    return ridges, torch.where(left > 0, error.clamp_min(0) / n / left.square(), torch.inf)


def best_ridge(gram: Tensor, cross: Tensor, n: Tensor) -> Tensor:
    """Return the ridge ``[...]`` of the least error, of equals the strongest.

    See ``left_out_errors``.
    """
    ridges, errors = left_out_errors(gram, cross, n)
    return ridges.gather(-1, errors.argmin(-1, keepdim=True))[..., 0]


def log_shares(counts: Tensor) -> Tensor:
    """Return the log of class shares ``[..., C]``, each count ``SMOOTH`` higher."""
    more = counts + SMOOTH
    return (more / more.sum(-1, keepdim=True)).log()


def left_out_answers(
    z: Tensor, y: Tensor, weights: Tensor, inverse: Tensor, counts: Tensor
) -> list[Tensor]:
    """Return for each of ``TEMPERS`` which images are right, ``[..., n]`` bool.

    The scores are those of a ridge plus the factor times the log of the client's class shares.
    Each image is judged without itself, in both: the solution without image i gives it (s_i - h_i
    y_i) / (1 - h_i), s_i its scores and h_i its leverage.

    Args:
        z, y: of a client's training images, ``[..., n, d]`` float64 and classes ``[..., n]``.
        weights, inverse: of the ridge, ``[..., d, C]`` and (sum of z z' + ridge)^-1.
        counts: the client's training images of each class, ``[..., C]``.
    """
    hot = F.one_hot(y, weights.shape[-1]).to(z)
    leverage = (z @ inverse * z).sum(-1, keepdim=True)
    alone = (z @ weights - leverage * hot) / (1 - leverage).clamp_min(1e-6)
    prior = log_shares(counts[..., None, :] - hot)
    return [(alone + temper * prior).argmax(-1) == y for temper in TEMPERS]


def compute_answers(
    ctx: Context, features: Features, weights: Tensor, inverse: Tensor, counts: Tensor
) -> Tensor:
    """Return the share of each client's training images that is right by ``left_out_answers``.

    Args:
        ctx, features: as in ``compute_moments``.
        weights, inverse, counts: of each client, ``[K, ...]`` float64.

    Returns:
        ``[K, len(TEMPERS)]`` float64; 0 of a client without images, and where ``inverse`` is 0:
        there is no ridge yet.
    """
    right = torch.zeros(ctx.k, len(TEMPERS), dtype=weights.dtype, device=weights.device)
    with torch.no_grad():
        for batch in ctx.batches(TAG):
            z, y, w = in_double(features({}, batch.x)), batch.y.to(right.device), in_double(batch.w)
            own: Tree = batch.cut({"weights": weights, "inverse": inverse, "counts": counts})
            at = slice(len(z)) if batch.rows is None else batch.rows.to(right.device)
            hits = left_out_answers(z, y, **own)
            right[at] += torch.stack([(hit * w).sum(-1) for hit in hits], -1)
    known = inverse.diagonal(dim1=-2, dim2=-1).sum(-1, keepdim=True) > 0
    return right / counts.sum(-1, keepdim=True).clamp_min(1) * known


def left_out_surprise(m: Moments, least: float = 0.0) -> Tensor:
    """Return -2 log density, up to a constant, of images left out, for each of ``SHARES``.

    Densities are those of ``discriminant``. Without image i the mean of its class is r n_c / (n_c -
    1) away from it (r its distance from the mean with it) and the scatter is smaller by n_c / (n_c
    - 1) r r' (Hoffbeck and Landgrebe, IEEE TPAMI 1996). Of sums only the means of the factor and of
    r' G^-1 r over the images are known, G the covariance, and these are taken for every image
    (Theiler, Proc. SPIE 8391, 2012). Images that are alone in their class are not left out; where
    all are, every share has 0.

    Args:
        m: of whole images, each counted once; leading axes are free.
        least: as in ``discriminant``.

    Returns:
        ``[..., len(SHARES)]``; inf where the factor leaves nothing of the covariance.
    """
    more = torch.where(m.count > 1, m.count, 0.0)
    able = more.sum(-1)[..., None].clamp_min(1)
    rest = (m.count.sum(-1)[..., None] - 1).clamp_min(1)
    factor = (more.square() / (more - 1).clamp_min(1)).sum(-1)[..., None] / able
    values = (torch.linalg.eigvalsh(m.within).clamp_min(0) / rest)[..., None, :]
    share = torch.tensor(SHARES, dtype=values.dtype, device=values.device)
    tiny = torch.finfo(values.dtype).tiny
    size = values.mean(-1, keepdim=True).clamp_min(max(least, tiny))
    cov = (1 - share[:, None]) * values + share[:, None] * size
    far = (values / cov).sum(-1) * rest / able
    left = 1 - factor * (1 - share) * far / rest
    out = cov.log().sum(-1) + left.clamp_min(tiny).log() + factor.square() * far / left
    out = torch.where(left > 0, out, torch.inf)
    return torch.where((more > 0).any(-1, keepdim=True), out, 0.0)


def best_share(m: Moments, least: float = 0.0) -> Tensor:
    """Return the one of ``SHARES``, ``[...]``, by ``left_out_surprise``; of equals the largest."""
    best = left_out_surprise(m, least).argmin(-1)
    return torch.tensor(SHARES, dtype=m.gram.dtype, device=m.gram.device)[best]


def discriminant(
    mean: Tensor, scatter: Tensor, freedom: Tensor, there: Tensor, shrink: float | Tensor,
    least: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Return weights ``[..., C, d]`` and biases ``[..., C]`` of a Gaussian discriminant.

    One covariance for all classes, ``scatter / freedom``, moved by ``shrink`` towards a multiple of
    the identity of the same trace; classes are equally likely, those not ``there`` out of question.

    Args:
        mean: ``[..., C, d]``.
        scatter: ``[..., d, d]``.
        freedom: ``[...]``, above 0.
        there: ``[..., C]`` bool.
        shrink: above 0 and at most 1; or one each, ``[...]``.
        least: variance of a channel that is assumed where there is less (a single sample has none).
    """
    width = scatter.shape[-1]
    eye = torch.eye(width, dtype=scatter.dtype, device=scatter.device)
    cov = scatter / freedom[..., None, None]
    size = cov.diagonal(dim1=-2, dim2=-1).mean(-1).clamp_min(least)
    share = torch.as_tensor(shrink, dtype=cov.dtype, device=cov.device)[..., None, None]
    cov = (1 - share) * cov + share * size[..., None, None] * eye
    weight = torch.linalg.solve(cov, mean.mT).mT
    bias = -(weight * mean).sum(-1) / 2
    return weight * there[..., None], torch.where(there, bias, ABSENT)
