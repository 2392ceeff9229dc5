"""The built-in data sets, written once to disk in CoOp's layout so the normal readers load them.

`shapes`          20 (colour, shape) classes in an unfamiliar style; the first ten are pairs that
                  pretraining showed, the last ten are pairs it never showed (base / new)
`digits`          scikit-learn's 1,797 real handwritten digits
`new_nouns`       8 objects whose names pretraining never used
`shapes_domains`  <domain>/<class>/file.png: 14 shapes in five styles, for feature shift
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray
from PIL import Image

from fedvlm.core import files
from fedvlm.data.builtin.world import (
    DIGITS,
    NEW_NOUNS,
    SHAPES,
    SIDE,
    STYLES,
    WORLD_VERSION,
    ImageArray,
    render_scene,
    scenes_of,
    seen_colours,
    stylise,
)
from fedvlm.data.datum import PARTS

_STAMP = ".version"
_LAYOUT_VERSION = 1
# Images of each class in train, val and test.
_PER_CLASS = (40, 10, 40)
_PER_DOMAIN_AND_CLASS = 40
SHAPES_STYLE = "photo"

# Every shape comes in several colours and every colour on several shapes, in both halves.
SEEN_PAIRS = (
    "blue circle", "green circle", "blue cross", "green cross", "red square",
    "purple square", "red ring", "purple ring", "pink moon", "red moon",
)  # fmt: skip
HELD_OUT_PAIRS = (
    "red circle", "purple circle", "red cross", "purple cross", "green square",
    "pink square", "green ring", "pink ring", "blue moon", "cyan moon",
)  # fmt: skip
PAIRS = SEEN_PAIRS + HELD_OUT_PAIRS

_Rows = list[tuple[str, int, str]]  # path relative to ``images/``, label, class name


def _save(path: Path, image: NDArray[np.uint8]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image).save(path, compress_level=1)


def _write_split(
    folder: Path, file: str, images: ImageArray, rows: _Rows, parts: Sequence[str]
) -> None:
    """Save images under ``images/`` and the split file beside it; ``parts`` has each row's part."""
    split: dict[str, _Rows] = {part: [] for part in PARTS}
    for image, row, part in zip(images, rows, parts, strict=True):
        _save(folder / "images" / row[0], image)
        split[part].append(row)
    (folder / file).write_text(json.dumps(split, indent=1) + "\n", encoding="utf-8")


def _render_set(names: tuple[str, ...], seed: int, style: str, folder: Path, file: str) -> None:
    """A rendered set whose class names are "noun" or "colour noun"."""
    rng = np.random.default_rng(seed)
    per_class = sum(_PER_CLASS)
    labels = [label for label in range(len(names)) for _ in range(per_class)]
    words = [names[label].split() for label in labels]
    colours = [w[0] if len(w) == 2 else None for w in words]
    scenes = scenes_of([w[-1] for w in words], colours, rng)
    images = stylise(render_scene(scenes, rng), style, rng)
    parts = [p for p, n in zip(PARTS, _PER_CLASS, strict=True) for _ in range(n)] * len(names)
    rows = [
        (f"{names[label].replace(' ', '_')}/{i % per_class:03d}.png", label, names[label])
        for i, label in enumerate(labels)
    ]
    _write_split(folder, file, images, rows, parts)


def real_digits() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """scikit-learn's 1,797 real 8x8 digits as RGB uint8 [N, 32, 32, 3] (bicubic), and labels."""
    from sklearn.datasets import load_digits  # start-up: scikit-learn, for Digits only

    bunch = load_digits()
    grey = np.clip(np.asarray(bunch.images) * (255.0 / 16.0), 0, 255).astype(np.uint8)
    big = np.empty((len(grey), SIDE, SIDE, 3), dtype=np.uint8)
    for i, small in enumerate(grey):
        picture = Image.fromarray(small).resize((SIDE, SIDE), Image.Resampling.BICUBIC)
        big[i] = np.asarray(picture)[..., None]
    return big, np.asarray(bunch.target, dtype=np.int64)


