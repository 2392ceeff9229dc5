"""Datasets of others by index: labels, images, names, and messages about faults."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedvlm.core.errors import ConfigError, DataError
from fedvlm.data.memory.samples import Samples, is_sample
from tests.data.memory.toys import NAMES, Pairs, Picture, Table, Value, pixels, rows

WHERE = "client 'a', train"


def samples(dataset: Any, columns: Any = None) -> Samples:
    return Samples(dataset, WHERE, columns)


def test_labels_and_images_of_a_torch_dataset() -> None:
    data = Pairs(rows(1))
    one = samples(data)
    assert list(one.labels(NAMES)) == [0, 1, 2] * 2 and len(one) == 6
    assert data.reads == 6
    assert len({one.key(i) for i in range(6)}) == 6 and data.reads == 6  # seen with the labels
    assert np.array_equal(one.image(4), pixels(101, 1))


def test_a_table_gives_labels_without_its_images() -> None:
    data = Table.of(rows(1), note=["x"] * 6)
    one = samples(data)
    assert list(one.labels(NAMES)) == [0, 1, 2] * 2 and data.rows == 0
    assert one.classnames == tuple(NAMES)
    assert one.key(4) == samples(Pairs(rows(1))).key(4) and data.rows == 1
    data.format = {"type": "custom"}  # its function may want whole rows
    assert list(samples(data).labels(NAMES)) == [0, 1, 2] * 2 and data.rows == 7


def test_class_names_of_torchvision_s_kind_are_found_through_subsets() -> None:
    whole = Pairs(rows(1))
    assert samples(whole).classnames is None
    whole.classes = NAMES  # type: ignore[attr-defined]
    inner: Any = torch.utils.data.Subset(torch.utils.data.Subset(whole, [0, 1, 2]), [2])
    assert samples(inner).classnames == tuple(NAMES)
    part = torch.utils.data.Subset(Table.of(rows(1)), [2, 3])  # type: ignore[arg-type]
    for columns in (None, ("img", "kind")):
        assert samples(part, columns).classnames == tuple(NAMES)
    assert list(samples(part, ("img", "kind")).labels(NAMES)) == [2, 0]


@pytest.mark.parametrize(("label", "want"), [
    (2, 2), (np.int64(2), 2), (torch.tensor(2), 2), ("blue ball", 2), (np.array(2), 2),
])
def test_labels_as_people_have_them(label: Any, want: int) -> None:
    assert list(samples([(pixels(0, 0), label)]).labels(NAMES)) == [want]


def test_rows_with_names() -> None:
    data = [{"image": x, "label": y} for x, y in rows(1)]
    assert list(samples(data).labels(NAMES)) == [0, 1, 2] * 2
    other = [{"x": x, "y": y} for x, y in rows(1)]
    assert list(samples(other, ("x", "y")).labels(NAMES)) == [0, 1, 2] * 2
    triples = [(i, x, y) for i, (x, y) in enumerate(rows(1))]
    assert list(samples(triples, (1, 2)).labels(NAMES)) == [0, 1, 2] * 2


class Broken(Pairs):
    def __getitem__(self, index: int) -> Any:
        if index == 1:
            raise OSError("the share is gone")
        return super().__getitem__(index)


def noisy(index: int) -> Any:
    return np.random.default_rng().integers(0, 255, (8, 8, 3), dtype=np.uint8), index


Noisy = type("Noisy", (), {"__len__": lambda self: 3, "__getitem__": lambda self, i: noisy(i)})


@pytest.mark.parametrize(("dataset", "sentence"), [
    ([(pixels(0, 0), 0), (pixels(0, 1), 3)],
     "client 'a', train image 1: label 3 is none of 0 to 2, as there are 3 class names"),
    ([(pixels(0, 0), -1)], "train image 0: label -1 is none of 0 to 2"),
    ([(pixels(0, 0), "red bal")], "no class 'red bal'; did you mean 'red ball'?"),
    ([(pixels(0, 0), 1.0)], "a float is not a label"),
    ([(pixels(0, 0), True)], "a bool is not a label"),
    ([(pixels(0, 0), 0, 1)], "gives a tuple of 3, not a pair (image, label)"),
    ([("x.png", 0)], "train image 0: a str is not an image"),
    (Broken(rows(1)), "client 'a', train image 1: the dataset failed: OSError: the share is gone"),
    (np.zeros((4, 8, 8, 3), np.uint8), "list(zip(images, labels)) is one"),
    ([], "client 'a', train: the dataset is empty"),
    (iter(rows(1)), "has no length or no index"),
    (torch.utils.data.DataLoader(Pairs(rows(1))), "give its .dataset, a Pairs"),
])
def test_faults_name_client_and_image(dataset: Any, sentence: str) -> None:
    with pytest.raises(DataError) as caught:
        list(samples(dataset).labels(NAMES))
    assert sentence in str(caught.value) and "\n" not in str(caught.value)


def test_another_image_at_the_same_place_is_refused() -> None:
    one = samples(Noisy())
    list(one.labels(NAMES))
    with pytest.raises(DataError, match="the image differs each time it is read.*views=N"):
        one.image(1)


@pytest.mark.parametrize(("features", "columns", "sentence"), [
    ({"img": Picture(), "kind": Value()}, None, "the labels could be none of img, kind"),
    ({"img": Picture(), "kind": Picture()}, None, "the images could be any of img, kind"),
    ({"img": Picture(), "kind": Value()}, ("imgs", "kind"), "no column 'imgs'; did you mean 'img'"),
])
def test_columns_that_are_not_clear(features: Any, columns: Any, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        samples(Table({"img": [pixels(0, 0)], "kind": [0]}, features), columns)
    assert sentence in str(caught.value)


def test_a_sample_is_no_dataset() -> None:
    assert is_sample((pixels(0, 0), 1)) and is_sample({"image": 0, "label": 1})
    assert not is_sample((rows(1), rows(2))) and not is_sample({"train": rows(1)})
