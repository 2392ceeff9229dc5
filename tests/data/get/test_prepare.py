"""Splits made where the published one is absent: shares, determinism, own sets, the loader."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from fedvlm.cli.main import main
from fedvlm.core.errors import ConfigError, DataError
from fedvlm.data.datasets import load_dataset
from fedvlm.data.datum import PARTS, Datum
from fedvlm.data.get.annotations import Annotations
from fedvlm.data.get.prepare import cut_lists, prepare_split
from tests.data.miniatures.domains import write_domain_set
from tests.data.miniatures.own import config, write_tree
from tests.data.miniatures.published import tree_of

CLASSES = ["AnnualCrop", "Forest", "SeaLake"]


def images(counts: list[int], prefix: str = "") -> list[Datum]:
    return [Datum(f"/x/{prefix}{c}/{i}", c, 0, str(c), f"{prefix}{c}/{i}")
            for c, n in enumerate(counts) for i in range(n)]  # fmt: skip


def sizes(parts: dict[str, list[Datum]], label: int) -> tuple[int, ...]:
    return tuple(sum(d.label == label for d in parts[p]) for p in PARTS)


def test_shares_of_a_whole_set() -> None:
    """CoOp's rounding; train has an image of every class, test too where there are two."""
    counts = [1, 2, 3, 10, 33, 100]
    parts = cut_lists(Annotations(images(counts), ""), "x", 0)
    want = [(1, 0, 0), (1, 0, 1), (2, 0, 1), (5, 2, 3), (16, 7, 10), (50, 20, 30)]
    assert [sizes(parts, c) for c in range(len(counts))] == want
    keys = Counter(d.key for p in PARTS for d in parts[p])
    assert set(keys.values()) == {1} and len(keys) == sum(counts)


def test_shares_of_a_set_with_its_own_test_images() -> None:
    test = images([3, 3, 3], "t")
    parts = cut_lists(Annotations(images([1, 2, 80]), "", test), "x", 0)
    assert [sizes(parts, c) for c in range(3)] == [(1, 0, 3), (2, 0, 3), (64, 16, 3)]
    assert {d.key for d in parts["test"]} == {d.key for d in test}
    parts = cut_lists(Annotations(images([4, 4]), "", test, images([1, 1], "v")), "x", 0)
    assert [sizes(parts, c) for c in range(2)] == [(4, 1, 3), (4, 1, 3)]


def test_the_cut_follows_the_seed_and_the_paths_not_their_order() -> None:
    every = images([40, 40])
    first = cut_lists(Annotations(every, ""), "x", 0)
    assert cut_lists(Annotations(every[::-1], ""), "x", 0) == first
    other = cut_lists(Annotations(every, ""), "x", 1)
    another = cut_lists(Annotations(every, ""), "y", 0)
    assert {d.key for d in other["train"]} != {d.key for d in first["train"]}
    assert {d.key for d in another["train"]} != {d.key for d in first["train"]}
    half = [d for d in every if d.label == 1]  # a class's cut does not depend on the others
    assert {d.key for d in cut_lists(Annotations(half, ""), "x", 0)["val"]} == {
        d.key for d in first["val"] if d.label == 1
    }


def test_the_same_split_in_another_process(tmp_path: Path) -> None:
    write_tree(tmp_path / "eurosat" / "2750", [""], CLASSES, 5)
    code = ("import sys, json; from fedvlm.data.get.prepare import prepare_split; "
            "print(json.dumps(prepare_split('EuroSAT', sys.argv[1]).content()))")
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], check=True, text=True, capture_output=True,
        env=os.environ | {"PYTHONHASHSEED": "1"}, cwd=Path(__file__).parents[3],
    )
    content = prepare_split("EuroSAT", str(tmp_path)).content()
    assert json.loads(done.stdout) == content
    assert {row[2] for row in content["test"]} == {"Annual Crop Land", "Forest", "Sea or Lake"}


def test_an_own_tree_and_its_part_folders(tmp_path: Path) -> None:
    write_tree(tmp_path / "mine" / "pics", [""], ["b", "a"], 10)
    made = prepare_split("Mine", str(tmp_path), folder="mine", image_dir="pics")
    assert made.data.classnames == ["a", "b"] and made.folder == tmp_path / "mine"
    assert [len(made.data.parts[p]) for p in PARTS] == [10, 4, 6]
    assert all(row[0].startswith(("a/", "b/")) for row in made.content()["train"])
    write_tree(tmp_path / "parts", ["train", "test"], ["b", "a"], 5)
    made = prepare_split("Parts", str(tmp_path), folder="parts")
    assert [len(made.data.parts[p]) for p in PARTS] == [8, 2, 10]
    assert {row[0].split("/")[0] for row in made.content()["val"]} == {"train"}


