"""What a class may not be called, exempt itself from, keep or tell."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fedvlm.core.errors import ConfigError, FedvlmError
from fedvlm.core.trees import State, Tree
from fedvlm.federation.aggregation.updates import Updates
from fedvlm.federation.batches import Batch
from fedvlm.federation.context import Context, Upload
from fedvlm.federation.server import ServerContext
from fedvlm.federation.trainer import BINDING, RENAMED, Trainer
from tests.federation.toys import Quadratic, quadratic
from tests.trainers.toys import drive, load_trainer

NOW = {
    "local": "client_update", "down": "download", "server": "aggregate",
    "personal": "personalize", "init": "init_client", "extras": "extras_up",
    "token_block": "streams",
}


# ---- names ------------------------------------------------------------------------------------
@pytest.mark.parametrize("old", list(NOW))
def test_a_hook_under_its_old_name_is_refused_with_the_new_one(old: str) -> None:
    sentence = rf"^trainer Mine defines '{old}', now called '{NOW[old]}' \(see CONTRIBUTING"
    with pytest.raises(ConfigError, match=sentence):
        type("Mine", (Quadratic,), {old: lambda self, *args: None})
    mixin = type("Mixin", (), {old: lambda self, *args: None})
    with pytest.raises(ConfigError, match=sentence):
        type("Mine", (mixin, Quadratic), {})
    assert hasattr(Trainer, NOW[old]) and not hasattr(Trainer, old)


def test_all_old_names_are_told_at_once() -> None:
    assert RENAMED == NOW
    names = r"'local' and 'down', now called 'client_update' and 'download'"
    with pytest.raises(ConfigError, match=names):
        type("Mine", (Trainer,), {"down": None, "local": None})


@pytest.mark.parametrize(("slip", "hook"), [
    ("persnalize", "personalize"), ("clientupdate", "client_update"), ("agregate", "aggregate"),
    ("trainable", "trainables"), ("init_clients", "init_client")])
def test_a_misspelt_hook_is_no_silent_default(slip: str, hook: str) -> None:
    with pytest.raises(ConfigError, match=f"^trainer Mine defines {slip}, .* '{hook}'"):
        type("Mine", (Quadratic,), {slip: lambda self, *args: None})
    both = {name: lambda self, *args: None for name in (slip, hook)}
    type("Mine", (Trainer,), both)  # a helper beside the hook
    type("Mine", (Trainer,), {"share": both[slip], "_" + slip: both[slip]})

    class Helped(Quadratic):
        def client_updates(self) -> int:  # a helper of its own
            return 1

        def epochs(self) -> int:
            return self.client_updates()

    assert Helped.epochs


def test_a_download_of_another_arity_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"Mine: download takes \(self, ctx, server, client\)"):
        type("Mine", (Trainer,), {"download": lambda self, server, client: {}})
    type("Mine", (Trainer,), {"download": lambda self, ctx, server, client: {}})


# ---- exemptions -------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["G1", "G3", "G9"])
def test_privacy_and_order_cannot_be_exempted(name: str) -> None:
    assert name in BINDING
    with pytest.raises(ConfigError, match=rf"Mine exempts itself from '{name}': privacy and"):
        type("Mine", (Trainer,), {"exempt": {"G5": "why not", name: "a fine reason"}})
    with pytest.raises(ConfigError, match="'G1' and 'G3'"):
        type("Mine", (Trainer,), {"exempt": dict.fromkeys(("G3", "G1"), "both")})


def test_other_invariants_can() -> None:
    mine = type("Mine", (Trainer,), {"exempt": {"G5": "a reason", "G10": "another"}})
    assert set(mine.exempt) == {"G5", "G10"}
    with pytest.raises(ConfigError, match="G9"):  # nor by a class below
        type("Below", (mine,), {"exempt": mine.exempt | {"G9": "inherited"}})


# ---- nothing kept on the object -----------------------------------------------------------------
class Counts(Quadratic):
    name = "Counts"
    where = "client"

    def client_update(self, ctx: Context, state: State, received: Tree) -> tuple[State, Upload]:
        if self.where == "client":
            self.seen = state
        return super().client_update(ctx, state, received)

    def aggregate(self, ctx: ServerContext, server: State, updates: Updates) -> State:
        if self.where == "server":
            self.rounds = ctx.round
        return super().aggregate(ctx, server, updates)

    def personalize(self, ctx: Context, state: State, received: Tree) -> Tree:
        if self.where == "evaluation":
            self.seen = state
        return super().personalize(ctx, state, received)


@pytest.mark.parametrize(
    ("where", "name"), [("client", "seen"), ("server", "rounds"), ("evaluation", "seen")]
)
def test_a_trainer_keeps_nothing_during_a_run(where: str, name: str) -> None:
    made = type("Mine", (Counts,), {"where": where})()
    made.before = 3  # while it is being built
    fed = quadratic(made, 1)
    with pytest.raises(FedvlmError, match=rf"Counts sets self\.{name} during the run.*a slot"):
        list(fed.personal(fed.run(), [0, 1]))
    with pytest.raises(FedvlmError, match="self.before during the run"):
        made.before = 4
    assert made.before == 3 and not hasattr(made, name)


# ---- numbers that travel ------------------------------------------------------------------------
def test_apfls_share_put_back_is_refused() -> None:
    """The share of the private model is a personal tensor; it used to travel as a metric."""
    cls = load_trainer("APFL")

    class Leaks(cls):  # type: ignore[misc, valid-type]
        def client_update(self, ctx: Context, state: State, received: Tree) -> Any:
            new, upload = super().client_update(ctx, state, received)
            ctx.logs["alpha"] = new["mix"]["alpha"]
            return new, upload

    with pytest.raises(FedvlmError, match=r"numbers \['alpha'\], which its `metrics` do not"):
        drive(Leaks, 1)

    class Declared(Leaks):
        metrics = (*cls.metrics, "alpha")

    fed, _ = drive(Declared, 1)
    updates: list[Updates] = []
    fed.subscribers.append(lambda e: updates.append(e.updates) if hasattr(e, "updates") else None)
    fed.run()
    assert updates[-1].metrics["alpha"].tolist() == [0.5, 0.5]


def test_a_part_of_the_loss_is_a_number_that_travels() -> None:
    class Parts(Quadratic):
        def loss(self, model: Any, p: Tree, b: Batch) -> tuple[Tensor, Tree]:
            value = super().loss(model, p, b)
            return value, {"distance": value.sqrt()}

    with pytest.raises(FedvlmError, match=r"numbers \['distance'\]"):
        quadratic(Parts(), 1).run()
    quadratic(type("Declared", (Parts,), {"metrics": ("loss", "distance")})(), 1).run()
    silent = type("Silent", (Parts,), {"metrics": ()})  # not even the loss
    with pytest.raises(FedvlmError, match=r"numbers \['distance', 'loss'\]"):
        quadratic(silent(), 1).run()


def test_the_prefix_of_a_fit_belongs_to_the_number() -> None:
    class Twice(Quadratic):
        metrics = ("loss",)

        def client_update(self, ctx: Context, state: State, received: Tree) -> Any:
            ctx.fit(state["w"] | received, self.loss, tag="v")
            return super().client_update(ctx, state, received)

    with pytest.raises(FedvlmError, match=r"numbers \['v/loss'\]"):
        quadratic(Twice(), 1).run()


def test_what_is_not_recorded_does_not_travel() -> None:
    seen: list[Tree] = []

    class Quiet(Quadratic):
        metrics = ()

        def client_update(self, ctx: Context, state: State, received: Tree) -> Any:
            def body(slots: State, batches: tuple[Batch, ...], step: Any) -> State:
                ctx.grad(slots["w"], self.loss, batches[0], log=None)
                return slots

            ctx.loop({"w": received}, body)
            seen.append(dict(ctx.logs))
            return state, ctx.upload(received)

    quadratic(Quiet(), 1, chunk=1).run()
    assert seen == [{}, {}]


def test_the_base_says_what_is_missing() -> None:
    with pytest.raises(ConfigError, match="does not define what is trained: add trainables"):
        Trainer.trainables(Quadratic(), None, torch.Generator())  # type: ignore[arg-type]
    with pytest.raises(FedvlmError, match=r"no slot 'w': define shared\(self, server\)"):
        Quadratic().shared({"pool": {}})
