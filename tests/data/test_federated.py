"""build_federation end to end on small trees, and on the real sets where they are at hand."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedvlm.config.build import build_config
from fedvlm.config.keys import default_schema
from fedvlm.core.errors import ConfigError, DataError
from fedvlm.data.federated import FederatedData, build_federation, untrained_notes
from fedvlm.data.fewshot import coop_draw
from tests.data.miniatures.own import (
    check_federation,
    config,
    own_split,
    shared,
    write_image,
    write_split,
    write_tree,
)

CLASSES = ["a", "b", "c", "d", "e"]
SIZES = {"train": 6, "val": 2, "test": 3}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_split(tmp_path / "mine", CLASSES, SIZES)
    return tmp_path


def make(root: Path, **keys: Any) -> FederatedData:
    return build_federation(own_split(root, root / "cache", **keys))


def test_disjoint_full(root: Path) -> None:
    data = make(root)
    check_federation(data)
    assert [len(c.train) for c in data.clients] == [18, 12]
    assert len(data.global_test) == 15 and len(data.new_test) == 0
    assert data.templates == ["a photo of a {}."] and data.classnames == CLASSES
    assert data.notes == [] and data.skipped == []


def test_base_new_and_shots(root: Path) -> None:
    data = make(root, DATASET__SUBSAMPLE_CLASSES="base", DATASET__NUM_SHOTS=2)
    check_federation(data)
    assert data.classnames == ["a", "b", "c"] and data.new_classnames == ["d", "e"]
    assert [len(c.train) for c in data.clients] == [4, 2]
    assert sorted(set(data.labels[data.new_test])) == [0, 1] and len(data.new_test) == 6
    without = make(root, DATASET__SUBSAMPLE_CLASSES="base", DATASET__TEST_NEW=False)
    assert without.new_classnames == [] and len(without.new_test) == 0
    new = make(root, DATASET__SUBSAMPLE_CLASSES="new")
    check_federation(new)
    assert new.classnames == ["d", "e"] and set(new.labels) == {0, 1}


@pytest.mark.parametrize("half", ["all", "base"])
def test_shots_are_coops(root: Path, half: str) -> None:
    """The union of the clients' images is CoOp's draw from all classes, cut to the half."""
    split = json.loads((root / "mine" / "split.json").read_text())
    labels = {p: [row[1] for row in split[p]] for p in ("train", "val")}
    for seed in (1, 2):
        data = make(root, DATASET__NUM_SHOTS=3, DATASET__SUBSAMPLE_CLASSES=half, DATA_SEED=seed)
        train, val = coop_draw(labels["train"], labels["val"], 3, -1, seed)
        for part, picks in (("train", train), ("val", val)):
            want = {split[part][i][0] for i in picks if half == "all" or split[part][i][1] < 3}
            got = {data.samples[i].key for c in data.clients for i in getattr(c, part)}
            assert got == want


def test_iid_clients_draw_their_own_shots(root: Path) -> None:
    data = make(root, DATASET__NUM_SHOTS=2, FED__PARTITION="iid", FED__CLIENTS=3)
    check_federation(data)
    for client in data.clients:
        assert np.bincount(data.labels[client.train]).tolist() == [2] * 5
        assert np.bincount(data.labels[client.val]).tolist() == [2] * 5
    assert len({tuple(c.train) for c in data.clients}) == 3
    assert sorted(i for c in data.clients for i in c.test) == data.global_test.tolist()


@pytest.mark.parametrize("kind", ["domain", "domain_dirichlet"])
@pytest.mark.parametrize("shots", [-1, 2])
def test_domains(tmp_path: Path, kind: str, shots: int) -> None:
    write_tree(tmp_path / "mine", ["north", "south"], ["a", "b", "c"], 20)
    cfg = config(
        tmp_path, tmp_path / "cache", DATASET__DIR="mine", DATASET__FORMAT="domains",
        DATASET__NUM_SHOTS=shots, FED__PARTITION=kind, FED__CLIENTS=2,
    )  # fmt: skip
    data = build_federation(cfg)
    check_federation(data)
    assert [c.domain for c in data.clients] == ["north", "south"]
    assert data.domain_names == ["north", "south"]
    per_class = 10 if shots < 0 else shots
    for number, client in enumerate(data.clients):
        assert set(data.domains[client.train]) == {number} == set(data.domains[client.test])
        assert np.bincount(data.labels[client.train]).tolist() == [per_class] * 3


def test_digest_says_what_changed_and_nothing_else(root: Path) -> None:
    before = random.getstate(), np.random.get_state()[1].copy()
    base = make(root)
    assert base.digest == make(root).digest == make(root, FED__BETA=0.9).digest
    others = [
        make(root, DATA_SEED=2), make(root, FED__CLIENTS=3), make(root, DATASET__NUM_SHOTS=2),
        make(root, FED__PARTITION="iid"), make(root, FED__LEGACY=True),
        make(root, DATASET__SUBSAMPLE_CLASSES="base"),
    ]  # fmt: skip
    assert len({base.digest, *(o.digest for o in others)}) == 7
    assert random.getstate() == before[0]
    assert np.array_equal(np.random.get_state()[1], before[1])


@pytest.mark.parametrize("kind", ["disjoint", "iid", "dirichlet"])
@pytest.mark.parametrize("shots", [-1, 4])
def test_broken_images_are_skipped_by_name(root: Path, kind: str, shots: int) -> None:
    images = root / "mine" / "images"
    for name in ("a/0.png", "a/7.png", "b/9.png"):  # train, val, test
        (images / name).write_bytes(b"broken")
    keys = {"FED__PARTITION": kind, "DATASET__NUM_SHOTS": shots}
    data = make(root, **keys)
    check_federation(data)
    assert data.digest == make(root, **keys).digest
    held = {s.key for s in data.samples}
    assert not held & {"a/0.png", "a/7.png", "b/9.png"}
    assert len(data.global_test) == 14
    assert sorted(i for c in data.clients for i in c.test) == data.global_test.tolist()
    assert "b/9.png" in data.skipped and any("b/9.png (cannot identify" in n for n in data.notes)
    if shots < 0:
        assert data.skipped == ["a/0.png", "a/7.png", "b/9.png"]
        assert sorted(i for c in data.clients for i in c.train) == list(range(29))
    with pytest.raises(DataError, match=r"do not decode: .*set DATASET.ON_CORRUPT skip"):
        make(root, DATASET__ON_CORRUPT="refuse", **keys)


def test_too_many_clients_is_said_before_any_image_is_opened(root: Path) -> None:
    for image in (root / "mine" / "images").rglob("*.png"):
        image.write_bytes(b"broken")
    with pytest.raises(ConfigError) as caught:
        make(root, FED__CLIENTS=4, DATASET__SUBSAMPLE_CLASSES="base")
    for choice in ("FED.CLIENTS 1 to 3", "SUBSAMPLE_CLASSES all (5 classes)", "dirichlet or iid"):
        assert choice in str(caught.value)
    with pytest.raises(ConfigError, match="needs a set with domains"):
        make(root, FED__PARTITION="domain")


def test_notes_on_short_classes_legacy_and_twins(root: Path) -> None:
    data = make(root, DATASET__NUM_SHOTS=8, FED__LEGACY=True)
    (short,) = [n for n in data.notes if "fewer than 8 training images, at most 6: all" in n]
    assert short.startswith("5 class(es)") and short.endswith("still named shots_8")
    assert any("legacy-2023 class map" in n for n in data.notes)
    images = root / "mine" / "images"
    (images / "a" / "8.png").write_bytes((images / "b" / "0.png").read_bytes())
    twins = make(root)
    said = "1 of 15 test images have the same bytes as a training image (first: "
    assert [n.startswith(said) for n in twins.doubts] == [True]
    assert twins.doubts[0][:-1] in twins.notes


def test_missing_images_and_bad_policy(root: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean 'skip'"):
        build_config(None, None, {"DATASET.ON_CORRUPT": "skipp"}, [], default_schema())
    (root / "mine" / "images" / "a" / "0.png").unlink()
    with pytest.raises(DataError, match="do not exist .first: .*a/0.png"):
        make(root)


def test_a_client_whose_images_are_all_broken_is_refused(root: Path) -> None:
    for name in ("a", "b", "c", "d", "e"):
        for n in range(6):
            (root / "mine" / "images" / name / f"{n}.png").write_bytes(b"broken")
    with pytest.raises(DataError, match="would hold no training image"):
        make(root)


def test_non_ascii_paths_and_spaces(tmp_path: Path) -> None:
    write_tree(tmp_path / "my š set", ["train", "test"], ["čáp bílý", "d-1"], 3)
    data = build_federation(
        config(tmp_path, tmp_path / "c", DATASET__DIR="my š set", DATASET__FORMAT="folders")
    )
    check_federation(data)
    assert data.samples[0].key in ("train/d-1/0.png", "train/čáp bílý/0.png")


def test_builtin_set_is_rendered_outside_the_users_root(tmp_path: Path) -> None:
    cfg = config("", tmp_path / "cache", DATASET__NAME="digits", DATASET__NUM_SHOTS=4)
    data = build_federation(cfg)
    check_federation(data)
    assert len(data.classnames) == 10 and data.notes == []
    assert (tmp_path / "cache" / "fedvlm-data" / "digits").is_dir()


def test_set_under_the_users_root_comes_first(tmp_path: Path) -> None:
    write_split(tmp_path / "digits", ["x", "y"], {"train": 2, "test": 1})
    (tmp_path / "digits" / "split.json").rename(tmp_path / "digits" / "split_zhou_Digits.json")
    data = build_federation(config(tmp_path, tmp_path / "cache", DATASET__NAME="Digits"))
    assert data.classnames == ["x", "y"]
    assert "2 classes, 4/0/2 images" in data.notes[0]


@pytest.mark.parametrize(
    ("folder", "name", "keys"),
    [
        ("caltech-101", "Caltech101", {"DATASET__SUBSAMPLE_CLASSES": "base", "FED__CLIENTS": 10}),
        ("eurosat", "EuroSAT", {"FED__CLIENTS": 10}),
        ("dtd", "dtd", {"DATASET__SUBSAMPLE_CLASSES": "base", "FED__CLIENTS": 5}),
        ("cifar-100", "Cifar100", {"FED__PARTITION": "dirichlet", "FED__CLIENTS": 20}),
        ("cifar-10", "Cifar10", {"FED__PARTITION": "iid", "FED__CLIENTS": 7}),
    ],
)
def test_real_sets(tmp_path: Path, folder: str, name: str, keys: dict[str, Any]) -> None:
    root = shared(folder).parent
    given = {"DATASET__NAME": name, "DATASET__NUM_SHOTS": 4, "DATASET__TEST_NEW": False, **keys}
    data = build_federation(config(root, tmp_path, **given))
    check_federation(data)
    assert data.skipped == [] and len(data.clients) == keys["FED__CLIENTS"]
    classes = len(data.classnames)
    trained = sum(len(c.train) for c in data.clients)
    assert trained == 4 * classes * (7 if keys.get("FED__PARTITION") == "iid" else 1)


def test_a_single_class_without_new_half(tmp_path: Path) -> None:
    write_split(tmp_path / "mine", ["only"], {"train": 3, "test": 2})
    write_image(tmp_path / "mine" / "images" / "unused.png", 1)
    data = make(tmp_path, DATASET__SUBSAMPLE_CLASSES="base", FED__CLIENTS=1)
    assert data.classnames == ["only"] and data.new_classnames == []


def test_clients_tested_on_what_they_never_saw_are_counted(tmp_path: Path) -> None:
    """Two shots of a class for four clients: its many test images go to all of them."""
    labels = np.array([0, 1, 0, 0, 1])
    first, second = np.array([0]), np.array([1])
    (note,) = untrained_notes([(first, np.array([2, 4])), (second, np.array([3]))], labels)
    assert note.startswith("2 of the clients' 3 test images, at 2 of 2 clients, are of classes")
    assert untrained_notes([(first, np.array([2]))], labels) == []
    write_tree(tmp_path / "mine", [""], ["a", "b", "c", "d", "e"], 40)
    keys = {
        "DATASET__DIR": "mine", "DATASET__NUM_SHOTS": 2, "FED__CLIENTS": 4, "FED__BETA": 100.0,
        "FED__PARTITION": "dirichlet",
    }  # fmt: skip
    asked = config(tmp_path, tmp_path / "cache", **keys)
    data = build_federation(asked)
    off = sum(
        int(np.isin(data.labels[c.test], data.labels[c.train], invert=True).sum())
        for c in data.clients
    )
    assert off and any(n.startswith(f"{off} of the clients' 60 test") for n in data.notes)
    unseen = build_federation(asked, tested=False)  # advice says nothing of test labels
    assert not any("test images" in note for note in unseen.notes)


def test_a_class_without_training_images_is_named(tmp_path: Path) -> None:
    rows = {
        part: [[f"{c}/{n}.png", label, c] for label, c in enumerate("ab") for n in numbers]
        for part, numbers in (("train", range(4)), ("test", range(4, 6)))
    }
    rows["train"] = [row for row in rows["train"] if row[2] == "a"]
    write_tree(tmp_path / "mine", [""], ["a", "b"], 6)
    (tmp_path / "mine" / "s.json").write_text(json.dumps(rows))
    keys = {"DATASET__DIR": "mine", "DATASET__SPLIT_FILE": "s.json"}
    with pytest.raises(DataError, match=r"hold no training image; without any: class\(es\) b;"):
        build_federation(config(tmp_path, tmp_path / "cache", **keys))
    data = build_federation(config(tmp_path, tmp_path / "cache", FED__PARTITION="iid", **keys))
    assert "1 class(es) have no training image: b" in data.notes


def test_what_cannot_be_dealt_is_refused_before_an_image_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opening the images of a large set takes minutes; a partition needs the labels only."""
    opened: list[str] = []
    monkeypatch.setattr(
        "fedvlm.data.draw.find_broken", lambda lists, _: (opened.append("yes"), ({}, []))[1]
    )
    write_split(tmp_path / "mine", ["a", "b"], {"train": 4, "test": 2})
    for kind, clients in (("dirichlet", 9), ("iid", 9), ("quantity", 9)):
        keys = {"FED__PARTITION": kind, "FED__CLIENTS": clients}
        with pytest.raises(ConfigError, match="FED.CLIENTS"):
            build_federation(own_split(tmp_path, tmp_path / "cache", **keys))
        assert not opened, kind
    build_federation(own_split(tmp_path, tmp_path / "cache"))
    assert opened


def test_images_that_several_clients_hold_are_counted(root: Path) -> None:
    data = make(root, FED__PARTITION="iid", FED__CLIENTS=3, DATASET__NUM_SHOTS=4)
    held = Counter(i for client in data.clients for i in client.train)
    twice = sum(n > 1 for n in held.values())
    assert twice and any(
        note.startswith(f"clients draw from the same pool: {twice} of the {len(held)} training")
        for note in data.notes
    )
    assert not data.doubts
    same = make(root, FED__PARTITION="iid", FED__CLIENTS=3, DATASET__NUM_SHOTS=16)
    said = ("the clients hold nearly the same images: 30 of the 30 training images are at more "
            "than one client, and a client has 30 of them")
    assert same.notes[0][1:] == same.doubts[0][1:-1] and said in same.notes[0]
    assert "AFL" in same.doubts[1] and not any("same pool" in note for note in same.notes)
    for keys in ({"DATASET__NUM_SHOTS": -1}, {"FED__PARTITION": "disjoint", "FED__CLIENTS": 2}):
        alone = make(root, **{"FED__PARTITION": "iid", "FED__CLIENTS": 3, **keys})
        assert not any("same" in note for note in alone.notes) and not alone.doubts
