"""Marks of a column: who is best in pairs of the seeds that all share."""

from __future__ import annotations

from typing import Any

import pytest

from fedvlm.report.statistics.contrast import contrast
from fedvlm.report.tables.cells import BEST, TableCell, average, cell_of, rank_cells


def averaged(*sets: dict[Any, float]) -> TableCell:
    return average([cell_of("personal", values, len(values), False, 1) for values in sets])


def test_sets_count_alike_however_many_seeds_they_have() -> None:
    """30 seeds of +4, -2 on five sets, two of -5.4 and -5.6 on a sixth: the mean is below zero."""
    b = [{seed: 4.0 if seed % 2 else -2.0 for seed in range(30)}] * 5 + [{0: -5.4, 1: -5.6}]
    cells = [averaged(*[dict.fromkeys(one, 0.0) for one in b]), averaged(*b)]
    assert [cell.rank for cell in rank_cells(cells, [True, True])[0]] == [0, 0]
    seen = contrast(cells[0].values, cells[1].values)
    assert seen is not None and seen.mean == pytest.approx((5 - 5.5) / 6)


def test_the_mark_goes_by_shared_seeds_of_cells_with_as_many() -> None:
    """A's own third seed would make it best; in both seeds that B has, too, B is above it."""
    a = cell_of("personal", {1: 0.50, 2: 0.5001, 3: 0.99}, 3, False, 1)
    b = cell_of("personal", {1: 0.60, 2: 0.6001, 4: 0.10}, 3, False, 1)
    equal_differences, _ = rank_cells([a, b], [True, True])
    assert [cell.rank for cell in equal_differences] == [0, 0]
    b = cell_of("personal", {1: 0.60, 2: 0.6003, 4: 0.10}, 3, False, 1)
    assert [cell.rank for cell in rank_cells([a, b], [True, True])[0]] == [0, BEST]
