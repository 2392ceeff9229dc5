"""LoRA by name (``PEFT.LORA_AVG``): what of it travels, and what a server makes of the factors.

A layer is W + s B A with s = alpha / rank. mean(B) mean(A) is not mean(B A); the rules differ in
what they do about that. All sums run in float64 over stacked factors ``A [K, r, in]``, ``B [K,
out, r]``; no matrix ``[out, in]`` is made where the rule does not need one. Clients of lower rank
(``PEFT.RANKS``) have zeros behind it, which is what padding means.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedvlm.core.trees import Tree, in_double
from fedvlm.federation.aggregation.updates import weighted_sum
from fedvlm.models.towers.adapters import (
    DELTA,
    FACTOR_A,
    FACTOR_B,
    LORA,
    PRIVATE_LORA,
    delta_name,
    sites,
)


@dataclass(frozen=True)
class LoraRule:
    """A value of ``PEFT.LORA_AVG``.

    Attributes:
        source: the paper.
        steady: factors of two rounds, and of two clients, compare number by number.
        mean: it is a weighted mean, or a correction of one: no other rule by name, no server
            optimiser.
        folds: the server adds to the frozen layers (``<tower>.delta.*``, group ``server``).
        turns: one factor is trained and sent in a round, the other rests.
    """

    source: str
    steady: bool = True
    mean: bool = False
    folds: bool = False
    turns: bool = False


RULES: Mapping[str, LoraRule] = {
    "factors": LoraRule("FedIT: Zhang et al., Towards Building the Federated GPT, ICASSP 2024"),
    "freeze_a": LoraRule("FFA-LoRA: Sun et al., ICLR 2024"),
    "product_svd": LoraRule("FlexLoRA: Bai et al., NeurIPS 2024", steady=False, mean=True),
    "by_norm": LoraRule("HetLoRA: Cho et al., EMNLP 2024", mean=True),
    "by_rank": LoraRule("FediLoRA: Yang et al., arXiv 2509.06984, 2025", mean=True),
    "fair": LoraRule("LoRA-FAIR: Bian et al., ICCV 2025", mean=True),
    "residual": LoraRule("FedEx-LoRA: Singhal et al., ACL 2025", mean=True, folds=True),
    "stack": LoraRule("FLoRA: Wang et al., NeurIPS 2024", steady=False, mean=True, folds=True),
    "share_a": LoraRule("FedSA-LoRA: Guo et al., ICLR 2025"),
    "alternate": LoraRule("RoLoRA: Chen et al., NeurIPS 2025", turns=True),
}


def shared_sites(names: Iterable[str]) -> list[str]:
    """Return the sites whose A is in ``names``, private LoRA aside."""
    return sites({n: torch.empty(0) for n in names if PRIVATE_LORA not in n})


def shares(weights: Sequence[float]) -> list[float]:
    """Return weights that sum to one."""
    return [w / sum(weights) for w in weights]


def stack_factors(params: Tree, site: str, share: Sequence[float]) -> tuple[Tensor, Tensor]:
    """Return L ``[out, K r]`` and R ``[K r, in]`` with L R = sum_k p_k B_k A_k, in float64.

    Source: Wang et al., FLoRA, NeurIPS 2024, Eq. 5.
    """
    a, b = in_double(params[site + FACTOR_A]), in_double(params[site + FACTOR_B])
    p = torch.tensor(list(share), dtype=torch.float64).to(b.device)[:, None, None]
    return (p * b).permute(1, 0, 2).flatten(1), a.flatten(0, 1)


def product_svd(params: Tree, weights: Sequence[float], ordered: bool = False) -> Tree:
    """Return the factors A and B of all sites nearest to sum_k p_k B_k A_k in Frobenius norm.

    mean(B) mean(A) is not mean(B A); for two clients the gap is (B1 - B2)(A1 - A2) / 4. Of all
    factors of the best approximation those are taken whose A is nearest to the mean of the A_k: so
    equal clients stay as they are, differences of factors keep their meaning from round to round,
    and components of size zero (all of them before the first step) can still learn.

    Args:
        params: factors, ``[K, r, in]`` and ``[K, out, r]``.
        weights: one for each client, of any scale.
        ordered: components by falling singular value instead, A's rows orthonormal: then the first
            r components are the best approximation of rank r (FlexLoRA, Bai et al. 2024).
    """
    out: Tree = {}
    for site in sites(params):
        a, b = params[site + FACTOR_A], params[site + FACTOR_B]
        if not ordered and bool((a == a[:1]).all()):
            right, left = a[0].clone(), weighted_sum(b, weights)  # exact as it is
        else:
            right, left = _nearest(params, site, weights, ordered)
        out[site + FACTOR_A], out[site + FACTOR_B] = right.to(a), left.to(b)
    return out


def _nearest(
    params: Tree, site: str, weights: Sequence[float], ordered: bool
) -> tuple[Tensor, Tensor]:
    """Return a site's A and B (see ``product_svd``), in float64."""
    factors = in_double(params[site + FACTOR_A])
    rank = factors.shape[1]
    wide, tall = stack_factors(params, site, shares(weights))
    q_b, r_b = torch.linalg.qr(wide)
    q_a, r_a = torch.linalg.qr(tall.mT)
    u, s, vh = torch.linalg.svd(r_b @ r_a.mT, full_matrices=False)
    left, right = q_b @ u[:, :rank] * s[:rank], vh[:rank] @ q_a.mT
    if ordered:
        return right, left
    live = int((s[:rank] > 1e-12 * s[0]).sum())
    return _near(left, right, live, weighted_sum(factors, weights))


