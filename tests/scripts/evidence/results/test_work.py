"""Local work that methods chose, beside the same methods with it held equal."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from evidence.results.lanes import Lane
from evidence.results.work import choices, sentences
from fedvlm.report.collect import Collected
from fedvlm.runs.finished import FinishedRun

EPOCHS, STEPS = "FED.LOCAL_EPOCHS", "FED.LOCAL_STEPS"
Values = dict[str, tuple[float, ...]]  # data set -> percent of seeds 1, 2, ...


def runs(method: str, values: Values, steps: int = 1, **config: Any) -> list[FinishedRun]:
    return [cast(FinishedRun, SimpleNamespace(
        method=method, protocol={"trainer": method, "dataset": name, "seed": i, "data_seed": i},
        value={"personal": value}.get, last={}, section=lambda name: {"local_steps": steps},
        identity_config=lambda i=i: {"SEED": i, "FED.ROUNDS": 20} | config, totals=dict,
    )) for name, several in values.items() for i, value in enumerate(several, 1)]


def lane(name: str, *each: list[FinishedRun]) -> Lane:
    return Lane(name, Collected([run for several in each for run in several]))


HELD = lane(
    "held",
    runs("A", {"s": (50.0, 52.0), "t": (60.0, 62.0)}, 10, **{EPOCHS: 2, "OPTIM.LR": 0.1}),
    runs("B", {"s": (55.0, 57.0)}, 10),  # 2 epochs, the default
    runs("C", {"s": (70.0, 70.5)}, 10, **{EPOCHS: 2}),
)


def test_a_method_is_paired_with_itself_by_set_and_seed() -> None:
    """By hand: 50 52 | 60 62 and 53 56 | 64 65 differ by 3 4 | 4 3, 3.5 in the mean of sets."""
    free = lane("free",
                runs("A", {"s": (53.0, 56.0), "t": (64.0, 65.0)}, 20, **{EPOCHS: 4}),
                runs("B", {"s": (55.5, 58.5, 90.0)}, 5, **{EPOCHS: 1}),  # one seed more
                runs("C", {"s": (60.0, 60.0)}, 10, **{STEPS: 3}))
    one, two, three = choices(free, [HELD])
    assert [row.method for row in (one, two, three)] == ["C", "A", "B"]
    assert (two.held, two.chosen, two.steps) == ("2 epochs", "4 epochs", 2.0)
    assert (two.before, two.after, two.difference.mean) == (56.0, 59.5, 3.5)
    assert (two.difference.pairs, two.difference.sets) == (4, 2) and two.difference.apart == 1
    assert (three.held, three.chosen, three.steps) == ("2 epochs", "1 epoch", 0.5)
    assert three.difference.pairs == 2 and three.difference.mean == 1.0
    assert three.difference.apart == 0
    assert one.chosen == "3 steps" and one.difference.mean == -10.25
    said = sentences([one, two, three])
    assert said[0] == (
        "Tuned local work of 3 methods: 1 epoch by 1, 3 steps by 1, 4 epochs by 1. Compared with "
        "the "
        "same method at fixed local work, significantly better: 1 (A); significantly worse: 1 (C)."
    )
    # held: C 70.25, B 56, A 56; chosen: C 60, A 59.5, B 57. Of three pairs one is a tie in the
    # first order: tau-b is 2 / sqrt(2 * 3)
    assert said[1].startswith("Highest mean with fixed local work: C, 70.2; with tuned: C, 60.0. ")
    assert said[1].endswith(f"{2 / 6 ** 0.5:.2f} (1: the same ranking).")


@pytest.mark.parametrize("config", [
    {"FED.ROUNDS": 21, EPOCHS: 4}, {"DATALOADER.TRAIN_X.BATCH_SIZE": 8, EPOCHS: 4},
    {"FED.FINETUNE_EPOCHS": 5, EPOCHS: 4},
])
def test_runs_of_another_protocol_are_no_twins(config: dict[str, Any]) -> None:
    alone = runs("A", {"s": (50.0, 51.0)}, **config)
    free = lane("free", alone, runs("C", {"s": (70.0, 71.0)}, **{EPOCHS: 1}))
    assert [row.method for row in choices(free, [HELD])] == ["C"]
    assert choices(free, []) == []


def test_a_lane_that_holds_local_work_has_no_such_rows() -> None:
    """As its twins do, and with other work that is the same for all."""
    assert choices(lane("same", HELD.runs), [HELD]) == []
    assert choices(lane("more", runs("A", {"s": (50.0, 51.0)}, **{EPOCHS: 4})), [HELD]) == []
    assert sentences([]) == []
