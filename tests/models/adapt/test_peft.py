"""What ``PEFT`` asks for: contexts from words and by class, and the fine role of every tensor."""

from __future__ import annotations

import re

import pytest
import torch

from fedvlm.check.invariants import run
from fedvlm.check.world import BASE, NEW, CheckWorld, Setup
from fedvlm.config.build import build_config
from fedvlm.config.keys import default_schema
from fedvlm.core.errors import ConfigError
from fedvlm.core.rng import stream
from fedvlm.core.trees import Tree, expand
from fedvlm.federation.cards import trainer_files
from fedvlm.federation.discovery import load_trainer
from fedvlm.job.flags import parse
from fedvlm.job.resolve import resolve
from fedvlm.models.adapt import peft
from fedvlm.models.adapt.contexts import INIT_STD, word_context
from fedvlm.models.adapt.peft import PeftSpec, role_of
from fedvlm.models.load.backbones import load_backbone
from fedvlm.models.vlmodel import VLModel

WORDS = "a photo of a"
NAMES = ["circle", "square", "triangle"]
# Every tensor that a method of the repository trains (numbers as *), and its fine role.
ROLES = {
    "text.ctx": "context", "text.sigma": "context", "text.U": "context", "text.S": "context",
    "text.V": "context", "text.ctx.private.left": "context", "text.ctx.private.right": "context",
    "image.adapter.down": "adapter", "image.adapter.up": "adapter",
    "image.private.down": "adapter", "image.private.up": "adapter",
    "image.shared_adapter.fc*.weight": "adapter", "image.personal_adapter.fc*.weight": "adapter",
    "image.fusion.query.weight": "adapter", "image.fusion.query.bias": "adapter",
    "image.fusion.key.weight": "adapter", "image.fusion.key.bias": "adapter",
    "image.adapter.*.ln.weight": "adapter", "image.adapter.*.ln.bias": "adapter",
    "image.adapter.*.down.weight": "adapter", "image.adapter.*.down.bias": "adapter",
    "image.adapter.*.up.weight": "adapter", "image.adapter.*.up.bias": "adapter",
    "image.lora.*.A": "lora", "image.lora.*.B": "lora",
    "text.lora.*.A": "lora", "text.lora.*.B": "lora",
    "text.global": "context", "text.u": "context", "text.v": "context", "text.r": "context",
    "tip.keys": "head", "route.keys": "tower",
    "image.private.lora.*.A": "lora", "image.private.lora.*.B": "lora",
    "image.ln.*.*.weight": "tower", "image.ln.*.*.bias": "tower",
    "head.weight": "head", "head.weight.private.left": "head", "head.weight.private.right": "head",
    "small.fc*.weight": "head", "small.fc*.bias": "head", "small.conv*.weight": "head",
    "small.conv*.bias": "head", "small.fc.weight": "head", "small.fc.bias": "head",
    "text.ctx.global": "context", "text.ctx.local": "context", "text.prompt.*": "context",
    "text.ctx.experts": "context",
    "image.prompt.*": "context", "text.prompt.groups": "context", "text.prompt.sent": "context",
    "image.prompt.groups": "context", "image.prompt.sent": "context",
    "image.couple.*.weight": "adapter", "image.couple.*.bias": "adapter",
    "image.adapter.fc*.weight": "adapter", "image.adapter.fc*.bias": "adapter",
    "both.mm_adapter.*.weight": "adapter", "both.mm_adapter.*.bias": "adapter",
    **{f"{side}.mm_adapter.*.{site}.{part}": "adapter" for side in ("image", "text")
       for site in ("down", "up") for part in ("weight", "bias")},
    **{f"{name}.{part}": "adapter" for part in ("weight", "bias") for name in (
        "text.net.fc*", "text.net.ff*", "image.net.ff*", "image.net.text",
        *(f"{side}.net.{site}" for side in ("text", "image") for site in (
            "attn.q", "attn.k", "attn.v", "attn.o", "norm.query", "norm.key", "norm.ff")),
    )}, "text.net.queries": "adapter",
    **{f"gate.{site}.{part}": "head" for site in "qkvo" for part in ("weight", "bias")},
    "gate.weight": "head", "head.visual": "head", "head.bias": "head", "head.mix": "head",
    "image.adapter.fc*.threshold": "adapter", "head.batches": "head",
    **{f"head.fc*.{part}": "head" for part in ("weight", "bias", "threshold")},
    **{f"head.norm*.{part}": "head" for part in ("weight", "bias", "mean", "var")},
}

NUMBERS = (
    r"(?<=lora\.)\d+\.[a-z]+|(?<=fc)\d+|(?<=head\.norm)\d+|(?<=ff)\d+|(?<=conv)\d+"
    r"|(?<=\.)\d+(\.(attn|mlp))?"
)


@pytest.fixture(scope="module")
def model() -> VLModel:
    return VLModel(load_backbone("tiny"), NAMES)


def spec(*opts: str) -> PeftSpec:
    return PeftSpec.of(build_config(None, None, {}, list(opts), default_schema())[0])


def made(model: VLModel, *opts: str) -> Tree:
    return peft.build_tensors(spec(*opts), model, stream(1, "init"))


# ---- words -----------------------------------------------------------------------------------
def test_a_context_from_words_is_the_template(model: VLModel) -> None:
    p = made(model, "PEFT.CTX_INIT", WORDS, "PEFT.N_CTX", "4")
    ids = model.backbone.tokenize([WORDS])
    assert torch.equal(p["text.ctx"], model.backbone.embed_tokens(ids)[0, 1:5])
    found = peft.text_features(spec(), model, expand(p, 1))[0]
    assert torch.allclose(found, model.anchor("template", 0), atol=1e-5)


