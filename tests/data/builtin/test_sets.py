"""The built-in data sets: written once, whole, in CoOp's layout, with the right labels."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits
from tiny_tasks import TASKS, build_task, pair_classes

from fedvlm.data.builtin import sets
from fedvlm.data.builtin.sets import (
    BUILTIN,
    HELD_OUT_PAIRS,
    PAIRS,
    SEEN_PAIRS,
    materialise,
)
from fedvlm.data.builtin.world import DIGITS, NEW_NOUNS, SHAPES, STYLES

SPLIT_FILES = {
    "shapes": "split_zhou_Shapes.json",
    "digits": "split_zhou_Digits.json",
    "new_nouns": "split_zhou_NewNouns.json",
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("builtin")
    with pytest.MonkeyPatch.context() as patch:
        assert sets._PER_CLASS == (40, 10, 40)
        patch.setattr(sets, "_PER_CLASS", (12, 10, 12))
        for name in BUILTIN:
            materialise(name, folder)
    return folder


def entries(root: Path, name: str) -> dict[str, list[tuple[str, int, str]]]:
    text = (root / name / SPLIT_FILES[name]).read_text(encoding="utf-8")
    loaded: dict[str, list[tuple[str, int, str]]] = json.loads(text)
    return loaded


@pytest.mark.parametrize("name", SPLIT_FILES)
def test_split_paths_exist_and_do_not_overlap(root: Path, name: str) -> None:
    split = entries(root, name)
    assert list(split) == ["train", "val", "test"]
    paths = [path for part in split.values() for path, _, _ in part]
    assert len(paths) == len(set(paths))
    on_disk = {str(p.relative_to(root / name / "images")) for p in (root / name).rglob("*.png")}
    assert on_disk == set(paths)
    labels = {label: word for part in split.values() for _, label, word in part}
    assert sorted(labels) == list(range(len(labels)))
    for part in split.values():
        assert {label for _, label, _ in part} == set(labels)
        assert min(np.bincount([label for _, label, _ in part])) >= 10


def test_images_are_rgb_32(root: Path) -> None:
    for name in BUILTIN:
        with Image.open(next((root / name).rglob("*.png"))) as image:
            assert (image.mode, image.size) == ("RGB", (32, 32))


def test_shapes_halves_are_seen_and_held_out(root: Path) -> None:
    held = {f"{colour} {shape}" for colour, shape in pair_classes(0)}
    assert len(PAIRS) == len(set(PAIRS)) == 20
    assert not held & set(SEEN_PAIRS)
    assert set(HELD_OUT_PAIRS) <= held
    words = {label: word for _, label, word in entries(root, "shapes")["test"]}
    assert tuple(words[k] for k in range(20)) == PAIRS


def test_digits_are_the_real_ones(root: Path) -> None:
    split = entries(root, "digits")
    rows = [row for part in split.values() for row in part]
    assert len(rows) == 1797
    bunch = load_digits()
    for path, label, word in rows:
        assert DIGITS[label] == word == path.split("/")[0]
        assert bunch.target[int(Path(path).stem)] == label
    path = rows[0][0]
    small = bunch.images[int(Path(path).stem)]
    with Image.open(root / "digits" / "images" / path) as image:
        pixels = np.asarray(image)[..., 0]
    blocks = pixels.reshape(8, 4, 8, 4).mean(axis=(1, 3))
    assert np.corrcoef(blocks.ravel(), small.ravel())[0, 1] > 0.95


def test_domains_tree(root: Path) -> None:
    tree = root / "shapes_domains"
    assert {p.name for p in tree.iterdir() if p.is_dir()} == set(STYLES)
    for style in STYLES:
        assert {p.name for p in (tree / style).iterdir()} == set(SHAPES)
        assert all(len(list(p.iterdir())) == 40 for p in (tree / style).iterdir())


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> int:
    """Sets are drawn with few images; returns how many of each class."""
    monkeypatch.setattr(sets, "_PER_CLASS", (3, 1, 3))
    return 7


@pytest.mark.usefixtures("few")
def test_second_call_writes_nothing_and_stale_set_is_replaced(tmp_path: Path) -> None:
    folder = materialise("new_nouns", tmp_path)
    picture = next(folder.rglob("*.png"))
    before, content = picture.stat().st_mtime_ns, picture.read_bytes()
    assert materialise("new_nouns", tmp_path) == folder
    assert picture.stat().st_mtime_ns == before
    (folder / ".version").write_text("of long ago")
    picture.write_bytes(b"")
    (folder / "stray.txt").write_text("x")
    materialise("new_nouns", tmp_path)
    assert picture.read_bytes() == content
    assert not (folder / "stray.txt").exists()
    assert {p.name for p in tmp_path.iterdir()} == {"new_nouns", ".new_nouns.lock"}


def test_two_processes_at_once(tmp_path: Path, few: int) -> None:
    context = multiprocessing.get_context("fork")
    jobs = [
        context.Process(target=materialise, args=("new_nouns", tmp_path), daemon=True)
        for _ in range(2)
    ]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join(60)
    assert [job.exitcode for job in jobs] == [0, 0]
    assert len(list((tmp_path / "new_nouns").rglob("*.png"))) == few * len(NEW_NOUNS)


def test_unknown_name_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(KeyError, match="no built-in data set 'shape'"):
        materialise("shape", tmp_path)


@pytest.mark.parametrize("name", TASKS)
def test_tasks_are_deterministic_and_balanced(name: str) -> None:
    task, again = build_task(name, 3, seed=1), build_task(name, 3, seed=1)
    assert np.array_equal(task.images, again.images)
    assert np.array_equal(np.bincount(task.labels), np.full(len(task.names), 3))


@pytest.mark.usefixtures("few")
def test_a_changed_image_of_a_drawn_set_is_noticed_and_drawn_again(tmp_path: Path) -> None:
    """A flipped bit moved the numbers of ``--demo`` without a word."""
    folder = materialise("new_nouns", tmp_path)
    image = sorted(folder.rglob("*.png"))[7]
    before, data = image.read_bytes(), bytearray(image.read_bytes())
    data[len(data) // 2] ^= 1
    image.write_bytes(bytes(data))
    assert materialise("new_nouns", tmp_path) == folder and image.read_bytes() == before
    image.unlink()
    assert (materialise("new_nouns", tmp_path) / image.relative_to(folder)).read_bytes() == before
    stamp = (folder / ".version").stat().st_mtime_ns
    materialise("new_nouns", tmp_path)
    assert (folder / ".version").stat().st_mtime_ns == stamp  # drawn once


def test_the_stamp_covers_every_file_in_the_order_of_paths(tmp_path: Path) -> None:
    for name in ("b/x.png", "b.c/y.png", "b/a/z.png", "top", "a/.version", "é/1"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "linked").symlink_to(tmp_path / "b")
    (tmp_path / "link").symlink_to(tmp_path / "top")
    digest = hashlib.sha256()
    for path in sorted(p for p in tmp_path.rglob("*") if p.is_file() and p.name != ".version"):
        data = path.read_bytes()
        digest.update(f"{path.relative_to(tmp_path).as_posix()} {len(data)}\n".encode() + data)
    assert sets._stamp(tmp_path).endswith(f"sha256 {digest.hexdigest()}\n")
