"""Every multi-domain set is read in every layout in which it is published."""

from __future__ import annotations

from pathlib import Path

import pytest
from data_helpers import config
from domain_trees import ABSENT, BROKEN, CLASSES, EVERY, write_domain_set

from fedvlm.core.errors import DataError, fold
from fedvlm.data.catalog import CATALOG, dataset_info
from fedvlm.data.datasets import load_dataset
from fedvlm.data.datum import DatasetBase
from fedvlm.data.layouts import DOMAIN_LAYOUTS


def load(name: str, root: Path, **keys: object) -> DatasetBase:
    return load_dataset(config(root, root / "cache", DATASET__NAME=name, **keys))


@pytest.mark.parametrize(("name", "layout"), EVERY, ids=lambda v: v.replace(" ", "-"))
def test_published_layout(name: str, layout: str, tmp_path: Path) -> None:
    write_domain_set(name, layout, tmp_path)
    data = load(name, tmp_path)
    assert data.classnames == list(CLASSES[name])
    assert data.domain_names == list(CATALOG[name].domains)
    for datum in data.all():
        folders = datum.key.split("/")
        assert datum.classname == folders[-2] == data.lab2cname[datum.label]
        assert fold(data.domain_names[datum.domain]) in {fold(f) for f in folders}
        assert datum.path.is_file()
    each = len(CLASSES[name]) * len(CATALOG[name].domains)
    tree = "tree" in layout and "trees" not in layout
    if tree:
        assert [len(data.parts[p]) for p in ("train", "val", "test")] == [3 * each, each, 2 * each]
    else:
        lost = 4 if name == ABSENT[0] else 0
        assert [len(data.parts[p]) for p in ("train", "val", "test")] == [4 * each - lost, 0,
                                                                        2 * each]
    assert any("not the published split" in note for note in data.notes) == tree
    if len(DOMAIN_LAYOUTS[name]) > 1:
        assert f"{name}: layout '{layout}'" in data.notes


@pytest.mark.parametrize("name", sorted(DOMAIN_LAYOUTS))
def test_first_layout_that_fits_wins(name: str, tmp_path: Path) -> None:
    for layout in reversed(DOMAIN_LAYOUTS[name]):
        write_domain_set(name, layout.name, tmp_path)
        notes = load(name, tmp_path).notes
        assert len(DOMAIN_LAYOUTS[name]) == 1 or f"{name}: layout '{layout.name}'" in notes


@pytest.mark.parametrize(
    ("alias", "name"),
    [("office", "OfficeCaltech10"), ("office-caltech-10", "OfficeCaltech10"), ("pacs", "PACS"),
     ("officehome", "OfficeHome"), ("office_31", "Office31"), ("domainnet", "DomainNet"),
     ("domainnet_full", "DomainNetFull")],
)  # fmt: skip
def test_aliases(alias: str, name: str) -> None:
    found = dataset_info(alias)
    assert found is not None and found.name == name


@pytest.mark.parametrize(
    ("name", "classes", "base", "new", "domains"),
    [("DomainNet", 10, 5, 5, 6), ("DomainNetFull", 345, 173, 172, 6), ("PACS", 7, 4, 3, 4),
     ("OfficeCaltech10", 10, 5, 5, 4), ("OfficeHome", 65, 33, 32, 4), ("Office31", 31, 16, 15, 3)],
)  # fmt: skip
def test_facts(name: str, classes: int, base: int, new: int, domains: int) -> None:
    info = CATALOG[name]
    assert (info.classes, info.base, info.new, len(info.domains)) == (
        classes, base, new, domains
    )  # fmt: skip
    assert list(info.domains) == sorted(info.domains)


def test_a_copy_of_another_size_says_so(tmp_path: Path) -> None:
    write_domain_set("PACS", "FLORA pickles", tmp_path)
    notes = load("PACS", tmp_path).notes
    assert any("this copy has 3 classes" in n and "published set has 7" in n for n in notes)


def test_own_folder_name(tmp_path: Path) -> None:
    write_domain_set("PACS", "FLORA pickles", tmp_path).rename(tmp_path / "mine")
    data = load("PACS", tmp_path, DATASET__DIR="mine")
    assert data.train_x[0].path.is_file() and len(data.train_x) == 48


def test_broken_image_of_pacs_is_left_out(tmp_path: Path) -> None:
    layout = DOMAIN_LAYOUTS["PACS"][0].name
    lists = write_domain_set("PACS", layout, tmp_path) / "splits" / "sketch_train_kfold.txt"
    assert BROKEN in lists.read_text()
    data = load("PACS", tmp_path)
    assert all(d.key != BROKEN for d in data.all())
    assert any(BROKEN in note for note in data.notes)


def test_training_images_of_a_test_list_are_not_tested_on(tmp_path: Path) -> None:
    write_domain_set("PACS", "FedPHA folds", tmp_path)
    data = load("PACS", tmp_path)
    assert not {d.key for d in data.train_x} & {d.key for d in data.test}
    assert any("48 image(s) of the test lists are in an earlier list too" in n for n in data.notes)


def test_a_class_missing_in_one_domain_shifts_no_label(tmp_path: Path) -> None:
    write_domain_set("DomainNetFull", "DomainNet lists", tmp_path)
    data = load("DomainNetFull", tmp_path)
    painting = data.domain_names.index("painting")
    held = {d.label: d.classname for d in data.train_x if d.domain == painting}
    assert held == {0: "The_Eiffel_Tower", 2: "zebra"}
    assert any("domain 'painting' lacks 1 class(es) in train: t-shirt" in n for n in data.notes)


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    folder = write_domain_set("OfficeHome", "FedTV pickles", tmp_path)
    (folder / "Real World_test.pkl").unlink()
    with pytest.raises(DataError, match=r"OfficeHome/Real World_test.pkl missing .*other layouts"):
        load("OfficeHome", tmp_path)