def _digits(folder: Path) -> None:
    """Half of each class for training, a fifth for validation, the rest for the test."""
    images, labels = real_digits()
    rng = np.random.default_rng(103)
    part_of = np.empty(len(labels), dtype=object)
    for label in range(len(DIGITS)):
        images_of = rng.permutation(np.flatnonzero(labels == label))
        cuts = [len(images_of) // 2, len(images_of) * 7 // 10]
        for part, index in zip(PARTS, np.split(images_of, cuts), strict=True):
            part_of[index] = part
    order = np.argsort(labels, kind="stable")
    rows = [
        (f"{DIGITS[labels[i]]}/{i:04d}.png", int(labels[i]), DIGITS[labels[i]]) for i in order
    ]
    parts = [str(part_of[i]) for i in order]
    _write_split(folder, "split_zhou_Digits.json", images[order], rows, parts)


def _shapes_domains(folder: Path) -> None:
    for domain, style in enumerate(STYLES):
        rng = np.random.default_rng([104, domain])
        nouns = [shape for shape in SHAPES for _ in range(_PER_DOMAIN_AND_CLASS)]
        colours = [str(rng.choice(seen_colours(noun))) for noun in nouns]
        images = stylise(render_scene(scenes_of(nouns, colours, rng), rng), style, rng)
        for i, (noun, image) in enumerate(zip(nouns, images, strict=True)):
            _save(folder / style / noun / f"{i % _PER_DOMAIN_AND_CLASS:03d}.png", image)


_WRITERS: dict[str, Callable[[Path], None]] = {
    "shapes": lambda folder: _render_set(
        PAIRS, 101, SHAPES_STYLE, folder, "split_zhou_Shapes.json"),
    "digits": _digits,
    "new_nouns": lambda folder: _render_set(
        NEW_NOUNS, 102, "clean", folder, "split_zhou_NewNouns.json"),
    "shapes_domains": _shapes_domains,
}
BUILTIN = tuple(_WRITERS)


def _version() -> str:
    return f"world {WORLD_VERSION}, layout {_LAYOUT_VERSION}\n"


def _stamp(folder: Path) -> str:
    """Return what the stamp of a set says: its version, and a hash of every file in it."""
    digest = hashlib.sha256()
    for parts in sorted(_files_of(str(folder), ())):
        with open(os.path.join(folder, *parts), "rb") as file:
            data = file.read()
        digest.update(f"{'/'.join(parts)} {len(data)}\n".encode() + data)
    return f"{_version()}sha256 {digest.hexdigest()}\n"


def _files_of(folder: str, inside: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yield the path of every file in a folder but stamps, as its parts: no ``Path`` of each."""
    with os.scandir(os.path.join(folder, *inside)) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _files_of(folder, (*inside, entry.name))
            elif entry.is_file() and entry.name != _STAMP:
                yield (*inside, entry.name)


def _is_current(folder: Path) -> bool:
    """Say whether a set is there, of this version and as it was drawn: 30 ms for 1,800 images."""
    try:
        stamp = (folder / _STAMP).read_bytes()
        return stamp.startswith(_version().encode()) and stamp == _stamp(folder).encode()
    except OSError:
        return False


def materialise(name: str, root: Path) -> Path:
    """Makes sure that `<root>/<name>` holds the built-in set and returns that folder.

    Rendered into a temporary folder and moved into place whole, so a killed run leaves nothing
    half done; a set of another version, or with a changed file, is replaced; of two processes
    one waits for the other.
    """
    if name not in _WRITERS:
        raise KeyError(f"no built-in data set {name!r}; there are {', '.join(BUILTIN)}")
    target = Path(root) / name
    if _is_current(target):
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(target.parent / f".{name}.lock"):
        if _is_current(target):
            return target
        with files.temporary_folder(target) as part:
            (part / "new").mkdir()
            _WRITERS[name](part / "new")
            (part / "new" / _STAMP).write_text(_stamp(part / "new"), encoding="utf-8")
            if target.exists():
                os.replace(target, part / "old")
            os.replace(part / "new", target)
    return target
