"""The doctor on miniature sets: their state, and every fault said, not only the first."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fedvlm.cli.main import main
from fedvlm.core.errors import DataError
from fedvlm.data.catalog import CATALOG
from fedvlm.data.datasets import load_dataset
from fedvlm.data.datum import Datum, Finding
from fedvlm.data.doctor import checks as doctor_checks
from fedvlm.data.doctor.checks import Checkup, check_lists, sample_images
from fedvlm.data.doctor.examine import examine
from fedvlm.data.get.prepare import prepare_split
from fedvlm.data.layouts import prepared_name
from tests.data.miniatures.domains import EVERY, write_domain_set
from tests.data.miniatures.own import config, own_split, write_image, write_split, write_tree
from tests.data.miniatures.published import MINIS, tree_of


def known(root: Path, name: str, sample: int | None = None, **keys: Any) -> Checkup:
    return examine(config(root, root / "cache", DATASET__NAME=name, **keys), sample)


def own(root: Path, **keys: Any) -> Checkup:
    return examine(own_split(root, root / "cache", **keys), None)


def found(check: Checkup) -> dict[str, Finding]:
    """The findings by their key; a key that is there twice is a mistake of the test."""
    keys = [f.check for f in check.findings]
    assert len(keys) == len(set(keys)), keys
    return dict(zip(keys, check.findings, strict=True))


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """``tmp_path`` with a sound own set: classes a, b, c; 0-3 train, 4 val, 5-6 test."""
    write_split(tmp_path / "mine", ["a", "b", "c"], {"train": 4, "val": 1, "test": 2})
    return tmp_path


def rewrite(root: Path, **parts: Any) -> None:
    """Replace parts of the split file; a function gets the old rows."""
    path = root / "mine" / "split.json"
    split = json.loads(path.read_text())
    for part, rows in parts.items():
        split[part] = rows(split[part]) if callable(rows) else rows
    path.write_text(json.dumps(split), encoding="utf-8")


@pytest.mark.parametrize("name", sorted(MINIS))
def test_every_published_layout_is_ready(tmp_path: Path, name: str) -> None:
    made = tree_of(name, tmp_path)
    check = known(tmp_path, name)
    assert (check.state, check.problems) == ("ready", [])
    assert check.classes == len(made.classnames)
    assert {p: n for p, n in check.sizes.items() if n} == {p: len(r) for p, r in made.rows.items()}
    assert check.images == check.looked == sum(len(rows) for rows in made.rows.values())
    assert (check.unreadable, check.leaks, check.modes) == (0, 0, {})
    assert check.published_classes == CATALOG[name].classes
    # A miniature is no full copy, and that is the only thing to be said of it.
    assert {f.check for f in check.remarks} <= {"published", "note"}
    assert "published" in {f.check for f in check.remarks}


@pytest.mark.parametrize(("name", "layout"), EVERY)
def test_every_layout_of_the_domain_sets_is_ready(tmp_path: Path, name: str, layout: str) -> None:
    write_domain_set(name, layout, tmp_path)
    check = known(tmp_path, name, 8)
    assert (check.state, check.layout, check.problems) == ("ready", layout, [])
    assert (check.looked, check.unreadable, check.leaks) == (8, 0, 0)
    guests = {other: known(tmp_path, other).state for other, _ in EVERY if other != name}
    assert set(guests.values()) == {"absent"}  # also those that would use the same folder


@pytest.mark.parametrize("name", ["Cifar10", "Cifar100"])
def test_images_in_pickles_are_looked_at_too(tmp_path: Path, name: str) -> None:
    tree_of(name, tmp_path, "pickles")
    check = known(tmp_path, name)
    assert (check.state, check.layout, check.leaks) == ("ready", "torchvision pickles", 0)
    assert check.looked == check.images == sum(check.sizes.values())


def test_absent_partly_prepared_and_built_in(tmp_path: Path) -> None:
    check = known(tmp_path, "EuroSAT")
    assert (check.state, check.findings) == ("absent", [])
    assert check.get.startswith("fedvlm data download EuroSAT")
    by_hand = known(tmp_path, "StanfordCars")
    assert by_hand.page.startswith("https://") and by_hand.page in by_hand.get
    tree_of("EuroSAT", tmp_path, without=("split",))
    check = known(tmp_path, "EuroSAT")
    assert check.state == "partly" and "fedvlm data prepare EuroSAT" in check.get
    text = found(check)["missing_parts"].text
    assert text == "eurosat/split_zhou_EuroSAT.json is missing (layout 'CoOp split file')"
    split = prepare_split("EuroSAT", str(tmp_path)).content()
    (tmp_path / "eurosat" / prepared_name("EuroSAT")).write_text(json.dumps(split))
    check = known(tmp_path, "EuroSAT")
    assert check.state == "prepared" and "own_split" in found(check)
    assert known(tmp_path, "shapes").state == "built in"
    assert not (tmp_path / "cache" / "fedvlm-data").exists()  # nothing was rendered


def test_two_sets_in_one_folder(tmp_path: Path) -> None:
    """DomainNet's ten classes need other files than all of them, in the same folder."""
    folder = tmp_path / "DomainNet"
    for domain in CATALOG["DomainNet"].domains:
        write_image(folder / domain / "bird" / "0.png", 0)
        for part in ("train", "test"):
            (folder / f"{domain}_{part}.txt").write_text(f"{domain}/bird/0.png 0\n")
    assert known(tmp_path, "DomainNetFull").state == "broken"  # all leak; but it is there
    check = known(tmp_path, "DomainNet")
    assert (check.state, check.problems) == ("absent", [])
    assert "DomainNetFull" in found(check)["shared_folder"].text


