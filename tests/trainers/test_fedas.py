"""FedAS against closed forms."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fedvlm.check.compare import copy_state, same_state
from fedvlm.check.messages import Ordered
from fedvlm.check.world import CheckWorld
from fedvlm.core.errors import ConfigError
from fedvlm.core.trees import State, Tree, expand
from fedvlm.federation.aggregation.updates import Updates
from fedvlm.federation.discovery import load_trainer
from fedvlm.federation.rounds import FedState, RoundFinished
from fedvlm.federation.server import Held
from tests.federation.toys import quadratic

from .linear import Sample, batch_of, linear
from .toys import drive, toy

FedAS = load_trainer("FedAS")
DATA: list[list[Sample]] = [
    [((1.0, 2.0), 0), ((0.5, -1.0), 1), ((2.0, 0.0), 0)],
    [((-1.0, 1.0), 1)],
    [((0.0, 1.0), 0), ((1.0, 1.0), 1), ((3.0, 1.0), 1), ((1.0, 0.0), 0), ((2.0, 2.0), 1)],
]


def trained(options: dict[str, Any] | None = None, **how: Any) -> tuple[Any, FedState]:
    """Return a federation on DATA and its state after a round."""
    fed = linear("FedAS", DATA, rounds=3, lr=0.5, batch=2, options=options, **how)
    return fed, fed.run(until=1)


def stacked(state: FedState, client: int) -> tuple[State, Tree]:
    own = {slot: expand(tree, 1) for slot, tree in state.clients[client].items()}
    return own, expand(state.server["w"], 1)


# ---- alignment -----------------------------------------------------------------------------
def test_alignment_loss_is_a_sum_over_classes_of_means() -> None:
    fed = linear("FedAS", [[((1.0, 1.0), 0)]])
    old = torch.tensor([[[1.0, 1.0], [1.0, 3.0]]], dtype=torch.float64)
    samples = [((1.0, 1.0), 0), ((3.0, 1.0), 0), ((0.0, 0.0), 1)]
    p = expand(fed.p0, 1)
    b = batch_of(samples)
    found = fed.trainer.align_loss(fed.model, p, b, means=old)
    assert float(found) == pytest.approx(6.0, abs=1e-12)
    summed = linear("FedAS", [[((1.0, 1.0), 0)]], options={"ALIGN_REDUCTION": "sum"})
    found = summed.trainer.align_loss(fed.model, p, b, means=old)
    assert float(found) == pytest.approx(12.0, abs=1e-12)
    unit = linear("FedAS", [[((1.0, 1.0), 0)]], options={"ALIGN_FEATURE": "normalised"})
    at = torch.tensor([[[3.0, 4.0], [0.0, 0.0]]], dtype=torch.float64) / 5
    same = batch_of([((6.0, 8.0), 0)])
    found = unit.trainer.align_loss(fed.model, p, same, means=at)
    assert float(found) == pytest.approx(0.0, abs=1e-15)


def test_alignment_loss_is_not_zero_at_the_means() -> None:
    """It is the variance within the class."""
    fed = linear("FedAS", [[((0.0,), 0)]])
    b = batch_of([((0.0,), 0), ((2.0,), 0)])
    means = torch.tensor([[[1.0], [0.0]]], dtype=torch.float64)
    found = fed.trainer.align_loss(fed.model, expand(fed.p0, 1), b, means=means)
    assert float(found) == pytest.approx(1.0)


def test_one_alignment_step() -> None:
    """W = I, x = (1, 0), prototype 0: W11 = 0.99 after a step of 0.01, the rest as it was."""
    fed = linear("FedAS", [[((1.0, 0.0), 0)]], lr=0.0)
    zero = fed.p0 | {"image.base": torch.zeros(2, 2, dtype=torch.float64)}
    c: State = {"w": expand(zero, 1)}
    d = expand({"image.base": torch.eye(2, dtype=torch.float64)}, 1)
    ctx = fed.context([0], 1, worked=(0,))
    got = fed.trainer.aligned(ctx, c, d)
    assert got["image.base"][0].tolist() == [[0.99, 0.0], [0.0, 1.0]]
    assert float(ctx.logs["align/loss"]) == pytest.approx(0.5, abs=1e-12)
    fed.trainer.aligned(ctx, c, {"image.base": got["image.base"]})
    assert float(ctx.logs["align/loss"]) == pytest.approx(0.49005, abs=1e-12)
    assert torch.equal(d["image.base"][0], torch.eye(2, dtype=torch.float64))  # a copy moved


@pytest.mark.parametrize("options", [{"ALIGN_LR": 0.0}, {"ALIGN": False}])
def test_without_alignment_the_body_is_the_received_one(options: dict[str, Any]) -> None:
    fed, state = trained(options)
    c, d = stacked(state, 0)
    got = fed.trainer.aligned(fed.context([0], 2, worked=(0,)), c, d)
    assert torch.equal(got["image.base"], d["image.base"])


def test_head_is_left_alone_by_alignment() -> None:
    fed, state = trained({"ALIGN_LR": 0.3})
    c, d = stacked(state, 0)
    got = fed.trainer.aligned(fed.context([0], 2, worked=(0,)), c, d)
    assert torch.equal(got["head.weight"], c["w"]["head.weight"])
    assert torch.equal(got["head.bias"], c["w"]["head.bias"])
    assert not torch.equal(got["image.base"], d["image.base"])


def test_first_participation_is_not_aligned() -> None:
    """Also where others of the same chunk are."""
    fed, state = trained({"ALIGN_LR": 0.3})
    new = state.clients | {1: fed.start().clients[1]}
    ctx = fed.context([2, 0, 1], 2, worked=(0, 2))
    c = {slot: {n: torch.stack([new[k][slot][n] for k in (2, 0, 1)]) for n in tree}
         for slot, tree in new[0].items()}
    d = expand(state.server["w"], 3)
    got = fed.trainer.aligned(ctx, c, d)["image.base"]
    assert torch.equal(got[2], d["image.base"][2])
    assert not torch.equal(got[0], d["image.base"][0])
    assert not torch.equal(got[1], d["image.base"][1])
    every = linear("FedAS", DATA, options={"ALIGN_LR": 0.3, "SKIP_FIRST": False}, batch=2)
    ctx = every.context([2, 0, 1], 2, worked=(0, 2))
    assert not torch.equal(every.trainer.aligned(ctx, c, d)["image.base"][2], d["image.base"][2])
    before = fed.context([2, 0, 1], 1)
    first = {slot: expand(tree, 3) for slot, tree in fed.start().clients[0].items()}
    fed.trainer.aligned(before, first, d)
    assert not before.counters  # not even a pass over the data


def test_server_is_not_moved_and_order_does_not_matter() -> None:
    """The official code aligns the one global model in place: later clients receive it moved."""
    fed, state = trained({"ALIGN_LR": 0.3})
    given = copy_state(state.server)
    ends = []
    for order in ((0, 1, 2), (2, 1, 0), (1, 2, 0)):
        fed.engine = Ordered(1, order=order)
        ends.append(fed.round(state, 2))
        same_state(state.server, given, "the server's state")
    for end in ends[1:]:
        assert torch.equal(end.server["w"]["image.base"], ends[0].server["w"]["image.base"])


# ---- Fisher trace --------------------------------------------------------------------------
def fisher(samples: list[Sample], classes: int, batch: int = 100, **options: Any) -> float:
    fed = linear("FedAS", [samples], classes=classes, batch=batch, options=options)
    p = expand(fed.p0, 1)
    return float(fed.trainer.fisher(fed.context([0], 1), p)[0])


@pytest.mark.parametrize(("classes", "trace"), [(2, 5.0), (5, 8.0), (10, 9.0)])
def test_trace_of_a_zero_softmax(classes: int, trace: float) -> None:
    """(1 - 1/C) (|x|^2 + 1): the body's gradient is zero where the head is."""
    assert fisher([((1.0, 2.0, 2.0), 0)], classes) == pytest.approx(trace, abs=1e-12)
    none = fisher([((1.0, 2.0, 2.0), 0)], classes, FIM_PARAMS="shared")
    assert none == pytest.approx(0.0, abs=1e-15)


