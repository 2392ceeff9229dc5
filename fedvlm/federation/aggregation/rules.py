"""Aggregation by name (``FED.AGGREGATOR``), and what an odd update gives away under any rule.

A rule is a pure function of the stacked uploads: ``[K, ...]`` in, no client axis out, float64
inside and by ascending client id. What a client did not send stands there as it received it: for
a rule it has not moved. Updates of weight zero (clients without samples) take no part.
Of K updates the median stands (K - 1) / 2 hostile ones, the trimmed mean those that it cuts off,
Krum and multi-Krum f where K >= 2 f + 3, the geometric median any of less than half of the weight;
clipping bounds what one client moves. A method that keeps
models of its clients or learns from each of them (``HEART-PFL`` while it distils) is not made safe
by any of them, and says so in ``Trainer.aggregators``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median as middle
from typing import Any

import torch
from torch import Tensor

from fedvlm.core.errors import ConfigError, FedvlmError
from fedvlm.core.trees import Tree, in_double, per_client, to_device
from fedvlm.federation.aggregation.updates import (
    NOTHING,
    Updates,
    one_row,
    require_finite,
    similarity_aware,
    weighted_mean,
    weighted_sum,
)

AUTO, MEAN, KRUM, MULTI_KRUM = "auto", "mean", "krum", "multi_krum"
SIMILARITY, CLIPPED_MEAN = "similarity", "clipped_mean"
GEOMETRIC_MEDIAN, MEDIAN, TRIMMED_MEAN = "geometric_median", "median", "trimmed_mean"
PIECE = 1 << 18  # numbers of a piece of ``moves``
SMOOTH, PASSES, SETTLED = 1e-6, 1000, 1e-13  # of the geometric median


@dataclass(frozen=True)
class AggregateSpec:
    """What ``FED`` says of the aggregation.

    Attributes:
        rule: ``auto`` (as the method has it) or a name of ``AGGREGATORS``.
        trim: share of the updates that the trimmed mean drops at each end, below 1/2.
        byzantine: hostile updates f that Krum and multi-Krum are to stand.
        clip_norm: longest move of the clipped mean; 0: the median of the round's.
        saa_temp: temperature of ``similarity``.
    """

    rule: str = AUTO
    trim: float = 0.1
    byzantine: int = 0
    clip_norm: float = 0.0
    saa_temp: float = 1.0


Report = dict[str, Any]  # what goes into a round's ``aggregation``
Aggregator = Callable[[Updates, AggregateSpec], tuple[Tree, Report]]


def combine(updates: Updates, spec: AggregateSpec) -> tuple[Tree, Report]:
    """Return the aggregate of a round by the rule of ``spec``, and what the rule has to tell.

    Raises:
        DivergedError: the aggregate is not finite; the message names the tensor.
        FedvlmError: all weights are zero, or too few updates for Krum.
    """
    if spec.rule == AUTO or not updates.params:
        return weighted_mean(updates), {}
    at = [k for k, w in enumerate(updates.weight.tolist()) if w > 0]
    if not at:
        raise FedvlmError(NOTHING)
    tree, report = AGGREGATORS[spec.rule](updates.take(at), spec)
    return require_finite(tree), report


def weighted_average(updates: Updates, spec: AggregateSpec) -> tuple[Tree, Report]:
    """Return sum_k p_k w_k."""
    return weighted_mean(updates), {}


def similarity(updates: Updates, spec: AggregateSpec) -> tuple[Tree, Report]:
    """Return FedTV's similarity-aware mean: cosines of each upload to what its client received."""
    tree, used = similarity_aware(updates, None, spec.saa_temp)
    return tree, {"aggregation_weights": used}


def median(updates: Updates, spec: AggregateSpec) -> tuple[Tree, Report]:
    """Return the median of every coordinate, of an even number the mean of the two middle ones.

    Weights are not read. Source: Yin et al., ICML 2018, definition 1.
    """
    low, high = (len(updates) - 1) // 2, len(updates) // 2

    def between(rows: Tensor) -> Tensor:
        ordered = rows.sort(0).values
        return (ordered[low] + ordered[high]) / 2

    return _by_leaf(updates, between), {}


