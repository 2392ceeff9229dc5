"""Whom an evaluation asks, and when: by config and roster alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedvlm.core.errors import ConfigError
from fedvlm.evaluation import Panel, auto_interval, panel_of
from fedvlm.federation.server import Roster
from tests.evaluation.fakes import (
    FakeModel,
    FakeSource,
    FakeTrainer,
    Judge,
    federated,
    finished,
)

FOUR = [0, 1, 2, 3]
CLIENTS = [([c], [c]) for c in FOUR]
SHIFTS = {0: 0.0, 1: 1.0, 2: 0.0, 3: 1.0}  # 0 and 2 are right, 1 and 3 wrong


def roster(clients: int, train: int = 10, test: int = 4, unseen: tuple[int, ...] = ()) -> Roster:
    sizes = [np.full(clients, n, dtype=np.int64) for n in (train, 0, test)]
    return Roster(*sizes, np.zeros((clients, 1), np.int64), np.zeros(clients, np.int64), unseen)


def judge(**panel: object) -> Judge:
    data = federated(FOUR, CLIENTS, FOUR, val={c: [c] for c in FOUR})
    return Judge(FakeModel("abcd"), FakeTrainer(), FakeSource(FOUR), data, **panel)  # type: ignore[arg-type]


def test_between_the_ends_the_clients_that_worked() -> None:
    """A stale client is neither asked nor counted: the mean is over the round's own."""
    judged = judge()
    for round_, drawn, clients, mean in [
        (0, [], [0, 1, 2, 3], 50.0), (1, [1, 2], [1, 2], 50.0), (2, [0], [0], 100.0),
        (3, [1, 3], [1, 3], 0.0), (4, [0], [0, 1, 2, 3], 50.0),
    ]:
        told = finished(round_, 4, SHIFTS, drawn=drawn)
        result = judged(told)
        assert result is not None and [row["client"] for row in result["clients"]] == clients
        assert result["personal"] == mean and told.requests[0][0] == clients
        partial = {"personal_clients": len(clients)} if len(clients) < 4 else {}
        assert {k: v for k, v in result.items() if k == "personal_clients"} == partial
        assert result["global"] == 100.0


def test_rounds_to_select_from_ask_the_same_clients() -> None:
    judged = judge(alike=True)
    for round_ in range(4):
        told = finished(round_, 3, SHIFTS, drawn=[2], before=dict.fromkeys(FOUR, 1.0))
        assert judged.validate(told) == 0.0  # before the fine-tuning, in every round
        result = judged(told)
        assert result is not None and result["personal"] == 50.0
        assert all(ids == FOUR for ids, _ in told.requests)


def test_a_cohort_stands_for_all_and_it_is_said() -> None:
    judged = judge(cohort=2, data_seed=7)
    (one, two) = judged.evaluator.panel.clients
    for round_ in (0, 3):
        result = judged(finished(round_, 3, SHIFTS, drawn=[0]))
        assert result is not None and [r["client"] for r in result["clients"]] == [one, two]
        assert result["personal_clients"] == 2
        assert "personal models of 2 of 4 clients are evaluated (TEST.COHORT)" in result["notes"]
    between = judged(finished(1, 3, SHIFTS, drawn=[3]))
    assert between is not None and [r["client"] for r in between["clients"]] == [3]
    whole = judge(cohort=4)(finished(3, 3, SHIFTS))
    assert whole is not None and "personal_clients" not in whole and whole["notes"] == []


def test_a_cohort_is_drawn_by_the_data_seed_from_those_who_take_part() -> None:
    many = roster(40, unseen=(3, 11, 12))
    cohorts = {seed: panel_of(many, cohort=10, data_seed=seed).clients for seed in range(5)}
    assert all(len(set(c)) == 10 and list(c) == sorted(c) for c in cohorts.values())
    assert not any(set(c) & {3, 11, 12} for c in cohorts.values())
    assert len({tuple(c) for c in cohorts.values()}) == 5
    assert panel_of(many, cohort=10, data_seed=2).clients == cohorts[2]
    everyone = panel_of(many)
    assert len(everyone.clients) == everyone.members == 37 and not everyone.is_cohort


def test_unseen_clients_have_numbers_of_their_own() -> None:
    judged = judge(unseen=[1, 2])
    for round_, asked in ((0, [[0, 3]]), (1, [[3]]), (2, [[0, 3], [1, 2]])):
        told = finished(round_, 2, SHIFTS, drawn=[3])
        result = judged(told)
        assert result is not None and [ids for ids, _ in told.requests] == asked
        known = {k: v for k, v in result.items() if k.startswith("unseen_clients")}
        if round_ < 2:
            assert known == {}
            continue
        rows = known.pop("unseen_clients_rows")
        assert known == {
            "unseen_clients": 50.0, "unseen_clients_std": 50.0, "unseen_clients_worst": 0.0
        }
        assert [(row["client"], row["accuracy"]) for row in rows] == [(1, 0.0), (2, 100.0)]
        assert result["personal"] == 50.0 and "personal_clients" not in result


def test_the_reference_row_is_of_the_same_clients() -> None:
    found = judge(cohort=1, data_seed=1, unseen=[1, 2]).zero_shot()
    assert [row["client"] for row in found["clients"]] in ([0], [3])
    assert found["personal_clients"] == 1 and found["personal"] == found["unseen_clients"] == 100.0
    assert [row["client"] for row in found["unseen_clients_rows"]] == [1, 2]
    assert [row["client"] for row in judge().zero_shot()["clients"]] == FOUR


def test_rounds() -> None:
    panel = Panel(FOUR, 4, every=2)
    assert [r for r in range(6) if panel.due(r, 5)] == [0, 2, 4, 5]
    assert [r for r in range(6) if Panel(FOUR, 4, every=0).due(r, 5)] == [0, 5]
    with pytest.raises(ConfigError, match="TEST.EVAL_EVERY"):
        Panel(FOUR, 4, every=-1)


@pytest.mark.parametrize(
    ("drawn", "epochs", "pooled", "interval"),
    [
        (10, 1, 40, 1),  # 100 trained, 40 + 40 evaluated
        (10, 1, 61, 2),  # 101 evaluated
        (10, 1, 360, 4), (10, 1, 361, 8),
        (10, 4, 360, 1),  # more epochs, more work
        (1, 1, 40, 8),  # 10 trained, 4 + 40 evaluated
        (5, 2, 0, 1),
    ],
)
def test_auto_evaluates_for_no_more_than_training(
    drawn: int, epochs: int, pooled: int, interval: int
) -> None:
    assert auto_interval(roster(10), drawn, epochs, pooled) == interval
    wider = roster(12, unseen=(0, 5))  # clients that never work cost nothing
    assert auto_interval(wider, drawn, epochs, pooled) == interval


def test_auto_without_training_samples_ends() -> None:
    assert auto_interval(replace(roster(2), train=np.zeros(2, np.int64)), 2, 1, 100) == 1
