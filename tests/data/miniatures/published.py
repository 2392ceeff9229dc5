"""Miniatures of the single-domain sets in their published layouts: real, tiny image files.

``tree_of("EuroSAT", root)`` writes ``root/eurosat/...`` and returns what a reader must find. Paths,
class names and label files are spelt as in the published sets; there are four classes, each with
``SIZES`` images. ``without=("split",)`` leaves the split file out, as ``data prepare`` needs it.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PIL import Image

from fedvlm.data.catalog import CATALOG

SIZES = {"train": 3, "val": 1, "test": 2}
Rows = dict[str, list[tuple[str, int, str]]]  # part -> (key, label, class name)


@dataclass(frozen=True)
class Mini:
    """Classes by label as (name on disk, class name), and how the path of image ``n`` is spelt."""

    classes: tuple[tuple[str, str], ...]
    path: str
    sizes: dict[str, int] = field(default_factory=lambda: SIZES)


@dataclass(frozen=True)
class Made:
    """What was written: the set's folder, its class names by label, its rows by part."""

    folder: Path
    classnames: list[str]
    rows: Rows


# Where a path holds {part}, cars_train holds train and val; {camel} is the folder without "_".
MINIS = {
    "Caltech101": Mini(
        (("Faces", "face"), ("Leopards", "leopard"), ("accordion", "accordion"),
         ("airplanes", "airplane")), "{name}/image_{n:04}.jpg"),
    "OxfordPets": Mini(
        (("Abyssinian", "abyssinian"), ("american_bulldog", "american_bulldog"),
         ("Bombay", "bombay"), ("yorkshire_terrier", "yorkshire_terrier")), "{name}_{n}.jpg"),
    "StanfordCars": Mini(
        (("", "2000 AM General Hummer SUV"), ("", "2012 Acura RL Sedan"),
         ("", "2012 Acura TL Sedan"), ("", "2008 Acura TL Type-S")), "cars_{part}/{i:05}.jpg"),
    "OxfordFlowers": Mini(
        (("", "pink primrose"), ("", "hard-leaved pocket orchid"), ("", "canterbury bells"),
         ("", "sweet pea")), "image_{i:05}.jpg"),
    "Food101": Mini(
        (("apple_pie", "apple_pie"), ("baby_back_ribs", "baby_back_ribs"),
         ("baklava", "baklava"), ("beef_carpaccio", "beef_carpaccio")), "{name}/{n}.jpg"),
    "SUN397": Mini(
        (("a/abbey", "abbey"), ("a/apse/indoor", "indoor apse"),
         ("b/basement", "basement"), ("c/church/outdoor", "outdoor church")),
        "{name}/sun_{i:015}.jpg"),
    "DescribableTextures": Mini(
        (("banded", "banded"), ("blotchy", "blotchy"), ("braided", "braided"),
         ("bubbly", "bubbly")), "{name}/{name}_{n:04}.jpg"),
    "EuroSAT": Mini(
        (("AnnualCrop", "Annual Crop Land"), ("Forest", "Forest"),
         ("HerbaceousVegetation", "Herbaceous Vegetation Land"), ("SeaLake", "Sea or Lake")),
        "{name}/{name}_{n}.jpg"),
    "UCF101": Mini(
        (("Apply_Eye_Makeup", "Apply_Eye_Makeup"), ("Apply_Lipstick", "Apply_Lipstick"),
         ("Archery", "Archery"), ("Yo_Yo", "Yo_Yo")), "{name}/v_{camel}_g{n:02}_c01.jpg"),
    "FGVCAircraft": Mini(
        (("", "707-320"), ("", "737-200"), ("", "A300B4"), ("", "An-12")), "{i:07}.jpg"),
    "ImageNet": Mini(
        (("n01440764", "tench"), ("n01443537", "goldfish"), ("n02012849", "crane bird"),
         ("n03126707", "construction crane")), "{part}/{name}/{name}_{n}.JPEG",
        {"train": 4, "test": 2}),
    "ImageNetV2": Mini(
        (("0", "tench"), ("1", "goldfish"), ("2", "crane bird"), ("3", "construction crane")),
        "{name}/{n:x}.jpeg", {"test": 2}),
    "ImageNetSketch": Mini(
        (("n01440764", "tench"), ("n01443537", "goldfish"), ("n02012849", "crane bird"),
         ("n03126707", "construction crane")), "{name}/sketch_{n}.JPEG", {"test": 2}),
    "ImageNetA": Mini(
        (("n01443537", "goldfish"), ("n02012849", "crane bird")),
        "{name}/0.0_{name} _ {name}_0.{n}.jpg", {"test": 2}),
    "ImageNetR": Mini(
        (("n01440764", "tench"), ("n01443537", "goldfish")), "{name}/art_{n}.jpg", {"test": 2}),
    "Cifar10": Mini(
        (("airplane", "airplane"), ("automobile", "automobile"), ("bird", "bird"),
         ("cat", "cat")), "{part}/{name}/{n:04}.png", {"train": 4, "test": 2}),
    "Cifar100": Mini(
        (("apple", "apple"), ("aquarium_fish", "aquarium_fish"), ("baby", "baby"),
         ("bear", "bear")), "{part}/{name}/{n:04}.png", {"train": 4, "test": 2}),
}  # fmt: skip
WNIDS = MINIS["ImageNet"].classes
_IMAGE_DIRS = {
    "ImageNetV2": "imagenetv2-matched-frequency-format-val", "ImageNetSketch": "images",
    "ImageNetA": "imagenet-a", "ImageNetR": "imagenet-r",
}  # fmt: skip