def test_batch_against_sample_mode() -> None:
    both = [((1.0, 2.0, 2.0), 0), ((1.0, 2.0, 2.0), 1)]
    assert fisher(both, 2) == pytest.approx(0.0, abs=1e-15)
    assert fisher(both, 2, FIM_MODE="sample") == pytest.approx(10.0, abs=1e-12)
    assert fisher(both, 2, FIM_BATCH=1) == pytest.approx(10.0, abs=1e-12)


def test_duplicated_data_doubles_the_trace() -> None:
    one = [((1.0, 2.0, 2.0), 0)]
    assert fisher(one * 2, 2, batch=1) == pytest.approx(2 * fisher(one, 2), abs=1e-12)


def test_batches_of_the_trace_are_cut_from_the_runs() -> None:
    """Twice four equal samples: F = number of pieces times that of one."""
    one = [((1.0, 2.0, 2.0), 0)]
    for size, pieces in ((16, 1), (4, 2), (3, 3), (2, 4)):
        assert fisher(one * 8, 2, FIM_BATCH=size) == pytest.approx(5.0 * pieces, abs=1e-12)


def test_trace_of_clients_stacked_is_that_of_each() -> None:
    fed, state = trained()
    ids = [2, 0, 1]
    w = {n: torch.stack([state.clients[k]["w"][n] for k in ids]) for n in fed.p0}
    for options in ({"FIM_BATCH": 1}, {"FIM_BATCH": 2}, {"FIM_MODE": "sample"}):
        made = linear("FedAS", DATA, batch=3, options=options)
        joint = made.trainer.fisher(made.context(ids, 2), w)
        for row, k in enumerate(ids):
            alone = made.trainer.fisher(
                made.context([k], 2), {n: v[row : row + 1] for n, v in w.items()}
            )
            assert float(alone) == pytest.approx(float(joint[row]), rel=1e-12)
        assert float(joint.min()) > 0


