"""Rows of a tensor in different groups: leaves, and the whole again."""

from __future__ import annotations

import pytest
import torch

from fedvlm.core.errors import ConfigError
from fedvlm.federation.toolbox.row_split import split_rows

TREE = {"a.ctx": torch.arange(12.0).view(4, 3), "b": torch.ones(2), "scale": torch.tensor(2.0)}


@pytest.mark.parametrize(("text", "leaves", "personal"), [
    ("a.ctx[1:]", ["a.ctx[:1]", "a.ctx[1:]"], {"a.ctx[1:]"}),
    (r"a\.ctx[:3]", ["a.ctx[:3]", "a.ctx[3:]"], {"a.ctx[:3]"}),
    ("a.ctx[1:3]", ["a.ctx[:1]", "a.ctx[1:3]", "a.ctx[3:]"], {"a.ctx[1:3]"}),
    ("a.ctx[1:], b", ["a.ctx[:1]", "a.ctx[1:]", "b"], {"a.ctx[1:]", "b"}),
])
def test_leaves_join_to_the_whole(text: str, leaves: list[str], personal: set[str]) -> None:
    split = split_rows(text, TREE)
    cut = split.cut(TREE)
    assert [n for n in cut if n in leaves] == leaves and split.personal == personal
    whole = split.join(cut)
    assert whole.keys() == TREE.keys()
    assert all(torch.equal(whole[n], TREE[n]) for n in TREE)
    stacked = split.join({n: v[None].expand(5, *v.shape) for n, v in cut.items()}, 1)
    assert torch.equal(stacked["a.ctx"][4], TREE["a.ctx"])


def test_one_pattern_without_rows_splits_nothing() -> None:
    for text in ("", "a.*", "[ab]"):
        split = split_rows(text, TREE)
        assert split.cut(TREE).keys() == TREE.keys() and not split.personal


@pytest.mark.parametrize(("text", "sentence"), [
    ("c[1:]", "matches none of the trained tensors in full"),
    ("a.ctx[4:]", r"4 rows, of which \[4:\] is none"),
    ("a.ctx[:]", "is all: give the name without rows"),
    ("scale[1:]", "has 0 rows"),
    ("([1:]", "FED.PERSONAL"),
])
def test_rows_that_are_not_there_are_refused(text: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        split_rows(text, TREE)
