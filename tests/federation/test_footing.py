"""Local steps, epochs per client, kept optimisers, early stop, and the clock of phases."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedvlm.core.errors import ConfigError, FedvlmError
from fedvlm.core.trees import State, Tree
from fedvlm.federation.batches import Batch, Step
from fedvlm.federation.context import DESCENT, LOOP, Context, rates
from fedvlm.federation.engine import LocalEngine
from fedvlm.federation.local.effort import Effort, samples_of
from fedvlm.federation.local.kept import COUNT, KEPT
from fedvlm.federation.optim import OptimSpec, RoleSpec, Schedule
from fedvlm.federation.plan import plain_work
from fedvlm.federation.rounds import Federation, RoundFinished
from tests.federation.toys import ETA, Quadratic, quadratic

ADAM = OptimSpec("adam", ETA, weight_decay=0.0)


@pytest.fixture(autouse=True)
def four(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("A", (1.0, 3.0, 1.0, 2.0)), ("B", (0.0, 4.0, 1.0, -1.0))):
        monkeypatch.setattr(f"tests.federation.toys.{name}", value)


def starts(k: int) -> Tree:
    return {"w": torch.linspace(-1, 2, k, dtype=torch.float64)}


# ---- local steps, epochs per client -------------------------------------------------------------
def test_each_client_makes_so_many_steps() -> None:
    fed = quadratic(Quadratic(), 1, sizes=(7, 3, 1, 0), batch=2, epochs=2, local_steps=5)
    ctx = fed.context([0, 1, 2, 3], 1)
    fit = ctx.fit(starts(4), fed.trainer.loss)
    assert fit.steps.tolist() == [5, 5, 5, 0]
    # 7 by 2 and on: 2 2 2 1 | 2; 3 by 2: 2 1 | 2 1 | 2; 1 by 2: five times 1
    assert ctx.counters == {"steps": 15, "samples": 9 + 8 + 5, "gradients": 15,
                            "gradient_samples": 9 + 8 + 5}
    own = ctx.fit(starts(4), fed.trainer.loss, epochs=1, tag="v")  # its own number of epochs counts
    assert own.steps.tolist() == [4, 2, 1, 0]


def test_steps_walk_on_through_the_epochs_shuffles() -> None:
    whole = quadratic(Quadratic(), 1, sizes=(5,), batch=2, epochs=2).batcher
    labels = torch.arange(5)
    whole.source.labels = labels
    epochs = [b.y[b.w > 0].tolist() for s in whole.steps([0], 3, 2, 1, "w") for b in s.batches]
    steps = [b.y[b.w > 0].tolist() for s in whole.steps([0], 3, 2, 1, "w", 0, 5) for b in s.batches]
    assert steps == epochs[:5]


def test_the_clock_goes_its_epochs_in_so_many_steps() -> None:
    fed = quadratic(Quadratic(), 2, sizes=(6, 1), batch=2, epochs=2, local_steps=4)
    steps = list(fed.batcher.steps([0, 1], 2, 2, 1, "w", 0, 4))
    assert [s.epochs for s in steps] == [(0, 0), (0, 0), (1, 1), (1, 1)]


def test_epochs_are_drawn_per_client_and_round() -> None:
    effort = Effort(4, span=(1, 4), seed=3)
    draws = [effort.drawn(r, range(30)) for r in range(1, 9)]
    assert {e for d in draws for e in d} == {1, 2, 3, 4} and len({tuple(d) for d in draws}) == 8
    assert effort.drawn(2, [7, 3]) == [draws[1][7], draws[1][3]]  # nobody else's draw counts
    assert Effort(4, span=(2, 2)).drawn(1, [0, 1]) == [2, 2]


@pytest.mark.parametrize("how", [{"local_steps": 5}, {"epochs_range": (1, 4)}])
def test_stacked_clients_of_unequal_epochs_equal_one_by_one(how: dict[str, Any]) -> None:
    ends = []
    for chunk in (1, 4):
        seen: list[Any] = []
        fed = quadratic(Quadratic(), 2, sizes=(4, 4, 3, 1), batch=1, epochs=4, momentum=0.9,
                        chunk=chunk, **how)
        fed.subscribers.append(seen.append)
        state = fed.run()
        assert seen[-1].updates.weight.tolist() == [4, 4, 3, 1]  # weights are of samples
        ends.append([float(state.clients[c]["w"]["w"]) for c in range(4)]
                    + seen[-1].updates.metrics["loss"].tolist())
    assert ends[0] == ends[1]


def test_fewer_epochs_of_a_larger_client_keep_rows_and_counts() -> None:
    fed = quadratic(Quadratic(), 1, sizes=(4, 4, 3, 1), batch=1, epochs=4, epochs_range=(1, 4))
    drawn = next(e for e in range(1, 40) if fed.plan.effort.drawn(e, range(4))[0] < min(
        fed.plan.effort.drawn(e, range(4))[1:3]))  # the first client finishes before the others
    ctx = fed.context([0, 1, 2, 3], drawn)
    fit = ctx.fit(starts(4), fed.trainer.loss)
    epochs = fed.plan.effort.drawn(drawn, range(4))
    assert fit.steps.tolist() == [n * e for n, e in zip((4, 4, 3, 1), epochs, strict=True)]
    for k in range(4):
        alone = fed.context([k], drawn).fit({"w": starts(4)["w"][k : k + 1]}, fed.trainer.loss)
        assert float(fit.params["w"][k]) == float(alone.params["w"])


def test_the_budget_is_fedavgs_work_under_the_same_keys() -> None:
    sizes, cohorts = [7, 3, 0], [[0, 1, 2], [1]]
    assert plain_work("steps", cohorts, sizes, Effort(2, steps=5), 2) == (10, 5)
    assert plain_work("samples", cohorts, sizes, Effort(2, steps=5), 2) == (9 + 8, 8)
    drawn = Effort(3, span=(1, 3))
    want = tuple(sum(sizes[c] * drawn.drawn(r, [c])[0] for c in cohort)
                 for r, cohort in enumerate(cohorts, start=1))
    assert plain_work("samples", cohorts, sizes, drawn, 2) == want
    assert samples_of(7, [[(0, 2)], [(2, 3)]]) == 3 * 3 + 2


# ---- the clock of phases ------------------------------------------------------------------------
def test_a_second_fit_goes_on_with_clock_and_views_but_not_with_shuffles() -> None:
    batcher = replace(quadratic(Quadratic(), 1, sizes=(4,), batch=2).batcher, views=10,
                      epochs_per_round=3)
    batcher.source.labels = torch.arange(4)
    first, later = (list(batcher.steps([0], 2, 2, 1, "w", after)) for after in (0, 1))
    assert [s.epochs for s in first] == [(0,), (0,), (1,), (1,)]
    assert [s.epochs for s in later] == [(1,), (1,), (2,), (2,)]
    assert all(torch.equal(a.batches[0].y, b.batches[0].y)
               for a, b in zip(first, later, strict=True))
    assert [batcher._view(2, e) for e in (0, 1)] == [3, 4]


def test_rates_of_a_second_fit_are_the_later_ones() -> None:
    schedule = Schedule(ETA, "cosine", 6)
    fed = quadratic(Quadratic(), 2, epochs=3, schedule=schedule)
    seen: list[float] = []

    def body(slots: State, batches: tuple[Batch, ...], step: Step) -> State:
        rate = rates(ctx, step)
        assert isinstance(rate, float)
        seen.append(rate)
        return slots

    ctx = fed.context([0, 1], 2)
    ctx.loop({"p": starts(2)}, body, epochs=1)
    ctx.loop({"p": starts(2)}, body, epochs=2, after=1)
    assert seen == [schedule(e) for e in (3, 4, 5)]


# ---- the optimiser's state ----------------------------------------------------------------------
def kept(spec: OptimSpec, rounds: int = 3, **how: Any) -> Any:
    fed = quadratic(Quadratic(), rounds, sizes=(3, 2), batch=1, **how)
    fed.plan = replace(fed.plan, optim=replace(spec, keep=True))
    return fed


@pytest.mark.parametrize("spec", [OptimSpec("sgd", ETA, 0.9, 0.0), ADAM])
@pytest.mark.parametrize("chunk", [1, 2])
def test_a_client_goes_on_with_its_own_optimiser(spec: OptimSpec, chunk: int) -> None:
    """Rounds in which the server gives back what a client sent: one run of torch.optim."""

    class Alone(Quadratic):
        def client_update(self, ctx: Context, state: State, received: Tree) -> Any:
            w = ctx.fit(state["w"], self.loss).params
            return {"w": w}, ctx.upload(w)

    fed = kept(spec, chunk=chunk)
    fed.trainer = Alone()
    state = fed.run()
    for k, (a, b, steps) in enumerate(((1.0, 0.0, 9), (3.0, 4.0, 6))):
        w = torch.nn.Parameter(torch.zeros((), dtype=torch.float64))
        rule: Any = (torch.optim.Adam([w], lr=ETA) if spec.name == "adam" else
                     torch.optim.SGD([w], lr=ETA, momentum=0.9))
        for _ in range(steps):
            w.grad = (a * (w - b)).detach()
            rule.step()
        found = float(state.clients[k]["w"]["w"])
        assert found == pytest.approx(float(w.detach()), rel=1e-13, abs=1e-15)
        assert float(state.clients[k][f"{KEPT}w/{COUNT}"][COUNT]) == steps


def test_kept_states_stay_with_their_clients() -> None:
    seen: list[Any] = []
    fed = kept(ADAM)
    fed.subscribers.append(seen.append)
    state = fed.run()
    assert {s for s in state.clients[0] if s != "w"} == {f"{KEPT}w/{s}" for s in ("m", "v", COUNT)}
    inside = {float(v) for c in (0, 1) for s, t in state.clients[c].items() if s != "w"
              for v in t.values()}
    for event in (e for e in seen if isinstance(e, RoundFinished) and e.round):
        sent = [event.updates.params, event.updates.extras, event.updates.metrics, event.report]
        sent += list(state.server.values())
        for tree in sent:
            for v in tree.values():
                assert not inside & set(torch.as_tensor(v).flatten().tolist())
        assert set(event.updates.params) == {"w"} and not event.updates.extras


def test_what_a_method_sees_has_no_optimiser_in_it() -> None:
    slots = set[str]()

    class Looks(Quadratic):
        def client_update(self, ctx: Context, state: State, received: Tree) -> Any:
            slots.update(state)
            return super().client_update(ctx, state, received)

        def personalize(self, ctx: Context, state: State, received: Tree) -> Tree:
            slots.update(state)
            return super().personalize(ctx, state, received)

    fed = kept(ADAM)
    fed.trainer = Looks()
    state = fed.run()
    list(fed.personal(state, [0, 1]))
    assert slots == {"w"}


def test_resume_with_kept_states_has_the_same_bits() -> None:
    whole, first = kept(ADAM), kept(ADAM)
    end = whole.run()
    half = first.run(until=2)
    again = kept(ADAM)
    resumed = again.run(again.adopt(half.whole))
    for c in (0, 1):
        for slot, tree in end.clients[c].items():
            for n, v in tree.items():
                assert torch.equal(v, resumed.clients[c][slot][n]), (c, slot, n)
    assert not torch.equal(end.server["w"]["w"], quadratic_adam().server["w"]["w"])


def quadratic_adam() -> Any:
    fed = kept(ADAM)
    fed.plan = replace(fed.plan, optim=ADAM)
    return fed.run()


def test_final_fine_tuning_neither_reads_nor_keeps_it() -> None:
    fed = kept(ADAM)
    ctx = fed.context([0, 1], 3)
    assert ctx.kept is None
    ends = [c.fit(starts(2), fed.trainer.loss, tag="finetune").params["w"] for c in (
        ctx, replace(ctx, optim=ADAM))]
    assert torch.equal(*ends)


# ---- early stop ---------------------------------------------------------------------------------
def stopping(patience: int, losses: dict[int, list[float]], **how: Any) -> Any:
    """A toy whose validation losses are told, client by client and epoch by epoch."""
    fed = quadratic(Quadratic(), 1, sizes=(3, 2, 1), batch=1, epochs=5, early_stop=patience,
                    val=1, **how)
    told = {c: list(v) for c, v in losses.items()}

    def loss(model: Any, p: Tree, b: Batch) -> Tensor:
        if b.moment is not None:
            return fed.trainer.loss(model, p, b)
        return torch.tensor([told[c].pop(0) for c in b.clients], dtype=torch.float64)

    return fed, loss


def test_a_client_stops_after_so_many_epochs_without_a_lower_loss() -> None:
    fed, loss = stopping(2, {0: [3, 2, 2, 2.5], 1: [5, 4, 3, 2], 2: [1, 2, 0.5, 0.5, 0.7]})
    ctx = fed.context([0, 1, 2], 1)
    fit = ctx.fit(starts(3), loss)
    assert fit.steps.tolist() == [3 * 4, 2 * 5, 1 * 5]  # the last epoch is over anyway
    assert ctx.counters["steps"] == 12 + 10 + 5
    for k, epochs in enumerate((4, 5, 5)):  # the last tensors, not the best
        plain = replace(fed.context([k], 1), patience=0)
        alone = plain.fit({"w": starts(3)["w"][k : k + 1]}, fed.trainer.loss, epochs=epochs)
        assert float(fit.params["w"][k]) == float(alone.params["w"])
        assert float(fit.means["loss"][k]) == float(alone.means["loss"])


def test_who_stops_first_takes_no_other_clients_place() -> None:
    fed, loss = stopping(1, {0: [1, 1], 1: [5, 4, 3, 2], 2: [9, 8, 7, 6]})
    ctx = fed.context([0, 1, 2], 1)
    fit = ctx.fit(starts(3), loss, edit=lambda p, g, b: {
        n: v + 0.1 * b.cut({"w": torch.tensor([1.0, 2.0, 3.0]).double()})["w"]
        for n, v in g.items()})
    assert fit.steps.tolist() == [6, 10, 5]
    for k, epochs in enumerate((2, 5, 5)):
        plain = replace(fed.context([k], 1), patience=0)
        push = 0.1 * (k + 1)
        alone = plain.fit({"w": starts(3)["w"][k : k + 1]}, fed.trainer.loss, epochs=epochs,
                          edit=lambda p, g, b, push=push: {n: v + push for n, v in g.items()})
        assert float(fit.params["w"][k]) == pytest.approx(float(alone.params["w"]), rel=1e-14)
        assert float(fit.means["loss"][k]) == pytest.approx(float(alone.means["loss"]), rel=1e-14)


def test_validation_is_the_clients_own_split_on_a_part_of_training_too() -> None:
    fed = quadratic(Quadratic(), 1, sizes=(8, 8), batch=4, epochs=3, early_stop=1, val=1)
    fed.batcher.source.streams["id"] = torch.arange(16.0).double()
    fed.batcher = replace(fed.batcher, splits=[
        replace(s, val=np.array([8 * c + 7])) for c, s in enumerate(fed.batcher.splits)
    ])
    seen: list[list[float]] = []

    def loss(model: Any, p: Tree, b: Batch) -> Tensor:
        if b.moment is None:
            seen.append(b.x["id"][b.w > 0].tolist())
        return fed.trainer.loss(model, p, b)

    fed.context([0, 1], 1).subset("fit", 0.5).fit(starts(2), loss)
    assert seen and all(s in ([7, 15], [7], [15]) for s in seen)


def test_the_host_is_asked_once_per_local_epoch_but_the_last() -> None:
    fed = quadratic(Quadratic(), 1, sizes=(4, 4, 4), batch=2, epochs=5, early_stop=9, val=1)
    asked: list[tuple[int, ...]] = []

    def loss(model: Any, p: Tree, b: Batch) -> Tensor:
        if b.moment is None:
            asked.append(b.clients)
        return fed.trainer.loss(model, p, b)

    fed.context([0, 1, 2], 1).fit(starts(3), loss)
    assert asked == [(0, 1, 2)] * 4


def test_early_stop_with_a_kept_optimiser() -> None:
    for chunk in (1, 3):
        fed = quadratic(Quadratic(), 2, sizes=(3, 2, 1), batch=1, epochs=5, early_stop=1, val=1,
                        chunk=chunk, lr=0.9)
        fed.plan = replace(fed.plan, optim=replace(fed.plan.optim, lr=0.9, momentum=0.9, keep=True))
        end = fed.run()
        ends = [float(t) for c in range(3) for s in end.clients[c].values() for t in s.values()]
        if chunk == 1:
            want = ends
    assert ends == want


# ---- refusals -----------------------------------------------------------------------------------
def method(**declared: Any) -> Quadratic:
    return type("Declared", (Quadratic,), declared)()


ROLE = {"head": RoleSpec(lr=0.5)}


@pytest.mark.parametrize(("trainer", "plan", "optim", "sentence"), [
    (method(trains_by=LOOP), {"early_stop": 1}, {},
     "FED.EARLY_STOP: Declared has its own training loop"),
    (method(trains_by=LOOP), {}, {"keep": True, "momentum": 0.9}, "OPTIM.KEEP_STATE: Declared"),
    (method(trains_by=DESCENT), {}, {"clip": 1.0}, "OPTIM.CLIP: Declared has its own training"),
    (method(trains_by=DESCENT), {}, {"roles": ROLE}, "OPTIM.HEAD: Declared has its own training"),
    (method(trains_by="descnt"), {}, {}, "trains_by 'descnt' is none of fit, loop, descent"),
    (method(phases=True), {"local_steps": 3}, {}, "FED.LOCAL_STEPS: Declared has phases"),
    (method(phases=True), {"epochs_range": (1, 2)}, {}, "FED.EPOCHS_RANGE: Declared has phases"),
    (Quadratic(), {"local_steps": 3, "early_stop": 1}, {}, "FED.LOCAL_STEPS 3 and FED.EARLY_STOP"),
    (Quadratic(), {"local_steps": 3, "epochs_range": (1, 2)}, {}, "and FED.EPOCHS_RANGE: every"),
    (Quadratic(), {"epochs_range": (1, 3)}, {}, "FED.LOCAL_EPOCHS, which is 2"),
    (Quadratic(), {"epochs_range": (2, 1)}, {}, r"FED.EPOCHS_RANGE \(2, 1\): expected"),
    (Quadratic(), {"epochs_range": (0, 1)}, {}, r"FED.EPOCHS_RANGE \(0, 1\): expected"),
    (Quadratic(), {"epochs_range": (1,)}, {}, r"FED.EPOCHS_RANGE \(1,\): expected"),
    (Quadratic(), {}, {"keep": True}, "SGD without momentum has no state to keep"),
    (Quadratic(), {"early_stop": 1}, {}, "client 0 and 1 more have no validation images"),
])
def test_what_does_not_go_together_is_refused(
    trainer: Quadratic, plan: dict[str, Any], optim: dict[str, Any], sentence: str
) -> None:
    fed = quadratic(Quadratic(), 1, epochs=2)
    spec = replace(fed.plan.optim, **optim)
    with pytest.raises(ConfigError, match=sentence):
        Federation(trainer, fed.model, fed.batcher, replace(fed.plan, optim=spec, **plan),
                   engine=LocalEngine(1))


@pytest.mark.parametrize("how", [{"early_stop": 1}, {"keep": True}])
def test_an_undeclared_loop_is_refused_when_it_begins(how: dict[str, Any]) -> None:
    fed = quadratic(Quadratic(), 1, val=1)
    ctx = fed.context([0, 1], 1)
    ctx = replace(ctx, patience=1) if "early_stop" in how else replace(ctx, kept={})
    with pytest.raises(FedvlmError, match="needs training by ctx.fit"):
        ctx.loop({"p": starts(2)}, lambda slots, batches, step: slots)