def test_all_that_is_wrong_with_the_files_is_said(mine: Path) -> None:
    images = mine / "mine" / "images"
    (images / "a" / "0.png").unlink()
    (images / "a" / "1.png").write_bytes(b"")
    (images / "b" / "6.png").write_bytes((images / "c" / "0.png").read_bytes())
    (images / "c" / "1.png").rename(images / "c" / "1.PNG")
    write_image(images / "c" / "99.png", 99)
    check = own(mine)
    said = found(check)
    assert check.state == "broken"
    assert (check.unreadable, check.leaks) == (1, 1)
    assert (check.images, check.looked) == (21, 19)
    assert said["missing_files"].text == (
        "2 of 21 images that the lists name do not exist (first: a/0.png)"
    )
    assert "'c/1.png' is 'c/1.PNG' on disk" in said["other_spelling"].text
    assert said["unreadable"].text == (
        "usable: 1 of 19 images looked at do not decode (first: a/1.png: the file is empty); a run "
        "leaves them out"
    )
    assert "b/6.png has the bytes of c/0.png" in said["leak_bytes"].text
    assert said["unnamed_files"].count == 2 and not said["unnamed_files"].broken
    assert all("\n" not in f.text for f in check.findings)


def test_all_that_is_wrong_with_the_lists_is_said(mine: Path) -> None:
    def train(rows: list[Any]) -> list[Any]:
        rows = [[path, 7 if name == "c" else label, name] for path, label, name in rows]
        return [*rows, ["a/5.png", 0, "a"], ["a/4.png", 0, "a"], ["b/0.png", 1, "B "],
                ["b/1.png", 0, "a"]]  # fmt: skip

    rewrite(mine, train=train, val=lambda rows: [*rows, ["b/5.png", 1, "b"]])
    check = own(mine)
    said = [(f.check, f.count, f.broken) for f in check.findings]
    assert said == [
        ("label_names", 1, True),  # 1 is b and "B "
        ("label_gaps", 4, True),
        ("duplicate_names", 1, True),  # c is 2 and 7
        ("listed_twice", 2, True),
        ("leak_paths", 1, True), ("leak_paths", 1, True), ("leak_paths", 1, True),
        ("same_prompt", 1, True),  # b and "B "
        ("other_folder", 1, True),  # b/1.png
        ("no_train_images", 1, False), ("no_test_images", 1, False),
    ]  # fmt: skip
    assert check.leaks == 2 and check.state == "broken"
    gaps = next(f.text for f in check.findings if f.check == "label_gaps")
    assert "3, 4, 5, 6" in gaps


