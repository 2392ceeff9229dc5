"""The map of clients over rounds."""

from __future__ import annotations

from typing import Any

import pytest

from fedvlm.report.figures import clients, style

from .drawings import AWKWARD, check


def records(count: int, rounds: int) -> list[dict[str, Any]]:
    return [
        {"round": r, "clients": [
            {"client": c, "accuracy": None if c == 1 else (7 * c + 3 * r) % 100}
            for c in range(count)] if r != 2 else []}
        for r in range(rounds)
    ]


@pytest.mark.parametrize("shape", [(1, 1), (2, 3), (10, 5), (100, 4)])
def test_clients(shape: tuple[int, int]) -> None:
    check(clients.draw(clients.from_rounds(records(*shape)), AWKWARD, style.COLUMN))


def test_clients_are_sorted_by_their_last_accuracy_without_rounds_not_evaluated() -> None:
    data = clients.from_rounds(records(3, 4))
    assert data.clients == [2, 0, 1] and data.rounds == [0, 1, 3]
    assert data.grid == [[14, 17, 23], [0, 3, 9], [None] * 3]
    assert len(clients.rows(data)) == 6
