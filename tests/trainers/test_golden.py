"""FedTV against figures computed with the authors' modules, in float64, plain and fast.

``pytest tests/trainers/test_golden.py --golden DIR`` checks another set in that format.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedvlm.core.trees import State, Tree
from fedvlm.federation.context import Context, Upload
from fedvlm.federation.rounds import Federation, FedState

from .golden import Golden, federation

PATHS = {"plain": (False, 1, 1e-9, 1e-8), "fast": (True, 8, 1e-7, 1e-7)}


def deviation(ours: Tensor, theirs: Tensor) -> float:
    """Return the largest difference, relative to the stored tensor's largest entry."""
    scale = max(float(theirs.abs().max()), 1e-12)
    return float((ours - theirs).abs().max()) / scale


class Recorder:
    """Compares every stored figure as the run goes by."""

    def __init__(self, golden: Golden) -> None:
        self.golden = golden
        self.worst: dict[str, float] = {"loss": 0.0, "after": 0.0, "agg": 0.0, "logits": 0.0}
        self.losses: dict[tuple[int, int, int], dict[str, float]] = {}
        self.count = dict.fromkeys(self.worst, 0)

    def see(self, kind: str, ours: Tensor, theirs: Tensor) -> None:
        self.worst[kind] = max(self.worst[kind], deviation(ours, theirs))
        self.count[kind] += 1

    def after(self, ctx: Context, state: State) -> None:
        for k, client in enumerate(ctx.clients):
            stored = self.golden.tree(f"after/{ctx.round - 1}/{client}")
            for name, value in stored.items():
                self.see("after", state["w"][name][k], value)

    def round(self, fed: Federation, state: FedState) -> None:
        if state.round == 0:
            return
        for name, value in self.golden.tree(f"agg/{state.round - 1}").items():
            self.see("agg", state.server["w"][name], value)
        r = state.round - 1
        x = self.golden.tensor(f"test/{r}/x")
        for ids, p in fed.personal(state, range(self.golden.meta["n_clients"])):
            pixels = x.expand(len(ids), *x.shape)
            logits = fed.trainer.predict(fed.model, p, {"pixels": pixels})
            for k, client in enumerate(ids):
                self.see("logits", logits[k], self.golden.tensor(f"test/{r}/{client}/logits"))


def replay(golden: Golden, path: str) -> Recorder:
    packed, chunk, *_ = PATHS[path]
    seen = Recorder(golden)
    steps: dict[tuple[int, ...], int] = {}
    current: dict[str, Any] = {}

    class Watched:
        def client_update(self, ctx: Context, state: State, received: Tree) -> tuple[State, Upload]:
            current["ctx"] = ctx
            out = super().client_update(ctx, state, received)  # type: ignore[misc]
            seen.after(ctx, out[0])
            return out

        def loss(self, model: Any, p: Tree, b: Any) -> tuple[Tensor, dict[str, Tensor]]:
            value, parts = super().loss(model, p, b)  # type: ignore[misc]
            numbers = {"loss": value.detach(), **{n: v.detach() for n, v in parts.items()}}
            ctx = current["ctx"]
            key = (ctx.round - 1, *ctx.clients)
            step = steps[key] = steps.get(key, -1) + 1
            for k, client in enumerate(ctx.clients):
                seen.losses[ctx.round - 1, client, step] = {
                    n: float(v[k]) for n, v in numbers.items()
                }
            return value, parts

    fed = federation(golden, packed=packed, chunk=chunk, watched=Watched)
    fed.savers.append(partial(seen.round, fed))
    fed.run()
    for row in golden.meta["log"]:
        ours = seen.losses[row["round"], row["client"], row["step"]]
        for part in ("loss", "cls_loss", "cont_loss", "reg_loss"):
            figures = (torch.tensor(v, dtype=torch.float64) for v in (ours[part], row[part]))
            seen.see("loss", *figures)
    return seen


@pytest.mark.parametrize("path", list(PATHS))
def test_fedtv_equals_the_authors_modules(
    golden_dir: Path, path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if not (golden_dir / "fedtv.npz").exists():
        pytest.skip(f"no golden figures at {golden_dir}")
    golden = Golden.load(golden_dir)
    seen = replay(golden, path)
    with capsys.disabled():
        print(f"\n{golden_dir.name}, {path} path: largest relative deviation", {
            k: f"{v:.1e}" for k, v in seen.worst.items()
        })
    _, _, figures, tensors = PATHS[path]
    assert all(seen.count.values()), seen.count
    assert seen.worst["loss"] < figures
    assert seen.worst["logits"] < figures
    assert seen.worst["after"] < tensors
    assert seen.worst["agg"] < tensors