def test_what_is_drawn_after_the_words_starts_as_without_them(model: VLModel) -> None:
    both = ["PEFT.VISUAL", "feature", "PEFT.N_CTX", "4"]
    plain, words = made(model, *both), made(model, *both, "PEFT.CTX_INIT", WORDS)
    assert torch.equal(plain["image.adapter.down"], words["image.adapter.down"])
    assert abs(float(plain["text.ctx"].std()) - INIT_STD) < INIT_STD / 5
    assert not torch.equal(plain["text.ctx"], words["text.ctx"])


@pytest.mark.parametrize(
    ("opts", "said"),
    [(["PEFT.CTX_INIT", WORDS], "'a photo of a' has 4 tokens, but PEFT.N_CTX is 16: set PEFT.N_CTX "
      "4, or use other words"),
     (["PEFT.CTX_INIT", WORDS, "PEFT.N_CTX", "3"], "has 4 tokens, but PEFT.N_CTX is 3")],
)  # fmt: skip
def test_a_number_of_words_that_does_not_fit_is_refused(
    model: VLModel, opts: list[str], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        made(model, *opts)


@pytest.mark.parametrize("key", [["PEFT.CTX_INIT", WORDS], ["PEFT.CSC", "True"]])
@pytest.mark.parametrize("text", ["none", "lora"])
def test_without_a_prompt_they_are_refused(key: list[str], text: str) -> None:
    with pytest.raises(ConfigError, match=f"{key[0]}.*PEFT.TEXT {text} has none"):
        spec("PEFT.TEXT", text, "PEFT.VISUAL", "feature", *key)


def test_fedbabu_takes_the_words_that_are_asked_for() -> None:
    cls = load_trainer("FedBABU")
    body = ["PEFT.VISUAL", "feature"]  # the world's tokenizer has a token per letter
    heads = {}
    for words in ("", "an art"):
        world = CheckWorld([*body, "PEFT.CTX_INIT", words, "PEFT.N_CTX", "5"])
        fed = world.federation(cls)
        heads[words] = fed.p0["text.ctx"]
        expected = word_context(fed.model, words or WORDS)
        assert torch.equal(heads[words], expected.to(heads[words]))
    assert heads[""].shape != heads["an art"].shape


# ---- contexts by class -----------------------------------------------------------------------
def test_equal_rows_by_class_are_the_shared_context(model: VLModel) -> None:
    shared = made(model, "PEFT.N_CTX", "4")["text.ctx"]
    wanted = peft.text_features(spec(), model, {"text.ctx": shared[None]})
    rows = shared.repeat(1, len(NAMES), 1, 1)
    found = peft.text_features(spec("PEFT.CSC", "True"), model, {"text.ctx": rows})
    assert torch.allclose(found, wanted, atol=1e-5)
    own = made(model, "PEFT.CSC", "True", "PEFT.N_CTX", "4")["text.ctx"]
    assert own.shape == (len(NAMES), 4, model.text_width)
    assert not torch.equal(own[0], own[1])


def test_words_by_class_start_all_classes_alike(model: VLModel) -> None:
    opts = ["PEFT.CTX_INIT", WORDS, "PEFT.N_CTX", "4"]
    rows = made(model, *opts, "PEFT.CSC", "True")["text.ctx"]
    assert all(torch.equal(row, made(model, *opts)["text.ctx"]) for row in rows)


@pytest.mark.parametrize("trainer", ["FedAvg", "FedDecomp", "APFL"])
def test_contexts_by_class_keep_the_invariants(trainer: str) -> None:
    found = run(trainer, ["PEFT.CSC", "True", "PEFT.N_CTX", "3"])
    assert {o.name: o.detail for o in found if o.state == "broken"} == {}


def test_contexts_by_class_know_their_classes_only() -> None:
    world = CheckWorld(["PEFT.CSC", "True", "PEFT.N_CTX", "3"])
    run_ = world.record(load_trainer("FedAvg"), Setup(rounds=1))
    assert not run_.fed.trainer.open_vocabulary
    ctx = run_.states[-1].server["w"]["text.ctx"]
    start = run_.fed.p0["text.ctx"]
    assert ctx.shape[0] == len(BASE) and all(not torch.equal(a, b) for a, b in
                                             zip(ctx, start, strict=True))
    with pytest.raises(Exception, match="be used with the class list"):
        run_.fed.trainer.text_features(run_.fed.model.with_classes(NEW), {"text.ctx": ctx[None]})


# ---- roles -----------------------------------------------------------------------------------
def test_every_tensor_of_every_method_has_its_fine_role(model: VLModel) -> None:
    lora = ["--opts", "PEFT.VISUAL", "lora"]
    tower = ["--opts", "TRAINER.THORKI.SMALL", "tower"]
    linear = ["--opts", "PEFT.TEXT", "none", "PEFT.HEAD", "linear"]
    asked: list[tuple[str, list[str]]] = [(name, []) for name in trainer_files()]
    asked += [("FedDecomp", lora), ("FedDecomp", linear), ("FedAvg", linear), ("Thorki", tower)]
    seen = set()
    for name, more in asked:
        cfg = resolve(parse(["--demo", "--trainer", name, *more])).jobs[0].cfg
        for tensor in load_trainer(name)(cfg).trainables(model, stream(1, "init")):
            key = re.sub(NUMBERS, "*", tensor)
            assert role_of(tensor) == ROLES[key], f"{name}: {tensor}"
            seen.add(key)
    assert seen == set(ROLES)


def test_other_tensors_of_a_tower_are_its_own() -> None:
    for name in ("image.positions", "text.lnorm.weight", "header.weight", "text.ctxs"):
        assert role_of(name) == "tower"
