"""What an odd update gives away under any rule: its length and direction beside the others'."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median as middle
from statistics import median_low

import torch
from torch import Tensor

from fedvlm.core.trees import to_device
from fedvlm.federation.aggregation.rules import lengths, moves
from fedvlm.federation.aggregation.updates import Updates

# The bounds of ``Telltale``.
FAR, USUAL_SPREAD, PRIOR, LONGEST = 5.0, 0.6, 20, math.log(50)
AGAINST, ALONG, AGREE, FEWEST, SHORT = -0.9, 0.5, 0.75, 4, 0.5
FEW = 1 << 20  # numbers of float64 moves that are kept between two passes; more: made anew


@dataclass(frozen=True)
class Telltale:
    """Length and direction of the updates of a round, whatever the rule.

    An update is an outlier if it is far longer than the median, log(norm / median) > min(5 s,
    log 50), if it has no length where others have one, or if it points against updates that agree:
    its cosine is below -0.9, at least three quarters of at least 4 updates have one above 0.5, and
    its norm is at least half the median. One of weight zero is neither an outlier nor counted.

    s is the spread of the log norms above the median (1.4826 times the low median of their
    distances to it), moderated as variances of few samples are (Smyth 2004): s^2 = (20 0.6^2 +
    n spread^2) / (20 + n), n the number of norms. With five clients a spread of their own rests on
    one or two distances, and is near zero by chance; the prior is the spread of honest clients over
    all methods on the demo. Below the median there is no bound: a client whose loss is near zero
    moves as little as it likes, a thousandth of the median in honest runs. Where clients disagree,
    two or three of them lead the mean, and honest ones point against it.

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


def measured_moves(updates: Updates) -> Tensor:
    """Return the lengths of the updates and their cosines to the mean move, ``[2, K]``, float64.

    Nothing is read; where nothing is shared, there are none, ``[2, 0]``.
    """
    if not updates.params:
        return torch.zeros(2, 0)
    size = len(updates) * sum(v[0].numel() for v in updates.params.values())
    kept = list(moves(updates)) if size <= FEW else None  # else they are made twice
    norm = lengths(moves(updates) if kept is None else kept).clamp_max(sys.float_info.max)
    weight, counted = updates.weight, _counted(updates)
    share = torch.where(counted, weight.clamp_min(torch.finfo(weight.dtype).tiny), 0.0)
    measured = to_device(counted, norm.device) & (norm > 0)
    typical = torch.where(measured, norm, torch.nan).nanquantile(0.5)
    share = to_device((share / share.sum()).to(norm.dtype), norm.device)
    share = share * torch.where(norm > typical, typical / norm, 1.0)
    inner, square = torch.zeros_like(norm), torch.zeros_like(norm[0])
    for move in moves(updates) if kept is None else kept:
        way = share @ move
        inner, square = inner + move @ way, square + way @ way
    length = norm * square.sqrt()
    cosine = torch.where(length > 0, inner / length, 0.0).nan_to_num(0.0).clamp(-1, 1)
    return torch.stack([norm, cosine])


def tell(updates: Updates, moves_read: Sequence[Sequence[float]]) -> Telltale:
    """Return the telltale of a round.

    Args:
        moves_read: ``measured_moves``, as the host has read them.
    """
    sizes, angles = moves_read
    if not sizes:
        return Telltale()
    counted = _counted(updates).tolist()
    at = find_outliers(sizes, angles, counted)
    return Telltale(
        updates.clients, tuple(sizes), tuple(angles),
        middle([n for n, c in zip(sizes, counted, strict=True) if c and n] or [0.0]),
        tuple(updates.clients[k] for k in at),
    )


def _counted(updates: Updates) -> Tensor:
    """Return whose updates count, ``[K]``: all but those of weight zero, unless all are."""
    weight = updates.weight
    return weight > 0 if bool((weight > 0).any()) else torch.ones_like(weight, dtype=torch.bool)


def find_outliers(
    norm: Sequence[float], cosine: Sequence[float], counted: Sequence[bool]
) -> list[int]:
    """Return the positions of the outliers (the bound is that of ``Telltale``)."""
    at = [k for k, counts in enumerate(counted) if counts]
    logs = {k: math.log(norm[k]) for k in at if norm[k] > 0}
    if not logs:
        return []
    centre = middle(logs.values())
    own = 1.4826 * median_low(v - centre for v in logs.values() if v >= centre)
    square = (PRIOR * USUAL_SPREAD**2 + len(logs) * own**2) / (PRIOR + len(logs))
    bound = min(FAR * math.sqrt(square), LONGEST)
    agreed = len(at) >= FEWEST and sum(cosine[k] > ALONG for k in at) >= AGREE * len(at)
    return [
        k for k in at
        if k not in logs or logs[k] - centre > bound
        or (agreed and cosine[k] < AGAINST and logs[k] - centre > math.log(SHORT))
    ]


def times(row: Mapping[str, float]) -> str:
    """Return how many times the median an outlier's norm is, in words."""
    return f"{row['times']:,.0f}" if row["times"] >= 10 else f"{row['times']:.2g}"


def outlier_sentence(round_: int, row: Mapping[str, float]) -> str:
    """Return the message about an outlier (one of ``Telltale.rows``)."""
    against = f", opposite to the others (cosine {row['cosine']:.2f})"
    return (
        f"round {round_}: update of client {row['client']} has norm {row['norm']:.4g}, "
        f"{times(row)} times the median{against if row['cosine'] < AGAINST else ''}"
    )
