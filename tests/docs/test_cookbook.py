"""``docs/cookbook``: every recipe runs, does what its card says, and keeps the invariants."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fedvlm.check.compare import Broken
from fedvlm.check.invariants import INVARIANTS, run
from fedvlm.check.world import CheckWorld, Trajectory
from fedvlm.core.errors import ConfigError
from fedvlm.federation.cards import card, fields
from fedvlm.federation.discovery import load_trainer
from fedvlm.federation.trainer import Trainer
from fedvlm.job.flags import parse, peft_keys
from fedvlm.models.vlmodel import VLModel
from tests.docs.pages import DOCS, Session, blocks, read, words_of
from tests.single_round import single_round

BOOK = DOCS / "cookbook"
RECIPES = sorted(BOOK.glob("*.py"))
STEMS = [path.stem for path in RECIPES]
LONGEST = 60
LORA = [word for pair in peft_keys("lora").items() for word in pair]


@cache
def recipe(stem: str) -> type[Trainer]:
    path = BOOK / f"{stem}.py"
    (kind,) = [n for n in ast.parse(path.read_text()).body if isinstance(n, ast.ClassDef)]
    return load_trainer(f"{path}:{kind.name}")


@cache
def world(stem: str) -> CheckWorld:
    return CheckWorld(LORA if stem == "lora_rule" else ())


@cache
def two_rounds(stem: str) -> Trajectory:
    return single_round(world(stem), recipe(stem), 2)


def started(stem: str) -> tuple[Any, VLModel, dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Return a recipe's trainer, its model, two clients' start and a batch of three images."""
    here = world(stem)
    trainer, model = recipe(stem)(here.config(recipe(stem))), here.model()
    tree = trainer.trainables(model, torch.Generator().manual_seed(1))
    rows = {n: torch.stack([v, v]).double() for n, v in tree.items()}
    return trainer, model, rows, {"pixels": here.pixels[:6].view(2, 3, 3, 8, 8)}


@pytest.mark.parametrize("stem", STEMS)
def test_a_recipe_is_short_and_its_card_runs(stem: str) -> None:
    path = BOOK / f"{stem}.py"
    assert len(path.read_text().splitlines()) <= LONGEST
    text = fields(card(path))
    assert {"Equations", "Shared", "Personal", "Command"} <= text.keys()
    command = " ".join(text["Command"].split())
    assert command.endswith(f"docs/cookbook/{stem}.py:{recipe(stem).name}")
    words = words_of(command)
    assert words is not None and words[:2] == ["run", "--demo"]
    parse(words[1:])


@pytest.mark.parametrize("stem", STEMS)
def test_a_recipe_trains(stem: str) -> None:
    """Both clients send something else than they received, and it is shared tensors only."""
    run = two_rounds(stem)
    (first, second), groups = run.events, run.fed.groups
    for event in (first, second):
        assert event.updates is not None and set(event.updates.params) == set(groups.shared)
    sent = second.updates
    assert sent is not None and sent.clients == (0, 1)
    for k in range(2):
        assert any(not torch.equal(v[k], sent.received[n][k]) for n, v in sent.params.items())
    assert set(first.bytes_up) == {0, 1}


def test_the_page_names_every_recipe_and_its_commands_are_read() -> None:
    page = BOOK / "index.md"
    text = page.read_text(encoding="utf-8")
    assert re.findall(r"^\| \[(\w+)\.py\]\(\1\.py\) ", text, re.MULTILINE) and len(RECIPES) == 10
    assert sorted(re.findall(r"^\| \[(\w+)\.py\]", text, re.MULTILINE)) == STEMS
    exempt = text.partition("why: ")[2].partition(".\n")[0].split(", ")
    assert sorted(exempt) == [f"{s}.py" for s in STEMS if recipe(s).exempt]
    for block in blocks(page):
        for command in block.commands if block.language == "sh" else []:
            read(command)


# ---- what each recipe says it does ------------------------------------------------------------
def test_two_prompts_are_mixed_by_their_logits() -> None:
    trainer, model, p, x = started("two_prompts")
    one, other = (
        model.logits(model.image(x), model.text(p[n])) for n in ("text.ctx", "text.own")
    )
    assert torch.allclose(trainer.predict(model, p, x), (one + other) / 2)


def test_a_gate_of_zeros_and_a_query_of_zeros_change_nothing() -> None:
    trainer, model, p, x = started("feature_gate")
    assert torch.equal(trainer.image_features(model, p, x), model.image(x))
    trainer, model, p, x = started("patches")
    p["image.query"] = torch.zeros_like(p["image.query"])
    plain = model.image(x) + model.patches(x).mean(2)
    assert torch.allclose(trainer.image_features(model, p, x), plain)


def test_block_prompts_read_what_enters_the_last_block() -> None:
    trainer, model, p, _ = started("block_prompts")
    assert trainer.streams(model) == ("tokens.1",) and set(p) == {"image.prompt.1"}