@pytest.mark.parametrize("n", range(1, 16))
def test_clients_below_sixteen_samples(n: int) -> None:
    samples: list[Sample] = [((1.0, 0.1 * i), i % 2) for i in range(n)]
    fed = linear("FedAS", [samples, DATA[0]], rounds=2, batch=16, options={"ALIGN_LR": 0.3})
    one = fed.run(until=1)
    c, d = stacked(one, 0)
    far = {"image.base": 2 * d["image.base"]}
    got = fed.trainer.aligned(fed.context([0], 2, worked=(0,)), c, far)
    assert not torch.equal(got["image.base"], far["image.base"])
    state = fed.run(one)
    w = expand(state.clients[0]["w"], 1)
    assert float(fed.trainer.fisher(fed.context([0], 2), w)) > 0


# ---- server --------------------------------------------------------------------------------
def merged(values: list[float], weights: list[float], sizes: list[float]) -> tuple[float, Any]:
    fed = quadratic(toy("FedAS", split=True, options={"ALIGN": False}), 1)
    sent, weight, count = (torch.tensor(v, dtype=torch.float64) for v in (values, weights, sizes))
    updates = Updates(
        tuple(range(len(sent))), {"image.g": sent}, weight, {"fedas.samples": count}
    )
    server: State = {"w": {"image.g": torch.zeros(())}}
    ctx = fed.server_context(1, Held())
    new = fed.trainer.aggregate(ctx, server, updates)
    return float(new["w"]["image.g"]), ctx.report["aggregation_weights"]


def test_weights_are_the_traces_shares() -> None:
    value, used = merged([0.0, 4.0, 100.0], [2.0, 6.0, 0.0], [1.0, 1.0, 1.0])
    assert used == [0.25, 0.75, 0.0] and sum(used) == 1
    assert value == pytest.approx(3.0, abs=1e-12)
    assert merged([1.0, 3.0], [1.0, 3.0], [1.0, 1.0])[0] == pytest.approx(2.5, abs=1e-12)


def test_scale_does_not_count_and_equal_traces_are_uniform() -> None:
    one = merged([1.0, 3.0], [1.0, 3.0], [1.0, 1.0])[0]
    assert merged([1.0, 3.0], [7.0, 21.0], [1.0, 1.0])[0] == pytest.approx(one, abs=1e-12)
    assert merged([1.0, 3.0], [5.0, 5.0], [1.0, 9.0])[0] == pytest.approx(2.0, abs=1e-12)