def _near(left: Tensor, right: Tensor, live: int, mean: Tensor) -> tuple[Tensor, Tensor]:
    """Return factors of ``left right`` whose A is ``mean`` projected on the rows they must span.

    The rows: the ``live`` orthonormal ones of ``right`` and, for the rest of the rank, what of
    ``mean`` is orthogonal to them. Where ``mean`` hardly reaches them (clients' A cancel out), B
    would be huge: then A = ``right`` and B = ``left``.
    """
    rows = right[:live]
    if live < len(mean):
        rest = torch.linalg.svd(mean - mean @ rows.mT @ rows, full_matrices=False).Vh
        rows = torch.cat([rows, rest[: len(mean) - live]])
    reach = mean @ rows.mT
    sizes = torch.linalg.svdvals(reach)
    if not float(sizes[-1]) > 1e-3 * float(sizes[0]):
        return right, left
    scores = torch.cat([left[:, :live], left.new_zeros(len(left), len(mean) - live)], dim=1)
    return reach @ rows, torch.linalg.solve(reach, scores, left=False)


def fair(params: Tree, share: Sequence[float], mean: Mapping[str, Tensor], ridge: float) -> Tree:
    """Return the corrected factors B' of all sites.

    With M = sum_k p_k B_k A_k and the means A, B: B' = B + (M - B A) A^T (A A^T + lambda I)^-1, the
    minimum of |M - (B + D) A|^2 + lambda |D|^2 over D. Source: Bian et al., LoRA-FAIR, ICCV 2025,
    Eq. 7, with squared distance in the place of cosine similarity, which has this closed form.

    Args:
        mean: the means of A and B, no client axis.
    """
    out: Tree = {}
    for site in sites(mean):
        a, b = in_double(mean[site + FACTOR_A]), in_double(mean[site + FACTOR_B])
        left, right = stack_factors(params, site, share)
        gram = a @ a.mT
        gap = left @ (right @ a.mT) - b @ gram
        more = torch.linalg.solve(gram + ridge * torch.eye(len(a)).to(gram), gap, left=False)
        out[site + FACTOR_B] = (b + more).to(mean[site + FACTOR_B])
    return out


