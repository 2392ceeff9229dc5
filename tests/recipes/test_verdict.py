"""What a difference is worth: closed forms."""

from __future__ import annotations

import pytest

from fedvlm.recipes.recipe import Published
from fedvlm.recipes.verdict import NOT_RUN, OFF, OTHER, UNPUBLISHED, WITHIN, judge

CELL = Published("A", "M", "personal", 80.0, None, "table 1")
PRINTED = Published("A", "M", "personal", 80.0, 0.3, "table 1")


@pytest.mark.parametrize(
    ("cell", "values", "tolerance", "points", "deviations", "verdict"),
    [
        (CELL, [81.0], 2.0, 1.0, None, WITHIN),  # one seed: points alone
        (CELL, [82.0], 2.0, 2.0, None, WITHIN),
        (CELL, [82.1], 2.0, 2.1, None, OFF),
        (CELL, [77.0, 79.0], 1.0, -2.0, -(2**0.5), WITHIN),  # std sqrt(2)
        (CELL, [76.0, 77.0, 78.0], 2.0, -3.0, -3.0, OFF),
        (PRINTED, [80.6, 81.4], 0.5, 1.0, 1.0 / 0.41**0.5, WITHIN),  # s^2 .32 + .09
        (PRINTED, [80.9], 0.5, 0.9, 3.0, OFF),  # the paper's alone
        (PRINTED, [80.6], 0.5, 0.6, 2.0, WITHIN),
        (CELL, [80.0, 80.0], 0.0, 0.0, None, WITHIN),
    ],
)
def test_within_and_off(
    cell: Published, values: list[float], tolerance: float, points: float,
    deviations: float | None, verdict: str,
) -> None:
    line = judge(cell, values, tolerance)
    assert line.verdict == verdict and line.n == len(values)
    assert line.points == pytest.approx(points)
    assert line.deviations == (None if deviations is None else pytest.approx(deviations))


def test_what_is_no_comparison_says_why() -> None:
    line = judge(CELL, [], 2.0, "no images")
    assert (line.verdict, line.why) == (NOT_RUN, "no images")
    assert line.measured is None and line.points is None
    assert judge(CELL, [], 2.0).why
    line = judge(CELL, [80.0], 2.0, changed="FED.ROUNDS 1 for 10")
    assert (line.verdict, line.why, line.points) == (OTHER, "FED.ROUNDS 1 for 10", 0.0)
    line = judge(CELL, [80.0], 2.0, printed=False)
    assert (line.verdict, line.published, line.points) == (UNPUBLISHED, None, None)
