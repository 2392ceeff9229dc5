"""Folders of images as people have them: what is understood, and what could be two things."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml
from PIL import Image

from fedvlm.config.build import build_config
from fedvlm.config.keys import default_schema
from fedvlm.core.errors import ConfigError, DataError
from fedvlm.data.datasets import load_for_training
from fedvlm.data.datum import PARTS
from fedvlm.data.own.add import OwnSet, _once, understand, yaml_text
from tests.data.miniatures import shapes
from tests.data.miniatures.own import shared, write_image, write_tree
from tests.data.miniatures.shapes import CLASSES, SHAPES, WNIDS
from tests.models.bert import write_news


def read(path: Path, cache: Path, **given: object) -> OwnSet:
    keys = {key.replace("__", "."): value for key, value in given.items()}
    return understand(path, {"CACHE_DIR": str(cache)} | keys)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "my set"


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_is_understood(shape: str, place: Path, tmp_path: Path) -> None:
    make, what, names, sizes = SHAPES[shape]
    make(place)
    own = read(place, tmp_path / "cache")
    assert what in own.what and own.data.name == "my_set"
    assert own.data.classnames == names
    assert tuple(len(own.data.parts[p]) for p in PARTS) == sizes
    for datum in own.data.all():
        with Image.open(datum.impath) as image:
            assert image.size == (8, 8)
    counted = "/".join(map(str, sizes))
    assert own.sentence.startswith(f"my_set: {own.what}: ") and counted in own.sentence


@pytest.mark.parametrize("shape", SHAPES)
def test_the_yaml_reads_the_same(shape: str, place: Path, tmp_path: Path) -> None:
    SHAPES[shape][0](place)
    own = read(place, tmp_path / "cache")
    file = tmp_path / "set.yaml"
    file.write_text(yaml_text(own), encoding="utf-8")
    cfg, _ = build_config(file, None, {"CACHE_DIR": str(tmp_path / "cache")}, [], default_schema())
    assert cfg.DATASET.TEMPLATE == "a photo of a {}."
    assert load_for_training(cfg).parts == own.data.parts
    comments = [line for line in file.read_text().splitlines() if line.startswith("# ")]
    assert comments[0] == f"# {own.sentence}" and len(comments) == len(own.notes) + 2


def test_images_and_labels_stay_together(place: Path, tmp_path: Path) -> None:
    """The label of each image is the one that the folder or the table says, by the bytes."""
    shapes.csv_by_part(place)
    own = read(place, tmp_path)
    assert {d.key.split("_")[0] == d.classname for d in own.data.all()} == {True}
    assert {d.key.endswith("3.png") for d in own.data.test} == {True}
    shapes.tiny_imagenet(tmp_path / "tiny")
    tiny = read(tmp_path / "tiny", tmp_path).data
    lines = (tmp_path / "tiny/val/val_annotations.txt").read_text().splitlines()
    said = {f"val/images/{line.split()[0]}": WNIDS[line.split()[1]] for line in lines}
    assert {d.key: d.classname for d in tiny.test} == said
    assert {WNIDS[d.key.split("/")[1]] == d.classname for d in tiny.train_x} == {True}


def test_what_was_decided_is_said(place: Path, tmp_path: Path) -> None:
    def notes(shape: str) -> str:
        shutil.rmtree(place, ignore_errors=True)
        SHAPES[shape][0](place)
        return "\n".join(read(place, tmp_path).notes)

    assert "no test part: val is the test list, and there is no validation" in notes("train_val")
    assert "0.3 of each class are its test images, drawn by DATA_SEED 1" in notes("train_only")
    assert "not a published split" in notes("classes")
    assert "one client per domain: FED.PARTITION domain, FED.CLIENTS 3" in notes("domains")
    dealt = "\n".join(understand(place, {"FED.PARTITION": "iid", "FED.CLIENTS": "2"}).notes)
    assert "one client per domain" not in dealt
    assert "class names from words.txt" in notes("words")
    assert "no labels and are left out" in notes("tiny_imagenet")
    assert "2 clients are simulated, each with about 8 to train on" in notes("train_val_test")
    own = understand(place, {"FED.CLIENTS": "3"})
    assert own.keys["FED.CLIENTS"] == 3 and "3 clients are simulated" in "\n".join(own.notes)
    assert "no column names a class, so it is the folder of each image" in notes("metadata_jsonl")
    write_tree(place, [""], ["001", "002"], 4)
    shutil.rmtree(place)
    write_tree(place, [""], ["001", "002"], 4)
    assert "the class folders look like codes (001, 002)" in "\n".join(read(place, tmp_path).notes)


def test_the_draw_of_test_images_follows_the_data_seed(place: Path, tmp_path: Path) -> None:
    shapes.train_only(place)
    one, again, other = (read(place, tmp_path, DATA_SEED=seed).data for seed in (1, 1, 2))
    assert [d.key for d in one.test] == [d.key for d in again.test]
    assert [d.key for d in one.test] != [d.key for d in other.test]
    assert len(one.test) == len(other.test) == 8
    few = read(place, tmp_path, DATASET__TEST_SHARE="0.5").data
    assert (len(few.train_x), len(few.test)) == (12, 12)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        ([], "holds no image .*and no table"),
        (["1.png", "2.png"], "lie in no class folder, and no table says"),
        (["cat/1.png"], "holds one class only, cat"),
        (["train/cat/1.png", "train/dog/1.png", "test/images/1.png"],
         "test/images is no class of .*train .cat, dog.*DATASET.LEAVE_OUT test"),
        (["cat/1.png", "dog/1.png", "unlabeled/1.png"],
         "looks like unlabelled images .*DATASET.LEAVE_OUT unlabeled"),
        (["train/cat/1.png", "train/dog/1.png", "train/unsup/1.png", "test/cat/1.png"],
         "train/unsup looks like unlabelled"),
        (["test/cat/1.png", "val/cat/1.png"], "has test, val but no 'train' folder"),
        ([f"train/{c}/1.png" for c in "abcde"] + ["test/a/1.png", "test/b/1.png"],
         "3 of 5 trained classes have no test image .first: c, d, e"),
        (["one/train/1.png", "a.csv", "b.csv"], "holds several tables"),
    ],
)  # fmt: skip
def test_what_is_no_data_set_is_refused(
    make: list[str], says: str, place: Path, tmp_path: Path
) -> None:
    place.mkdir()
    for n, name in enumerate(make):
        (place / name).write_text("path,classname\n1.png,cat\n") if name.endswith(
            "csv") else write_image(place / name, n)
    with pytest.raises(DataError, match=says) as caught:
        read(place, tmp_path)
    assert "\n" not in str(caught.value)


def test_the_remedies_work(place: Path, tmp_path: Path) -> None:
    write_tree(place, ["train", "test"], CLASSES, 3)
    write_tree(place, [""], ["extra"], 3)
    shutil.rmtree(place / "test")
    write_tree(place / "test", [""], ["images"], 9)
    own = read(place, tmp_path, DATASET__LEAVE_OUT="test")
    assert (own.what, len(own.data.test)) == ("a train folder only", 4)
    assert own.keys["DATASET.LEAVE_OUT"] == "test" and "left out: test" in own.notes
    assert yaml.safe_load(yaml_text(own))["DATASET"]["LEAVE_OUT"] == ["test"]
    write_tree(place / "val", [""], CLASSES, 2)
    shutil.rmtree(place / "test")
    write_image(place / "test" / "0001.png", 1)
    own = read(place, tmp_path)
    assert any("left out: its images lie in no class folder" in note for note in own.notes)
    assert len(own.data.test) == 8


def test_the_201_classes_of_tiny_imagenet_without_annotations(place: Path, tmp_path: Path) -> None:
    """As it was read once: ten thousand images without a label as one class more."""
    shapes.tiny_imagenet(place)
    (place / "val" / "val_annotations.txt").unlink()
    with pytest.raises(DataError, match="(val|test)/images is no class of .*LEAVE_OUT (val|test)"):
        read(place, tmp_path)


def test_a_known_set_is_read_as_that_set_and_a_namesake_is_not(tmp_path: Path) -> None:
    eurosat = shared("eurosat")
    own = read(eurosat, tmp_path)
    assert (own.data.name, own.keys.get("DATASET.FORMAT")) == ("EuroSAT", None)
    assert "layout 'CoOp split file'" in own.sentence and "TEMPLATE" not in yaml_text(own)
    write_tree(tmp_path / "flowers", [""], CLASSES, 4)  # an alias of OxfordFlowers
    own = read(tmp_path / "flowers", tmp_path)
    assert own.data.name == "flowers_images" and "OxfordFlowers" in own.notes[0]
    assert not any("published set" in note for note in own.notes)
    write_tree(tmp_path / "beasts" / "images", [""], CLASSES, 4)
    assert read(tmp_path / "beasts" / "images", tmp_path).data.name == "beasts_images"


@pytest.mark.parametrize("name", ["PACS", "office_home"])
def test_a_domain_tree_of_a_known_set(name: str, tmp_path: Path) -> None:
    domains = {"PACS": ["art_painting", "cartoon", "photo", "sketch"],
               "office_home": ["Art", "Clipart", "Product", "Real World"]}[name]
    write_tree(tmp_path / name, domains, CLASSES, 5)
    own = read(tmp_path / name, tmp_path)
    assert own.keys["FED.PARTITION"] == "domain" and own.keys["FED.CLIENTS"] == 4
    assert "DomainBed domain tree" in own.what and len(own.data.domain_names) == 4


def test_real_images_in_the_commonest_shapes(tmp_path: Path) -> None:
    images = shared("eurosat") / "2750"
    names = sorted(p.name for p in images.iterdir())[:3]
    for part, files in (("train", slice(0, 6)), ("val", slice(6, 8))):
        for name in names:
            (tmp_path / "parts" / part / name).mkdir(parents=True)
            for file in sorted((images / name).iterdir())[files]:
                (tmp_path / "parts" / part / name / file.name).symlink_to(file)
    own = read(tmp_path / "parts", tmp_path)
    assert [len(own.data.parts[p]) for p in PARTS] == [18, 0, 6]
    assert names[0] == "AnnualCrop"
    assert own.data.classnames == ["annual crop", "Forest", "herbaceous vegetation"]
    whole = read(images, tmp_path)
    assert whole.data.num_classes == 10 and whole.data.name == "2750"


def test_files_that_are_no_folder(tmp_path: Path) -> None:
    shapes.csv(tmp_path / "set")
    own = read(tmp_path / "set" / "labels.csv", tmp_path)
    assert own.what == "a table, labels.csv" and len(own.data.test) == 4
    (tmp_path / "x.zip").write_bytes(b"PK")
    with pytest.raises(DataError, match="unpack it and give the folder"):
        read(tmp_path / "x.zip", tmp_path)
    with pytest.raises(DataError, match="does not exist; did you mean 'set'"):
        read(tmp_path / "sat", tmp_path)
    with pytest.raises(DataError, match="the file .*lst.csv does not exist"):
        read(tmp_path / "set" / "lst.csv", tmp_path)
    with pytest.raises(ConfigError, match="TEST_SHARE"):
        read(tmp_path / "set", tmp_path, DATASET__TEST_SHARE="2")


def test_texts_are_known_by_their_folders_or_columns(tmp_path: Path) -> None:
    own = read(write_news(tmp_path / "news", 4), tmp_path)
    assert own.sentence == (
        "news: class folders of texts in 20news-bydate-train, 20news-bydate-test: 3 classes "
        "(rec.autos, sci.space, talk.politics), 12/0/6 texts in train/val/test")
    assert own.keys["DATASET.FORMAT"] == "texts" and "DATASET.TEMPLATE" not in own.keys
    shutil.rmtree(tmp_path / "news" / "20news-bydate-test")
    assert read(tmp_path / "news", tmp_path).keys["DATASET.TEST_SHARE"] == 0.3
    (tmp_path / "plain").mkdir()
    lines = "".join(f"word {i},{'ab'[i % 2]},{i % 3}\n" for i in range(20))
    (tmp_path / "plain" / "t.csv").write_text(f"text,label,who\n{lines}")
    for place in (tmp_path / "plain", tmp_path / "plain" / "t.csv"):
        own = read(place, tmp_path, **{"DATASET.CLIENTS_BY": "who"})
        assert own.what == "a table of texts, t.csv" and len(own.data.client_names) == 3
    asked = read(tmp_path / "plain", tmp_path, **{"DATASET.COLUMNS": "text=who"})
    assert asked.data.train_x[0].array.text in "012"
    (tmp_path / "plain" / "t.csv").write_text("photo,text,label\n1.png,a cat,x\n")
    with pytest.raises(DataError, match="columns path=COLUMN"):
        read(tmp_path / "plain" / "t.csv", tmp_path)
    for name in ("a", "b"):
        (tmp_path / "rows" / name).mkdir(parents=True)
        (tmp_path / "rows" / name / "IM1").write_bytes(b"\0" * 200)
    with pytest.raises(DataError, match="holds no image"):
        read(tmp_path / "rows", tmp_path)


def test_clients_are_simulated_where_nothing_names_them(place: Path, tmp_path: Path) -> None:
    """By the number of images; the partitions by classes have two classes for each client."""
    write_tree(place, [""], [f"class{n}" for n in range(6)], 14)
    keys = read(place, tmp_path).keys
    shared = {k: v for k, v in keys.items() if k.startswith("FED.")}
    assert shared == {"FED.PARTITION": "dirichlet", "FED.BETA": 1.0, "FED.CLIENTS": 4}  # of 42
    classes = read(place, tmp_path, **{"FED.PARTITION": "disjoint"}).keys
    assert classes["FED.CLIENTS"] == 3 and "FED.BETA" not in classes
    assert read(place, tmp_path, **{"FED.PARTITION": "iid"}).keys["FED.CLIENTS"] == 4


def test_two_classes_and_one(place: Path, tmp_path: Path) -> None:
    write_tree(place, [""], ["cat", "dog"], 6)
    assert read(place, tmp_path).keys["FED.CLIENTS"] == 2
    with pytest.raises(DataError, match="(one class only|no class folder)"):
        shutil.rmtree(place / "dog")
        read(place, tmp_path)


def test_a_note_is_given_once() -> None:
    notes = ["layout 'tree'", "not the published split (tree)", "each class was cut by this "
             "project: not a published split", "layout 'other'", "layout 'other'"]
    assert _once(notes, "the set PACS, layout 'tree'") == (notes[2], "layout 'other'")
    assert _once(notes[:2], "class folders") == tuple(notes[:2])
