"""Prompts and the plain text path against open_clip's own."""

from __future__ import annotations

import open_clip
import pytest
import torch

from fedvlm.core.errors import ConfigError
from fedvlm.models.adapt.contexts import word_context
from fedvlm.models.towers.prompts import Suffix, assemble
from fedvlm.models.vlmodel import VLModel
from tests.models.toys import NAMES, context, toy


def test_plain_text_equals_open_clip_on_literal_prompts() -> None:
    backbone = toy(dtype=torch.float64)
    model = VLModel(backbone, NAMES, packed=False)
    ids = backbone.tokenize(["X X X " + n.replace("_", " ") + "." for n in NAMES])
    expected = torch.nn.functional.normalize(backbone.model.encode_text(ids), dim=-1)
    torch.testing.assert_close(model.anchor("literal", 3), expected)
    letter = backbone.embed_tokens(backbone.tokenize(["X"]))[0, 1]
    torch.testing.assert_close(model.text(letter.expand(3, -1)), expected)


def test_words_on_both_sides_of_the_name_equal_open_clip() -> None:
    backbone = toy(dtype=torch.float64)
    ids = backbone.tokenize([f"my own {n.replace('_', ' ')} as dark ink." for n in NAMES])
    expected = torch.nn.functional.normalize(backbone.model.encode_text(ids), dim=-1)
    for packed in (False, True):
        model = VLModel(backbone, NAMES, packed=packed)
        front, back = (word_context(model, text) for text in ("my own", "dark ink"))
        torch.testing.assert_close(model.text_around(front, back, "as"), expected)


def test_siglip_text_equals_open_clip() -> None:
    backbone = toy("siglip", dtype=torch.float64)
    ids = backbone.tokenize(["a dog", "two cats"])
    ours = backbone.encode_embeddings(backbone.embed_tokens(ids), backbone.eot(ids))
    torch.testing.assert_close(ours, backbone.model.encode_text(ids))
    assert backbone.logit_bias == -10 and not backbone.causal


def test_assembled_ids_equal_tokenised_text() -> None:
    backbone = toy()
    backbone.tokenizer = open_clip.SimpleTokenizer(context_length=40)
    prompts = assemble(backbone, NAMES, 7)
    literal = ["X " * 7 + name.replace("_", " ") + "." for name in NAMES]
    assert torch.equal(prompts.ids, backbone.tokenize(literal))
    assert torch.equal(prompts.eot, prompts.ids.argmax(-1)) and prompts.start == 1


class NoPrefix:
    """A tokenizer like SigLIP's: no start token, end-of-text 1, padding 1."""

    eot_token_id = 1

    def __call__(self, texts: list[str], context_length: int) -> torch.Tensor:
        rows = [[2 + ord(c) % 50 for c in text][: context_length - 1] for text in texts]
        return torch.tensor([row + [1] * (context_length - len(row)) for row in rows])


def test_a_tokenizer_without_start_token() -> None:
    backbone = toy("siglip")
    backbone.tokenizer = NoPrefix()
    prompts = assemble(backbone, ("ab", "c"), 3)
    assert prompts.start == 0 and prompts.ends.tolist() == [6, 5]
    assert prompts.eot.tolist() == [39, 39]  # SigLIP reads the last position
    assert prompts.ids[0, 3:6].tolist() == NoPrefix()(["ab."], 8)[0, :3].tolist()
    both = assemble(backbone, ("ab", "c"), 1, Suffix(" in ", 2))
    assert both.suffix is not None and both.suffix.tolist() == [[8, 9], [7, 8]]
    assert both.ids[0, :12].tolist() == NoPrefix()(["Xab  in XX."], 12)[0].tolist()
    assert both.ends.tolist() == [11, 10]


def test_too_long_a_prompt_names_class_count_and_way_out() -> None:
    model = VLModel(toy(), ("cat", "an extremely long winded class name"))
    with pytest.raises(ConfigError, match="extremely long") as caught:
        model.text(context(model.backbone, 1, n_ctx=35))
    fits = int(str(caught.value).split("n_ctx <= ")[1].split()[0])
    model.text(context(model.backbone, 1, n_ctx=fits))
    with pytest.raises(ConfigError):
        model.text(context(model.backbone, 1, n_ctx=fits + 1))
    with pytest.raises(ConfigError, match="shorten"):
        model.anchor("literal", 36)


@pytest.mark.parametrize("n_ctx", [1, 3, 9])
def test_words_behind_the_learned_tokens_stay(n_ctx: int) -> None:
    """With the embeddings of its first tokens as context the whole text comes out."""
    words = "a b of c"
    for packed in (True, False):
        model = VLModel(toy(dtype=torch.float64), NAMES, packed=packed)
        ctx = word_context(model, words).to(model.dtype)
        text = model.with_classes(NAMES, (f"{words} {{}}.",)).anchor("template", 0)
        got = model.text(ctx[None, :n_ctx], words=words)[0]
        torch.testing.assert_close(got, text, atol=1e-9, rtol=0)
