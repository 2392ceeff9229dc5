"""Single steps, the proximal pull, means of a fit, and validation samples inside a method."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedvlm.check.world import CheckWorld
from fedvlm.core.errors import DivergedError, FedvlmError
from fedvlm.core.trees import State, Tree
from fedvlm.federation.batches import Batch, Step
from fedvlm.federation.context import Context, descend, optimise, rates
from fedvlm.federation.discovery import load_trainer
from fedvlm.federation.local.ledger import Means
from fedvlm.federation.optim import Schedule
from fedvlm.federation.toolbox.regularise import pull
from tests.federation.toys import Quadratic, ToySource, quadratic

UNEQUAL = {"epochs": 3, "sizes": (7, 3), "batch": 2, "momentum": 0.9}


def test_optimise_in_a_loop_is_fit_to_the_bit() -> None:
    fed = quadratic(Quadratic(), 1, **UNEQUAL)
    ctx = fed.context([0, 1], 1)
    p = {"w": torch.tensor([0.3, -0.2], dtype=torch.float64)}

    def body(slots: State, batches: tuple[Batch, ...], step: Step) -> State:
        g = ctx.grad(slots["v"], fed.trainer.loss, batches[0], what="a test").grads
        return optimise(ctx, slots, "v", g, step) | {"other": slots["other"]}

    other = {"w": torch.zeros(2).double()}
    ours = ctx.loop({"v": p, "other": other}, body)
    assert ours["v"]["w"].tolist() == ctx.fit(p, fed.trainer.loss).params["w"].tolist()
    assert ours["other"]["w"].tolist() == [0.0, 0.0]


def test_descend_has_no_state_and_a_rate_per_client() -> None:
    p = {"w": torch.ones(2).double(), "still": torch.ones(2).double()}
    new = descend(p, {"w": torch.tensor([1.0, 2.0]).double()}, [0.5, 0.25])
    assert new["w"].tolist() == [0.5, 0.5] and new["still"] is p["still"]


def test_pull_leaves_out_what_the_anchor_lacks() -> None:
    p = {n: torch.full((1,), 2.0) for n in ("a", "b")}
    home = {"a": torch.full((1,), 0.5)}
    grads = {n: torch.ones(1) for n in p}
    near = pull(p, grads, home, 2.0)
    assert float(near["a"]) == 4.0 and near["b"] is grads["b"]
    assert pull(p, grads, home, 0.0)["a"] is grads["a"]


def test_clients_that_finish_early_keep_their_rows() -> None:
    fed = quadratic(Quadratic(), 1, sizes=(5, 3, 1), batch=1)

    def count(slots: State, batches: tuple[Batch, ...], step: Step) -> State:
        return {"n": {"w": slots["n"]["w"] + 1}}

    steps = fed.context([0, 1, 2], 1).loop({"n": {"w": torch.zeros(3)}}, count)
    assert steps["n"]["w"].tolist() == [5.0, 3.0, 1.0]


def test_who_worked_is_known_from_round_to_round() -> None:
    fed = quadratic(Quadratic(), 2, sizes=(1, 1), frac=0.5, first_round_all=False)
    state = fed.round(fed.start(), 1)
    (worker,) = fed.plan.sample(1)
    for clients in ([0, 1], [1, 0]):
        fresh = fed.context(clients, 2, state.versions).fresh
        assert fresh.tolist() == [c != worker for c in clients]


def with_validation(sizes: list[int]) -> Any:
    """Return a federation whose client k has ``sizes[k]`` validation samples, from ``plain``."""
    fed = quadratic(Quadratic(), 1, sizes=(2, 2, 2))  # type: ignore[arg-type]
    start, splits = 0, []
    for split, n in zip(fed.batcher.splits, sizes, strict=True):
        splits.append(replace(split, val=np.arange(start, start + n)))
        start += n
    labels = torch.tensor([0, 1, 0, 1, 1, 1])
    plain = ToySource({"id": torch.arange(6.0).double()}, labels)
    fed.batcher = replace(fed.batcher, splits=splits, plain=plain)
    return fed


@pytest.fixture(autouse=True)
def three(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("A", (1.0, 3.0, 1.0)), ("B", (0.0, 4.0, 1.0))):
        monkeypatch.setattr(f"tests.federation.toys.{name}", value)


def ones(model: Any, p: Tree, x: dict[str, Tensor]) -> Tensor:
    """Predict class 1 everywhere."""
    k, n = x["id"].shape
    return torch.tensor([0.0, 1.0]).expand(k, n, 2)


def test_held_out_is_padded_and_from_the_plain_source() -> None:
    fed = with_validation([4, 0, 2])
    b = fed.context([0, 1, 2]).whole("val")
    assert b is not None and b.present is not None and b.present.tolist() == [1, 0, 1]
    assert b.x["id"][0].tolist() == [0, 1, 2, 3] and b.x["id"][2, :2].tolist() == [4, 5]
    assert b.w.tolist() == [[1, 1, 1, 1], [0, 0, 0, 0], [1, 1, 0, 0]]
    found = fed.context([0, 1, 2]).accuracy({}, ones)
    assert found[[0, 2]].tolist() == [0.5, 1.0] and bool(found[1].isnan())


def test_nobody_has_validation_samples() -> None:
    fed = with_validation([0, 0, 0])
    assert fed.context([0, 1, 2]).whole("val") is None
    assert bool(fed.context([0, 1]).accuracy({}, ones).isnan().all())


def test_logged_losses_are_means_over_the_clients_own_steps() -> None:
    means = Means(2)
    means.add({"loss": torch.tensor([2.0, 3.0])})
    means.add({"loss": torch.tensor([4.0])})
    assert means.values()["loss"].tolist() == [3.0, 3.0]


# ---- a part of the samples: clients in another order ---------------------------------------------
def uneven(trainer: Any = None, **how: Any) -> Any:
    """Client 0 has 8 samples of one class, client 1 has 7 of four, client 2 has 6 of two.

    Of 80 % held out, 2, 4 and 2 are left to fit: the order of the chunk is not that of the part.
    """
    fed = quadratic(trainer or Quadratic(), 2, sizes=(8, 7, 6), batch=1, momentum=0.9, **how)
    labels = [0] * 8 + [0, 1, 2, 3, 1, 2, 3] + [0, 1, 0, 1, 0, 1]
    fed.batcher.source.labels = torch.tensor(labels)
    return fed


def near(home: Tree) -> Any:
    """An edit that pulls to ``home``, which it closes over."""
    return lambda p, g, b: pull(p, g, b.cut(home), 2.0)


def test_a_fit_on_a_part_gives_each_client_what_it_gets_alone() -> None:
    fed = uneven()
    p = {"w": torch.tensor([0.5, -0.25, 2.0], dtype=torch.float64)}
    home = {"w": torch.tensor([1.0, 2.0, -1.0], dtype=torch.float64)}
    ctx = fed.context([0, 1, 2], 1)
    assert ctx.sizes.tolist() == [8, 7, 6]
    part = ctx.subset("fit", 0.8)
    assert part.sizes.tolist() == [2, 4, 2] and list(part.clients) == [0, 1, 2]

    def shifted(model: Any, q: Tree, b: Batch) -> Tensor:
        return fed.trainer.loss(model, {"w": q["w"] + 0.1 * b.cut(home)["w"]}, b)

    found = part.fit(p, shifted, edit=near(home))
    assert found.steps.tolist() == [2, 4, 2] and found.steps.dtype is torch.float64
    assert list(ctx.logs) == ["loss"] and ctx.logs["loss"].tolist() == found.means["loss"].tolist()
    for k in range(3):
        alone = fed.context([k], 1)
        own, there = {"w": p["w"][k : k + 1]}, {"w": home["w"][k : k + 1]}

        def one(model: Any, q: Tree, b: Batch, there: Tree = there) -> Tensor:
            return fed.trainer.loss(model, {"w": q["w"] + 0.1 * b.cut(there)["w"]}, b)

        got = alone.subset("fit", 0.8).fit(own, one, edit=near(there))
        assert float(found.params["w"][k]) == float(got.params["w"])
        assert float(found.means["loss"][k]) == float(got.means["loss"])
        assert found.steps[k] == got.steps[0]
    assert len(set(found.params["w"].tolist())) == 3


def test_batches_of_a_part_say_whose_they_are() -> None:
    part = uneven().context([0, 1, 2], 1).subset("fit", 0.8)
    ids = torch.tensor([0, 1, 2])
    rows = [b.cut(ids).tolist() for b in part.batches("w")]
    assert rows == [[1, 0, 2]] * 2 + [[1]] * 2
    a = [b.x["a"][:, 0].tolist() for b in part.batches("w")]  # a is 1, 3, 1 by client
    assert a == [[3, 1, 1]] * 2 + [[3]] * 2
    whole = uneven().context([0, 1, 2], 1)
    assert next(whole.batches("w")).rows is None  # a plain chunk is in order: views, no copies


def test_a_loop_on_a_part_ends_in_the_contexts_order() -> None:
    part = uneven().context([0, 1, 2], 1).subset("fit", 0.8)
    seen: list[tuple[int, ...]] = []

    def body(slots: State, batches: tuple[Batch, ...], step: Step) -> State:
        seen.append((step.active, len(slots["n"]["n"])))
        return {"n": {"n": slots["n"]["n"] + 1}}

    out = part.loop({"n": {"n": torch.tensor([10, 20, 30])}}, body)
    assert out["n"]["n"].tolist() == [12, 24, 32]
    assert seen == [(3, 3), (3, 3), (1, 1), (1, 1)]


def test_what_is_not_finite_on_a_part_is_told_of_the_right_client() -> None:
    def bad(model: Any, p: Tree, b: Batch) -> Tensor:
        value = p["w"] * b.w.sum(1)
        return torch.where(b.x["a"][:, 0] == 3, torch.nan, 1.0) * value

    fed = uneven()
    p = {"w": torch.ones(3).double()}
    with pytest.raises(DivergedError, match="round 1, client 1: loss of fit 'w' at local step 1"):
        fed.context([0, 1, 2], 1).subset("fit", 0.8).fit(p, bad)
    ctx = uneven(nonfinite="drop").context([0, 1, 2], 1)
    ctx.subset("fit", 0.8).fit(p, bad)
    assert list(ctx.failed) == [1]


def test_stacked_work_on_a_part_equals_one_by_one() -> None:
    class Parts(Quadratic):
        def client_update(self, ctx: Context, state: State, received: Tree) -> Any:
            part = ctx.subset("fit", 0.8)
            w = part.fit(state["w"] | received, self.loss, edit=near(received)).params
            return state | {"w": w}, part.upload(w)

    ends = []
    for chunk in (1, 3):
        seen: list[Any] = []
        fed = uneven(Parts(), chunk=chunk)
        fed.subscribers.append(seen.append)
        state = fed.run()
        updates = seen[-1].updates
        assert updates.weight.tolist() == [2, 4, 2]
        ends.append([float(state.clients[c]["w"]["w"]) for c in (0, 1, 2)]
                    + updates.metrics["loss"].tolist() + [float(state.server["w"]["w"])])
    assert ends[0] == ends[1]


def test_the_two_parts_are_the_training_split() -> None:
    ctx = uneven().context([0, 1, 2], 1)
    fit, held = ctx.subset("fit", 0.8), ctx.subset("held", 0.8)
    assert (fit.sizes + held.sizes).tolist() == [8, 7, 6]
    ours, theirs = fit.whole("val"), held.whole("train")
    assert ours is not None and theirs is not None
    assert torch.equal(ours.y, theirs.y) and torch.equal(ours.w, theirs.w)
    assert ctx.subset("fit", 0.0).sizes.tolist() == [8, 7, 6]
    for part in ("train", "val", "test", "hold", ""):
        with pytest.raises(FedvlmError, match=f"parts fit and held, not on '{part}'"):
            ctx.subset(part, 0.5)


def test_a_loss_is_one_number_for_each_client() -> None:
    ctx = uneven().context([0, 1, 2], 1)
    p = {"w": torch.zeros(3, dtype=torch.float64)}
    for wrong in (lambda m, p, b: (p["w"] ** 2).mean(), lambda m, p, b: b.w * p["w"][:, None]):
        for grad in (ctx.grad, ctx.grad_each):
            with pytest.raises(FedvlmError, match=r"must have one number per client, \(\d+,\)"):
                grad(p, wrong, next(ctx.batches("w")))


# ---- what a method may read ---------------------------------------------------------------------
@pytest.mark.parametrize(("part", "fallback"), [("test", ""), ("val", "test"), ("all", "")])
def test_the_test_split_is_refused(part: str, fallback: str) -> None:
    ctx = with_validation([2, 0, 2]).context([0, 1, 2], 1)
    for place in (ctx, ctx.subset("fit", 0.5)):
        with pytest.raises(FedvlmError, match="a method may read train and val, not"):
            place.whole(part, fallback)


def test_whole_falls_back_and_says_who_did() -> None:
    ctx = with_validation([2, 0, 1]).context([0, 1, 2], 1)
    b = ctx.whole("val", fallback="train")
    assert b is not None and b.present is not None
    assert b.present.tolist() == [1, 0, 1]
    assert b.w.sum(1).tolist() == [2, 2, 1]  # client 1: its two training samples
    assert b.x["id"][1].tolist() == [2, 3]


def test_a_draw_is_few_training_samples_of_the_plain_source() -> None:
    fed = with_validation([2, 0, 2])

    def drawn(clients: list[int], most: int, round_: int = 1) -> list[list[float]]:
        b = fed.context(clients, round_).draw("few", most)
        assert b is not None and bool(b.w.all())
        rows: list[list[float]] = b.x["id"].tolist()  # a stream of the plain source alone
        return rows

    few = drawn([0, 1, 2], 1)
    assert [row[0] // 2 for row in few] == [0, 1, 2]  # each its own
    assert few == [drawn([c], 1)[0] for c in (0, 1, 2)]  # whoever is beside whom
    assert {drawn([0], 1, r)[0][0] for r in range(1, 20)} == {0, 1}
    assert [sorted(row) for row in drawn([0, 1, 2], 9)] == [[0, 1], [2, 3], [4, 5]]


# ---- counts of a fit ----------------------------------------------------------------------------
def test_a_fit_counts_each_clients_own_steps() -> None:
    fed = quadratic(Quadratic(), 1, **UNEQUAL)  # 7 and 3 samples by 2, three epochs
    ctx = fed.context([0, 1], 1)
    fit = ctx.fit({"w": torch.zeros(2).double()}, fed.trainer.loss)
    assert fit.steps.tolist() == [12, 6]
    assert ctx.counters["steps"] == 18 and ctx.counters["samples"] == 3 * (7 + 3)
    assert set(fit.means) == {"loss"} and fit.means["loss"].shape == (2,)
    short = ctx.fit(fit.params, fed.trainer.loss, epochs=1, tag="v")
    assert short.steps.tolist() == [4, 2]
    assert set(ctx.logs) == {"loss", "v/loss"}
    none = ctx.fit(fit.params, fed.trainer.loss, epochs=0, tag="n")
    assert none.steps.tolist() == [0, 0] and torch.equal(none.params["w"], fit.params["w"])
    assert none.means == {}


def test_a_client_without_samples_takes_no_step() -> None:
    fed = quadratic(Quadratic(), 1, sizes=(3, 0), batch=1)
    fit = fed.context([0, 1], 1).fit({"w": torch.ones(2).double()}, fed.trainer.loss)
    assert fit.steps.tolist() == [3, 0] and float(fit.params["w"][1]) == 1.0
    assert bool(fit.means["loss"].isnan()[1])


def test_a_loop_within_a_loop_keeps_its_own_means() -> None:
    fed = quadratic(Quadratic(), 1, sizes=(2, 2), batch=1)
    ctx = fed.context([0, 1], 1)
    start = {"w": torch.full((2,), 2.0).double()}

    def outer(slots: State, batches: tuple[Batch, ...], step: Step) -> State:
        ctx.fit(slots["p"], fed.trainer.loss, tag="inner", lr=0.1)
        ctx.grad(slots["p"], fed.trainer.loss, batches[0])
        return slots

    ctx.loop({"p": start}, outer)
    assert ctx.logs["loss"].tolist() == [2.0, 6.0]  # a / 2 (2 - b)^2 at every outer step
    assert ctx.logs["inner/loss"].tolist() != [2.0, 6.0]
    assert ctx._means is None


# ---- gradients of single samples ----------------------------------------------------------------
def samples(sizes: tuple[int, ...] = (5, 3, 2)) -> tuple[Any, Batch]:
    """A context and the batch of all samples; sample i has b = i."""
    fed = quadratic(Quadratic(), 1, sizes=sizes)
    fed.batcher.source.streams["b"] = torch.arange(float(sum(sizes))).double()
    ctx = fed.context(list(range(len(sizes))), 1)
    return ctx, next(ctx.batches("w"))


@pytest.mark.parametrize("most", [0, 1, 6, 7, 100])
def test_gradients_of_single_samples_have_a_closed_form(most: int) -> None:
    """g_ij = a_i (w_i - b_ij), l_ij = a_i / 2 (w_i - b_ij)^2; a is 1, 3, 1."""
    ctx, batch = samples()
    w = torch.tensor([0.5, -1.0, 2.0]).double()
    seen = list[int]()

    def loss(model: Any, q: Tree, b: Batch) -> Tensor:
        seen.append(len(b.y))
        return Quadratic().loss(model, q, b)

    losses, grads = ctx.grad_each({"w": w}, loss, batch, most=most)
    assert sum(seen) == 10  # no padding
    padded = ctx.grad_each({"w": w}, loss, replace(batch, counts=()), most=most)
    assert sum(seen) == 10 + 15 and torch.equal(padded[0], losses)
    assert torch.equal(padded[1]["w"], grads["w"])
    nobody = replace(batch, counts=(0, 0, 0), w=torch.zeros_like(batch.w))
    losses_of_none, grads_of_none = ctx.grad_each({"w": w}, loss, nobody, most=most)
    assert not losses_of_none.any() and not grads_of_none["w"].any()
    first = replace(batch, w=batch.w * (torch.arange(5) < 1))  # a method leaves samples out
    assert not ctx.grad_each({"w": w}, loss, first, most=most)[1]["w"][:, 1:].any()
    gap = w[:, None] - batch.x["b"]
    a = torch.tensor([1.0, 3.0, 1.0]).double()[:, None]
    assert losses.shape == (3, 5) and grads["w"].shape == (3, 5)
    assert torch.equal(grads["w"], torch.where(batch.w > 0, a * gap, 0.0))
    assert torch.equal(losses, torch.where(batch.w > 0, a / 2 * gap**2, 0.0))
    assert ctx.counters["gradient_samples"] == 30 == ctx.counters["gradients"]


@pytest.mark.parametrize("most", [0, 9])
def test_gradients_of_single_samples_equal_one_by_one(most: int) -> None:
    ctx, batch = samples()
    generator = torch.Generator().manual_seed(2)
    p = {n: torch.randn(3, 2, generator=generator).double() for n in ("w", "v", "idle")}
    shift = torch.tensor([[1.0], [2.0], [4.0]]).double()

    def loss(model: Any, q: Tree, b: Batch) -> Tensor:
        z = (q["w"] * q["v"].tanh() + b.cut(shift)).sum(1)[:, None] - b.x["b"]
        return (z.sin() * b.w).sum(1) / b.w.sum(1)

    losses, grads = ctx.grad_each(p, loss, batch, ["w", "v", "idle"], most=most)
    assert set(grads) == {"w", "v"}  # nothing depends on the other
    for k, n in enumerate((5, 3, 2)):
        for j in range(n):
            one = replace(batch, x={s: v[k : k + 1, j : j + 1] for s, v in batch.x.items()},
                          y=batch.y[k : k + 1, j : j + 1], w=batch.w[k : k + 1, j : j + 1],
                          rows=torch.tensor([k]), counts=(1,))
            own = ctx.grad({m: v[k : k + 1] for m, v in p.items()}, loss, one, ["w", "v"])
            assert torch.allclose(losses[k, j], own.value[0], rtol=1e-14, atol=0)
            for name, g in own.grads.items():
                assert torch.allclose(grads[name][k, j], g[0], rtol=1e-13, atol=1e-15)
        for name in grads:
            assert not bool(grads[name][k, n:].any())


def test_a_single_sample_that_is_not_finite_is_told_of_its_client() -> None:
    ctx, batch = samples()

    def bad(model: Any, q: Tree, b: Batch) -> Tensor:
        return q["w"] * torch.where(b.x["b"][:, 0] == 6, torch.nan, 1.0)

    with pytest.raises(DivergedError, match="client 1: loss of a sample"):
        ctx.grad_each({"w": torch.ones(3).double()}, bad, batch, what="a sample")


def test_single_samples_enter_the_means_of_a_loop() -> None:
    ctx, _ = samples()
    start = {"p": {"w": torch.tensor([0.5, -1.0, 2.0]).double()}}

    def body(slots: State, batches: tuple[Batch, ...], step: Step) -> State:
        ctx.grad(slots["p"], Quadratic().loss, batches[0])
        ctx.grad_each(slots["p"], Quadratic().loss, batches[0], log="each/")
        ctx.grad_each(slots["p"], Quadratic().loss, batches[0], log=None)
        return slots

    ctx.loop(start, body)
    assert torch.allclose(ctx.logs["each/loss"], ctx.logs["loss"], rtol=1e-14)
    assert set(ctx.logs) == {"loss", "each/loss"}


# ---- the face of a context ----------------------------------------------------------------------
def test_a_context_of_some_clients_is_theirs() -> None:
    ctx = replace(uneven().context([0, 1, 2], 1), newcomers=(True, False, True))
    some = ctx.only([0, 2])
    assert list(some.clients) == [0, 2] and some.sizes.tolist() == [8, 6]
    assert some.fresh.tolist() == [True, True]
    some.counters["own"] += 1
    assert ctx.counters["own"] == 1  # what is counted belongs to the chunk
    assert ctx.only([1]).fresh.tolist() == [False]


def test_rates_are_a_number_where_clients_agree() -> None:
    ctx = quadratic(Quadratic(), 4, epochs=2, sizes=(4, 1), batch=1, schedule=Schedule(
        0.1, "cosine", 8)).context([0, 1], 1)
    first = Step(2, 1, (0, 0), 2, ())
    assert rates(ctx, first) == ctx.schedule(0)
    both = rates(ctx, Step(2, 2, (0, 1), 2, ()))
    assert isinstance(both, Tensor) and both.tolist() == [ctx.schedule(0), ctx.schedule(1)]
    assert rates(ctx, Step(2, 2, (0, 1), 2, ())) is both


def test_classes_are_those_of_each_clients_training_images() -> None:
    """One row a client in the context's order, as wide as the model's classes."""
    world = CheckWorld()
    cls = load_trainer("FedAvg")
    fed = world.federation(cls)
    ctx = fed.context([2, 0])
    assert ctx.classes.shape == (2, len(fed.model.classnames)) and ctx.classes.dtype == torch.bool
    for row, client in zip(ctx.classes, (2, 0), strict=True):
        labels = {int(world.labels[i]) for i in world.splits[client].train}
        assert set(row.nonzero().flatten().tolist()) == labels
    assert torch.equal(ctx.only([1]).classes, ctx.classes[1:])
