"""``FED.BUDGET``: rounds matched by FedAvg's work, whatever a round of the method costs."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from fedvlm.core import files, rng
from fedvlm.core.errors import ConfigError
from fedvlm.federation.local.effort import Effort
from fedvlm.federation.plan import COUNTERS, Budget, Plan, draw_unseen, plain_work
from tests import jobs
from tests.trainers.toys import drive

MORE = ("--rounds", "5")  # FedAvg takes 1 step per client and round here, Ditto 2


def rounds_of(plain: list[int], costs: list[int], unit: str = "steps") -> int:
    """Play the loop: return how many rounds a method with these costs runs."""
    budget, most = Budget(unit, plain), len(plain)
    for round_ in range(1, most + 1):
        if round_ > budget.last(most):
            return round_ - 1
        budget.record(round_, {COUNTERS[unit]: costs[round_ - 1], "other": 10**9})
    return most


def test_plain_work_counts_what_fedavg_does() -> None:
    cohorts, sizes = [[0, 1, 2], [1], [0, 2]], [7, 4, 9]
    assert plain_work("samples", cohorts, sizes, Effort(2), 4) == (40, 8, 32)
    assert plain_work("steps", cohorts, sizes, Effort(2), 4) == (2 * (2 + 1 + 3), 2, 10)
    assert plain_work("rounds", cohorts, sizes, Effort(2), 4) == ()


def test_by_rounds_nothing_ends_early() -> None:
    budget = Budget()
    budget.record(1, {"steps": 10**9})
    assert budget.last(7) == 7 and budget.spent == {}


@pytest.mark.parametrize(("factor", "rounds"), [(0, 6), (1, 6), (2, 3), (3, 2), (4, 1), (50, 1)])
def test_a_method_that_costs_more_gets_fewer_rounds(factor: int, rounds: int) -> None:
    assert rounds_of([10] * 6, [10 * factor] * 6) == rounds


def test_unequal_rounds_end_where_the_budget_does() -> None:
    draw = random.Random(3)
    for _ in range(300):
        plain = [draw.randint(1, 50) for _ in range(draw.randint(1, 12))]
        assert rounds_of(plain, plain) == len(plain)  # FedAvg itself always gets all its rounds
        factor = draw.randint(2, 4)
        costs = [factor * n for n in plain]
        done = rounds_of(plain, costs)
        assert done == 1 or sum(costs[:done]) <= sum(plain)
        assert done == len(plain) or sum(costs[: done + 1]) > sum(plain)


def test_a_round_entered_twice_counts_once() -> None:
    budget = Budget("steps", [10] * 4)
    for _ in range(5):
        budget.record(1, {COUNTERS["steps"]: 20})
    assert budget.spent == {1: 20} and budget.last(4) == 4
    budget.record(2, {COUNTERS["steps"]: 20})
    assert budget.last(4) == 2


# ---- the real job --------------------------------------------------------------------------------
def ditto(output: Path, *more: str, unit: str = "steps") -> int:
    words = ("--trainer", "Ditto", *MORE, *more, "--opts", "FED.BUDGET", unit)
    return jobs.run(output, *words)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A run by steps and the number of its write points."""
    output, seen = tmp_path_factory.mktemp("whole"), []
    assert ditto(tmp_path_factory.mktemp("first")) == 0  # the caches are written once only
    files.on_write_point = seen.append
    assert ditto(output, "--finetune-epochs", "1") == 0
    files.on_write_point = None
    return output, len(seen)


@pytest.fixture(autouse=True)
def no_hook_left() -> Iterator[None]:
    yield
    files.on_write_point = None