@pytest.mark.parametrize(("check", "part", "row"), [
    ("listed_twice", "train", ["a/0.png", 0, "a"]),
    ("leak_paths", "val", ["a/5.png", 0, "a"]),
    ("label_gaps", "test", ["a/5.png", 4, "e"]),
])
def test_what_a_run_refuses_is_broken_in_the_same_words(
    mine: Path, check: str, part: str, row: list[Any]
) -> None:
    rewrite(mine, **{part: lambda rows: [*(r for r in rows if r[0] != row[0] or part != "test"),
                                         row]})
    cfg = own_split(mine, mine / "cache")
    finding = found(examine(cfg, 0))[check]
    assert finding.broken
    with pytest.raises(DataError, match=f": {re.escape(finding.text)}$"):
        load_dataset(cfg)


def test_wrong_rows_do_not_hide_each_other(mine: Path) -> None:
    bad = [["../x.png", 0, "a"], ["C:\\x.png", 0, "a"], ["a/3.png", "0", "a"], ["a/3.png"]]
    rewrite(mine, train=lambda rows: [*rows, *bad])
    (mine / "mine" / "images" / "a" / "0.png").write_bytes(b"broken")
    check = own(mine)
    said = [f.text for f in check.findings if f.check == "reading"]
    assert len(said) == 4 and all(f"train[{12 + n}]" in text for n, text in enumerate(said))
    assert check.unreadable == 1 and check.sizes == {"train": 12, "val": 3, "test": 6}
    rewrite(mine, train=lambda rows: [*rows, *bad])
    said = [f.text for f in own(mine).findings if f.check == "reading"]
    assert len(said) == 6 and said[-1].startswith("3 more invalid rows in")


def test_what_cannot_be_read_at_all(mine: Path) -> None:
    (mine / "mine" / "split.json").write_text("{")
    check = own(mine)
    assert check.state == "broken" and check.classes is None
    assert "is not a JSON file" in found(check)["reading"].text
    assert not found(check)["not_checked"].broken
    (mine / "mine" / "split.json").unlink()
    check = own(mine)
    assert check.state == "partly" and "mine/split.json" in found(check)["missing_parts"].text
    assert own(mine, DATASET__DIR="elsewhere").state == "absent"


