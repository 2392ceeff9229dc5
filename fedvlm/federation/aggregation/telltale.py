"""What an odd update gives away under any rule: its length and direction beside the others'."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median as middle

import torch

from fedvlm.federation.aggregation.rules import lengths, moves
from fedvlm.federation.aggregation.updates import Updates

FAR, LEAST_SPREAD, AGAINST, FEWEST = 5.0, 0.1, -0.9, 4  # the bound of ``Telltale``
FEW = 1 << 23  # numbers of float64 moves that are kept between two passes


@dataclass(frozen=True)
class Telltale:
    """Length and direction of the updates of a round, whatever the rule.

    An update is an outlier if |log norm - median| > 5 max(1.4826 MAD, 0.1), median and median
    absolute deviation over the logarithms of the norms above zero, or if its cosine is below -0.9
    and at least 4 updates count. One of weight zero is neither an outlier nor a measure of others.

    Attributes:
        clients: ids, ascending; none where nothing is shared.
        norm: length of the move from what the client received, all tensors as one vector.
        cosine: of the move to the mean move; 0 where one of them has no length. In the mean moves
            are cut to the median length: else one huge update is the mean, and every honest one
            would look hostile beside it.
        typical: the median norm; 0 where nobody moved.
        outliers: ids.
    """

    clients: tuple[int, ...] = ()
    norm: tuple[float, ...] = ()
    cosine: tuple[float, ...] = ()
    typical: float = 0.0
    outliers: tuple[int, ...] = ()

    def rows(self) -> list[dict[str, float]]:
        """Return the outliers as JSON values: client, norm, times (the median), cosine."""
        out = []
        for client in self.outliers:
            k = self.clients.index(client)
            times = min(self.norm[k] / self.typical, sys.float_info.max)
            out.append({
                "client": client, "norm": self.norm[k], "times": times, "cosine": self.cosine[k],
            })
        return out


def telltale(updates: Updates) -> Telltale:
    """Return lengths, directions and outliers of a round's updates; they are read once."""
    if not updates.params:
        return Telltale()
    size = len(updates) * sum(v[0].numel() for v in updates.params.values())
    kept = list(moves(updates)) if size <= FEW else None  # else they are made twice
    norm = lengths(moves(updates) if kept is None else kept).clamp_max(sys.float_info.max)
    weight = updates.weight
    counted = weight > 0 if bool((weight > 0).any()) else torch.ones_like(weight, dtype=torch.bool)
    share = torch.where(counted, weight.clamp_min(torch.finfo(weight.dtype).tiny), 0.0)
    measured = counted.to(norm.device) & (norm > 0)
    typical = torch.where(measured, norm, torch.nan).nanquantile(0.5)
    share = (share / share.sum()).to(norm) * torch.where(norm > typical, typical / norm, 1.0)
    inner, square = torch.zeros_like(norm), torch.zeros_like(norm[0])
    for move in moves(updates) if kept is None else kept:
        way = share @ move
        inner, square = inner + move @ way, square + way @ way
    length = norm * square.sqrt()
    cosine = torch.where(length > 0, inner / length, 0.0).nan_to_num(0.0).clamp(-1, 1)
    sizes, angles = torch.stack([norm, cosine]).tolist()
    at = outlying(sizes, angles, counted.tolist())
    return Telltale(
        updates.clients, tuple(sizes), tuple(angles),
        middle([n for n, c in zip(sizes, counted.tolist(), strict=True) if c and n] or [0.0]),
        tuple(updates.clients[k] for k in at),
    )


def outlying(
    norm: Sequence[float], cosine: Sequence[float], counted: Sequence[bool]
) -> list[int]:
    """Return the positions of the outliers (the bound is that of ``Telltale``)."""
    at = [k for k, counts in enumerate(counted) if counts]
    logs = {k: math.log(norm[k]) for k in at if norm[k] > 0}
    if not logs:
        return []
    centre = middle(logs.values())
    spread = max(1.4826 * middle(abs(v - centre) for v in logs.values()), LEAST_SPREAD)
    return [
        k for k in at
        if abs(logs.get(k, -math.inf) - centre) > FAR * spread
        or (len(at) >= FEWEST and cosine[k] < AGAINST)
    ]


def times(row: Mapping[str, float]) -> str:
    """Return how many times the median an outlier's norm is, in words."""
    return f"{row['times']:,.0f}" if row["times"] >= 10 else f"{row['times']:.2g}"


def outlier_sentence(round_: int, row: Mapping[str, float]) -> str:
    """Return what is said of an outlier (one of ``Telltale.rows``)."""
    against = f", against the others (cosine {row['cosine']:.2f})"
    return (
        f"round {round_}: client {row['client']} sent an update of norm {row['norm']:.4g}, "
        f"{times(row)} times the median{against if row['cosine'] < AGAINST else ''}"
    )
