"""``data=``: which datasets are meant, how clients share them, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from yacs.config import CfgNode

from fedvlm.core.errors import ConfigError, DataError
from fedvlm.data.datasets import load_dataset
from fedvlm.data.datum import PARTS, DatasetBase
from fedvlm.data.memory.given import MemorySet
from tests.data.memory.toys import NAMES, Pairs, Table, pixels, rows

TWO = {"north": (Pairs(rows(1)), Pairs(rows(2))), "south": (Pairs(rows(3)), Pairs(rows(4)))}


def read(given: MemorySet, share: float = 0.0, seed: int = 1) -> DatasetBase:
    return given.read(CfgNode({"DATASET": {"TEST_SHARE": share}, "DATA_SEED": seed}))


def sizes(data: DatasetBase) -> list[int]:
    return [len(data.parts[part]) for part in PARTS]


def test_clients_by_name_are_domains() -> None:
    given = MemorySet(TWO, NAMES, name="balls")
    assert given.keys["FED.PARTITION"] == "domain" and given.keys["FED.CLIENTS"] == 2
    data = read(given)
    assert data.domain_names == ["north", "south"] and sizes(data) == [12, 0, 12]
    assert [d.domain for d in data.train_x] == [0] * 6 + [1] * 6
    assert data.test[-1].key == "south/test/0000005" and data.test[-1].label == 2
    assert data.classnames == NAMES and data.name == "balls"
    assert "balls: data in memory: 2 clients (north, south), 3 classes" in given.sentence


@pytest.mark.parametrize(("data", "clients", "wanted"), [
    ([TWO["north"], TWO["south"]], ["client-0", "client-1"], [12, 0, 12]),
    ([(Pairs(rows(1)), Pairs(rows(2)), Pairs(rows(3)))], ["client-0"], [6, 6, 6]),
    ([{"train": rows(1), "validation": rows(2)}], ["client-0"], [6, 0, 6]),
    (TWO["north"], [], [6, 0, 6]),
    ({"train": rows(1), "test": rows(2)}, [], [6, 0, 6]),
    ((rows(1), None, rows(2)), [], [6, 0, 6]),
], ids=["list", "three parts", "parts by name", "pair", "dict of parts", "no validation"])
def test_shapes_of_data(data: Any, clients: list[str], wanted: list[int]) -> None:
    found = read(MemorySet(data, NAMES))
    assert found.domain_names == clients and sizes(found) == wanted


@pytest.mark.parametrize("pool", [Pairs(rows(1, 10)), rows(1, 10), Table.of(rows(1, 10))],
                         ids=["torch", "list", "table"])
def test_a_test_share_is_drawn_by_the_data_seed(pool: Any) -> None:
    given = MemorySet(pool, None if isinstance(pool, Table) else NAMES)
    first, other = read(given, 0.3), read(given, 0.3, seed=2)
    assert sizes(first) == [21, 0, 9] == sizes(other)
    assert [d.key for d in first.test] != [d.key for d in other.test]
    assert [d.key for d in first.test] == [d.key for d in read(given, 0.3).test]
    assert any("0.3 of each class are its test images" in note for note in first.notes)


def test_a_client_may_be_left_out_to_be_tested_on() -> None:
    keys = MemorySet(TWO, NAMES, given={"FED.HELD_OUT_DOMAIN": "south"}).keys
    assert keys["FED.PARTITION"] == "domain" and keys["FED.CLIENTS"] == 1


def test_a_pool_is_dealt_as_the_flags_say() -> None:
    assert MemorySet(rows(1), NAMES).keys["FED.PARTITION"] == "dirichlet"
    keys = MemorySet(rows(1), NAMES, given={"FED.PARTITION": "dirichlet"}).keys
    assert "FED.PARTITION" not in keys and keys["DATASET.NUM_SHOTS"] == -1


def test_images_are_read_when_they_are_wanted() -> None:
    table = Table.of(rows(1, 10))
    data = read(MemorySet((table, Table.of(rows(2)))))
    assert table.rows == 0
    picture: Any = data.train_x[7].array
    assert np.array_equal(picture.read(), pixels(102, 1)) and table.rows == 1
    assert len(picture.key) == 64 and table.rows == 1


def test_a_class_without_images_keeps_its_label() -> None:
    names = [*NAMES, "black ball"]
    data = read(MemorySet(TWO, names))
    assert data.num_classes == 4 and data.classnames == names


@pytest.mark.parametrize(("data", "more", "sentence"), [
    (TWO, {}, "client 'north', train: the dataset does not name its classes"),
    (TWO, {"classnames": "cat"}, "classnames must be a list of strings"),
    (TWO, {"classnames": ["cat"]}, "classnames has 1 name(s)"),
    (TWO, {"classnames": ["cat", "cat"]}, "two classes are called 'cat'"),
    (TWO, {"classnames": ["cat", " "]}, "the name of class 1, ' ', shows nothing"),
    (TWO, {"classnames": NAMES, "given": {"FED.PARTITION": "iid"}}, "partition='iid' deals one"),
    (TWO, {"classnames": NAMES, "given": {"FED.CLIENTS": "3"}}, "num_users=3, and data has 2"),
    (TWO, {"classnames": NAMES, "columns": "image"}, "columns names two"),
    ({"a/b": rows(1)}, {"classnames": NAMES}, "the client's name 'a/b' holds a /"),
    ({"a b": rows(1), "a-b": rows(1)}, {"classnames": NAMES}, "the same name"),
    ([Table.of(rows(1)), Table.of(rows(2))], {"classnames": None, "name": 3}, "name must be a "
                                                                              "string"),
])
def test_mistakes_get_a_sentence(data: Any, more: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        MemorySet(data, **more)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(("data", "sentence"), [
    ({}, "data has no client"),
    ([], "data has no client"),
    (3, "data, train: what is given (int) has no length or no index"),
    ({"a": []}, "client 'a', train: the dataset is empty"),
    ({"a": (rows(1),) * 4}, "a tuple is (train, test) or (train, val, test)"),
    ({"a": (None, rows(1))}, "client 'a', there is no training part"),
    (rows(1), "memory: the data has no test images: give (train, test) for train, or let "
              "test_share=0.3"),
    ([TWO["north"], rows(1)], "memory: client 'client-1' has no test images"),
    ({"train": rows(1), "test": rows(1)[:1]}, "2 of 3 trained classes have no test image"),
])
def test_data_that_cannot_be_used(data: Any, sentence: str) -> None:
    with pytest.raises(DataError) as caught:
        read(MemorySet(data, NAMES))
    assert sentence in str(caught.value)


@pytest.mark.parametrize("shape", ["pool", "clients"])
def test_images_of_one_class_are_refused_whoever_has_them(shape: str) -> None:
    """Two names do not make two classes: with clients and as a pool, as folders and tables are."""
    reds = tuple([row for row in rows(seed) if row[1] == 0] for seed in (1, 2))
    data = reds if shape == "pool" else {"north": reds, "south": reds}
    with pytest.raises(DataError, match="memory: there is one class only, red ball; a classifier "
                                        "needs two: give the images of another class, too$"):
        read(MemorySet(data, NAMES))


def test_tables_must_name_the_same_classes() -> None:
    other = Table.of(rows(2))
    other.features["kind"].names = NAMES[::-1]
    with pytest.raises(ConfigError, match="do not name the same classes"):
        MemorySet([Table.of(rows(1)), other])


def test_a_config_of_data_in_memory_is_not_read_from_disk() -> None:
    cfg = CfgNode({"DATASET": {"NAME": "balls", "FORMAT": "memory"}})
    with pytest.raises(ConfigError, match=r"fedvlm.train\(data=...\) again"):
        load_dataset(cfg)
