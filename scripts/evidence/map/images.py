"""Features of the map's data sets, and of the same images as other scanners would show them.

A pack of each set is what ``fedvlm features --pack`` writes. For feature shift every image of a set
is written once for each of ``SCANNERS``, with a table that names its domain.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from fedvlm.cli import main as cli
from fedvlm.core.errors import DataError
from fedvlm.core.rng import numpy_stream
from fedvlm.data.catalog import dataset_info
from fedvlm.data.corruption import corrupt
from fedvlm.data.datasets import DEFAULT_TEMPLATE
from fedvlm.data.packs.pack import open_pack
from fedvlm.evaluation.references.heads import KNOWN
from fedvlm.models.load.backbones import load_backbone
from fedvlm.models.vlmodel import VLModel

SETS = {"EuroSAT": "eurosat", "DescribableTextures": "dtd", "Caltech101": "caltech101",
        "CIFAR10": "cifar10"}  # name on the map -> name for --dataset
SHIFTED = ("EuroSAT", "DescribableTextures")  # read once for each scanner, too
SCANNERS = ("clean", "brightness:4", "contrast:3", "gaussian_blur:5", "jpeg:5")
FIVE = "five simulated scanners"  # in words
VAL_SHARE = 0.4  # validation images for each training image, as CoOp's split of EuroSAT and DTD
Floats = NDArray[np.float64]
Labels = NDArray[np.int64]


@dataclass(frozen=True)
class Part:
    """The images of a split.

    Attributes:
        features: ``[D, n, d]``, one slice for each domain; the same images in the same order.
        labels: ``[n]``.
    """

    features: Floats
    labels: Labels


@dataclass(frozen=True)
class Features:
    """A data set's features, centred and scaled by those of the clean training images.

    Attributes:
        name: of the set.
        classes: how many there are.
        names: what scores an image of unit length by the class names ``[C, d]``; None where they
            say little of the set (``KNOWN``).
    """

    name: str
    classes: int
    train: Part
    val: Part
    test: Part
    names: Floats | None = field(default=None, kw_only=True)


def pack_set(name: str, root: str, backbone: str, into: Path) -> list[Path]:
    """Write the pack of a set, of its class names, and of its images by scanner; return the packs.

    Raises:
        DataError: the images cannot be read.
    """
    clean = into / f"{SETS[name]}.pack.safetensors"
    out = [clean]
    words = ["--backbone", backbone, "--pack"]
    if not clean.is_file():
        _encode(["--root", root, "--dataset", SETS[name], *words, str(clean)])
    if not names_file(name, into).is_file():
        np.save(names_file(name, into), encode_names(name, backbone, clean))
    if name in SHIFTED:
        out.append(scanned_pack(name, into))
        if not out[-1].is_file():
            table = write_scanned(clean, Path(root), into / f"{SETS[name]}-scanners")
            _encode(["--images", str(table), *words, str(out[-1])])
    return out


def names_file(name: str, folder: Path) -> Path:
    """Return the file of a set's ``encode_names``."""
    return folder / f"{SETS[name]}.names.npy"


def encode_names(name: str, backbone: str, pack: Path) -> Floats:
    """Return what scores an image of unit length as zero-shot does, in the set's template."""
    info = dataset_info(SETS[name])
    model = VLModel(load_backbone(backbone), open_pack(pack).about.classnames,
                    templates=[info.template] if info else [DEFAULT_TEMPLATE])
    with torch.no_grad():
        anchor = model.anchor("template", n_ctx=0).unsqueeze(0)
        each = torch.eye(model.embed_dim, dtype=anchor.dtype).unsqueeze(0)
        return model.logits(each, anchor)[0].mT.double().numpy()


def scanned_pack(name: str, folder: Path) -> Path:
    """Return the pack of a set's images as each of ``SCANNERS`` shows them."""
    return folder / f"{SETS[name]}-scanners.pack.safetensors"


