"""What the server may know: sizes and counts, its own images, and a place per client."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedvlm.check.compare import same_fed
from fedvlm.check.disk import read_state, write_state
from fedvlm.core.errors import FedvlmError
from fedvlm.core.trees import State, Tree
from fedvlm.federation.aggregation.updates import Updates
from fedvlm.federation.rounds import RoundFinished
from fedvlm.federation.server import Held, ServerContext, count_roster
from tests.federation.test_toys import Hermes
from tests.federation.toys import Quadratic, quadratic


# ---- roster -----------------------------------------------------------------------------------
def test_roster_counts_samples_and_classes() -> None:
    labels = torch.tensor([0, 0, 1, 3, 3, 3, 1, 2])
    splits = [
        SimpleNamespace(train=np.array([0, 2, 3, 5]), val=np.array([1]), test=np.array([4, 6])),
        SimpleNamespace(train=np.array([7]), val=np.zeros(0, np.int64), test=np.array([0])),
        SimpleNamespace(train=np.zeros(0), val=np.array([3, 4]), test=np.zeros(0)),
    ]
    roster = count_roster(splits, labels)
    assert len(roster) == 3
    assert roster.train.tolist() == [4, 1, 0]
    assert roster.val.tolist() == [1, 0, 2] and roster.test.tolist() == [2, 1, 0]
    assert roster.classes.tolist() == [[1, 1, 0, 2], [0, 0, 1, 0], [0, 0, 0, 0]]
    assert roster.classes.sum(1).tolist() == roster.train.tolist()


def test_the_federations_roster_is_that_of_its_batches() -> None:
    fed = quadratic(Quadratic(), 1, sizes=(5, 2), val=3)
    assert fed.roster.train.tolist() == [5, 2] and fed.roster.val.tolist() == [3, 2]
    assert fed.roster.classes.tolist() == [[5], [2]]
    assert fed.server_context(1, Held()).roster is fed.roster


# ---- what it cannot name it cannot read ---------------------------------------------------------
def test_the_server_has_no_way_to_a_clients_samples() -> None:
    ctx = quadratic(Quadratic(), 3, epochs=2).server_context(2, Held())
    assert {f.name for f in fields(ServerContext)} == {
        "model", "groups", "start", "round", "rounds", "seed", "epochs", "optim", "roster",
        "held", "proxy", "report", "cuts", "aggregator", "server_optim",
    }
    assert (ctx.round, ctx.rounds, ctx.epochs, ctx.proxy) == (2, 3, 2, None)
    for name in ("batcher", "subset", "whole", "batches", "fit", "clients", "source", "splits"):
        assert not hasattr(ctx, name)
    for name in ("round", "proxy", "batcher"):
        with pytest.raises(FrozenInstanceError):
            setattr(ctx, name, None)


def test_its_streams_depend_on_seed_purpose_round_and_client() -> None:
    fed = quadratic(Quadratic(), 3)

    def draw(round_: int, *what: Any) -> float:
        return float(torch.rand(1, generator=fed.server_context(round_, Held()).stream(*what)))

    base = draw(1, "akt")
    assert base == draw(1, "akt")
    assert base not in (draw(2, "akt"), draw(1, "other"), draw(1, "akt", 0))


def test_what_it_logs_is_the_rounds_report() -> None:
    class Tells(Quadratic):
        def aggregate(self, ctx: ServerContext, server: State, updates: Updates) -> State:
            if ctx.round == 2:
                ctx.log("clients", len(ctx.roster))
            return super().aggregate(ctx, server, updates)

    seen: list[RoundFinished] = []
    fed = quadratic(Tells(), 3)
    fed.subscribers.append(lambda e: seen.append(e) if isinstance(e, RoundFinished) else None)
    fed.run()
    assert [e.report for e in seen] == [{}, {}, {"clients": 2}, {}]


# ---- downloads --------------------------------------------------------------------------------
class Hints(Quadratic):
    name = "Hints"

    def download(self, ctx: ServerContext, server: State, client: int) -> Tree:
        return server["w"] | {"hint.one": torch.ones(3), "hint": torch.ones(2)}


def test_an_undeclared_extra_of_a_download_is_refused() -> None:
    with pytest.raises(FedvlmError, match=r"client 0 would receive \['hint', 'hint.one'\]"):
        quadratic(Hints(), 1).run()
    half = type("Half", (Hints,), {"extras_down": (r"hint\..*",)})
    with pytest.raises(FedvlmError, match=r"receive \['hint'\], outside.*declared `extras_down`"):
        quadratic(half(), 1).run()
    whole = type("Whole", (Hints,), {"extras_down": (r"hint(\..*)?",)})
    fed = quadratic(whole(), 1)
    assert set(fed.downloads(fed.start(), 1, [1])[1]) == {"w", "hint", "hint.one"}
    up = type("Up", (Hints,), {"extras_up": (r"hint(\..*)?",)})  # declared the other way only
    with pytest.raises(FedvlmError, match="would receive"):
        quadratic(up(), 1).run()


def test_each_tree_that_is_sent_is_checked_and_counted() -> None:
    """One that many clients receive once, and another's no less."""

    class Second(Quadratic):
        extras_down = ("hint",)

        def download(self, ctx: ServerContext, server: State, client: int) -> Tree:
            return server["w"] if client != 1 else server["w"] | {"hint": torch.ones(2)}

    fed = quadratic(Second(), 1)
    sizes = fed.downloads(fed.start(), 1, [0, 1]).sizes
    assert sizes[1] == sizes[0] | {"hint": 8} and "hint" not in sizes[0]
    stray = type("Stray", (Second,), {"extras_down": ()})
    with pytest.raises(FedvlmError, match=r"client 1 would receive \['hint'\]"):
        quadratic(stray(), 1).run()


