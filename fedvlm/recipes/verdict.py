"""What a measured number says of a published one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

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
        made: of a line of an earlier file: when and by which version it was measured.
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
    made: str = ""


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
    blank = Line(
        cell.dataset, cell.method, cell.metric, cell.value if printed else None, cell.std,
        cell.where, mean(values), sample_std(values), len(values), None, None, NOT_RUN,
        why or "none of its runs has finished", cell.remark,
    )
    return blank if blank.measured is None else _compared(blank, tolerance, changed)


def judge_again(line: Line, recipe: Line, tolerance: float) -> Line:
    """Return a measured line of an earlier file as today's recipe judges it.

    What was measured, and what kept it from being a comparison, stay.

    Args:
        recipe: the line of the same cell, as the recipe has it now.
    """
    line = replace(line, published=recipe.published, published_std=recipe.published_std,
                   remark=recipe.remark)
    return _compared(line, tolerance, line.why if line.verdict == OTHER else "")


def _compared(line: Line, tolerance: float, changed: str) -> Line:
    """Return a measured line with the difference to what is published, and the verdict."""
    points = deviations = None
    if line.measured is not None and line.published is not None:
        points = line.measured - line.published
        parts = [s for s in (line.std, line.published_std) if s is not None]
        spread = math.hypot(*parts) if parts else 0.0
        deviations = points / spread if spread else None
    if changed:
        verdict = OTHER
    elif points is None:
        verdict = UNPUBLISHED
    else:
        alike = deviations is not None and abs(deviations) <= DEVIATIONS
        verdict = WITHIN if abs(points) <= tolerance or alike else OFF
    return replace(line, points=points, deviations=deviations, verdict=verdict, why=changed)
