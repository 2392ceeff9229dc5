"""One look at the end of a chunk's work: what fails is named as if every number were looked at."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor

from fedvlm.core.errors import DivergedError, FedvlmError
from fedvlm.core.trees import State, Tree
from fedvlm.federation.batches import Batch
from fedvlm.federation.context import Context, Upload
from fedvlm.federation.groups import Finetune
from fedvlm.federation.local.guard import read_numbers, run_guarded
from tests.federation.toys import Quadratic, quadratic

SIZES = tuple(9 - k // 2 for k in range(16))
BAD, STEP = 5, 3  # the client that fails, and the local step at which it does


@pytest.fixture(autouse=True)
def many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.federation.toys.A", tuple(1.0 + k for k in range(16)))
    monkeypatch.setattr("tests.federation.toys.B", tuple(0.1 * k for k in range(16)))


class Poisoned(Quadratic):
    """One client's loss, or only its gradient, is not finite from a step on."""

    where = "loss"

    def client_update(self, ctx: Context, state: State, received: Tree) -> tuple[State, Upload]:
        def edit(p: Tree, g: Tree, b: Batch) -> Tree:
            return {"w": torch.where(self.hit(b), torch.nan, g["w"])}

        def bad(model: Any, p: Tree, b: Batch) -> Tensor:
            return torch.where(self.hit(b), torch.nan, self.loss(model, p, b))

        how = {"edit": edit} if self.where == "gradient" else {}
        w = ctx.fit(state["w"] | received, bad if self.where == "loss" else self.loss, **how).params
        if self.where == "update":
            w = {"w": torch.where(torch.tensor(ctx.clients) == BAD, torch.inf, w["w"])}
        return state | {"w": w}, ctx.upload(w)

    def hit(self, b: Batch) -> Tensor:
        assert b.moment is not None
        return torch.tensor([c == BAD and b.moment.step >= STEP for c in b.clients])


def poisoned(where: str, chunk: int, **how: Any) -> Any:
    trainer = Poisoned()
    trainer.where = where
    return quadratic(trainer, 1, sizes=SIZES, batch=2, lr=0.01, chunk=chunk, **how)


SENTENCES = {
    "loss": "round 1, client 5: loss of fit 'w' at local step 3 is not finite",
    "gradient": "round 1, client 5: 'w', gradient in fit 'w' at local step 3, is not finite",
    "update": "round 1, client 5: update 'w' is not finite",
}


@pytest.mark.parametrize("where", list(SENTENCES))
@pytest.mark.parametrize("chunk", [1, 4, 16])
def test_the_client_the_step_and_the_tensor_are_named(where: str, chunk: int) -> None:
    with pytest.raises(DivergedError) as told:
        poisoned(where, chunk).run()
    assert str(told.value).startswith(SENTENCES[where] + "; lower --lr")


@pytest.mark.parametrize("where", list(SENTENCES))
@pytest.mark.parametrize("chunk", [1, 4, 16])
def test_policy_drop_leaves_out_that_client_alone(where: str, chunk: int) -> None:
    fed, seen = poisoned(where, chunk, nonfinite="drop"), list[Any]()
    fed.subscribers.append(seen.append)
    fed.run()
    event = seen[-1]
    assert event.dropped == {BAD: SENTENCES[where]}
    assert event.updates.clients == tuple(c for c in range(16) if c != BAD)
    assert bool(torch.isfinite(event.updates.params["w"]).all())


def test_a_second_run_counts_nothing_twice() -> None:
    def counters(where: str) -> dict[str, int]:
        fed, seen = poisoned(where, 4, nonfinite="drop"), list[Any]()
        fed.subscribers.append(seen.append)
        fed.run()
        assert bool(seen[-1].dropped) == (where != "nothing")
        return dict(seen[-1].counters)

    assert counters("loss") == counters("nothing")
    assert counters("nothing")["gradients"] > 0


def context() -> Context:
    return quadratic(Quadratic(), 1).context([0, 1], 1)