def test_a_personal_tensor_is_no_download() -> None:
    class Sends(Quadratic):
        groups = (("w", "shared"), ("own", "personal"))

        def trainables(self, model: Any, generator: torch.Generator) -> Tree:
            return {n: torch.zeros((), dtype=torch.float64) for n in ("w", "own")}

        def download(self, ctx: ServerContext, server: State, client: int) -> Tree:
            return server["w"] | {"own": ctx.start["own"]}

    with pytest.raises(FedvlmError, match=r"receive \['own'\]"):
        quadratic(Sends(), 1).run()


# ---- a pool with a row per client ---------------------------------------------------------------
class Pool(Quadratic):
    """Each client receives and sends its own row: natural code, and Python's index -1 is one."""

    name = "Pool"

    def init_server(self, ctx: ServerContext, start: Tree) -> State:
        return {"pool": {"w": start["w"].repeat(len(ctx.roster))}}

    def download(self, ctx: ServerContext, server: State, client: int) -> Tree:
        return {"w": server["pool"]["w"][client]}

    def aggregate(self, ctx: ServerContext, server: State, updates: Updates) -> State:
        pool = server["pool"]["w"].clone()
        pool[list(updates.clients)] = updates.params["w"]
        return {"pool": {"w": pool}}


def test_a_pool_cannot_publish_a_clients_row_by_accident() -> None:
    """Without a word on the global model there is no run; with one it is what the method says."""
    with pytest.raises(FedvlmError, match=r"trainer Pool: .*no slot 'w': define shared"):
        quadratic(Pool(), 2).run()

    class Mean(Pool):
        def shared(self, server: State) -> Tree:
            return {"w": server["pool"]["w"].mean()}

    fed = quadratic(Mean(), 2)
    state = fed.run()
    rows = state.server["pool"]["w"].tolist()
    assert rows[0] != rows[1] != 0
    assert fed.shared(state)["w"].tolist() == [sum(rows) / 2]


@pytest.mark.parametrize("client", [-1, 2, 99])
def test_there_is_no_download_of_a_client_that_does_not_exist(client: int) -> None:
    fed = quadratic(Pool(), 1)
    state = fed.start()
    assert set(fed.downloads(state, 1, [0, 1])) == {0, 1}
    with pytest.raises(FedvlmError, match=f"no client {client}: clients are numbered 0 to 1"):
        fed.downloads(state, 1, [0, client])


# ---- held ---------------------------------------------------------------------------------------
def test_held_gives_nothing_before_and_the_newest_after() -> None:
    held = Held()
    assert held.get(3) == {}
    held.put(3, {"own": {"w": torch.ones(1)}})
    held.put(3, {"own": {"w": torch.zeros(1)}})
    assert held.get(3)["own"]["w"].tolist() == [0.0] and held.get(2) == {}
    first = held.commit(1)
    again = Held(held.store, first)
    again.put(2, {})
    again.put(3, {"own": {"w": torch.ones(1)}})
    assert first == {3: 1} and again.commit(2) == {2: 2, 3: 2} and again.get(2) == {}
    assert again.get(3)["own"]["w"].tolist() == [1.0]
    assert Held(held.store, first).get(3)["own"]["w"].tolist() == [0.0]  # as it was in round 1


def test_held_is_saved_with_the_server_and_comes_back(tmp_path: Path) -> None:
    fed = quadratic(Hermes(), 2)
    whole, half = fed.run(), fed.run(until=1)
    assert set(half.held) == {0, 1} and set(half.server) == {"w"}
    write_state(tmp_path, fed, fed.adopt(half.whole))
    for on_disk in (False, True):
        fed = quadratic(Hermes(), 2)
        back: Any = read_state(tmp_path, fed, on_disk)
        same_fed(back.whole, half.whole, "read back")
        assert back.versions == half.versions == {0: 1, 1: 1} == back.held
        assert set(back.server) == {"w"}
        same_fed(fed.run(back).whole, whole.whole, "went on")


def test_a_round_leaves_the_state_before_it_as_it_was() -> None:
    fed = quadratic(Hermes(), 2)
    start = fed.start()
    after = fed.round(start, 1)
    assert start.held == {} and set(after.held) == {0, 1}
    first = {c: s["own"]["w"] for c, s in after.whole.held.items()}
    assert fed.round(after, 2).held == {0: 2, 1: 2} and after.held == {0: 1, 1: 1}
    again = fed.read(after).held
    assert all(torch.equal(again[c]["own"]["w"], v) for c, v in first.items())


def test_the_shared_model_is_never_what_is_held() -> None:
    fed = quadratic(Hermes(), 1)
    state = fed.run()
    shared: Tensor = fed.shared(state)["w"][0]
    assert torch.equal(shared, state.server["w"]["w"])
    assert all(not torch.equal(shared, held["own"]["w"]) for held in state.whole.held.values())
