"""Where test images come from when a set has none: val, or a share of train by DATA_SEED."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedvlm.core.errors import ConfigError, DataError
from fedvlm.data.datum import DatasetBase, Datum
from fedvlm.data.formats.parts import complete, draw_test, join_test
from tests.data.miniatures.own import copy

ANY = copy(Path())


def items(sizes: list[int], domain: int = 0) -> list[Datum]:
    return [Datum(f"/{c}/{n}", c, domain, f"c{c}", f"{domain}/{c}/{n}")
            for c, size in enumerate(sizes) for n in range(size)]


def test_val_is_the_test_list_where_there_is_none() -> None:
    train, val = items([2, 2]), items([1, 1], 1)
    lists, notes = complete({"train": train, "val": val, "test": []}, ANY, "x")
    assert lists == {"train": train, "val": [], "test": val}
    assert notes == ["the set has no test part: val is the test list, and there is no validation"]
    lists, notes = complete({"train": train, "val": val, "test": val}, ANY, "x")
    assert lists["val"] == lists["test"] == val and notes == []


def test_train_alone_wants_a_share_that_is_said() -> None:
    parts = {"train": items([4, 4]), "val": [], "test": []}
    with pytest.raises(DataError, match="x has train but no 'test'.*TEST_SHARE 0.3"):
        complete(parts, ANY, "x")
    lists, notes = complete(parts, copy(Path(), test_share=0.25, seed=7), "x", "photo")
    assert (len(lists["train"]), len(lists["test"])) == (6, 2)
    assert notes[0].startswith("domain 'photo' has training images only: 0.25 of each class")
    assert "DATA_SEED 7" in notes[0]
    with pytest.raises(DataError, match="no training images"):
        complete({"train": [], "val": [], "test": items([1])}, ANY, "x")
    _, notes = complete(parts | {"test": items([1])}, copy(Path(), test_share=0.5), "x")
    assert notes == ["the set: DATASET.TEST_SHARE is not used: there are test images"]


@settings(deadline=None)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=5), st.floats(0.01, 0.99),
       st.integers(0, 5), st.randoms())
def test_every_class_gives_its_share(sizes: list[int], share: float, seed: int, rng) -> None:
    data = items(sizes)
    train, test = draw_test(data, share, seed)
    assert sorted(d.key for d in [*train, *test]) == sorted(d.key for d in data)
    for label, size in enumerate(sizes):
        number = sum(d.label == label for d in test)
        assert number == (min(max(round(share * size), 1), size - 1) if size > 1 else 0)
    mixed = rng.sample(data, len(data))
    again = draw_test(mixed, share, seed)[1]
    assert {d.key for d in again} == {d.key for d in test}  # the order of a list moves nothing


def test_joined_parts_are_cut_anew_by_the_seed() -> None:
    """Nothing is lost or twice; a test image of the set may become a training image."""
    def cut(seed: int) -> DatasetBase:
        lists = {"train": items([12, 9]), "val": [], "test": items([4, 3], 1)}
        data = DatasetBase.of(lists, [], [])
        join_test(data, 0.25, seed)
        return data

    data = cut(1)
    assert [sum(d.label == c for d in data.test) for c in (0, 1)] == [4, 3]
    keys = [d.key for d in (*data.train_x, *data.test)]
    assert sorted(keys) == sorted({d.key for d in (*items([12, 9]), *items([4, 3], 1))})
    assert any(d.domain == 1 for d in data.train_x) and any(d.domain == 0 for d in data.test)
    assert {d.key for d in cut(1).test} == {d.key for d in data.test}
    assert {d.key for d in cut(2).test} != {d.key for d in data.test}
    assert "0.25 of each class" in data.notes[-1] and "DATA_SEED 1" in data.notes[-1]


def test_a_known_client_with_test_images_only_is_not_joined_away() -> None:
    def held(*clients: str) -> list[Datum]:
        return [replace(d, client=clients[i % len(clients)], key=f"{d.key}/{clients[0]}")
                for i, d in enumerate(items([4, 4]))]

    data = DatasetBase.of({"train": held("a", "b"), "val": [], "test": held("c", "a")}, [], [])
    with pytest.raises(ConfigError, match="JOIN_TEST: 1 of 3 clients of .* have test images only"):
        join_test(data, 0.25, 1)
    data = DatasetBase.of({"train": held("a", "b"), "val": [], "test": held("b", "a")}, [], [])
    join_test(data, 0.25, 1)
    assert len(data.train_x) == 12
