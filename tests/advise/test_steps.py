"""One more image of a class: counts are shifted by one, only where images are dealt so."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedvlm.advise import trial as t
from fedvlm.advise.gather import Gathered, _lone
from fedvlm.advise.steps import PART, lone_share, one_more, rising
from fedvlm.advise.verdict import conclude
from fedvlm.data.partition.spec import PartitionSpec
from fedvlm.evaluation.references import heads
from tests.advise.fakes import made_up

NEVER = torch.tensor([True] * 6)


def test_an_image_is_worth_what_images_with_one_more_are_by_hand() -> None:
    left = [torch.tensor([0.0, 0, 1, 1, 2, 2])]
    right = [torch.tensor([0.0, 0, 0, 1, 1, 1], dtype=torch.float64)]  # 0, 1/2, 1 by count
    weights = [torch.ones(6, dtype=torch.float64)]
    (got,), doubt = one_more(left, right, weights, [NEVER], 1.0, 1.0)
    assert got.tolist() == [0.5, 0.5, 0.5, 1.5, 1, 1]  # each count is raised by the same step
    assert float(got.mean()) == pytest.approx((2 * 0.5 + 2 * 1 + 2 * 1) / 6)
    # The shift is a third of A(2) - A(0) and of the last step, (1 - A(2)) / 3. A place's mean has
    # variance 3 x 1 / 16 / 3 (one right and one wrong added); the two of A(1) cancel.
    variance = ((1 / 3) ** 2 + (1 / 3 - 1 / 9) ** 2) * (1 * 3 / 16 / 3)
    assert doubt == pytest.approx(100 * math.sqrt(variance + (PART / 3) ** 2))
    (half,), _ = one_more(left, right, weights, [NEVER], 1.0, 0.5)
    assert half.tolist() == [0.25, 0.25, 0.5, 1.5, 1, 1]


def test_above_the_highest_count_the_error_falls_as_a_power() -> None:
    left, wrong = [torch.full((6,), 3.0)], torch.tensor([0.0, 1, 1, 1, 1, 0], dtype=torch.float64)
    (got,), _ = one_more(left, [wrong], [torch.ones(6, dtype=torch.float64)], [NEVER], 1.0, 1.0)
    assert float(got.mean()) == pytest.approx(1 - (1 / 3) * (3 / 4))
    trains = torch.tensor([True] * 5 + [False])
    (kept,), _ = one_more(left, [wrong], [torch.ones(6, dtype=torch.float64)], [trains], 1.0, 1.0)
    assert kept[5] == wrong[5]  # an image for validation met them all


def test_a_curve_does_not_fall() -> None:
    values = rising(np.array([0.2, 0.6, 0.4, 0.9]), np.array([1.0, 1, 3, 1]))
    assert values.tolist() == pytest.approx([0.2, 0.45, 0.45, 0.9])


def test_how_much_is_due_where_none_was_left() -> None:
    assert lone_share(100, 100) == lone_share(100, 50) == 1
    assert lone_share(100, 200) == pytest.approx(5 / 6)
    assert lone_share(1, 10**9) == pytest.approx(2 / 3)


@pytest.fixture(scope="module")
def few() -> Gathered:
    """Clients with one to four images of each of many classes."""
    plan = [[c for c in range(12) for _ in range(1 + (c + k) % 4)] for k in range(6)]
    return made_up(plan, 30, spread=0.9)


def test_clients_alone_are_judged_as_on_new_images_of_the_same_shares(few: Gathered) -> None:
    fresh = made_up([[int(c) for c in y] for y in few.labels], 600, spread=0.9)
    truth = []
    for x, y, z, new in zip(few.features, few.labels, fresh.features, fresh.labels, strict=True):
        client = heads.HeadClient(F.normalize(x, dim=-1), y)
        own = heads.alone_heads([client], 12, (1e-3,))[0].logits(F.normalize(z, dim=-1))[0]
        truth.append(100 * float((own.argmax(1) == new).double().mean()))
    plain, dealt = t.try_heads(few), t.try_heads(replace(few, lone=1.0))
    before, after = (float(one.personal(one.reached[t.LOGREG]).mean()) for one in (plain, dealt))
    wanted = float(np.mean(truth))
    assert before < wanted - 4  # images that are taken away are missed
    assert after == pytest.approx(wanted, abs=4)
    assert plain.doubt == {} and 0.5 < dealt.doubt[t.LOGREG] < 6
    for name in (t.AFL, t.FEDAVG, t.DITTO, t.MAJORITY):  # only what knows its own images alone
        for a, b in zip(plain.reached[name], dealt.reached[name], strict=True):
            assert torch.equal(a, b)
    sure, unsure = conclude(replace(dealt, doubt={}), [30] * 6), conclude(dealt, [30] * 6)
    assert unsure.margin == pytest.approx(math.hypot(sure.margin, 1.96 * dealt.doubt[t.LOGREG]))
    assert all(a < b for a, b in zip(sure.margins, unsure.margins, strict=True))


@pytest.mark.parametrize(("kind", "shots", "grouped", "due"), [
    ("dirichlet", -1, False, 5 / 6), ("disjoint", -1, False, 5 / 6), ("dirichlet", 4, False, None),
    ("iid", 4, False, None), ("iid", -1, False, None), ("natural", -1, False, None),
    ("quantity", -1, False, None),
    ("dirichlet", -1, True, None),
])
def test_only_where_a_class_is_cut_by_the_same_proportions(
    kind: str, shots: int, grouped: bool, due: float | None,
) -> None:
    """Clients that the data name, and images dealt whatever their class, are as they were."""
    clients = [SimpleNamespace(train=range(3), test=range(6))] * 2
    data: Any = SimpleNamespace(spec=PartitionSpec(kind, 2, shots=shots), clients=clients,
                                groups=np.arange(18) if grouped else None)
    found = _lone(data)
    assert found == due if due is None else found == pytest.approx(due)
