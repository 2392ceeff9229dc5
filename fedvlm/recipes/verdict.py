"""What a measured number says of a published one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fedvlm.core.stats import mean, sample_std
from fedvlm.recipes.recipe import Published

WITHIN, OFF, NOT_RUN = "within", "off", "not run"
OTHER = "another protocol"  # the words of the command changed it, or the backbone is a toy
UNPUBLISHED = "nothing published"
VERDICTS = (WITHIN, OFF, OTHER, UNPUBLISHED, NOT_RUN)
DEVIATIONS = 2.0  # a difference of so many standard deviations is none


@dataclass(frozen=True)
class Line:
    """A line of the acceptance file: one cell. Accuracies and differences are in percent, points.

    Attributes:
        published, published_std: None where nothing is printed.
        measured, std: mean and sample standard deviation over our seeds; None without any.
        n: seeds behind it.
        points: measured - published.
        deviations: ``points`` in standard deviations of one run, ours and the paper's together;
            None where neither is there.
        verdict: one of ``VERDICTS``; why: the reason of those that are no comparison.
        weights: digest of the backbone that was measured, its first digits; empty without runs.
    """

    dataset: str
    method: str
    metric: str
    published: float | None
    published_std: float | None
    where: str
    measured: float | None
    std: float | None
    n: int
    points: float | None
    deviations: float | None
    verdict: str
    why: str = ""
    remark: str = ""
    weights: str = ""


def judge(
    cell: Published, values: Sequence[float], tolerance: float, why: str = "", changed: str = "",
    printed: bool = True,
) -> Line:
    """Return the line of a cell.

    Within is a difference of at most ``DEVIATIONS`` standard deviations or ``tolerance`` points.
    The deviation is that of one run, sqrt(s^2 + s_paper^2), with what there is of both: a paper
    rarely says whether its +- is over seeds, of the mean or of a run.

    Args:
        values: one per seed, in percent.
        why: why there are none.
        changed: how the protocol differs from the recipe's; empty where it does not.
        printed: whether ``cell`` has a published value.
    """
    measured, std = mean(values), sample_std(values)
    points = deviations = None
    if measured is not None and printed:
        points = measured - cell.value
        parts = [s for s in (std, cell.std) if s is not None]
        spread = math.hypot(*parts) if parts else 0.0
        deviations = points / spread if spread else None
    if measured is None:
        verdict, reason = NOT_RUN, why or "no run of it has ended"
    elif changed:
        verdict, reason = OTHER, changed
    elif points is None:
        verdict, reason = UNPUBLISHED, ""
    else:
        near = abs(points) <= tolerance
        alike = deviations is not None and abs(deviations) <= DEVIATIONS
        verdict, reason = (WITHIN if near or alike else OFF), ""
    return Line(
        cell.dataset, cell.method, cell.metric, cell.value if printed else None, cell.std,
        cell.where, measured, std, len(values), points, deviations, verdict, reason, cell.remark,
    )
