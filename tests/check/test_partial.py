"""Methods that send a part, or leave a part to the server, keep the invariants like any other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
import torch
from torch import Tensor

from fedvlm.check.compare import Broken
from fedvlm.check.invariants import INVARIANTS, run
from fedvlm.check.world import CheckWorld
from fedvlm.core.trees import State, Tree
from fedvlm.federation.aggregation.arrival import Upload
from fedvlm.federation.aggregation.updates import Updates
from fedvlm.federation.context import Context
from fedvlm.federation.groups import Rule
from fedvlm.federation.peft_trainer import PeftTrainer
from fedvlm.federation.server import ServerContext
from fedvlm.federation.trainer import Trainer
from fedvlm.models.vlmodel import VLModel

OPTS = ("PEFT.TEXT", "none", "PEFT.VISUAL", "lora", "PEFT.RANK", "2")
FEATURE = ("PEFT.TEXT", "prompt", "PEFT.VISUAL", "feature", "PEFT.WIDTH", "4")
REST, UP, DOWN = "residual.image", "image.adapter.up", "image.adapter.down"


class RoLoRA(PeftTrainer):
    """B in odd rounds, A in even ones; the other factor is not sent."""

    exempt = {"G5": "one factor moves in a round"}

    def client_update(self, ctx: Context, state: State, received: Tree) -> tuple[State, Upload]:
        now = (r".*\.B" if ctx.round % 2 else r".*\.A",)
        w = ctx.fit(state["w"] | received, self.loss, train=now).params
        return state | {"w": w}, ctx.upload(w, only=now)


class Ranks(PeftTrainer):
    """Every client sends the first component of each LoRA."""

    exempt = {"G5": "one component moves"}

    def client_update(self, ctx: Context, state: State, received: Tree) -> tuple[State, Upload]:
        w = ctx.fit(state["w"] | received, self.loss).params
        sites = [n.removesuffix(".A") for n in w if n.endswith(".A")]
        return state | {"w": w}, ctx.upload(w, ranks={s: [1] * ctx.k for s in sites})


class Rest(PeftTrainer):
    """The server keeps what the mean of a linear adapter's factors misses."""

    server_rules = {
        f"w/{REST}": lambda s: s.old + s.mean(s.sent(UP) @ s.sent(DOWN))
        - s.mean(s.sent(UP)) @ s.mean(s.sent(DOWN))
    }

    def trainables(self, model: VLModel, generator: torch.Generator) -> Tree:
        tree = super().trainables(model, generator)
        wide = tree["image.adapter.up"] @ tree["image.adapter.down"]
        return tree | {REST: torch.zeros_like(wide)}

    def rules(self, names: Sequence[str]) -> Sequence[Rule]:
        return [*super().rules([n for n in names if n != REST]), (r"residual\..*", "server")]

    def image_features(self, model: VLModel, params: Tree, x: Mapping[str, Tensor]) -> Tensor:
        own = {n: v for n, v in params.items() if n != REST}
        return super().image_features(model, own, x) + model.image(x) @ params[REST].mT

    def aggregate(self, ctx: ServerContext, server: State, updates: Updates) -> State:
        new = super().aggregate(ctx, server, updates)
        w, p = new["w"], updates.params
        share = (updates.weight / updates.weight.sum())[:, None, None]
        mean = (share * (p["image.adapter.up"] @ p["image.adapter.down"])).sum(0)
        gap = mean - w["image.adapter.up"] @ w["image.adapter.down"]
        return new | {"w": w | {REST: w[REST] + gap}}


class Hoards(Rest):
    """A slot of the client's keeps the server's tensor and sends it under another name."""

    extras_up = (r"mine",)

    def client_update(self, ctx: Context, state: State, received: Tree) -> tuple[State, Upload]:
        w = ctx.fit(state["w"] | received, self.loss).params
        return state | {"w": w}, ctx.upload(w, extras={"mine": w[REST] + 1})

    def shared(self, server: State) -> Tree:
        return {n: v for n, v in server["w"].items() if n != REST}


@pytest.mark.parametrize(("trainer", "opts"), [
    pytest.param(RoLoRA, OPTS, marks=pytest.mark.slow), (Ranks, OPTS),
    pytest.param(Rest, FEATURE, marks=pytest.mark.slow),
])
def test_every_invariant_holds(trainer: type[Trainer], opts: Sequence[str]) -> None:
    found = run(trainer, opts)
    assert {v.name: v.detail for v in found if v.state == "broken"} == {}
    assert {v.name for v in found if v.state == "exempt"} == set(trainer.exempt)


def test_a_global_model_without_the_servers_part_is_broken() -> None:
    with pytest.raises(Broken, match=r"residual.image'\] of the group server"):
        INVARIANTS["G1"](CheckWorld(FEATURE), Hoards)


def test_bytes_that_were_not_sent_are_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """G1 counts by itself: here every client is said to have sent one byte more."""
    real = Updates.bytes
    monkeypatch.setattr(Updates, "bytes", lambda self: {
        c: {n: b + 1 for n, b in size.items()} for c, size in real(self).items()
    })
    with pytest.raises(Broken, match="counted bytes"):
        INVARIANTS["G1"](CheckWorld(FEATURE), Rest)
