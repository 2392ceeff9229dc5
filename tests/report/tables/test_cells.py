"""Marks of a column: who is best in pairs of the seeds that all share."""

from __future__ import annotations

from typing import Any

from fedvlm.report.tables.cells import BEST, TableCell, average, cell_of, find_disputes, rank_cells

SEEDS = dict.fromkeys(range(30), 1.0)


def averaged(*sets: dict[Any, float]) -> TableCell:
    return average([cell_of("personal", values, len(values), False, 1) for values in sets])


def test_no_mark_where_pairs_and_means_disagree() -> None:
    """One seed of a sixth set moves the plain mean below zero, and hardly the pooled one."""
    b = [{seed: 4.0 if seed % 2 else -2.0 for seed in SEEDS}] * 5 + [{0: -5.5}]
    cells = [averaged(*[dict.fromkeys(one, 0.0) for one in b]), averaged(*b)]
    assert [cell.rank for cell in rank_cells(cells, [True, True])] == [0, 0]
    grid = tuple((cell,) for cell in cells)
    assert find_disputes(grid, ("trainer",), ("dataset",), [True, True]) == [(0, 0, [1])]
    assert find_disputes(grid, ("metric",), ("dataset",), [True, True]) == []


def test_the_mark_goes_by_shared_seeds_of_cells_with_as_many() -> None:
    """A's own third seed would make it best; in both seeds that B has, too, B is above it."""
    a = cell_of("personal", {1: 0.50, 2: 0.5001, 3: 0.99}, 3, False, 1)
    b = cell_of("personal", {1: 0.60, 2: 0.6001, 4: 0.10}, 3, False, 1)
    assert [cell.rank for cell in rank_cells([a, b], [True, True])] == [0, 0]  # equal differences
    b = cell_of("personal", {1: 0.60, 2: 0.6003, 4: 0.10}, 3, False, 1)
    assert [cell.rank for cell in rank_cells([a, b], [True, True])] == [0, BEST]