def test_cifar_trees_are_cut_and_its_pickles_are_not(tmp_path: Path) -> None:
    write_tree(tmp_path / "cifar-10", ["train", "test"], ["cat", "dog"], 10)
    made = prepare_split("cifar10", str(tmp_path))
    assert [len(made.data.parts[p]) for p in PARTS] == [16, 4, 20]
    (tmp_path / "cifar-100" / "cifar-100-python").mkdir(parents=True)
    with pytest.raises(DataError, match="pickles of CIFAR are read as they are"):
        prepare_split("Cifar100", str(tmp_path))


@pytest.mark.parametrize(
    ("name", "keys", "kind", "says"),
    [
        ("EuroSatt", {}, ConfigError, "did you mean 'EuroSAT'"),
        ("FGVCAircraft", {}, ConfigError, "nothing to prepare"),
        ("Shapes", {}, ConfigError, "nothing to prepare"),
        ("EuroSAT", {"image_dir": "x"}, ConfigError, "--image-dir is for own sets"),
        ("EuroSAT", {}, DataError, "the folder of EuroSAT .--dir. is missing"),
        ("EuroSAT", {"folder": "../x"}, DataError, "without '..'"),
        ("a/b", {"folder": "x"}, ConfigError, "cannot name a file"),
        ("Mine", {"folder": "nowhere"}, DataError, "the folder of Mine"),
    ],
)
def test_what_cannot_be_prepared(
    tmp_path: Path, name: str, keys: dict[str, str], kind: type[Exception], says: str
) -> None:
    with pytest.raises(kind, match=says) as caught:
        prepare_split(name, str(tmp_path), **keys)
    assert "\n" not in str(caught.value)


def test_images_that_are_listed_but_absent_are_named(tmp_path: Path) -> None:
    lists = tmp_path / "oxford_pets" / "annotations"
    lists.mkdir(parents=True)
    (lists / "trainval.txt").write_text("Cat_1 1 1 1\n")
    (lists / "test.txt").write_text("Cat_2 1 1 1\n")
    with pytest.raises(DataError, match=r"2 of 2 images that .* are not in .*first: Cat_1.jpg"):
        prepare_split("OxfordPets", str(tmp_path))


def test_an_empty_class_folder_is_named(tmp_path: Path) -> None:
    write_tree(tmp_path / "eurosat" / "2750", [""], CLASSES, 2)
    (tmp_path / "eurosat" / "2750" / "Hollow").mkdir()
    with pytest.raises(DataError, match="Hollow"):
        prepare_split("EuroSAT", str(tmp_path))


def test_no_split_of_domains_is_prepared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_tree(tmp_path / "mine", ["photo", "sketch"], ["cat", "dog"], 4)
    words = ["data", "prepare", "Mine", "--root", str(tmp_path), "--dir", "mine", "--into-dataset"]
    assert main(words) == 3
    assert "so they are domains and no classes" in capsys.readouterr().err
    assert not list(tmp_path.rglob("*.json"))


def test_the_way_to_a_split_is_one_that_works(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It names the folder that the run names; a set without a split file has none to make."""
    tree_of("EuroSAT", tmp_path, without=("split",))
    (tmp_path / "eurosat").rename(tmp_path / "EuroSat")
    keys = {"DATASET__NAME": "EuroSAT", "DATASET__DIR": "EuroSat"}
    with pytest.raises(DataError, match="EuroSat'. .DATASET.DIR says where it lies"):
        load_dataset(config(tmp_path, tmp_path / "cache", DATASET__NAME="EuroSAT"))
    cfg = config(tmp_path, tmp_path / "cache", **keys)
    with pytest.raises(DataError) as found:
        load_dataset(cfg)
    (way,) = [part for part in str(found.value).split("; ") if "data prepare" in part]
    words = way.partition("-m fedvlm ")[2].split()
    assert main([*words, "--cache-dir", str(tmp_path / "cache")]) == 0
    assert f"runs with CACHE_DIR {tmp_path / 'cache'} find it" in capsys.readouterr().out
    assert any("not the published split" in note for note in load_dataset(cfg).notes)
    write_domain_set("OfficeHome", "Dassl domain tree", tmp_path)
    (tmp_path / "office_home" / "art").rename(tmp_path / "office_home" / "Artt")
    with pytest.raises(DataError, match="office_home/art missing") as found:
        load_dataset(config(tmp_path, tmp_path / "cache", DATASET__NAME="OfficeHome"))
    assert "prepare" not in str(found.value)
