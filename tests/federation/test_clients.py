"""The store of clients' states: versions, forms, what is kept and what is not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fedvlm.check.world import CheckWorld, Setup
from fedvlm.core.errors import FedvlmError, MethodError
from fedvlm.core.rows.memory import MemoryStore
from fedvlm.core.rows.store import form_of
from fedvlm.core.trees import State, Tree, stack_states
from fedvlm.federation.batches import Batch
from fedvlm.federation.clients import Clients, joint_form
from fedvlm.federation.context import Context, Upload
from fedvlm.federation.discovery import load_trainer
from fedvlm.federation.groups import resolve_groups
from fedvlm.federation.rounds import Federation
from fedvlm.models.vlmodel import VLModel
from tests.federation.toys import Quadratic, quadratic

BOTH = ["PEFT.TEXT", "prompt", "PEFT.VISUAL", "feature", "PEFT.WIDTH", "6"]


START = {"g": torch.zeros(2), "l": torch.ones(3), "f": torch.full((2,), 7.0)}
GROUPS = resolve_groups(START, [("g", "shared"), ("l", "personal"), ("f", "frozen")], "toy")


def clients(reads_old: bool = False, asked: list[int] | None = None) -> Clients:
    def init(client: int) -> State:
        if asked is not None:
            asked.append(client)
        return {"w": START, "v": {"g": START["g"] + 1}}

    return Clients(MemoryStore(), init, START, GROUPS, reads_old)


@pytest.mark.parametrize("reads_old", [False, True])
def test_only_what_does_not_come_anew_is_kept(reads_old: bool) -> None:
    own = clients(reads_old)
    names = ["g", "l", "f"] if reads_old else ["l", "f"]
    new = {"w": {n: v.expand(2, *v.shape) * 5 for n, v in START.items()},
           "v": {"g": torch.ones(2, 2) * 3}}
    for ids, versions in (([0, 1], {}), ([1, 0], {0: 4, 1: 4})):
        state = own.stacked(ids, versions)
        assert list(state["w"]) == names and list(state["v"]) == ["g"]
        assert torch.equal(state["w"]["f"], START["f"].expand(2, 2))  # the start's, always
        own.put(4, [0, 1], new)
    assert state["w"]["l"].tolist() == [[5.0] * 3] * 2
    assert state["v"]["g"].tolist() == [[3.0] * 2] * 2
    (table,) = own.store._tables.values()  # type: ignore[attr-defined]
    assert set(table.leaves["w"]) == set(names) - {"f"}


def test_a_chunk_of_new_and_old_clients() -> None:
    asked: list[int] = []
    own = clients(asked=asked)
    own.put(2, [1], {"w": {"l": torch.full((1, 3), 9.0)}, "v": {"g": torch.zeros(1, 2)}})
    state = own.stacked([0, 1, 2], {1: 2})
    assert state["w"]["l"][:, 0].tolist() == [1.0, 9.0, 1.0]
    assert state["v"]["g"][:, 0].tolist() == [1.0, 0.0, 1.0] and asked == [0, 2]
    asked.clear()
    same = Clients(own.store, own._init, START, GROUPS, alike=True)
    rows_of_all = same.stacked([0, 2, 3, 1], {1: 2})
    assert rows_of_all["w"]["l"][:, 0].tolist() == [1.0, 1.0, 1.0, 9.0] and asked == [0]
    assert all(v.is_contiguous() for t in rows_of_all.values() for v in t.values())
    assert all(v.is_contiguous() for t in state.values() for v in t.values())
    for ids, values in (([1, 0, 2], [9.0, 1.0, 1.0]), ([0, 2, 1], [1.0, 1.0, 9.0])):
        assert own.stacked(ids, {1: 2})["w"]["l"][:, 0].tolist() == values
    state["w"]["f"].zero_()
    state["w"]["l"].zero_()  # copies: neither the start nor a row
    alone = own.stacked([0], {})
    alone["w"]["f"].zero_()
    alone["w"]["l"].zero_()
    assert START["f"].tolist() == [7.0, 7.0] and START["l"].tolist() == [1.0] * 3
    assert own.stacked([1], {1: 2})["w"]["l"][0].tolist() == [9.0] * 3
    own.put(3, [2], {"w": {"l": torch.zeros(1, 4)}, "v": {"g": torch.zeros(1, 2)}})
    with pytest.raises(FedvlmError, match=r"differ in their slots or tensors \['w/l'\]"):
        own.stacked([1, 2], {1: 2, 2: 3})


def test_clients_that_never_work_cost_nothing() -> None:
    asked: list[int] = []

    class Counted(Quadratic):
        def init_client(self, ctx: Context, start: Tree) -> State:
            asked.extend(ctx.clients)
            return super().init_client(ctx, start)

    toy = quadratic(Counted(), 3, sizes=(1, 1), frac=0.5, first_round_all=False)
    fed = Federation(toy.trainer, toy.model, toy.batcher, toy.plan)  # nobody looks at its states
    state = fed.start()
    assert state.versions == {} and asked == []
    (worker,) = fed.plan.sample(1)
    after = fed.round(state, 1)
    assert after.versions == {worker: 1} and set(asked) == {worker}
    rows_of = fed.clients.store._rows  # type: ignore[attr-defined]
    assert set(rows_of) == {worker}


@pytest.mark.parametrize("name", ["FedAvg", "FedPer", "Ditto", "SCAFFOLD", "FedRep"])
def test_what_is_not_kept_moves_no_bit(name: str) -> None:
    world, cls = CheckWorld(BOTH), load_trainer(name)
    assert not cls.reads_old
    kept = type(cls.__name__, (cls,), {"reads_old": True})
    without, whole = (world.record(c, Setup(chunk=4)) for c in (cls, kept))
    for ours, theirs in zip(without.events, whole.events, strict=True):
        for sent, other in ((ours.updates.params, theirs.updates.params),
                            (ours.updates.extras, theirs.updates.extras)):
            assert list(sent) == list(other)
            assert all(torch.equal(v, other[n]) for n, v in sent.items())
    shared = set(without.fed.groups.shared)
    for client, state in whole.states[-1].clients.items():
        thin = without.states[-1].clients[client]
        assert not set(thin["w"]) & shared and set(state["w"]) - set(thin["w"]) == shared != set()
        assert all(torch.equal(v, state[s][n]) for s, t in thin.items() for n, v in t.items())


@pytest.mark.parametrize("name", ["MOON", "FedALA", "FedAS"])
def test_methods_that_read_their_old_model_say_so(name: str) -> None:
    """Without the declaration they fail with the message; they do not train something else."""
    cls = load_trainer(name)
    assert cls.reads_old
    bare = type(cls.__name__, (cls,), {"reads_old": False})
    head = ["PEFT.TEXT", "none", "PEFT.VISUAL", "feature", "PEFT.HEAD", "linear"]
    world = CheckWorld(head if name == "FedAS" else BOTH)
    with pytest.raises(FedvlmError, match=(
        rf"trainer {name} reads '[\w.]+' in slot 'w' of a client's state, but the shared part is "
        r"not kept between rounds \(every download contains it\): declare reads_old = True"
    )):
        run = world.record(bare, Setup(rounds=2))
        list(run.fed.personal(run.fed.adopt(run.states[-1]), [0]))


@pytest.mark.parametrize("how", ["item", "cut", "loss"])
def test_reading_what_is_not_kept_is_told_wherever_it_happens(how: str) -> None:
    class Reads(Quadratic):
        reads_old = False

        def client_update(self, ctx: Context, state: State, received: Tree) -> tuple[State, Upload]:
            old = state["w"]

            def loss(model: VLModel, p: Tree, b: Batch) -> Tensor:
                near = old if how == "loss" else b.cut(old)
                return super(Reads, self).loss(model, p, b) + (p["w"] - near["w"]) ** 2

            if how == "item":
                _ = state["w"]["w"]
            w = ctx.fit(state["w"] | received, loss).params
            return state | {"w": w}, ctx.upload(w)

    with pytest.raises(FedvlmError, match="reads 'w' in slot 'w' .* declare reads_old = True"):
        quadratic(Reads(), 1).run()


def test_another_missing_name_is_not_explained_away() -> None:
    class Typo(Quadratic):
        reads_old = False

        def personalize(self, ctx: Context, state: State, received: Tree) -> Tree:
            return {"w": state["w"]["x"]}

    fed = quadratic(Typo(), 1)
    state: Any = fed.run()
    with pytest.raises(MethodError, match="Typo.personalize failed: KeyError: there is no 'x'"):
        list(fed.personal(state, [0]))


def test_a_failed_round_is_forgotten() -> None:
    """A round begun again from the state before it starts from the versions of that state."""
    fed = quadratic(Quadratic(), 3)
    one = fed.round(fed.start(), 1)
    first = fed.round(one, 2).whole
    again = fed.round(one, 2).whole
    assert again.worked == first.worked == {0: 2, 1: 2}
    for client, state in first.clients.items():
        assert torch.equal(state["w"]["w"], again.clients[client]["w"]["w"])


def test_committed_versions_are_all_that_stays() -> None:
    fed = quadratic(Quadratic(), 3)
    one = fed.round(fed.start(), 1)
    two = fed.round(one, 2)
    assert float(fed.clients.read([1], one.versions)[1]["w"]["w"]) > 0
    fed.commit(two)
    with pytest.raises(FedvlmError, match="no state of client 1 from round 1"):
        fed.clients.read([1], one.versions)
    assert fed.round(two, 3).versions == {0: 3, 1: 3}


def test_forms_are_names_shapes_types_and_slots() -> None:
    """Clients of another joint form are not stacked with the others; the order is none of it."""
    a, b = torch.zeros(2), torch.zeros(3)

    def form(received: Tree, state: State) -> str:
        return joint_form(received, form_of(stack_states([state])))

    one = form({"a": a, "b": b}, {"w": {"a": a}})
    assert one == form({"b": b + 1, "a": a}, {"w": {"a": a}})
    others = [
        form({"a": a}, {"w": {"a": a}}), form({"a": b, "b": b}, {"w": {"a": a}}),
        form({"a": a.double(), "b": b}, {"w": {"a": a}}),
        form({"a": a, "b": b}, {"v": {"a": a}}), form({"a": a, "b": b}, {}),
    ]
    assert len({one, *others}) == 6
