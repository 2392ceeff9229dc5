"""Two images through a cached stream and through pixels (``local.streams``)."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
import torch

from fedvlm.check.compare import global_generators
from fedvlm.check.world import CheckWorld, Setup
from fedvlm.core.errors import ConfigError, FedvlmError
from fedvlm.federation.cards import trainer_files
from fedvlm.federation.discovery import load_trainer
from fedvlm.federation.local.streams import SPREAD, prove_method, random_values
from fedvlm.federation.trainer import Trainer
from fedvlm.models.features.proof import Proof
from tests.block_prompts import (
    AllStreams,
    BlockPrompts,
    FirstClients,
    HalfFeatures,
    LastPatches,
    LateLora,
    Patches,
    TwoStreams,
    Wants,
)

LORA = ("PEFT.TEXT", "none", "PEFT.VISUAL", "lora")


def proof_of(trainer: type[Trainer], *opts: str) -> Proof:
    world = CheckWorld(opts)
    fed = world.federation(trainer)
    cached = world.source(Setup(), fed.model, *fed.trainer.streams(fed.model))
    pixels = world.source(Setup(), fed.model, "pixels")
    before = dict(fed.model.counters), global_generators()
    proof = prove_method(
        fed.trainer, fed.model, fed.p0, fed.server_context, cached, pixels, torch.tensor([0, 1]),
        fed.plan.seed,
    )
    assert (dict(fed.model.counters), global_generators()) == before
    return proof


def test_values_are_random_in_every_tensor_and_client() -> None:
    start = {"a": torch.zeros(500), "b": torch.full((500,), 3.0), "c": 5 * torch.randn(500)}
    values = random_values(start, 1)
    for name, leaf in values.items():
        assert leaf.shape == (2, 500) and leaf.dtype == start[name].dtype
        spread = max(float(start[name].std(correction=0)), SPREAD)
        assert (leaf - start[name]).std(1).tolist() == pytest.approx([spread] * 2, rel=0.15)
        assert not torch.equal(leaf[0], leaf[1])
    assert not torch.equal(values["a"], random_values(start, 2)["a"])
    assert not torch.equal(values["a"], random_values(start, 1, 1)["a"])
    assert torch.equal(values["a"], random_values(start, 1)["a"])


@pytest.mark.parametrize("name", sorted(trainer_files()))
def test_every_trainer_holds(name: str) -> None:
    proof = proof_of(load_trainer(name))
    assert proof.holds and proof.tolerance == 1e-9


@pytest.mark.parametrize("visual", ["lora", "adapter"])
@pytest.mark.parametrize("name", ["fedavg", "heart_pfl", "fedproto"])
def test_inside_the_tower_holds(name: str, visual: str) -> None:
    proof = proof_of(load_trainer(name), "PEFT.VISUAL", visual)
    assert proof.holds and proof.stream.startswith("tokens.")


def test_the_right_block_holds() -> None:
    proof = proof_of(BlockPrompts)
    assert proof.holds and proof.stream == "tokens.0"
    assert set(proof.differences) == {"logits", "image.prompt.0", "image.prompt.1"}


@pytest.mark.parametrize(("enter", "stream"), [(1, "tokens.1"), (-1, "tokens.2")])
def test_a_wrong_block_is_refused(enter: int, stream: str) -> None:
    said = rf"trainer BlockPrompts: stream {stream} gives other numbers than pixels: gradient of "
    with pytest.raises(ConfigError, match=said) as caught:
        proof_of(BlockPrompts, "TRAINER.BLOCKPROMPTS.ENTER", str(enter))
    assert "'image.prompt." in str(caught.value)
    assert str(caught.value).endswith("the cache must start at or before block 0")


def test_lora_that_is_zero_at_the_start_does_not_hide_a_wrong_block() -> None:
    fed = CheckWorld(LORA).federation(LateLora)
    assert all(not v.any() for n, v in fed.p0.items() if n.endswith(".B"))
    assert proof_of(LateLora, *LORA).holds
    with pytest.raises(ConfigError, match=r"stream tokens\.\d gives other.*'image\.lora\.0"):
        proof_of(LateLora, *LORA, "TRAINER.LATELORA.ENTER", "1")


def test_clients_that_mix_on_the_cached_path_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"trainer FirstClients: stream tokens\.0 gives other"):
        proof_of(FirstClients)


def test_a_method_that_runs_one_by_one() -> None:
    class Alone(BlockPrompts):
        name = "Alone"
        batched = False

        def prompt(self, params: dict[str, torch.Tensor], block: int, cached: bool) -> torch.Tensor:
            (prompt,) = params[f"image.prompt.{block}"]
            return prompt[None]

    assert proof_of(Alone).holds


def test_a_loss_that_reads_the_download() -> None:
    class Extra(BlockPrompts):
        name = "Extra"
        extras_down = ("hint",)

        def download(self, ctx, server, client):  # type: ignore[no-untyped-def]
            return server["w"] | {"hint": torch.full((3,), 2.0, dtype=torch.float64)}

        def loss(self, model, params, batch):  # type: ignore[no-untyped-def]
            return super().loss(model, params, batch) * params["hint"].mean(-1)

    assert proof_of(Extra).holds


def test_a_method_that_fails_on_pixels_is_told() -> None:
    with pytest.raises(ConfigError, match=r"trainer Wants fails on the stream pixels .*'features'"):
        proof_of(Wants)


@pytest.mark.parametrize(("factor", "said"), [
    (lambda: math.nan, r"gradient for 'image\.prompt\..*' is not finite before round 1"),
    (random.random, r"read twice, give other numbers \(the gradient of .*draw from ctx\.stream"),
])
def test_numbers_that_no_stream_is_to_blame_for(
    factor: Callable[[], float], said: str
) -> None:
    state = random.getstate()

    class Odd(BlockPrompts):
        name = "Odd"

        def loss(self, model, params, batch):  # type: ignore[no-untyped-def]
            return super().loss(model, params, batch) * factor()

    with pytest.raises(ConfigError, match=f"^trainer Odd: .*{said}"):
        proof_of(Odd)
    random.setstate(state)


def test_a_backbone_that_is_touched_is_told() -> None:
    class Touches(BlockPrompts):
        name = "Touches"

        def image_features(self, model, params, x):  # type: ignore[no-untyped-def]
            model.backbone.text_tower.ln_final.weight.data[0] += 1e-3
            return super().image_features(model, params, x)

    with pytest.raises(FedvlmError, match="backbone changed while the streams were compared"):
        proof_of(Touches)


@pytest.mark.parametrize(
    ("trainer", "streams"),
    [(TwoStreams, "tokens.0, features"), (Patches, "patches"),
     (AllStreams, "pixels, tokens.0, patches, features")],
)  # fmt: skip
def test_several_streams_hold_together(trainer: type[Trainer], streams: str) -> None:
    proof = proof_of(trainer)
    assert proof.holds and proof.stream == streams and max(proof.differences.values()) < 1e-12


@pytest.mark.parametrize(
    ("trainer", "opts", "said"),
    [
        (TwoStreams, ("TRAINER.TWOSTREAMS.ENTER", "1"),
         r"stream tokens\.1 gives other .*'image\.prompt\..*at or before block 0$"),
        (HalfFeatures, (), r"stream features gives other numbers than pixels: [^:]*$"),
        (HalfFeatures, ("TRAINER.HALFFEATURES.ENTER", "1"),
         r"streams tokens\.1, features give other .*at or before block 0$"),
        (LastPatches, (), r"stream patches gives other numbers than pixels: "),
    ],
)  # fmt: skip
def test_the_stream_that_is_wrong_is_named(
    trainer: type[Trainer], opts: tuple[str, ...], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        proof_of(trainer, *opts)
