"""Annotations of the sets without their split file: miniatures, and the published splits undone."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedvlm.core.errors import DataError
from fedvlm.data.catalog import CATALOG
from fedvlm.data.datum import PARTS, Datum
from fedvlm.data.get.annotations import READERS, Annotations, car_name, sun_name, ucf_name
from fedvlm.data.get.prepare import cut_lists, prepare_split
from tests.data.miniatures.own import SHARED, shared

Rows = dict[str, list[list[Any]]]


def read(name: str, home: Path) -> Annotations:
    return READERS[name](home, CATALOG[name])


def write(path: Path, *lines: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def rows(items: list[Datum] | None) -> list[tuple[str, int, str]]:
    return [(d.key, d.label, d.classname) for d in items or []]


def write_pets(home: Path, split: Rows) -> None:
    def lines(*parts: str) -> list[str]:
        return [f"{r[0][:-4]} {r[1] + 1} 1 1" for p in parts for r in split[p]]

    write(home / "annotations/trainval.txt", "#Image CLASS-ID SPECIES", *lines("train", "val"))
    write(home / "annotations/test.txt", *lines("test"))


def write_ucf(home: Path, split: Rows) -> None:
    names = {r[1]: r[2].replace("_", "") for part in PARTS for r in split[part]}

    def lines(*parts: str) -> list[str]:
        found = [r for p in parts for r in split[p]]
        return [f"{names[r[1]]}/{r[0].split('/')[1][:-4]}.avi {r[1] + 1}" for r in found]

    write(home / "ucfTrainTestlist/classInd.txt", *(f"{i + 1} {names[i]}" for i in sorted(names)))
    write(home / "ucfTrainTestlist/trainlist01.txt", *lines("train", "val"))
    write(home / "ucfTrainTestlist/testlist01.txt", *[s.split()[0] for s in lines("test")])


def write_cars(home: Path, split: Rows) -> None:
    from scipy.io import savemat

    names = {r[1]: r[2] for part in PARTS for r in split[part]}
    words = [names[i].split(" ") for i in sorted(names)]
    year_last = [" ".join([*rest, year]) for year, *rest in words]

    def table(*parts: str) -> Any:
        found = [r for p in parts for r in split[p]]
        made = np.empty((1, len(found)), dtype=[("class", "O"), ("fname", "O")])
        for i, row in enumerate(found):
            made[0, i] = (np.array([[row[1] + 1]]), row[0].split("/")[1])
        return {"annotations": made}

    (home / "devkit").mkdir(parents=True)
    cells = np.empty((1, len(year_last)), dtype=object)
    cells[0] = year_last
    savemat(home / "devkit/cars_meta.mat", {"class_names": cells})
    savemat(home / "devkit/cars_train_annos.mat", table("train", "val"))
    savemat(home / "cars_test_annos_withlabels.mat", table("test"))


def write_flowers(home: Path, split: Rows) -> None:
    from scipy.io import savemat

    every = sorted((r for part in PARTS for r in split[part]), key=lambda r: r[0])
    assert [int(r[0][6:11]) for r in every] == list(range(1, len(every) + 1))
    home.mkdir(parents=True, exist_ok=True)
    savemat(home / "imagelabels.mat", {"labels": np.array([[r[1] + 1 for r in every]])})
    names = {str(r[1] + 1): r[2] for r in every}
    (home / "cat_to_name.json").write_text(json.dumps(names), encoding="utf-8")


WRITERS = {"OxfordPets": write_pets, "UCF101": write_ucf, "StanfordCars": write_cars,
           "OxfordFlowers": write_flowers}  # fmt: skip


@pytest.mark.parametrize("name", WRITERS)
def test_the_published_split_comes_back_from_its_annotations(tmp_path: Path, name: str) -> None:
    """Images, labels and names are the published split's; so is each part's size by class."""
    split: Rows = json.loads((shared("splits") / CATALOG[name].split_file).read_text("utf-8"))
    WRITERS[name](tmp_path, split)
    found = read(name, tmp_path)
    listed = {tuple(r) for part in PARTS for r in split[part]}
    assert {*rows(found.images), *rows(found.test)} == listed
    if found.test is not None:
        assert set(rows(found.test)) == {tuple(r) for r in split["test"]}
    made = cut_lists(found, name, 0)
    for part in PARTS:
        assert Counter(d.label for d in made[part]) == Counter(r[1] for r in split[part]), part
    assert {r[0] for r in split["train"]} != {d.key for d in made["train"]}  # another draw


@pytest.mark.parametrize("name", ["Caltech101", "DescribableTextures", "EuroSAT"])
def test_a_real_tree_gives_the_published_names_labels_and_sizes(name: str) -> None:
    home = shared(CATALOG[name].folder)
    split: Rows = json.loads((home / CATALOG[name].split_file).read_text("utf-8"))
    data = prepare_split(name, str(SHARED)).data
    published = {r[1]: r[2] for part in PARTS for r in split[part]}
    renumbered = {old: new for new, old in enumerate(sorted(published))}  # of a subset of classes
    assert data.lab2cname == {renumbered[k]: v for k, v in published.items()}
    for part in PARTS if name != "EuroSAT" else ():  # that copy is a subset, cut 100/40/100
        mine = Counter(d.label for d in data.parts[part])
        assert mine == Counter(renumbered[r[1]] for r in split[part]), part
    assert {d.key for d in data.all()} == {r[0] for part in PARTS for r in split[part]}


def test_sun_names_and_lists(tmp_path: Path) -> None:
    write(tmp_path / "ClassName.txt", "/a/abbey", "/a/apse/indoor", "/z/ball_pit")
    write(tmp_path / "Training_01.txt", "/a/apse/indoor/sun_b.jpg", "/a/abbey/sun_a.jpg")
    write(tmp_path / "Testing_01.txt", "/z/ball_pit/sun_c.jpg")
    found = read("SUN397", tmp_path)
    assert rows(found.images) == [("a/apse/indoor/sun_b.jpg", 1, "indoor apse"),
                                  ("a/abbey/sun_a.jpg", 0, "abbey")]
    assert rows(found.test) == [("z/ball_pit/sun_c.jpg", 2, "ball_pit")]
    assert found.images[0].path == tmp_path / "SUN397/a/apse/indoor/sun_b.jpg"


def test_sun_lists_may_lie_beside_the_images(tmp_path: Path) -> None:
    for name in ("ClassName.txt", "Training_01.txt", "Testing_01.txt"):
        write(tmp_path / "SUN397" / name, "/a/abbey" if name[0] == "C" else "/a/abbey/x.jpg")
    assert rows(read("SUN397", tmp_path).images) == [("a/abbey/x.jpg", 0, "abbey")]


def test_clean_ups() -> None:
    assert sun_name("/c/church/outdoor") == "outdoor church" and sun_name("/a/abbey") == "abbey"
    assert ucf_name("ApplyEyeMakeup") == "Apply_Eye_Makeup" and ucf_name("YoYo") == "Yo_Yo"
    assert car_name("Audi TTS Coupe 2012") == "2012 Audi TTS Coupe"


def test_pets_breeds_are_lower_case(tmp_path: Path) -> None:
    write(tmp_path / "annotations/trainval.txt", "# a comment", "Egyptian_Mau_3 2 1 1",
          "Abyssinian_1 1 1 1")
    write(tmp_path / "annotations/test.txt", "Abyssinian_2 1 1 1", "Egyptian_Mau_4 2 1 1")
    found = read("OxfordPets", tmp_path)
    assert rows(found.images) == [("Egyptian_Mau_3.jpg", 1, "egyptian_mau"),
                                  ("Abyssinian_1.jpg", 0, "abyssinian")]


BAD: dict[str, tuple[str, dict[str, str], str]] = {
    "pets: no lists": ("OxfordPets", {}, "annotations/trainval.txt is missing"),
    "pets: no label": ("OxfordPets", {"annotations/trainval.txt": "Cat_1"}, "txt:1: a line is"),
    "pets: a word for a label": ("OxfordPets", {"annotations/trainval.txt": "Cat_1 x"},
                                 "'x' is not a whole number"),
    "pets: label 0": ("OxfordPets", {"annotations/trainval.txt": "Cat_1 0"}, "below the first"),
    "pets: outside": ("OxfordPets", {"annotations/trainval.txt": "../../C_1 1"}, "without '..'"),
    "sun: another class": ("SUN397", {"ClassName.txt": "/a/abbey",
                                      "Training_01.txt": "/b/bar/1.jpg"},
                           "'b/bar' is not a class"),
    "ucf: another action": ("UCF101", {"ucfTrainTestlist/classInd.txt": "1 Biking",
                                       "ucfTrainTestlist/trainlist01.txt": "Diving/v_1.avi 1"},
                            "'Diving' is not an action"),
    "cars: no text": ("StanfordCars", {"devkit/cars_meta.mat": "<html>"}, "not a MATLAB file"),
    "flowers: no names": ("OxfordFlowers", {"imagelabels.mat": "x"}, "cat_to_name.json"),
    "flowers: a list": ("OxfordFlowers", {"cat_to_name.json": "[]"}, "object of label to name"),
    "flowers: no labels": ("OxfordFlowers", {"cat_to_name.json": "{}"}, "imagelabels.mat"),
    "food: no images": ("Food101", {"meta/x.txt": ""}, "image folder of Food101 is missing"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_what_is_wrong_is_said_in_one_sentence(tmp_path: Path, case: str) -> None:
    name, files, says = BAD[case]
    for file, text in files.items():
        write(tmp_path / file, text)
    with pytest.raises(DataError, match=says) as caught:
        read(name, tmp_path)
    assert "\n" not in str(caught.value)