def trimmed_mean(updates: Updates, spec: AggregateSpec) -> tuple[Tree, Report]:
    """Return the mean of every coordinate without its floor(trim K) lowest and highest values.

    Weights are not read. Source: Yin et al., ICML 2018, definition 2.
    """
    k = len(updates)
    cut = min(int(spec.trim * k + 1e-9), (k - 1) // 2)  # 0.29 of 100 are 29, whatever floats say

    def inner(rows: Tensor) -> Tensor:
        kept = rows.sort(0).values[cut : k - cut]
        return weighted_sum(kept, [1.0] * len(kept))

    return _by_leaf(updates, inner), {"trimmed": cut}


def krum(updates: Updates, spec: AggregateSpec) -> tuple[Tree, Report]:
    """Return the update with the lowest Krum score (see ``krum_scores``); of equals the first."""
    return _best(updates, spec.byzantine, 1)


def multi_krum(updates: Updates, spec: AggregateSpec) -> tuple[Tree, Report]:
    """Return the plain mean of the K - f updates with the lowest Krum scores."""
    return _best(updates, spec.byzantine, len(updates) - spec.byzantine)


def clipped_mean(updates: Updates, spec: AggregateSpec) -> tuple[Tree, Report]:
    """Return sum_k p_k (r_k + x_k min(1, c / |x_k|)).

    x_k = w_k - r_k is the move from what client k received, |x_k| its length over all tensors
    together; c is ``clip_norm``, or the median of the |x_k|. An update that is not clipped enters
    as it was sent. Sources: Sun et al., Can You Really Backdoor Federated Learning?, 2019; for
    the median as bound Andrew et al., NeurIPS 2021.
    """
    norm = move_norms(updates).tolist()
    bound = spec.clip_norm or middle(norm)
    factor = [bound / n if n > bound else 1.0 for n in norm]
    scale = torch.tensor(factor, dtype=torch.float64)
    tree = {}
    for name, rows in updates.params.items():
        sent, home = in_double(rows), in_double(updates.received[name])
        share = per_client(scale.to(sent.device), sent)
        kept = torch.where(share < 1, home + share * (sent - home), sent)
        tree[name] = weighted_sum(kept, updates.weight.tolist()).to(rows.dtype).to(rows.device)
    clipped = [c for c, f in zip(updates.clients, factor, strict=True) if f < 1]
    return tree, {"clip_norm": bound, "clipped": clipped}


def geometric_median(updates: Updates, spec: AggregateSpec) -> tuple[Tree, Report]:
    """Return sum_k c_k w_k, near the point with the least weighted distance to all moves.

    Smoothed Weiszfeld steps v = sum_k c_k x_k, c_k ~ p_k / max(|x_k - v|, s) on the moves x_k, all
    tensors as one vector, from c = p until no c moves; s is a millionth of the median length of
    those that moved. It turns with the axes: of LoRA, whose A and B may be rotated against each
    other without a change of B A, the median of rotated updates is the rotated median. Source:
    Pillutla et al., Robust Aggregation for Federated Learning, IEEE TSP 2022, algorithm 2.
    """
    gram = move_products(updates)
    if not bool(torch.isfinite(gram).all()):
        return weighted_mean(updates), {}  # refuses it by name
    square = gram.diagonal()
    apart = (square[:, None] + square - 2 * gram).clamp_min(0).fill_diagonal_(0)
    norms = [n for n in square.clamp_min(0).sqrt().tolist() if n > 0]
    share = updates.weight.double().cpu() / float(updates.weight.sum())
    least, part = SMOOTH * middle(norms or [1.0]), share
    for _ in range(PASSES):
        near = apart @ part  # |x_k - v|^2 + sum_ij c_i c_j |x_i - x_j|^2 / 2, for c of sum 1
        far = (near - part @ near / 2).clamp_min(0).sqrt()
        new = share / far.clamp_min(least)
        new = new / new.sum()
        moved, part = float((new - part).abs().max()), new
        if moved < SETTLED:
            break
    return weighted_mean(updates, part.tolist()), {"geometric_weights": part.tolist()}


AGGREGATORS: Mapping[str, Aggregator] = {
    MEAN: weighted_average, SIMILARITY: similarity, MEDIAN: median, TRIMMED_MEAN: trimmed_mean,
    KRUM: krum, MULTI_KRUM: multi_krum, CLIPPED_MEAN: clipped_mean,
    GEOMETRIC_MEDIAN: geometric_median,
}
EVERY = tuple(AGGREGATORS)


def fewest(spec: AggregateSpec) -> int:
    """Return how many updates a round needs: 2 f + 3 for Krum (Blanchard et al. 2017), else one."""
    return 2 * spec.byzantine + 3 if spec.rule in (KRUM, MULTI_KRUM) else 1


def check_rule(spec: AggregateSpec, name: str, allowed: Sequence[str], cohort: int) -> None:
    """Refuse a rule before any work.

    Args:
        name, allowed: of the method; its ``aggregators``.
        cohort: clients of the smallest round.

    Raises:
        ConfigError: a rule that is not allowed (the message lists those that are), or too few
            clients for Krum.
    """
    if spec.rule != AUTO and spec.rule not in allowed:
        raise ConfigError(
            f"FED.AGGREGATOR {spec.rule}: {name}, as configured, allows "
            f"{', '.join((AUTO, *allowed))}"
        )
    if cohort < fewest(spec):
        raise ConfigError(
            f"FED.AGGREGATOR {spec.rule} with FED.BYZANTINE {spec.byzantine} needs at least "
            f"{fewest(spec)} clients per round (2 f + 3), but only {cohort} are drawn and "
            "answer: lower FED.BYZANTINE, or raise FED.CLIENTS or FED.FRAC"
        )


def krum_scores(updates: Updates, byzantine: int) -> Tensor:
    """Return each update's score ``[K]``: the sum of its K - f - 2 least square distances.

    Distances are between moves, all tensors as one vector. Source: Blanchard et al., Machine
    Learning with Adversaries, NIPS 2017.

    Raises:
        FedvlmError: fewer than 2 f + 3 updates.
    """
    k, least = len(updates), 2 * byzantine + 3
    if k < least:
        raise FedvlmError(
            f"Krum tolerates {byzantine} hostile updates among at least {least} clients; this "
            f"round has {k}: lower FED.BYZANTINE or raise FED.CLIENTS or FED.FRAC"
        )
    gram = move_products(updates)
    square = gram.diagonal()
    distance = (square[:, None] + square - 2 * gram).clamp_min(0).fill_diagonal_(torch.inf)
    return distance.sort(1).values[:, : k - byzantine - 2].sum(1)


def moves(updates: Updates) -> Iterator[Tensor]:
    """Yield every client's move piece by piece, ``[K, d]`` in float64, one tensor after the other.

    A move is what was sent minus what was received; a tensor that was not received counts whole.
    Pieces stay within a processor's cache.
    """
    width = max(1, PIECE // max(1, len(updates)))
    for name, rows in updates.params.items():
        sent, home = rows.reshape(len(rows), -1), updates.received.get(name)
        for at in range(0, sent.shape[1], width):
            piece = in_double(sent[:, at : at + width])
            if home is not None:
                less = home.reshape(len(rows), -1)[:, at : at + width]
                if one_row(home):
                    less = in_double(less[:1])
                elif less.device != piece.device:
                    less = in_double(less)
                piece = piece - less if piece.dtype == sent.dtype else piece.sub_(less)
            yield piece


def move_products(updates: Updates) -> Tensor:
    """Return the inner products ``[K, K]`` of all clients' moves, in float64 on the CPU."""
    gram = torch.zeros(len(updates), len(updates), dtype=torch.float64)
    for move in moves(updates):
        gram = to_device(gram, move.device) + move @ move.mT
    return gram.cpu()


def move_norms(updates: Updates) -> Tensor:
    """Return the length ``[K]`` of every client's move, all tensors together, in float64."""
    return lengths(moves(updates))


def lengths(pieces: Iterable[Tensor]) -> Tensor:
    """Return the length ``[K]`` of moves in pieces ``[K, d]``."""
    return torch.stack([torch.linalg.vector_norm(m, dim=1) for m in pieces]).norm(dim=0)


def _by_leaf(updates: Updates, rule: Callable[[Tensor], Tensor]) -> Tree:
    """Apply a rule to every leaf ``[K, ...]`` in float64."""
    return {
        name: rule(in_double(rows)).to(rows.dtype).to(rows.device)
        for name, rows in updates.params.items()
    }


def _best(updates: Updates, byzantine: int, count: int) -> tuple[Tree, Report]:
    """Return the plain mean of the ``count`` updates with the lowest Krum scores."""
    order = krum_scores(updates, byzantine).argsort(stable=True)
    chosen = updates.take(sorted(order[:count].tolist()))
    return weighted_mean(chosen, [1.0] * count), {"selected": list(chosen.clients)}
