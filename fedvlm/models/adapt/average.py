"""Averaging LoRA: of factors, with A frozen, or of products.

mean(B) mean(A) is not mean(BA); for two clients the gap is (B1 - B2)(A1 - A2) / 4. All functions
take trees without client axis and weights of any scale, and compute in float64.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedvlm.core.errors import ConfigError, FedvlmError
from fedvlm.core.trees import Tree, in_double
from fedvlm.models.towers.adapters import FACTOR_A, FACTOR_B, is_factor, sites

RULES = ("factors", "freeze_a", "product_svd")


def average_peft(
    trees: Sequence[Mapping[str, Tensor]], weights: Sequence[float], rule: str = "factors",
    ordered: bool = False,
) -> Tree:
    """Return the weighted average of the clients' trees.

    Args:
        trees: equal names; plain tensors are averaged under every rule.
        weights: one per tree, normalised here.
        rule: ``factors``: mean of A and mean of B (published practice). ``freeze_a``: the same for
            B, and A (equal for all, never trained) is as it was: exact. ``product_svd``: the best
            approximation of rank r of mean(BA).
        ordered: see ``product_svd``.

    Raises:
        ConfigError: unknown rule.
        FedvlmError: ``freeze_a`` with factors A that differ; weights that sum to nothing.
    """
    if rule not in RULES:
        raise ConfigError(f"unknown PEFT.LORA_AVG '{rule}' ({', '.join(RULES)})")
    if not sum(weights) > 0:
        raise FedvlmError("no update has a weight above zero: nothing to average")
    share = [float(w) / float(sum(weights)) for w in weights]
    first, out = trees[0], {}
    for name in first:
        if rule == "freeze_a" and is_factor(name) and name.endswith(FACTOR_A):
            if any(not torch.equal(t[name], first[name]) for t in trees):
                raise FedvlmError(f"'{name}' differs between clients: freeze_a needs one common A")
            out[name] = first[name].clone()
        else:
            out[name] = _mean([t[name] for t in trees], share)
    if rule == "product_svd":
        for site in sites(first):
            pairs = [(t[site + FACTOR_A], t[site + FACTOR_B]) for t in trees]
            out[site + FACTOR_A], out[site + FACTOR_B] = product_svd(pairs, share, 0, ordered)
    return out


def product_svd(
    pairs: Sequence[tuple[Tensor, Tensor]], share: Sequence[float], rank: int = 0,
    ordered: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return (A ``[r, in]``, B ``[out, r]``) nearest to sum_k p_k B_k A_k in Frobenius norm.

    Of all factors of that product those are taken whose A is nearest to the mean of the A_k: so
    equal clients stay as they are, differences of factors keep their meaning from round to round,
    and components of size zero (all of them before the first step) can still learn. No
    ``[out, in]`` matrix is made.

    Args:
        pairs: (A_k ``[r_k, in]``, B_k ``[out, r_k]``); ranks may differ.
        share: p_k, summing to 1.
        rank: of the result; 0: of the first pair.
        ordered: components by falling singular value instead, A's rows orthonormal: then the first
            r components are the best approximation of rank r (FlexLoRA, Bai et al. 2024).
    """
    first = pairs[0][0]
    kept, dtype = rank or first.shape[0], first.dtype
    if not ordered and kept == first.shape[0] and all(torch.equal(a, first) for a, _ in pairs):
        return first.clone(), _mean([b for _, b in pairs], share)  # exact as it is
    a = torch.cat([in_double(pair[0]) for pair in pairs])
    b = torch.cat([p * in_double(pair[1]) for pair, p in zip(pairs, share, strict=True)], dim=1)
    q_b, r_b = torch.linalg.qr(b)
    q_a, r_a = torch.linalg.qr(a.mT)
    u, s, vh = torch.linalg.svd(r_b @ r_a.mT, full_matrices=False)
    left, right = q_b @ u[:, :kept] * s[:kept], vh[:kept] @ q_a.mT
    if not ordered and all(pair[0].shape[0] == kept for pair in pairs):
        near = _mean([in_double(pair[0]) for pair in pairs], share)
        right, left = _near(left, right, int((s[:kept] > 1e-12 * s[0]).sum()), near)
    return right.to(dtype).to(first.device), left.to(dtype).to(first.device)


def _mean(tensors: Sequence[Tensor], share: Sequence[float]) -> Tensor:
    total = torch.zeros_like(in_double(tensors[0]))
    for tensor, part in zip(tensors, share, strict=True):
        total.add_(in_double(tensor), alpha=part)
    return total.to(tensors[0].dtype).to(tensors[0].device)


def _near(left: Tensor, right: Tensor, live: int, mean: Tensor) -> tuple[Tensor, Tensor]:
    """Factors of ``left right`` whose A is ``mean`` projected on the rows they must span.

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
