"""Rows that were sent, by hand: cut, counted, and put into what their client received."""

from __future__ import annotations

import pytest
import torch

from fedvlm.core.errors import FedvlmError
from fedvlm.federation.aggregation.arrival import Rows, Upload
from fedvlm.federation.aggregation.updates import join_updates

INDEX = torch.tensor([[2, -1], [0, 1]])
LEAF = torch.arange(12.0).view(2, 3, 2)  # two clients, three rows of two


def test_rows_are_cut_and_put_back_in_their_places() -> None:
    rows = Rows(INDEX)
    assert rows.cut(LEAF).tolist() == [[[4, 5], [0, 0]], [[6, 7], [8, 9]]]
    home = torch.full_like(LEAF, -1)
    assert rows.fill(home, rows.cut(LEAF)).tolist() == [
        [[-1, -1], [-1, -1], [4, 5]], [[6, 7], [8, 9], [-1, -1]],
    ]
    assert home.eq(-1).all()
    assert rows.present(3).tolist() == [[False, False, True], [True, True, False]]
    for axis in (1, -1):
        columns = Rows(torch.tensor([[1], [-1]]), axis)
        assert columns.cut(LEAF).tolist() == [[[1], [3], [5]], [[0], [0], [0]]]
        assert columns.fill(home, columns.cut(LEAF)).tolist() == [
            [[-1, 1], [-1, 3], [-1, 5]], [[-1, -1]] * 3,
        ]


def test_what_is_told_of_an_index() -> None:
    index = torch.tensor([[0, 2, -1], [-1, -1, -1], [0, 3, 1], [1, 0, 1], [-2, 0, 1]])
    assert Rows(index).told(3).tolist() == [2, 0, -1, -2, -1]


def part(client: int, rows: Rows | None = None, absent: bool = False) -> Upload:
    home = torch.full((1, 3, 2), float(client), dtype=torch.float64)
    whole = home + 10
    params = {} if absent else {"w": whole if rows is None else rows.cut(whole)}
    known = {} if rows is None else {"w": rows}
    counts = {n: [int((r.index >= 0).sum())] for n, r in known.items()}
    return Upload(
        params, torch.ones(1).double(), rows=known, clients=(client,), received={"w": home},
        counts=counts,
    )


def test_a_gap_is_what_its_own_client_received() -> None:
    some = Rows(torch.tensor([[1, -1]]))
    for order in ((1, -1), (-1, 1)):
        parts = [part(2, some), part(1), part(0, absent=True)][:: order[0]]
        whole = join_updates([p.arrive() for p in parts])
        assert whole.params["w"][:, :, 0].tolist() == [[0] * 3, [11] * 3, [2, 12, 2]]
        assert whole.received["w"][:, 0, 0].tolist() == [0, 1, 2]
        assert whole.present["w"].tolist() == [
            [False] * 3, [True] * 3, [False, True, False],
        ]
        assert whole.bytes() == {0: {}, 1: {"w": 48}, 2: {"w": 16 + 4}}
        assert whole.messages()[2]["w"].tolist() == [[0, 0], [12, 12], [0, 0]]
        assert whole.messages()[0] == {}


def test_all_rows_are_a_whole_tensor_that_cost_more() -> None:
    whole = join_updates([part(0, Rows(torch.tensor([[2, 0, 1]]))).arrive(), part(1).arrive()])
    assert whole.present == {} and whole.params["w"][:, :, 0].tolist() == [[10] * 3, [11] * 3]
    assert whole.bytes() == {0: {"w": 48 + 12}, 1: {"w": 48}}


def test_rows_along_two_axes_are_refused() -> None:
    parts = [part(0, Rows(torch.tensor([[1]]))), part(1, Rows(torch.tensor([[1]]), 1))]
    with pytest.raises(FedvlmError, match="rows of 'w' along different axes"):
        join_updates([p.arrive() for p in parts])