def test_all_zero_falls_back_to_samples() -> None:
    value, used = merged([1.0, 3.0], [0.0, 0.0], [1.0, 3.0])
    assert used == [0.25, 0.75]
    assert value == pytest.approx(2.5, abs=1e-12)


@pytest.mark.parametrize(("agg", "expected"), [("data", 0.3), ("samples", 0.3), ("uniform", 0.6)])
def test_other_weights(agg: str, expected: float) -> None:
    _, state = drive("FedAS", 1, split=True, sizes=(3, 1), options={"AGG": agg})
    assert float(state.server["w"]["image.g"]) == pytest.approx(expected, abs=1e-12)


def test_weights_are_proportional_to_the_trace_on_the_toy() -> None:
    """One full-batch gradient a (g + l - b) for g and for l: F = 2 a^2 (g + l - b)^2."""
    _, state = drive("FedAS", 1, split=True)
    g = [float(state.clients[k]["w"]["image.g"]) for k in (0, 1)]
    left = [a * (2 * v - b) for a, b, v in zip((1, 3), (0, 4), g, strict=True)]
    traces = [2 * x * x for x in left]
    want = sum(f * v for f, v in zip(traces, g, strict=True)) / sum(traces)
    assert float(state.server["w"]["image.g"]) == pytest.approx(want, abs=1e-12)


# ---- what travels, what is evaluated -------------------------------------------------------
def test_head_never_travels() -> None:
    fed, _ = trained()
    assert set(fed.groups.shared) == {"image.base"}
    seen: list[RoundFinished] = []
    fed.subscribers.append(lambda e: seen.append(e) if isinstance(e, RoundFinished) else None)
    fed.run()
    assert [e.round for e in seen] == [0, 1, 2, 3]
    for event in seen[1:]:
        sent = event.updates
        assert sent is not None and sent.clients == (0, 1, 2)
        assert set(sent.params) == {"image.base"} and set(sent.extras) == {"fedas.samples"}


def test_evaluated_is_the_own_model_or_the_shared_body_before() -> None:
    fed, state = trained()
    del state.versions[1]
    models: dict[int, Tensor] = {}
    for ids, p in fed.personal(state, [0, 1, 2]):
        models |= dict(zip(ids, p["image.base"], strict=True))
    assert torch.equal(models[0], state.clients[0]["w"]["image.base"])
    assert torch.equal(models[1], state.server["w"]["image.base"])


def test_start_is_zero_shot_with_the_linear_head() -> None:
    world = CheckWorld(["PEFT.TEXT", "none", "PEFT.VISUAL", "feature", "PEFT.HEAD", "linear"])
    fed = world.federation(FedAS)
    x = {"features": world.features[None]}
    got = fed.trainer.predict(fed.model, fed.shared(fed.start()), x)
    want = fed.model.logits(x["features"], fed.model.anchor("template", 0)[None])
    assert torch.allclose(got, want, atol=1e-12)


def test_both_sides_are_needed() -> None:
    with pytest.raises(ConfigError, match="FedAS needs something to train on the body side"):
        CheckWorld(["PEFT.VISUAL", "none"]).federation(FedAS)
    with pytest.raises(ConfigError, match="FedAS needs something to train on the head side"):
        CheckWorld(
            ["PEFT.VISUAL", "feature", "PEFT.TEXT", "none", "PEFT.HEAD", "text"]
        ).federation(FedAS)


def test_stacked_clients_have_the_traces_of_one_by_one() -> None:
    """Clients of 5, 3 and 1 samples in pieces of two: within 1e-12, whoever else is there."""
    weights = []
    for chunk in (1, 3):
        seen: list[Any] = []
        fed = linear("FedAS", DATA, rounds=2, lr=0.5, batch=4, chunk=chunk,
                     options={"FIM_BATCH": 2})
        fed.subscribers.append(seen.append)
        fed.run()
        rounds = [e for e in seen if getattr(e, "updates", None) is not None]
        weights.append([e.updates.weight.tolist() for e in rounds])
        spent = [e.counters["gradient_samples"] for e in rounds]
        assert spent == [2 * 9, 3 * 9]  # the fit and the trace; alignment from round 2 on
    for ours, theirs in zip(*weights, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-12) and len(set(ours)) == 3