def test_counters_of_the_towers_are_put_back_too() -> None:
    ctx = context()
    ctx.model.counters["image_forwards"] = 5

    def work() -> Tensor:
        ctx.model.counters["image_forwards"] += 2
        ctx.counters["own"] += 1
        ctx.check(torch.tensor([1e30]) ** 2, "a value")  # overflows, and only the second run asks
        return torch.ones(1)

    ctx.nonfinite = "drop"
    run_guarded(ctx, work)
    assert ctx.model.counters == Counter(image_forwards=7) and ctx.counters == Counter(own=1)
    assert ctx.failed == {0: "round 1, client 0: a value is not finite"} and ctx.flags is None


def test_finite_numbers_are_worked_on_once_and_read_together() -> None:
    ctx, runs = context(), list[int]()

    def work() -> dict[str, Tensor]:
        runs.append(1)
        ctx.check(torch.ones(2), "a value")
        return {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([[3.0], [4.0]]).double()}

    out, looked = run_guarded(ctx, work, lambda o: o.values(), lambda o: [o["b"], o["a"]])
    assert looked == ([[3.0, 4.0], [1.0, 2.0]], True) and set(out) == {"a", "b"}
    assert len(runs) == 1
    assert read_numbers([]) == [] and read_numbers([torch.zeros(0), torch.ones(())]) == [[], [1.0]]


def test_what_only_seems_not_finite_stands() -> None:
    """Squares of huge numbers overflow; the second run finds every number in order."""
    ctx, runs = context(), list[int]()

    def work() -> Tensor:
        runs.append(1)
        ctx.check_tree({"w": torch.full((2, 3), 1e30)}, "a gradient")
        return torch.tensor([float(len(runs))])

    out, looked = run_guarded(ctx, work, ask=lambda o: [o])
    assert not ctx.failed and len(runs) == 2
    assert out.tolist() == [2.0] and looked == ([[2.0]], False)


def test_an_error_over_numbers_that_are_not_finite_is_told_as_such() -> None:
    ctx = context()

    def work() -> Tensor:
        ctx.check(torch.tensor([1.0, torch.nan]), "the loss")
        raise ValueError("a probability is not in [0, 1]")

    with pytest.raises(DivergedError, match="client 1: the loss is not finite"):
        run_guarded(ctx, work)
    assert ctx.flags is None


def test_any_other_error_is_raised_as_it_is_and_at_once() -> None:
    ctx, runs = context(), list[int]()

    def work() -> Tensor:
        runs.append(1)
        ctx.check(torch.tensor([1.0, 2.0]), "the loss")
        raise ValueError("boom")

    with pytest.raises(ValueError, match="boom"):
        run_guarded(ctx, work)
    assert len(runs) == 1 and ctx.flags is None


def test_final_fine_tuning_is_looked_at_too() -> None:
    class Tuned(Quadratic):
        def own_finetune(self) -> Finetune:
            return Finetune(2)

        def finetune(self, ctx: Context, state: State, received: Tree, how: Finetune) -> Tree:
            def bad(model: Any, p: Tree, b: Batch) -> Tensor:
                hit = torch.tensor([c == BAD for c in b.clients])
                return torch.where(hit, torch.nan, self.loss(model, p, b))

            return ctx.fit(state["w"] | received, bad, epochs=how.epochs, tag="finetune").params

    from types import SimpleNamespace as Node

    node = Node(TRAINER={}, FED=Node(FINETUNE_EPOCHS=2, FINETUNE_LR=0.0))
    fed = quadratic(Tuned(node), 1, sizes=SIZES, chunk=4)
    fed.finetuning = Finetune(2)
    state = fed.run()
    with pytest.raises(DivergedError, match="client 5: loss of fit 'finetune' at local step 1"):
        list(fed.personal(state, range(16)))


def test_a_context_out_of_the_engine_looks_at_once() -> None:
    ctx = context()
    with pytest.raises(DivergedError, match="client 1: a value"):
        ctx.check(torch.tensor([1.0, torch.nan]), "a value")
    with pytest.raises(FedvlmError, match=r"ctx.subset, ctx.whole and ctx.batches"):
        _ = ctx.batcher
