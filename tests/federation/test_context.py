"""Single steps, the proximal pull, means of a fit, and validation samples inside a method."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedvlm.core.trees import State, Tree
from fedvlm.federation.batches import Batch, Step
from fedvlm.federation.context import Means, descend, optimise
from fedvlm.federation.toolbox.regularise import pulled
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
    near = pulled(p, grads, home, 2.0)
    assert float(near["a"]) == 4.0 and near["b"] is grads["b"]
    assert pulled(p, grads, home, 0.0)["a"] is grads["a"]


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