def residual(
    params: Tree, share: Sequence[float], old: Mapping[str, Tensor], new: Mapping[str, Tensor]
) -> Tree:
    """Return ``<tower>.delta.*``: what it was, plus sum_k p_k B_k A_k - B A.

    So that the server's layer is the mean of the clients', whatever the stored factors are rounded
    to. Source: Singhal et al., FedEx-LoRA, ACL 2025, Eq. 8.

    Args:
        old: the changes before.
        new: the factors A and B that clients go on from.
    """
    out = fold_factors(params, share, old)
    for site in sites(new):
        a, b = in_double(new[site + FACTOR_A]), in_double(new[site + FACTOR_B])
        name = delta_name(site)
        out[name] -= b @ a
    return {n: v.to(old[n]) for n, v in out.items()}


def fold_factors(params: Tree, share: Sequence[float], old: Mapping[str, Tensor]) -> Tree:
    """Return ``<tower>.delta.*`` plus sum_k p_k B_k A_k, in float64 (FLoRA)."""
    out: Tree = {}
    for name in (n for n in old if DELTA in n):
        left, right = stack_factors(params, name.replace(DELTA, LORA), share)
        out[name] = in_double(old[name]) + left @ right
    return out


def product_norms(params: Tree) -> Tensor:
    """Return the length ``[K]`` of every client's B A, all sites as one vector, in float64.

    |B A|^2 = sum((B^T B) * (A A^T)). Source: Cho et al., HetLoRA, EMNLP 2024, 4.3.
    """
    square = []
    for site in sites(params):
        a, b = in_double(params[site + FACTOR_A]), in_double(params[site + FACTOR_B])
        square.append(((b.mT @ b) * (a @ a.mT)).sum((1, 2)))
    return torch.stack(square).sum(0).clamp_min(0).sqrt().cpu()


def norm_weights(params: Tree, weights: Sequence[float]) -> list[float]:
    """Return weights in proportion to ``product_norms``; as they are where all norms are zero.

    A client of weight zero (without samples) stays at zero.
    """
    norms = [n if w > 0 else 0.0
             for n, w in zip(product_norms(params).tolist(), weights, strict=True)]
    return norms if sum(norms) > 0 else list(weights)


def mean_by_rank(params: Tree, weights: Sequence[float], ranks: Sequence[int]) -> Tree:
    """Return the means of A and B, of each component over the clients that have it.

    Component i is sum_k p_k x_k / sum_k p_k over the clients k with ranks[k] > i, so that the zeros
    of those without it do not shorten it; zero where no client has it. Source: Yang et al.,
    FediLoRA, 2025, dimension-wise aggregation.

    Args:
        params: factors, ``[K, r, in]`` and ``[K, out, r]``.
        weights: one for each client, of any scale.
        ranks: components of each client.
    """
    out: Tree = {}
    for site in sites(params):
        for end, axis in ((FACTOR_A, 1), (FACTOR_B, 2)):
            value = in_double(params[site + end])
            index = torch.arange(value.shape[axis], device=value.device)
            has = torch.tensor(list(ranks), device=value.device)[:, None] > index
            p = torch.tensor(list(weights)).to(value)[:, None] * has
            p = p / p.sum(0).clamp_min(torch.finfo(p.dtype).tiny)
            p = p.unsqueeze(2 if axis == 1 else 1)
            out[site + end] = (p * value).sum(0).to(params[site + end])
    return out


def fresh(like: Mapping[str, Tensor], generator: torch.Generator) -> Tree:
    """Return factors to start again from: A uniform in +-1/sqrt(in), B zero."""
    out: Tree = {}
    for site in sites(like):
        a, b = like[site + FACTOR_A], like[site + FACTOR_B]
        draw = torch.rand(a.shape, generator=generator) * 2 - 1
        out[site + FACTOR_A] = (draw * a.shape[-1] ** -0.5).to(a)
        out[site + FACTOR_B] = torch.zeros_like(b)
    return out