def test_the_run_ends_with_a_true_last_round(whole: tuple[Path, int]) -> None:
    lines = (jobs.folder(whole[0]) / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    assert [r["round"] for r in records] == [0, 1, 2]
    assert ["finetune" in r for r in records] == [False, False, True]
    assert "base_all" in records[-1] and "base_all" not in records[1]
    results = json.loads((jobs.folder(whole[0]) / "results.json").read_text())
    assert results["results"]["last"]["round"] == 2
    assert results["protocol"]["budget"] == "steps" and results["protocol"]["rounds"] == 5
    totals = results["run_info"]["totals"]
    assert totals["rounds"] == 2 and totals["local_steps"] == 8  # FedAvg: 5 rounds x 2 clients
    said = "FED.BUDGET steps: stopped after round 2 of at most 5, 8 steps used by all clients"
    assert any(said in note for note in results["run_info"]["notes"])


def test_a_matched_run_is_the_beginning_of_an_unmatched_one(
    whole: tuple[Path, int], tmp_path: Path
) -> None:
    words = ("--trainer", "Ditto", *MORE, "--finetune-epochs", "1")
    assert jobs.run(tmp_path, *words) == 0
    assert [r["train"] for r in jobs.records(tmp_path)[:3]] == [
        r["train"] for r in jobs.records(whole[0])
    ]
    assert len(jobs.records(tmp_path)) == 6


def test_fedavg_is_not_changed_by_its_own_budget(tmp_path: Path) -> None:
    words = ("--trainer", "FedAvg", "--num-users", "4", "--frac", "0.5", "--rounds", "4",
             "--partition", "dirichlet")
    for unit in ("rounds", "steps", "samples"):
        assert jobs.run(tmp_path / unit, *words, "--opts", "FED.BUDGET", unit) == 0
    for unit in ("steps", "samples"):
        jobs.same(tmp_path / "rounds", tmp_path / unit)


@pytest.mark.usefixtures("pictures")  # as ``whole``, whose write points are counted
@pytest.mark.parametrize("share", [
    0.7, 0.97, *(pytest.param(s, marks=pytest.mark.slow) for s in (0.5, 0.8, 0.9))
])
def test_a_stopped_run_ends_where_a_whole_one_does(
    whole: tuple[Path, int], tmp_path: Path, share: float
) -> None:
    left = [int(share * whole[1])]

    def hook(_name: str) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt

    files.on_write_point = hook
    assert ditto(tmp_path, "--finetune-epochs", "1") == 130
    files.on_write_point = None
    assert ditto(tmp_path, "--finetune-epochs", "1") == 0
    jobs.same(whole[0], tmp_path)
    infos = [json.loads((jobs.folder(o) / "results.json").read_text())["run_info"]
             for o in (whole[0], tmp_path)]
    for name in ("rounds", "client_rounds", "local_steps", "samples", "bytes_up_by_tensor",
                 "bytes_down_by_tensor", "finetune_samples"):
        assert infos[0]["totals"][name] == infos[1]["totals"][name], name


def test_the_budget_belongs_to_the_identity(
    whole: tuple[Path, int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert ditto(whole[0], "--finetune-epochs", "1", unit="samples") == 2
    assert 'config.FED.BUDGET: "steps" -> "samples"' in capsys.readouterr().err




# ---- clients that never work --------------------------------------------------------------------
@pytest.mark.parametrize("frac", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("first", [True, False])
def test_unseen_clients_are_never_drawn(frac: float, first: bool) -> None:
    unseen = draw_unseen(12, 5, 3)
    assert len(set(unseen)) == 5 and list(unseen) == sorted(unseen)
    assert unseen == draw_unseen(12, 5, 3) != draw_unseen(12, 5, 4)
    plan = Plan(40, 12, frac, first_round_all=first, unseen=unseen)
    drawn = {r: plan.sample(r) for r in range(1, 41)}
    everybody = [c for c in range(12) if c not in unseen]
    assert sorted({c for ids in drawn.values() for c in ids}) == everybody
    assert drawn[1] == everybody or not (first or frac == 1)
    assert {len(ids) for r, ids in drawn.items() if r > 1} == {max(int(frac * 7), 1)}
    assert plan.cohort == max(int(frac * 7), 1)


def test_without_unseen_clients_the_draw_is_as_it_was() -> None:
    assert draw_unseen(4, 0, 1) == ()
    drawn = Plan(9, 10, 0.3, seed=5).sample(4)
    order = torch.randperm(10, generator=rng.stream(5, "sample", 4))
    assert drawn == sorted(order[:3].tolist())


def test_nobody_left_to_train() -> None:
    with pytest.raises(ConfigError, match="UNSEEN_CLIENTS 4: none of the 4 clients would be left"):
        draw_unseen(4, 4, 1)


@pytest.mark.parametrize(("trainer", "slot"), [("SCAFFOLD", "c"), ("FedDyn", "h")])
def test_server_methods_count_the_clients_that_take_part(trainer: str, slot: str) -> None:
    """Of one client that works nobody is away: the server's variate is that client's."""
    keys = {"OPTIM.MOMENTUM": 0, "OPTIM.WEIGHT_DECAY": 0}
    fed, state = drive(trainer, 2, keys=keys, sizes=(1, 1), unseen=(0,))
    assert fed.roster.members == [1] and len(fed.roster) == 2
    mine, theirs = (float(s[slot]["image.w"]) for s in (state.clients[1], state.server))
    assert theirs == pytest.approx(mine) and mine != 0.0
