"""What is trained: by names of tensors, and by cards."""

from __future__ import annotations

import pytest

from fedvlm.config.families import (
    CHOICE,
    NOTHING,
    ORDER,
    families,
    families_in,
    family_heading,
    place,
)


@pytest.mark.parametrize(("names", "words"), [
    ([], ["none"]), (["text.ctx", "image.adapter.up"], ["prompt", "feature"]),
    (["text.lora.0.q.A", "image.private.lora.3.v.B"], ["text-lora", "lora"]),
    (["image.adapter.2.mlp.up.weight", "image.ln.0.1.bias"], ["adapter", "norm"]),
    (["text.prompt.1", "image.couple.1.weight"], ["prompt", "visual-prompt"]),
    (["both.mm_adapter.2.weight", "gate.q.bias", "text.sigma"], ["prompt", "gate", "adapter"]),
])
def test_families_are_read_off_names(names: list[str], words: list[str]) -> None:
    assert list(families(names)) == words
    assert set(words) <= set(ORDER)


@pytest.mark.parametrize(("shared", "personal", "words"), [
    ("all of PEFT (w)", "a copy v of all of PEFT", (CHOICE,)),
    ("the body of PEFT, image.*", "the head, text.* or head.*", (CHOICE,)),
    ("image.lora.*, and what else PEFT trains", "image.private.lora.*", ("lora",)),
    ("both.mm_adapter.*", "image.mm_adapter.*, text.mm_adapter.*", ("adapter",)),
    ("text.ctx,\n    image.couple.*", "gate.*", ("prompt", "gate", "visual-prompt")),
    ("none", "the cache (made anew)", (NOTHING,)),
])
def test_a_card_says_it_in_two_fields(
    shared: str, personal: str, words: tuple[str, ...]
) -> None:
    card = f"X: y.\n\nPaper: head.weight\nShared: {shared}\nPersonal: {personal}\nFrozen: gate.x\n"
    assert families_in(card) == words


def test_families_as_a_heading() -> None:
    assert family_heading(("feature", "head")) == "image feature and linear head"
    assert family_heading(()) == "" and family_heading(("csc",)) == "csc"
    assert families_in("X: no such fields, but text.ctx") == ()
    order = [(CHOICE,), ("prompt",), ("prompt", "feature"), ("feature",), (NOTHING,), ()]
    assert sorted(order, key=place) == order