def test_the_neighbour_s_upload_arrives_a_round_later() -> None:
    run = two_rounds("other_upload")
    sent = run.events[0].updates
    assert sent is not None
    state = run.fed.adopt(run.states[1])
    down = run.fed.downloads(state, 2, [0, 1])
    for client in (0, 1):
        assert torch.equal(down[client]["peer.ctx"], sent.params["text.ctx"][1 - client])


def test_the_server_s_momentum_goes_on() -> None:
    run = two_rounds("server_state")
    (m1, w1), (m2, w2) = (
        (e.server["momentum"]["text.ctx"], e.server["w"]["text.ctx"]) for e in run.events
    )
    sent = run.events[1].updates
    assert sent is not None
    share = (sent.weight / sent.weight.sum()).view(2, 1, 1)
    mean = (share * sent.params["text.ctx"]).sum(0)
    assert torch.allclose(m2, 0.9 * m1 + mean - w1) and torch.allclose(w2, w1 + m2)


def test_no_image_moves_a_context_by_more_than_clip() -> None:
    """Two epochs of one step at lr 0.05 move it by at most 2 x 0.05 x CLIP, but for decay."""
    sent = two_rounds("per_sample").events[0].updates
    assert sent is not None
    step = (sent.params["text.ctx"] - sent.received["text.ctx"]).flatten(1).norm(dim=1)
    assert (step > 0).all() and (step < 2 * 0.05 * 0.1 * 1.1).all()


def test_contrast_of_three_images_by_hand() -> None:
    """Images 0 and 1 are of a class; image 2 is alone, a fourth is padding."""
    trainer, model, p, x = started("in_batch_loss")
    z = torch.nn.functional.normalize(model.image(x), dim=-1)
    near = (z @ z.mT / 0.1).exp()
    pair = near[:, 0, 1]
    hand = (-(pair / (pair + near[:, 0, 2])).log() - (pair / (pair + near[:, 1, 2])).log()) / 3
    pad = {"pixels": torch.cat([x["pixels"], x["pixels"][:, :1]], 1)}
    batch = SimpleNamespace(
        x=pad, y=torch.tensor([[0, 0, 1, 0]] * 2), w=torch.tensor([[1.0, 1, 1, 0]] * 2).double(),
        sets=None, costs=lambda dtype: None,
    )
    value, parts = trainer.loss(model, p, batch)
    assert torch.allclose(parts["contrast"], hand)
    assert torch.allclose(value, parts["ce"] + 0.5 * hand)


def test_every_image_has_a_context_of_its_own() -> None:
    trainer, model, p, x = started("image_prompt")
    plain = model.logits(model.image(x), model.text(p["text.ctx"]))
    assert torch.allclose(trainer.predict(model, p, x), plain)
    p["text.net.weight"] = torch.randn(p["text.net.weight"].shape).double()
    z = torch.nn.functional.normalize(model.image(x), dim=-1)
    own = p["text.ctx"][1] + p["text.net.weight"][1] @ z[1, 2]
    by_hand = model.logits(model.image(x)[1:, 2:], model.text(own[None]))
    assert torch.allclose(trainer.predict(model, p, x)[1:, 2:], by_hand)


def test_lora_moves_where_signs_agree() -> None:
    sent = two_rounds("lora_rule").events[0].updates
    assert sent is not None
    share = (sent.weight / sent.weight.sum()).view(2, 1, 1)
    name = "image.lora.0.q.B"
    moved, new = sent.params[name] - sent.received[name], two_rounds("lora_rule").events[0].server
    agreement = (share * moved.sign()).sum(0).abs()
    by_hand = sent.received[name][0] + agreement * (share * moved).sum(0)
    assert 0 < float(agreement.min()) < float(agreement.max()) == pytest.approx(1.0)
    assert torch.allclose(new["w"][name], by_hand)


def test_a_lora_rule_says_what_it_needs() -> None:
    with pytest.raises(ConfigError, match="add --peft lora"):
        recipe("lora_rule")(CheckWorld().config(recipe("lora_rule")))
    here = CheckWorld([*LORA, "PEFT.LORA_AVG", "product_svd"])
    with pytest.raises(ConfigError, match="LORA_AVG product_svd: SignLora has a rule of its own"):
        here.federation(recipe("lora_rule"))


# ---- the whole of it ---------------------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.parametrize("stem", STEMS)
def test_a_recipe_keeps_the_invariants(stem: str) -> None:
    cls = recipe(stem)
    verdicts = run(cls, world=world(stem))
    assert {v.name: v.detail for v in verdicts if v.state == "broken"} == {}
    for name in cls.exempt:
        with pytest.raises(Broken):  # an exemption that is not needed must go
            INVARIANTS[name](world(stem), cls)


@pytest.mark.slow
def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "docs").symlink_to(DOCS)
    monkeypatch.chdir(tmp_path)
    Session(BOOK / "index.md").run()
