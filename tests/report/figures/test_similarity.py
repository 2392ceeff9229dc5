"""Heat maps of cosines: between updates, and of each tensor to the download."""

from __future__ import annotations

from typing import Any

import pytest

from fedvlm.report.figures import similarity, similarity_to_global, style

from .drawings import AWKWARD, check


def alike(k: int, tensors: int = 2) -> dict[str, Any]:
    table = [[1.0 if i == j else ((i * j) % 7 - 3) / 4 for j in range(k)] for i in range(k)]
    name = AWKWARD + "long." * 9
    return {"clients": list(range(k)), "update": table,
            "to_global": {f"{name}{t}": [0.9 + 0.001 * c for c in range(k)] for t in
                          range(tensors)}}


@pytest.mark.parametrize("case", [(1, 1, 1), (2, 5, 2), (2, 100, 20)])
def test_similarity(case: tuple[int, int, int]) -> None:
    rounds, k, tensors = case
    found = {r: alike(k, tensors) for r in range(1, rounds + 1)}
    check(similarity.draw(found, AWKWARD, style.COLUMN))
    check(similarity_to_global.draw(found, AWKWARD, style.COLUMN))


def test_similarity_takes_the_first_and_the_last_round() -> None:
    rounds = [{"round": 0}, *({"round": r, "similarity": alike(2)} for r in (1, 2, 5))]
    found = similarity.ends(rounds)
    assert list(found) == [1, 5] and len(similarity.rows(found)) == 2 * 4
    assert len(similarity_to_global.rows(found)) == 2 * 2 * 2
