"""Aggregation by name in closed forms, its refusals, and the telltale of outlying updates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedvlm.config.keys import default_schema
from fedvlm.core.errors import ConfigError, DivergedError, FedvlmError
from fedvlm.core.trees import per_client
from fedvlm.federation.aggregation import rules as robust
from fedvlm.federation.aggregation.rules import (
    AGGREGATORS,
    AUTO,
    EVERY,
    AggregateSpec,
    combine,
    fewest,
    krum_scores,
    move_norms,
)
from fedvlm.federation.aggregation.server_optim import SERVER_OPTIMS, ServerOptimSpec
from fedvlm.federation.aggregation.telltale import (
    Telltale,
    find_outliers,
    measured_moves,
    outlier_sentence,
    tell,
)
from fedvlm.federation.aggregation.updates import Updates, join_updates, weighted_mean
from fedvlm.federation.batches import SplitBatcher
from fedvlm.federation.engine import LocalEngine
from fedvlm.federation.optim import OptimSpec
from fedvlm.federation.plan import Plan
from fedvlm.federation.rounds import Federation, RoundFinished, check_aggregation
from fedvlm.federation.trainer import Trainer

from ..toys import Quadratic, ToyModel, ToySource, ToySplit


def sent(*rows: Sequence[float], weights: Sequence[float] = (), home: Any = None) -> Updates:
    """Return updates of one tensor ``w``; ``home`` is what all received (default: zero)."""
    w = torch.tensor(rows, dtype=torch.float64)
    start = torch.zeros_like(w) if home is None else torch.tensor(home).double().expand_as(w)
    weight = torch.tensor(list(weights) or [1.0] * len(w), dtype=torch.float64)
    return Updates(tuple(range(len(w))), {"w": w}, weight, received={"w": start})


def telltale(updates: Updates) -> Telltale:
    return tell(updates, measured_moves(updates).tolist())


def by(rule: str, updates: Updates, **spec: Any) -> list[float]:
    return combine(updates, AggregateSpec(rule, **spec))[0]["w"].tolist()


# ---- closed forms -----------------------------------------------------------------------------
def test_median_of_an_odd_and_of_an_even_number() -> None:
    assert by("median", sent([0, 5], [1, -7], [100, 6])) == [1, 5]
    assert by("median", sent([0], [1], [3], [100])) == [2]
    assert by("median", sent([0], [1], [100], weights=(1, 1, 1000))) == [1]  # reads no weight


@pytest.mark.parametrize(
    ("trim", "expected"), [(0.0, 22.0), (0.1, 22.0), (0.2, 3.0), (0.39, 3.0), (0.4, 2.0)]
)
def test_trimmed_mean_drops_the_share_at_each_end(trim: float, expected: float) -> None:
    updates = sent([100.0], [1.0], [7.0], [2.0], [0.0])
    expected = {22.0: 22.0, 3.0: 10 / 3, 2.0: 2.0}[expected]
    assert by("trimmed_mean", updates, trim=trim) == pytest.approx([expected], rel=1e-15)


def test_trimmed_mean_leaves_somebody_and_counts_whole_updates() -> None:
    assert by("trimmed_mean", sent([4.0]), trim=0.49) == [4]
    assert by("trimmed_mean", sent([4.0], [6.0]), trim=0.49999999999) == [5]
    hundred = sent(*([float(k)] for k in range(100)))
    _, report = combine(hundred, AggregateSpec("trimmed_mean", 0.29))
    assert report == {"trimmed": 29}  # 0.29 * 100 is 28.999999999999996


HONEST = ([1.0, 0.0], [1.1, 0.0], [0.9, 0.1], [1.0, 0.2], [1.2, 0.1])


def test_krum_scores_are_sums_of_the_nearest_square_distances() -> None:
    updates = sent([0.0], [1.0], [3.0], [7.0], [20.0])
    assert krum_scores(updates, 1).tolist() == [10, 5, 13, 52, 458]  # two nearest of four
    assert krum_scores(updates, 0).tolist() == [59, 41, 29, 101, 458 + 361]


def test_krum_takes_an_honest_update_among_colluding_ones() -> None:
    updates = sent([50.0, 50.0], *HONEST, [50.0, 50.1])  # the two are near each other
    tree, report = combine(updates, AggregateSpec("krum", byzantine=2))
    (chosen,) = report["selected"]
    assert 1 <= chosen <= 5 and tree["w"].tolist() == list(HONEST[chosen - 1])
    scores = [
        sum(sorted((a - c) ** 2 + (b - d) ** 2 for c, d in updates.params["w"].tolist())[1:4])
        for a, b in updates.params["w"].tolist()
    ]
    assert chosen == scores.index(min(scores))


def test_multi_krum_averages_all_but_f_and_reads_no_weight() -> None:
    updates = sent([50.0, 50.0], *HONEST, [-50.0, 50.1], weights=(9, 1, 2, 3, 4, 5, 9))
    tree, report = combine(updates, AggregateSpec("multi_krum", byzantine=2))
    assert report["selected"] == [1, 2, 3, 4, 5]
    assert tree["w"].tolist() == pytest.approx([1.04, 0.08])


def test_krum_compares_moves_not_models() -> None:
    """Clients that received unlike models and moved alike are near each other."""
    updates = sent([11.0], [21.0], [31.0], [42.0], [55.0])
    home = torch.tensor([[10.0], [20.0], [30.0], [40.0], [50.0]], dtype=torch.float64)
    updates = replace(updates, received={"w": home})
    assert krum_scores(updates, 1).tolist() == [0, 0, 0, 2, 9 + 16]


def test_krum_counts_all_tensors_as_one_vector() -> None:
    updates = replace(sent([0.0], [3.0], [0.0]), params={
        "a": torch.tensor([0.0, 3.0, 0.0]).double(), "b": torch.zeros(3, 2, 2).double(),
        "c": torch.tensor([[0.0], [4.0], [1.0]]).double(),
    }, received={})
    assert krum_scores(updates, 0).tolist() == pytest.approx([1, 18, 1])


def test_krum_refuses_too_few() -> None:
    for rule in ("krum", "multi_krum"):
        with pytest.raises(FedvlmError, match="2 hostile updates among at least 7 clients; this "
                                              "round"):
            by(rule, sent(*HONEST, [0.0, 0.0]), byzantine=2)
    assert fewest(AggregateSpec("krum", byzantine=2)) == 7
    assert fewest(AggregateSpec("median", byzantine=2)) == 1


def far_from(updates: Updates, point: Sequence[float], weights: Sequence[float]) -> float:
    """The weighted sum of distances from a point to all moves."""
    gaps = updates.params["w"] - updates.received["w"] - torch.tensor(point).double()
    return float((gaps.norm(dim=1) * torch.tensor(weights)).sum())


def test_geometric_median_has_the_least_distance_to_all() -> None:
    """On a line it is the median; in a square, with one far away, nothing near it is nearer."""
    on_a_line = by("geometric_median", sent([0.0], [1.0], [5.0], [6.0], [700.0]))
    assert on_a_line == pytest.approx([5.0], abs=1e-4)
    weights = (1, 2, 1, 3, 1)
    updates = sent([0, 0], [1, 0], [0, 1], [1, 1], [500, -300], weights=weights)
    found = by("geometric_median", updates)
    least = far_from(updates, found, weights)
    for step in ([1e-2, 0], [-1e-2, 0], [0, 1e-2], [0, -1e-2]):
        other = [a + b for a, b in zip(found, step, strict=True)]
        assert far_from(updates, other, weights) > least


def test_geometric_median_turns_with_the_axes_where_the_median_does_not() -> None:
    rows = torch.tensor([[1.0, 0.0], [0.0, 1.0], [3.0, 3.0], [-2.0, 0.5], [0.5, 0.2]]).double()
    turn = torch.tensor([[0.6, -0.8], [0.8, 0.6]]).double()
    for rule, alike in (("geometric_median", True), ("median", False)):
        plain = torch.tensor(by(rule, sent(*rows.tolist()))).double() @ turn
        turned = torch.tensor(by(rule, sent(*(rows @ turn).tolist()))).double()
        assert bool((plain - turned).abs().max() < 1e-6) == alike


def test_clipped_mean_cuts_to_the_median_length() -> None:
    updates = sent([3.0, 4.0], [0.0, 1.0], [0.0, -200.0], weights=(1, 2, 1))
    tree, report = combine(updates, AggregateSpec("clipped_mean"))  # lengths 5, 1, 200
    assert tree["w"].tolist() == pytest.approx([3 / 4, (4 + 2 - 5) / 4])
    assert report == {"clip_norm": 5, "clipped": [2]}


def test_clipped_mean_to_a_given_length_and_from_what_was_received() -> None:
    updates = sent([4.0, 4.0], [1.0, 1.0], home=(1.0, 0.0))  # moves (3, 4), (0, 1)
    assert by("clipped_mean", updates, clip_norm=1.0) == pytest.approx([1.3, 0.9])
    own = replace(updates, received={"w": torch.tensor([[1.0, 0.0], [1.0, -9.0]]).double()})
    assert by("clipped_mean", own, clip_norm=1.0) == pytest.approx([(1.6 + 1) / 2, (0.8 - 8) / 2])


def test_a_long_enough_clip_is_the_mean_in_every_bit() -> None:
    updates = sent(*HONEST, weights=(3, 1, 4, 1, 5), home=(0.3, 0.7))
    assert by("clipped_mean", updates, clip_norm=1e9) == weighted_mean(updates)["w"].tolist()


def test_mean_and_auto_are_the_weighted_mean() -> None:
    updates = sent(*HONEST, weights=(3, 1, 4, 1, 5))
    for rule in (AUTO, "mean"):
        assert by(rule, updates) == weighted_mean(updates)["w"].tolist()


def test_similarity_compares_with_what_each_client_received() -> None:
    updates = sent([2.0, 0.0], [0.0, 2.0], home=(1.0, 0.0))
    e = math.e
    assert by("similarity", updates) == pytest.approx([2 * e / (1 + e), 2 / (1 + e)])
    own = replace(updates, received={"w": torch.tensor([[1.0, 0.0], [0.0, 7.0]]).double()})
    assert by("similarity", own, saa_temp=0.1) == pytest.approx([1, 1])


# ---- what no rule may do -----------------------------------------------------------------------
NUMBERS = st.floats(-1e3, 1e3)
ROWS = st.lists(st.tuples(NUMBERS, NUMBERS, st.integers(1, 99)), min_size=3, max_size=7)


def of(rows: Sequence[tuple[float, float, int]]) -> Updates:
    return sent(*([x, y] for x, y, _ in rows), weights=[n for *_, n in rows], home=(0.5, -0.25))


@pytest.mark.parametrize("rule", EVERY)
@given(rows=ROWS, random=st.randoms(use_true_random=False))
@settings(max_examples=25, deadline=None)
def test_order_of_arrival_changes_no_bit(rule: str, rows: list, random: Any) -> None:
    parts = [of(rows).take([k]) for k in range(len(rows))]
    shuffled = list(parts)
    random.shuffle(shuffled)
    assert by(rule, join_updates(parts)) == by(rule, join_updates(shuffled))


@pytest.mark.parametrize("rule", [r for r in EVERY if "krum" not in r])
@given(rows=ROWS, random=st.randoms(use_true_random=False))
@settings(max_examples=25, deadline=None)
def test_who_is_who_changes_nothing(rule: str, rows: list, random: Any) -> None:
    """Krum may choose another of equals."""
    shuffled = list(rows)
    random.shuffle(shuffled)
    assert by(rule, of(rows)) == pytest.approx(by(rule, of(shuffled)), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("rule", [r for r in EVERY if "krum" not in r])
@given(rows=ROWS)
@settings(max_examples=25, deadline=None)
def test_everybody_twice_changes_nothing(rule: str, rows: list) -> None:
    k = len(rows)
    once, twice = by(rule, of(rows), trim=1 / k), by(rule, of([*rows, *rows]), trim=1 / k)
    assert once == pytest.approx(twice, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("rule", EVERY)
@given(rows=ROWS, factor=st.floats(1e-3, 1e3))
@settings(max_examples=25, deadline=None)
def test_a_common_factor_of_weights_changes_nothing(rule: str, rows: list, factor: float) -> None:
    updates = of(rows)
    scaled = replace(updates, weight=updates.weight * factor)
    assert by(rule, scaled) == pytest.approx(by(rule, updates), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("rule", EVERY)
@given(rows=ROWS, x=st.floats(-1e3, 1e3), y=st.floats(-1e3, 1e3))
@settings(max_examples=25, deadline=None)
def test_weight_zero_takes_no_part(rule: str, rows: list, x: float, y: float) -> None:
    plain, more = of(rows), of([*rows, (x, y, 0)])
    assert by(rule, more) == by(rule, plain)


@pytest.mark.parametrize("rule", EVERY)
def test_equal_clients_stay_and_types_too(rule: str) -> None:
    row = torch.tensor([[0.1, -3.0]] * 5, dtype=torch.float32)
    updates = Updates(
        tuple(range(5)), {"w": row, "deep": row[:, :, None]}, torch.arange(1.0, 6).double(),
        received={"w": row * 0, "deep": row[:, :, None] * 0},
    )
    tree, _ = combine(updates, AggregateSpec(rule))
    assert torch.equal(tree["w"], row[0]) and torch.equal(tree["deep"], row[0][:, None])
    assert tree["w"].dtype is torch.float32
    assert torch.equal(updates.params["w"], row)  # nothing in place


@pytest.mark.parametrize("rule", ["median", "trimmed_mean", "krum", "multi_krum", "clipped_mean"])
def test_one_update_times_a_million_moves_little(rule: str) -> None:
    """And the mean goes with it."""
    bad = sent(*HONEST, [1e6, -1e6])
    spec = AggregateSpec(rule, trim=0.2, byzantine=1)
    found = combine(bad, spec)[0]["w"]
    assert (found - torch.tensor([1.04, 0.08])).norm() < 0.4
    assert weighted_mean(bad)["w"].norm() > 1e5


@pytest.mark.parametrize("rule", EVERY)
def test_nothing_shared_nothing_weighed_nothing_finite(rule: str) -> None:
    assert combine(replace(sent([1.0]), params={}), AggregateSpec(rule)) == ({}, {})
    with pytest.raises(FedvlmError, match="no update has a weight above zero"):
        by(rule, sent([1.0], [2.0], [3.0], weights=(0, 0, 0)))
    if rule not in ("median", "trimmed_mean", "krum", "multi_krum"):
        with pytest.raises(DivergedError, match="aggregate of 'w'"):
            by(rule, sent([math.inf], [2.0], [3.0]))


def test_the_config_names_what_there_is() -> None:
    schema = default_schema()
    assert schema["FED.AGGREGATOR"].choices == (AUTO, *AGGREGATORS)
    assert schema["FED.SERVER_OPTIM"].choices == ("none", *SERVER_OPTIMS)
    new = [k for k in schema if k.startswith(("FED.SERVER_", "FED.AGG", "FED.TRIM", "FED.BYZ",
                                              "FED.CLIP", "FED.SAA"))]
    assert len(new) == 11
    for key in new:  # an older folder stays its own
        assert schema[key].neutral == schema[key].default, key
    plain, spec = AggregateSpec(), ServerOptimSpec()
    assert [plain.rule, plain.trim, plain.byzantine, plain.clip_norm, plain.saa_temp] == [
        schema[f"FED.{k}"].default
        for k in ("AGGREGATOR", "TRIM", "BYZANTINE", "CLIP_NORM", "SAA_TEMP")
    ]
    assert [spec.kind, spec.lr, spec.momentum, spec.beta1, spec.beta2, spec.tau] == [
        schema[f"FED.SERVER_{k}"].default
        for k in ("OPTIM", "LR", "MOMENTUM", "BETA1", "BETA2", "TAU")
    ]


# ---- telltale ---------------------------------------------------------------------------------
def test_telltale_in_closed_form() -> None:
    told = telltale(sent([3.0, 4.0], [0.0, 5.0], [5.0, 0.0], weights=(2, 1, 1)))
    assert told.norm == (5, 5, 5) and told.typical == 5 and told.outliers == ()
    way = (11 / 4, 13 / 4)
    length = math.hypot(*way)
    assert told.cosine == pytest.approx(
        [(3 * way[0] + 4 * way[1]) / (5 * length), way[1] / length, way[0] / length]
    )


def test_telltale_measures_from_what_was_received() -> None:
    plain = telltale(sent(*HONEST))
    moved = sent(*([x + 70, y - 30] for x, y in HONEST), home=(70.0, -30.0))
    assert telltale(moved).norm == pytest.approx(plain.norm, rel=1e-12)
    assert telltale(moved).cosine == pytest.approx(plain.cosine, rel=1e-12)
    assert move_norms(sent([73.0, 4.0], home=(70.0, 0.0))).tolist() == [5]


def test_a_telltale_in_pieces_is_that_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = torch.randn(5, 3, 7, generator=torch.Generator().manual_seed(1)).double()
    params = {"w": rows, "b": rows[:, 0, 0]}
    updates = replace(sent(*HONEST), params=params, received={"w": rows / 3})
    whole, scores = telltale(updates), krum_scores(updates, 1)
    monkeypatch.setattr(robust, "PIECE", 20)  # four columns at a time
    assert telltale(updates).norm == pytest.approx(whole.norm, rel=1e-12)
    assert telltale(updates).cosine == pytest.approx(whole.cosine, rel=1e-12)
    assert krum_scores(updates, 1).tolist() == pytest.approx(scores.tolist(), rel=1e-12)


def test_a_scaled_update_is_told_and_the_honest_are_not() -> None:
    rows = [list(r) for r in HONEST]
    rows[3] = [1000 * v for v in rows[3]]
    told = telltale(sent(*rows))
    assert told.outliers == (3,)
    (row,) = told.rows()
    assert row["client"] == 3 and row["times"] == pytest.approx(1019.8 / 1.1, rel=1e-3)
    assert outlier_sentence(2, row) == (
        "round 2: update of client 3 has norm 1020, 927 times the median"
    )


def test_a_reversed_and_huge_update_does_not_make_the_others_hostile() -> None:
    told = telltale(sent(*HONEST, [-1000.0, 0.0]))
    assert told.outliers == (5,)
    assert min(told.cosine[:5]) > 0.9 and told.cosine[5] < -0.9
    sentence = outlier_sentence(1, told.rows()[0])
    assert sentence.endswith(", 943 times the median, opposite to the others (cosine -1.00)")


def test_direction_counts_from_four_updates_on() -> None:
    assert telltale(sent([1.0, 0.0], [1.0, 0.1], [1.0, -0.1], [-1.0, 0.0])).outliers == (3,)
    assert telltale(sent([1.0, 0.0], [1.0, 0.1], [-1.0, 0.0])).outliers == ()


def test_the_bound_is_five_times_the_moderated_spread() -> None:
    logs = [0.0, 0.2, -0.2, 0.4, -0.4]
    ones, counted = [1.0] * 6, [True] * 6

    def odd(*values: float) -> list[int]:
        return find_outliers([math.exp(v) for v in values], ones, counted)

    def bound(spread: float, n: int) -> float:
        return 5 * math.sqrt((20 * 0.6**2 + n * (1.4826 * spread) ** 2) / (20 + n))

    edge = 0.1 + bound(0.3, 6)  # six logs: median 0.1; above it 0.2, 0.4 and the last: low median
    assert odd(*logs, edge - 0.01) == [] and odd(*logs, edge + 0.01) == [5]
    edge = bound(0.0, 6)
    assert edge == pytest.approx(math.log(13), rel=0.03)  # of six equal ones: thirteen times
    assert odd(*[0.0] * 5, edge - 0.01) == [] and odd(*[0.0] * 5, edge + 0.01) == [5]
    assert odd(*[0.0] * 5, -20.0) == []  # honest clients have no least length
    wide = [0.0, -3.0, 3.0, -6.0, 3.1]
    assert odd(*wide, 1.5 + math.log(50) - 0.01) == []  # whatever the spread: fifty times
    assert odd(*wide, 1.5 + math.log(50) + 0.01) == [5]


def test_the_bound_follows_the_spread_of_many_clients() -> None:
    ones, counted = [1.0] * 101, [True] * 101
    tight = [math.exp(0.01 * (k % 5)) for k in range(100)]
    assert find_outliers([*tight, 3.0], ones, counted) == []
    assert find_outliers([*tight, 4.0], ones, counted) == [100]  # of six clients: thirteen times


def test_against_is_against_updates_that_agree() -> None:
    counted = [True] * 8

    def odd(*cosines: float, norm: float = 1.0) -> list[int]:
        return find_outliers([1.0] * 7 + [norm], cosines, counted)

    assert odd(*[0.6] * 7, -0.95) == [7] and odd(*[0.6] * 7, -0.89) == []
    assert odd(*[0.6] * 6, 0.4, -0.95) == [7] and odd(*[0.6] * 5, 0.4, 0.4, -0.95) == []
    assert odd(*[0.6] * 6, -0.95, -0.95) == [6, 7]
    assert odd(*[0.6] * 7, -0.95, norm=0.51) == [7]
    assert odd(*[0.6] * 7, -0.95, norm=0.49) == []  # too short to turn the mean
    honest = (0.96, 0.82, 0.80, -0.93, -0.91)  # FedPGP's round 14 of the demo: two camps
    assert find_outliers([0.12, 0.044, 0.039, 0.034, 0.037], honest, [True] * 5) == []


def test_nobody_moved_nobody_is_odd_and_zero_weight_is_silent() -> None:
    assert telltale(sent([0.0], [0.0], [0.0])) == Telltale((0, 1, 2), (0, 0, 0), (0, 0, 0), 0.0, ())
    assert telltale(sent([1.0], [1.0], [1.0], [0.0])).outliers == (3,)  # sends back what it got
    assert telltale(sent([1.0], [1.0], [1.0], [0.0], weights=(1, 1, 1, 0))).outliers == ()
    assert telltale(sent([1.0], [1.0], [900.0], weights=(0, 0, 0))).outliers == (2,)
    assert telltale(replace(sent([1.0]), params={})) == Telltale()
    assert telltale(sent([5.0])).outliers == ()


@given(rows=ROWS)
@settings(max_examples=50, deadline=None)
def test_telltale_is_finite_and_within_bounds(rows: list) -> None:
    told = telltale(of(rows))
    assert all(math.isfinite(n) and n >= 0 for n in told.norm)
    assert all(-1 <= c <= 1 for c in told.cosine)
    assert set(told.outliers) <= set(told.clients)
    assert all(math.isfinite(row["times"]) for row in told.rows())


# ---- a whole federation -----------------------------------------------------------------------
class Hostile(Quadratic):
    """FedAvg whose client 2 multiplies its move by ``FACTOR``."""

    FACTOR = 1000.0

    def client_update(self, ctx: Any, state: Any, received: Any) -> Any:
        state, upload = super().client_update(ctx, state, received)
        factor = torch.tensor(
            [self.FACTOR if c == 2 else 1.0 for c in ctx.clients], dtype=torch.float64
        )
        w = {
            n: received[n] + per_client(factor, v) * (v - received[n])
            for n, v in upload.params.items()
        }
        return state, ctx.upload(w)


def federation(
    trainer: Trainer, targets: Sequence[float] = (1.0, 1.2, 0.9, 1.1, 1.05), rounds: int = 4,
    **plan: Any,
) -> Federation:
    """Return a federation on (w - b_k)^2 / 2, one sample and one step of 0.5 per client."""
    n = len(targets)
    source = ToySource(
        {"a": torch.ones(n).double(), "b": torch.tensor(targets, dtype=torch.float64)},
        torch.zeros(n, dtype=torch.int64),
    )
    splits = [ToySplit(np.array([k])) for k in range(n)]
    batcher = SplitBatcher(source, splits, 100, 1, 1, 1, torch.device("cpu"), torch.float64)
    return Federation(
        trainer, ToyModel(), batcher,
        Plan(rounds, n, optim=OptimSpec("sgd", 0.5, 0.0, 0.0), **plan), engine=LocalEngine(8),
    )


def outcome(fed: Federation) -> tuple[float, list[RoundFinished]]:
    events: list[RoundFinished] = []
    fed.subscribers.append(lambda e: events.append(e) if isinstance(e, RoundFinished) else None)
    return float(fed.run().server["w"]["w"]), events[1:]


@pytest.mark.parametrize("rule", EVERY)
def test_a_whole_federation_by_every_rule(rule: str) -> None:
    spec = AggregateSpec(rule, trim=0.2, byzantine=1)
    found, events = outcome(federation(Quadratic(), aggregator=spec))
    gone = 1 - 0.5**4  # of the way to a fixed target in four steps of a half
    centre = {"median": 1.05, "krum": None, "clipped_mean": None, "multi_krum": None,
              "similarity": None, "geometric_median": None, "mean": 1.05,
              "trimmed_mean": (1 + 1.05 + 1.1) / 3}[rule]
    if centre is not None:
        assert found == pytest.approx(gone * centre, rel=1e-12)
    assert 0.9 * gone - 1e-9 <= found <= 1.2 * gone + 1e-9
    assert all(e.telltale.outliers == () for e in events[:1])
    logged = {"similarity": "aggregation_weights", "trimmed_mean": "trimmed", "krum": "selected",
              "multi_krum": "selected", "clipped_mean": "clipped",
              "geometric_median": "geometric_weights"}
    assert all(logged[rule] in e.report for e in events if rule in logged)


@pytest.mark.parametrize("rule", [
    "median", "trimmed_mean", "krum", "multi_krum", "clipped_mean", "geometric_median",
])
def test_a_hostile_client_loses_and_is_told(rule: str) -> None:
    spec = AggregateSpec(rule, trim=0.2, byzantine=1)
    found, events = outcome(federation(Hostile(), aggregator=spec))
    assert 0.5 < found < 1.5
    assert 2 in events[0].telltale.outliers


def test_the_mean_goes_with_it_and_says_so() -> None:
    found, events = outcome(federation(Hostile(), rounds=1))
    assert abs(found) > 50
    assert events[0].telltale.outliers == (2,)
    assert events[0].telltale.rows()[0]["times"] == pytest.approx(450 / 0.55)


def test_an_aggregate_that_is_not_finite_names_the_client() -> None:
    class Endless(Hostile):
        FACTOR = 1e200  # its square is no number of 64 bits

        def aggregate(self, ctx: Any, server: Any, updates: Updates) -> Any:
            grown = {n: v * 1e150 for n, v in updates.params.items()}
            return super().aggregate(ctx, server, replace(updates, params=grown))

    with pytest.raises(DivergedError, match="aggregate of 'w' is not finite.*update of client 2"):
        federation(Endless()).run()


# ---- refusals ---------------------------------------------------------------------------------
def refusal(trainer: Trainer, **plan: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        federation(trainer, **plan)
    return str(caught.value)


class Own(Quadratic):
    """Says nothing of what it allows."""

    name = "Own"

    def aggregate(self, ctx: Any, server: Any, updates: Updates) -> Any:
        return server | {"w": weighted_mean(updates)}


class Half(Own):
    aggregators = ("mean", "median")


def test_a_rule_that_the_method_does_not_allow_is_refused_with_the_list() -> None:
    trainer = Half(type("C", (), {"TRAINER": {}})())
    sentence = refusal(trainer, aggregator=AggregateSpec("krum"))
    assert sentence == "FED.AGGREGATOR krum: Own, as configured, allows auto, mean, median"


def test_a_rule_of_its_own_allows_nothing_unless_it_says_so() -> None:
    trainer = Own(type("C", (), {"TRAINER": {}})())
    assert refusal(trainer, aggregator=AggregateSpec("median")).endswith("allows auto")
    sentence = refusal(trainer, server_optim=ServerOptimSpec("adam"))
    assert sentence == "FED.SERVER_OPTIM adam: Own, as configured, allows none"

    class Mixin:
        aggregate = Own.aggregate

    class Mixed(Mixin, Quadratic):
        pass

    assert refusal(Mixed(), aggregator=AggregateSpec("median")).endswith("allows auto")
    assert Quadratic().server_optim and tuple(Quadratic().aggregators) == EVERY


def test_rounds_of_too_few_clients_for_krum_are_refused() -> None:
    spec = AggregateSpec("krum", byzantine=1)
    assert "needs at least 5 clients per round (2 f + 3), but only 4 are drawn" in refusal(
        Quadratic(), targets=(1.0,) * 4, aggregator=spec
    )
    assert "but only 3 are drawn" in refusal(Quadratic(), aggregator=spec, frac=0.6)
    check_aggregation(Quadratic(), Plan(1, 5, frac=0.6, aggregator=spec))  # all in the only round


def test_no_tensor_is_changed_in_place() -> None:
    updates = sent(*HONEST, home=(0.1, 0.2))
    before: dict[str, Tensor] = {n: v.clone() for n, v in updates.params.items()}
    for rule in EVERY:
        combine(updates, AggregateSpec(rule))
    telltale(updates)
    assert torch.equal(updates.params["w"], before["w"])