def scanned_key(domain: int, place: int) -> str:
    """Return the name of an image there.

    Args:
        domain: of ``SCANNERS``.
        place: of the image among the set's, train first.
    """
    return f"{SCANNERS[domain].partition(':')[0]}/{place:06}.png"


def _encode(words: list[str]) -> None:
    code = cli.main(["features", *words])
    if code:
        raise DataError(f"fedvlm features {' '.join(words)} ended with code {code}")


def write_scanned(pack: Path, root: Path, into: Path) -> Path:
    """Write each image of a pack as each of ``SCANNERS``; return the table."""
    about = open_pack(pack)
    keys, labels = about.keys, about.labels
    ends = np.cumsum(about.about.sizes)
    rows = []
    for number, domain in enumerate(SCANNERS):
        kind, _, severity = domain.partition(":")
        for i, key in enumerate(keys):
            split = ("train", "val", "test")[int(np.searchsorted(ends, i, side="right"))]
            path = into / scanned_key(number, i)
            if not path.is_file():
                path.parent.mkdir(parents=True, exist_ok=True)
                with Image.open(find_image(root, key)) as image:
                    plain = image.convert("RGB")
                    shown = corrupt(plain, kind, int(severity), key) if severity else plain
                    shown.save(path)
            rows.append([path.relative_to(into), about.about.classnames[labels[i]], split, kind])
    table = into / "images.csv"
    with table.open("w", newline="", encoding="utf-8") as out:
        csv.writer(out).writerows([["file", "class", "split", "domain"], *rows])
    return table


def find_image(root: Path, key: str) -> Path:
    """Return the file of a pack's image.

    Raises:
        DataError: it is not below ``root``.
    """
    for path in (root / key, *root.glob(f"*/{key}"), *root.glob(f"*/*/{key}")):
        if path.is_file():
            return path
    raise DataError(f"{root} has no image {key}")


def read_features(name: str, folder: Path) -> Features:
    """Return a set's features from the packs of ``pack_set``.

    Raises:
        DataError: a pack is missing or damaged, or lacks images.
    """
    clean = open_pack(folder / f"{SETS[name]}.pack.safetensors")
    about = clean.about
    if sum(about.unreadable):
        raise DataError(f"{clean.path}: {sum(about.unreadable)} images did not decode")
    rows = clean.rows(about.transform, np.arange(about.count)).astype(np.float64)
    domains = [rows]
    if name in SHIFTED:
        scanned = open_pack(scanned_pack(name, folder))
        place = {key: i for i, key in enumerate(scanned.keys)}
        moved = scanned.rows(scanned.about.transform, np.arange(scanned.about.count))
        domains += [moved[[place[scanned_key(domain, i)]
                           for i in range(about.count)]].astype(np.float64)
                    for domain in range(1, len(SCANNERS))]
    ends = np.cumsum(about.sizes)
    parts = [Part(np.stack([d[b:e] for d in domains]), clean.labels[b:e])
             for b, e in zip((0, *ends[:-1]), ends, strict=True)]
    if not len(parts[1].labels):
        parts[:2] = set_aside(parts[0])
    names: Floats = np.load(names_file(name, folder))
    return Features(name, len(about.classnames), *parts,
                    names=names if knows(names, parts[0]) else None)


def knows(names: Floats, train: Part) -> bool:
    """Return whether class names alone answer ``KNOWN`` times as many images as chance does."""
    right = (train.features[0] @ names.T).argmax(1) == train.labels
    return bool(right.mean() >= KNOWN / len(names))


def set_aside(train: Part) -> list[Part]:
    """Return training and validation images of a set without a validation list (CIFAR).

    ``VAL_SHARE`` for each that stays, the same share of every class, drawn once for all cells.
    """
    rng, taken = numpy_stream(0, "map", "val"), np.zeros(len(train.labels), dtype=bool)
    for label in np.unique(train.labels):
        places = np.flatnonzero(train.labels == label)
        taken[rng.permutation(places)[:round(len(places) * VAL_SHARE / (1 + VAL_SHARE))]] = True
    return [Part(train.features[:, some], train.labels[some]) for some in (~taken, taken)]
