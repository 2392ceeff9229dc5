"""What the clients of a round sent: joined by id, with the numbers that each of them has."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fedvlm.core.errors import FedvlmError
from fedvlm.core.trees import clone
from fedvlm.federation.aggregation import updates as module
from fedvlm.federation.aggregation.arrival import Upload
from fedvlm.federation.aggregation.rules import moves
from fedvlm.federation.aggregation.updates import (
    Updates,
    join_updates,
    one_row,
    weighted_apart,
    weighted_mean,
    weighted_sum,
)
from fedvlm.federation.engine import RoundWork
from fedvlm.federation.rounds import RoundFinished
from tests.federation.test_toys import Ditto
from tests.federation.toys import quadratic
from tests.trainers.linear import linear
from tests.trainers.test_fedas import DATA


def part(*clients: int, metrics: tuple[str, ...] = ("loss",), **more: torch.Tensor) -> Updates:
    rows = torch.tensor(clients, dtype=torch.float64)
    return Updates(
        clients, {"w": 10 * rows[:, None]} | more, rows + 1, {"mask": rows > 1},
        dict.fromkeys(metrics, rows / 2), {"w": rows[:, None] - 1},
    )


def test_joined_by_ascending_id_whatever_arrives_first() -> None:
    chunks = [part(4, 0), part(3), part(1, 2)]
    for arrived in (chunks, chunks[::-1]):
        whole = join_updates(arrived)
        assert whole.clients == (0, 1, 2, 3, 4) and len(whole) == 5
        assert whole.params["w"].tolist() == [[0], [10], [20], [30], [40]]
        assert whole.weight.tolist() == [1, 2, 3, 4, 5]
        assert whole.extras["mask"].tolist() == [False, False, True, True, True]
        assert whole.metrics["loss"].tolist() == [0, 0.5, 1, 1.5, 2]
        assert whole.received["w"].tolist() == [[-1], [0], [1], [2], [3]]
    assert join_updates([part(2, 1)]).clients == (1, 2)
    assert whole.of(3) == {"loss": 1.5}
    assert whole.messages()[4] == {"w": torch.tensor([40.0]), "mask": torch.tensor(True)}
    assert whole.bytes() == {c: {"w": 8, "mask": 1} for c in range(5)}


def test_chunks_that_sent_other_tensors_are_refused() -> None:
    odd = part(1, more=torch.zeros(1, 2))
    for chunks in ([part(0), odd], [odd, part(0)]):
        with pytest.raises(FedvlmError, match=r"send different tensors: \['more'\]"):
            join_updates(chunks)
    bare = Updates((1,), {"w": torch.ones(1, 1)}, torch.ones(1).double())
    with pytest.raises(FedvlmError, match=r"send different tensors: \['mask'\]"):
        join_updates([part(0), bare])


def test_a_number_that_a_client_does_not_have_is_left_out() -> None:
    whole = join_updates([part(1, metrics=("loss", "align/loss")), part(0), part(2, metrics=())])
    assert whole.of(1) == {"loss": 0.5, "align/loss": 0.5}
    assert whole.of(0) == {"loss": 0.0} and whole.of(2) == {}
    assert math.isnan(float(whole.metrics["align/loss"][0]))


@pytest.mark.parametrize("chunk", [1, 2])
def test_a_client_without_samples_has_no_loss_and_stops_nobody(chunk: int) -> None:
    seen: list[RoundFinished] = []
    fed = quadratic(Ditto(), 2, sizes=(3, 0), chunk=chunk)
    fed.subscribers.append(lambda e: seen.append(e) if isinstance(e, RoundFinished) else None)
    fed.run()
    updates = seen[-1].updates
    assert updates is not None and updates.clients == (0, 1)
    assert set(updates.of(0)) == {"loss", "v/loss"} and updates.of(1) == {}


@pytest.mark.parametrize("chunk", [1, 8])
def test_clients_in_other_phases_tell_other_numbers(chunk: int) -> None:
    """A client aligns from its second round on."""
    seen: list[RoundFinished] = []
    fed = linear("FedAS", DATA, rounds=2, chunk=chunk)
    fed.subscribers.append(lambda e: seen.append(e) if isinstance(e, RoundFinished) else None)
    state = fed.run(until=1)
    del state.versions[1]
    fed.round(state, 2)
    told = [seen[-1].updates.of(c) for c in (0, 1, 2)]
    assert [set(t) for t in (told[0], told[2])] == [{"loss", "align/loss"}] * 2
    assert set(told[1]) == ({"loss"} if chunk == 1 else {"loss", "align/loss"})


def test_weights_without_a_finite_sum_are_refused() -> None:
    """Each share would be zero, and so would be the mean."""
    rows = torch.ones(4, 2)
    assert weighted_sum(rows, [20, 20, 1e300, 1e300]).tolist() == [1, 1]
    with pytest.raises(FedvlmError, match="the weights of the updates have no finite sum"):
        weighted_sum(rows, [20, 20, 1e308, 1e308])


def random_part(*clients: int, home: torch.Tensor, alike: bool = True) -> Updates:
    sent = torch.randn(len(clients), 3, 5, generator=torch.Generator().manual_seed(clients[0]))
    rows = home.expand(len(clients), 3, 5)
    return Updates(
        clients, {"w": sent, "b": sent[:, 0, 0].contiguous()}, torch.tensor(clients) + 1.0,
        received={"w": rows if alike else rows.clone(), "b": rows[:, 0, 0]},
    )


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_what_all_received_alike_lies_there_once(order: tuple[int, ...]) -> None:
    home = torch.randn(1, 3, 5, dtype=torch.float32)
    chunks = ((0, 2), (1,), (3, 4))

    def joined(**how: bool) -> Updates:
        return join_updates([random_part(*chunks[i], home=home, **how) for i in order])

    one, dense = joined(), joined(alike=False)
    assert one_row(one.received["w"]) and one.received["w"].data_ptr() == home.data_ptr()
    assert not one_row(dense.received["w"])
    assert one.received["w"].shape == (5, 3, 5)
    assert torch.equal(one.received["w"], dense.received["w"])
    for ours, theirs in zip(moves(one), moves(dense), strict=True):
        assert torch.equal(ours, theirs)
    other = random_part(3, 4, home=home + 1)
    mixed = join_updates([random_part(0, 2, home=home), other])
    assert torch.equal(mixed.received["w"][3], home[0] + 1)
    assert torch.equal(mixed.received["w"][0], home[0])


def test_a_mean_of_much_has_the_bits_of_a_mean_of_little(monkeypatch: pytest.MonkeyPatch) -> None:
    home = torch.zeros(1, 3, 5)
    updates = join_updates([random_part(*ids, home=home) for ids in (range(7), range(7, 9))])
    little = weighted_mean(updates)
    monkeypatch.setattr(module, "PIECE", 1)  # row by row, no copy of all of them
    much = weighted_mean(updates)
    assert all(torch.equal(much[n], v) for n, v in little.items()) and little.keys() == much.keys()


# ---- memory --------------------------------------------------------------------------------------
class Watched(TorchDispatchMode):
    """Shows every operation and what it made."""

    def __init__(self, look: Callable[[str, Any], None]) -> None:
        super().__init__()
        self.look = look

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.look(func.overloadpacket.__name__, out)
        return out


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_what_is_copied_is_let_go(order: tuple[int, ...]) -> None:
    """A cohort's uploads lie in memory once, and one chunk of one tensor twice."""
    home, chunks = torch.randn(1, 3, 5), ((0, 1), (2,), (3, 4))
    sent = [random_part(*chunks[i], home=home) for i in order]
    plain = join_updates(sent)
    work = RoundWork(uploads=[
        Upload(clone(p.params), p.weight, clients=p.clients, received=p.received) for p in sent
    ])
    pieces = [weakref.ref(u.params[n]) for n in ("w", "b") for u in work.uploads]
    alive, left = list[int](), list[int]()

    def look(name: str, out: Any) -> None:
        if name == "index_copy_":
            alive.append(sum(piece() is not None for piece in pieces))
            left.append(len(work.uploads))

    with Watched(look):
        whole = work.spend()
    assert alive[: len(pieces)] == [6, 5, 4, 3, 2, 1] and not any(left) and not work.uploads
    assert whole is not None and whole.clients == plain.clients == tuple(range(5))
    assert all(torch.equal(whole.params[n], v) for n, v in plain.params.items())
    assert work.spend() is None


def test_a_mean_copies_a_piece_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two tensors side by side, of 40 clients with 16 numbers, ten clients at a time."""
    updates = random_part(*range(40), home=torch.zeros(1, 3, 5))
    own = {n: [float(c + t) for c in range(1, 41)] for t, n in enumerate(updates.params)}
    monkeypatch.setattr(module, "PIECE", 160)
    largest = [0]

    def look(name: str, out: Any) -> None:
        if name in ("cat", "stack", "clone", "_to_copy"):
            largest.append(out.numel())

    with Watched(look):
        mean, apart = weighted_mean(updates), weighted_apart(updates.params, own)
    assert max(largest) == 160
    for name, rows in updates.params.items():
        assert torch.equal(mean[name], weighted_sum(rows, updates.weight.tolist()))
        assert torch.equal(apart[name], weighted_sum(rows, own[name]))
