"""Miniatures of the multi-domain sets in every published layout: three classes, tiny images.

``write_domain_set("PACS", "FLORA pickles", root)`` writes the set as that project's users have it.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from fedvlm.data.catalog import CATALOG
from fedvlm.data.layouts import DOMAIN_LAYOUTS

CLASSES = {  # by label; real names of each set, sorted
    "DomainNet": ("bird", "ice_cream", "zebra"),
    "DomainNetFull": ("The_Eiffel_Tower", "t-shirt", "zebra"),
    "OfficeCaltech10": ("back_pack", "bike", "mug"),
    "PACS": ("dog", "elephant", "person"),
    "OfficeHome": ("Alarm_Clock", "Bike", "TV"),
    "Office31": ("back_pack", "bike", "trash_can"),
}
EVERY = [(name, layout.name) for name, table in DOMAIN_LAYOUTS.items() for layout in table]
SIZES = {"train": 4, "test": 2}
ABSENT = ("DomainNetFull", "painting", "t-shirt")  # in the lists' train part, as published
BROKEN = "sketch/dog/n02103406_4068-1.png"  # PACS
_HOME = {"art": "Art", "clipart": "Clipart", "product": "Product", "real_world": "Real World"}
_TITLED = _HOME | {"real_world": "Real_World"}


def write_domain_set(name: str, layout: str, root: Path) -> Path:
    """Write the miniature below ``root`` and return the set's folder."""
    folder = root / next(one.folder for one in DOMAIN_LAYOUTS[name] if one.name == layout)
    makers: dict[str, Callable[[str, Path], None]] = {
        "FedBN pickles": _fedbn, "DomainNet lists": _lists, "Dassl lists": _lists_below,
        "Dassl folds (crossval is the test list)": _dassl_pacs, "FedPHA folds": _fedpha_pacs,
        "FLORA pickles": _flora, "FedTV pickles": _fedtv_home,
        "Dassl train and val trees (val is the test list)": _home_dg,
    }  # fmt: skip
    if layout in makers:
        makers[layout](name, folder)
        return folder
    homes = {
        "FedPHA domain tree": _TITLED, "DomainBed domain tree": _HOME,
        "domain tree as published": _HOME,
    }  # fmt: skip
    spelled = homes.get(layout, {}) if name == "OfficeHome" else {}
    for domain in CATALOG[name].domains:
        _keys(name, folder, spelled.get(domain, domain))
    return folder


def _keys(name: str, folder: Path, domain: str) -> list[tuple[str, int, str]]:
    """Write one domain's images; return (key, label, part), classes interleaved."""
    rows = []
    for n, part in enumerate(p for p, many in SIZES.items() for _ in range(many)):
        for label, classname in enumerate(CLASSES[name]):
            key = f"{domain}/{classname}/image {n:03}.jpg"  # a blank, as in some of the sets
            _write(folder / key, f"{name}/{key}")
            rows.append((key, label, part))
    return rows


def _write(path: Path, seed: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(list(seed.encode())).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)


def _part(rows: list[tuple[str, int, str]], part: str) -> list[tuple[str, int]]:
    return [(key, label) for key, label, mine in rows if mine == part]


def _pickle(path: Path, content: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(content, protocol=2))


def _write_pickles(
    name: str, folder: Path, prefix: str, spelled: dict[str, str], kind: type = str
) -> None:
    for domain in (spelled.get(d, d) for d in CATALOG[name].domains):
        rows = _keys(name, folder, domain)
        for part in SIZES:
            paths = np.array([prefix + key for key, _ in _part(rows, part)], dtype=kind)
            labels = np.array([CLASSES[name][y] for _, y in _part(rows, part)], dtype=kind)
            _pickle(folder / f"{domain}_{part}.pkl", (paths, labels))


def _fedbn(name: str, folder: Path) -> None:
    _write_pickles(name, folder, f"{folder.name}/", {}, object if name == "DomainNet" else str)


def _flora(name: str, folder: Path) -> None:
    _write_pickles(name, folder, "../../data/PACS/", {})


def _fedtv_home(name: str, folder: Path) -> None:
    _write_pickles(name, folder, "/home/someone/data/OfficeHome/", _HOME)


def _write_lists(name: str, folder: Path, images: str, files: dict[str, str], first: int) -> None:
    for domain in CATALOG[name].domains:
        rows = _keys(name, folder / images, domain)
        for part, file in files.items():
            path = folder / file.format(domain)
            path.parent.mkdir(parents=True, exist_ok=True)
            lines = [
                f"{key} {label + first}" for key, label in _part(rows, part)
                if (name, domain, CLASSES[name][label]) != ABSENT or part != "train"
            ]
            if name == "PACS" and domain == "sketch" and part == "train":
                lines.insert(1, f"{BROKEN} {first}")
            path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _lists(name: str, folder: Path) -> None:
    _write_lists(name, folder, "", {p: f"{{}}_{p}.txt" for p in SIZES}, 0)


def _lists_below(name: str, folder: Path) -> None:
    _write_lists(name, folder, "", {p: f"splits/{{}}_{p}.txt" for p in SIZES}, 0)


def _dassl_pacs(name: str, folder: Path) -> None:
    files = {"train": "splits/{}_train_kfold.txt", "test": "splits/{}_crossval_kfold.txt"}
    _write_lists(name, folder, "images", files, 1)


def _fedpha_pacs(name: str, folder: Path) -> None:
    """PACS's own test folds hold every image of the domain."""
    files = {part: f"label/{{}}_{part}_kfold.txt" for part in SIZES}
    _write_lists(name, folder, "raw_images", files, 1)
    for domain in CATALOG[name].domains:
        train, test = ((folder / files[part].format(domain)) for part in SIZES)
        test.write_text(train.read_text() + test.read_text())


def _home_dg(name: str, folder: Path) -> None:
    for domain in CATALOG[name].domains:
        for key, _, part in _keys(name, folder / "all", domain):
            _, classname, file = key.split("/")
            inner = "train" if part == "train" else "val"
            target = folder / domain / inner / classname / file
            target.parent.mkdir(parents=True, exist_ok=True)
            (folder / "all" / key).rename(target)