def test_a_folder_that_leads_out_or_may_not_be_read(
    mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for keys in ({"DATASET__NAME": "EuroSAT", "DATASET__DIR": "../x"}, {"DATASET__DIR": "../x"}):
        check = examine(config(mine / "mine", mine / "cache", **keys), None)
        assert check.state in ("broken", "absent") and not check.sizes

    def denied(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "is_file", denied)
    check = own(mine)
    assert check.state == "broken" and "Permission denied" in found(check)["reading"].text


def test_an_own_tree(tmp_path: Path) -> None:
    write_tree(tmp_path / "tree", ["train", "test"], ["x", "y"], 2)
    keys = {"DATASET__DIR": "tree", "DATASET__NAME": "Mine", "DATASET__FORMAT": "folders"}
    assert examine(config(tmp_path, tmp_path / "cache", **keys), None).state == "ready"
    (tmp_path / "tree" / "train" / "z").mkdir()
    check = examine(config(tmp_path, tmp_path / "cache", **keys), None)
    assert check.state == "broken" and "holds no image" in found(check)["reading"].text


def test_modes_are_remarks(mine: Path) -> None:
    images = mine / "mine" / "images"
    Image.new("L", (8, 8), 7).save(images / "a" / "0.png")
    Image.new("CMYK", (8, 8), 7).save(images / "a" / "1.png", "JPEG")
    Image.fromarray(np.full((8, 8), 999, np.uint16)).save(images / "a" / "2.png")
    Image.new("RGBA", (8, 8), 7).save(images / "a" / "3.png")
    exif = Image.Exif()
    exif[0x0112] = 3
    Image.new("RGB", (8, 8)).save(images / "b" / "0.png", "JPEG", exif=exif)
    check = own(mine)
    assert check.state == "ready"
    turned = "rotated by EXIF (read as stored, as CoOp does)"
    assert check.modes == {"grey": 2, "CMYK": 1, "of more than 8 bits": 1,
                           "with transparency": 1, turned: 1}  # fmt: skip


def datum(key: str, label: int, name: str = "") -> Datum:
    return Datum(f"/x/{key}", label, 0, name or f"c{label}", key)


def test_images_in_the_folder_of_another_class() -> None:
    items = [datum(f"{label}/{n}.jpg", label) for label in range(3) for n in range(20)]
    items[5] = datum("0/5.jpg", 2)
    (said,) = [f for f in check_lists({"train": items, "val": [], "test": items[:0]})
               if f.check == "other_folder"]  # fmt: skip
    assert said.count == 1 and "0/5.jpg is 'c2', but its folder is that of 'c0'" in said.text
    flat = [datum(f"jpg/{n}.jpg", n % 3) for n in range(60)]  # Flowers: folders are no classes
    skewed = [datum(f"all/{n}.jpg", int(n > 57)) for n in range(60)]
    for lists in (flat, skewed):
        every = check_lists({"train": lists, "val": [], "test": []})
        assert "other_folder" not in {f.check for f in every}


def test_paths_that_collide_where_case_is_folded() -> None:
    lists = {"train": [datum("a/x.jpg", 0)], "val": [], "test": [datum("a/X.JPG", 0)]}
    (said,) = check_lists(lists)
    assert said.check == "colliding_paths" and not said.broken
    names = {"train": [datum("a", 0, "sea_lake"), datum("b", 1, "Sea Lake")], "val": [],
             "test": [datum("c", 0, "sea_lake"), datum("d", 1, "Sea Lake")]}  # fmt: skip
    (said,) = check_lists(names)
    assert said.check == "same_prompt" and said.broken
    assert [f.check for f in check_lists({"train": [], "val": [], "test": []})] == ["no_images"]


def test_the_sample_is_spread_and_stays_the_same() -> None:
    items = [datum(f"{label}/{n}.jpg", label) for label in range(10) for n in range(30 + label)]
    first = sample_images(items, 25)
    labels = np.bincount([d.label for d in first], minlength=10)
    assert len(first) == 25 and set(labels) == {2, 3}
    assert sample_images(items[::-1], 25) == first
    assert sample_images(items, 10**6) == sample_images(items, None) == items
    assert sample_images(items, 0) == []
    few = [datum("rare/0.jpg", 0), *(datum(f"x/{n}.jpg", 1) for n in range(99))]
    assert [d.label for d in sample_images(few, 9)].count(0) == 1


def test_a_sample_says_how_far_it_looked_and_the_second_look_reads_nothing(
    mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = mine / "mine" / "images"
    for path in images.rglob("*.png"):
        path.write_bytes(b"broken")
    cfg = own_split(mine, mine / "cache")
    check = examine(cfg, 5)
    assert (check.looked, check.unreadable, check.images) == (5, 5, 21)

    def never(_: bytes) -> None:
        pytest.fail("decoded again")

    monkeypatch.setattr(doctor_checks, "check_decodes", never)
    assert examine(cfg, 5) == check


def test_the_doctor_names_several_broken_images(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tree_of("EuroSAT", tmp_path).folder
    broken = sorted(folder.rglob("*.jpg"))[:12]
    for path in broken:
        path.write_bytes(b"")
    words = ["doctor", "--root", str(tmp_path), "--cache-dir", str(tmp_path / "cache"), "eurosat"]
    assert main(words) == 3
    said = capsys.readouterr().out
    assert "12 of 24 images looked at do not decode" in said
    assert sum(f"{path.name}: the file is empty" in said for path in broken) == 10


def test_a_broken_image_is_a_problem_only_where_a_run_stops_at_it(mine: Path) -> None:
    """A run leaves it out, unless it is told to stop, or a class has no other to train on."""
    images = mine / "mine" / "images"
    (images / "a" / "1.png").write_bytes(b"")
    check = own(mine)
    assert check.state == "ready" and not check.problems and check.unreadable == 1
    assert "usable: 1 of " in found(check)["unreadable"].text
    refuse = own(mine, DATASET__ON_CORRUPT="refuse")
    assert refuse.state == "broken"
    assert "; a run stops at them (DATASET.ON_CORRUPT)" in found(refuse)["unreadable"].text
    for path in (images / "a").iterdir():
        path.write_bytes(b"")
    check = own(mine)
    assert check.state == "broken"
    assert "; a class has no other image to train on" in found(check)["unreadable"].text