def tree_of(name: str, root: Path, layout: str = "", without: tuple[str, ...] = ()) -> Made:
    """Write the miniature of a set below ``root``.

    Args:
        name: the value of DATASET.NAME.
        layout: empty for the first published one; ``archive`` (FGVCAircraft), ``torchvision``
            (ImageNet), ``pickles`` or ``pickles in root`` (CIFAR) for the others.
        without: ``split`` leaves the split file out, ``classnames`` ImageNet's list of names.
    """
    home = root / _home(name, layout)
    mini = MINIS[name]
    if layout.startswith("pickles"):
        return _cifar_pickles(name, home)
    rows = _rows(name, mini)
    images = home / (_IMAGE_DIRS.get(name) or CATALOG[name].image_dir)
    if layout == "torchvision":
        images = home
    for part in rows.values():
        for key, _, _ in part:
            write_image(images / key)
    if CATALOG[name].split_file and "split" not in without:
        split = {part: [list(row) for row in rows.get(part, [])] for part in SIZES}
        (home / CATALOG[name].split_file).write_text(json.dumps(split), encoding="utf-8")
    if name == "FGVCAircraft":
        _aircraft_lists(home, rows)
    if name.startswith("ImageNet") and "classnames" not in without:
        text = "".join(f"{wnid} {named}\n" for wnid, named in WNIDS)
        (home / "classnames.txt").write_text(text, encoding="utf-8")
    if name == "Caltech101":  # folders of the archive that are no class
        write_image(images / "BACKGROUND_Google" / "image_0001.jpg")
        write_image(images / "Faces_easy" / "image_0001.jpg")
    return Made(home, [named for _, named in mini.classes], rows)


def write_image(path: Path, size: tuple[int, int] = (8, 8)) -> Path:
    """A small image file, in the format its suffix says; its pixels depend on its name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    seed = list(path.as_posix().encode()[-40:])
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return path


def _home(name: str, layout: str) -> str:
    if layout == "archive":
        return "fgvc-aircraft-2013b/data"
    return "" if layout == "pickles in root" else CATALOG[name].folder


def _rows(name: str, mini: Mini) -> Rows:
    """Return the rows of the published order: part by part, class by class."""
    rows: Rows = {}
    for part, label, n, i in _numbers(mini):
        folder, named = mini.classes[label]
        shown = {"test": "val" if name == "ImageNet" else "test"}.get(part, "train")
        key = mini.path.format(
            name=folder, n=n, i=i, part=shown, camel=folder.replace("_", "")
        )
        rows.setdefault(part, []).append((key, label, named))
    return rows


def _numbers(mini: Mini) -> Iterator[tuple[str, int, int, int]]:
    """Yield (part, label, number within the class, number over all) of every image."""
    first, i = 1, 0
    for part, each in mini.sizes.items():
        for label in range(len(mini.classes)):
            for n in range(first, first + each):
                i += 1
                yield part, label, n, i
        first += each


def _aircraft_lists(home: Path, rows: Rows) -> None:
    variants = "".join(f"{named}\n" for _, named in MINIS["FGVCAircraft"].classes)
    (home / "variants.txt").write_text(variants, encoding="utf-8")
    for part, items in rows.items():
        lines = "".join(f"{Path(key).stem} {named}\n" for key, _, named in items)
        (home / f"images_variant_{part}.txt").write_text(lines, encoding="utf-8")


def _cifar_pickles(name: str, home: Path) -> Made:
    """Write torchvision's pickles: two images per class and batch."""
    names = [named for _, named in MINIS[name].classes]
    labels = [label for label in range(len(names)) for _ in range(2)]
    ten = name == "Cifar10"
    folder = home / ("cifar-10-batches-py" if ten else "cifar-100-python")
    batches = [f"data_batch_{i}" for i in range(1, 6)] if ten else ["train"]
    key, meta = ("labels", "label_names") if ten else ("fine_labels", "fine_label_names")
    test = "test_batch" if ten else "test"
    folder.mkdir(parents=True)
    rows: Rows = {"train": [], "test": []}
    for seed, batch in enumerate([*batches, test]):
        data = np.random.default_rng(seed).integers(0, 256, (len(labels), 3072), dtype=np.uint8)
        (folder / batch).write_bytes(pickle.dumps({"data": data, key: labels}, protocol=2))
        rows["test" if batch == test else "train"] += [
            (f"{folder.name}/{batch}#{n}", label, names[label]) for n, label in enumerate(labels)
        ]
    file = "batches.meta" if ten else "meta"
    (folder / file).write_bytes(pickle.dumps({meta: names}, protocol=2))
    return Made(home, names, rows)
