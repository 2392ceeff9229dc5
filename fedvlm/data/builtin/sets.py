"""The built-in data sets, written once to disk in CoOp's layout so the normal readers load them.

`shapes`          20 (colour, shape) classes in an unfamiliar style; the first ten are pairs that
                  pretraining showed, the last ten are pairs it never showed (base / new)
`digits`          scikit-learn's 1,797 real handwritten digits
`new_nouns`       8 objects whose names pretraining never used
`shapes_domains`  <domain>/<class>/file.png: 14 shapes in five styles, for feature shift

The labelled tasks by which the tiny model is released and checked again in the tests.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fedvlm.data.builtin.world import (
    COLOURS,
    DIGITS,
    NEW_NOUNS,
    SHAPES,
    SIDE,
    STYLES,
    WORLD_VERSION,
    held_out,
    render,
    scenes_of,
    stylise,
)

OBJECT_TEMPLATE = "a photo of a {}."
DIGIT_TEMPLATE = "a photo of the digit {}."


@dataclass(frozen=True)
class Task:
    """Images uint8 [N, 32, 32, 3], labels [N] and the class names that zero-shot reads."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]
    names: tuple[str, ...]
    template: str


def pair_classes(rest: int) -> list[tuple[str, str]]:
    """The 28 (colour, shape) pairs with hash `rest`; `rest` 0 are the held-out ones."""
    return [
        (colour, shape)
        for s, shape in enumerate(SHAPES)
        for c, colour in enumerate(COLOURS)
        if (3 * s + 2 * c) % 5 == rest
    ]


def seen_colours(shape: str) -> list[str]:
    """Colours in which pretraining shows this shape."""
    return [c for i, c in enumerate(COLOURS) if not held_out(SHAPES.index(shape), i)]


def _nouns(names: tuple[str, ...], per_class: int, style: str, rng: np.random.Generator) -> Task:
    labels = np.repeat(np.arange(len(names)), per_class)
    nouns = [names[k] for k in labels]
    colours: list[str | None] = [None] * len(nouns)
    if names == SHAPES:
        colours = [str(rng.choice(seen_colours(n))) for n in nouns]
    images = render(scenes_of(nouns, colours, rng), rng)
    template = DIGIT_TEMPLATE if names == DIGITS else OBJECT_TEMPLATE
    return Task(stylise(images, style, rng), labels, names, template)


def _styled_shapes(style: str, per_class: int, rng: np.random.Generator) -> Task:
    return _nouns(SHAPES, per_class, style, rng)


def _pairs(rest: int, per_class: int, rng: np.random.Generator) -> Task:
    pairs = pair_classes(rest)
    labels = np.repeat(np.arange(len(pairs)), per_class)
    scenes = scenes_of([pairs[k][1] for k in labels], [pairs[k][0] for k in labels], rng)
    names = tuple(f"{colour} {shape}" for colour, shape in pairs)
    return Task(render(scenes, rng), labels, names, OBJECT_TEMPLATE)


def real_digits() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """scikit-learn's 1,797 real 8x8 digits as RGB uint8 [N, 32, 32, 3] (bicubic), and labels."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    grey = np.clip(np.asarray(bunch.images) * (255.0 / 16.0), 0, 255).astype(np.uint8)
    big = np.empty((len(grey), SIDE, SIDE, 3), dtype=np.uint8)
    for i, small in enumerate(grey):
        picture = Image.fromarray(small).resize((SIDE, SIDE), Image.Resampling.BICUBIC)
        big[i] = np.asarray(picture)[..., None]
    return big, np.asarray(bunch.target, dtype=np.int64)


def _digits_real(per_class: int, rng: np.random.Generator) -> Task:
    """`per_class` real digits of each class, drawn without replacement (all, if fewer)."""
    images, labels = real_digits()
    picks = [rng.permutation(np.flatnonzero(labels == k))[:per_class] for k in range(10)]
    index = np.concatenate(picks)
    return Task(images[index], labels[index], DIGITS, DIGIT_TEMPLATE)


_BUILDERS: dict[str, Callable[[int, np.random.Generator], Task]] = {
    **{f"shape_{style}": partial(_styled_shapes, style) for style in STYLES},
    "pairs_seen": lambda n, rng: _pairs(1, n, rng),
    "pairs_held_out": lambda n, rng: _pairs(0, n, rng),
    "digits_rendered": lambda n, rng: _nouns(DIGITS, n, "clean", rng),
    "digits_real": _digits_real,
    "new_nouns": lambda n, rng: _nouns(NEW_NOUNS, n, "clean", rng),
}
TASKS = tuple(_BUILDERS)


def build_task(name: str, per_class: int, seed: int) -> Task:
    """A task with `per_class` images of each class; equal arguments give equal pixels."""
    if name not in _BUILDERS:
        raise KeyError(f"no such task: {name}; there are {', '.join(TASKS)}")
    return _BUILDERS[name](per_class, np.random.default_rng([seed, TASKS.index(name)]))


_STAMP = ".version"
_LAYOUT_VERSION = 1
_SPLITS = ("train", "val", "test")
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

Images = NDArray[np.uint8]  # [N, 32, 32, 3]
Split = dict[str, list[tuple[str, int, str]]]


def _save(path: Path, image: NDArray[np.uint8]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image).save(path, compress_level=1)


def _write_split(
    folder: Path, file: str, images: Images, entries: list[tuple[str, int, str]], parts: list[str]
) -> None:
    """Saves images under `images/` and the split file beside it.

    `entries` holds (path relative to `images/`, label, class name), `parts` the split of each.
    """
    split: Split = {part: [] for part in _SPLITS}
    for image, entry, part in zip(images, entries, parts, strict=True):
        _save(folder / "images" / entry[0], image)
        split[part].append(entry)
    (folder / file).write_text(json.dumps(split, indent=1) + "\n", encoding="utf-8")


def _rendered(names: tuple[str, ...], seed: int, style: str, folder: Path, file: str) -> None:
    """A rendered set whose class names are "noun" or "colour noun"."""
    rng = np.random.default_rng(seed)
    per_class = sum(_PER_CLASS)
    labels = [label for label in range(len(names)) for _ in range(per_class)]
    words = [names[label].split() for label in labels]
    colours = [w[0] if len(w) == 2 else None for w in words]
    scenes = scenes_of([w[-1] for w in words], colours, rng)
    images = stylise(render(scenes, rng), style, rng)
    parts = [p for p, n in zip(_SPLITS, _PER_CLASS, strict=True) for _ in range(n)] * len(names)
    entries = [
        (f"{names[label].replace(' ', '_')}/{i % per_class:03d}.png", label, names[label])
        for i, label in enumerate(labels)
    ]
    _write_split(folder, file, images, entries, parts)


def _shapes(folder: Path) -> None:
    _rendered(PAIRS, 101, SHAPES_STYLE, folder, "split_zhou_Shapes.json")


def _new_nouns(folder: Path) -> None:
    _rendered(NEW_NOUNS, 102, "clean", folder, "split_zhou_NewNouns.json")


def _digits(folder: Path) -> None:
    """Half of each class for training, a fifth for validation, the rest for the test."""
    images, labels = real_digits()
    rng = np.random.default_rng(103)
    part_of = np.empty(len(labels), dtype=object)
    for label in range(len(DIGITS)):
        mine = rng.permutation(np.flatnonzero(labels == label))
        cuts = [len(mine) // 2, len(mine) * 7 // 10]
        for part, index in zip(_SPLITS, np.split(mine, cuts), strict=True):
            part_of[index] = part
    order = np.argsort(labels, kind="stable")
    entries = [
        (f"{DIGITS[labels[i]]}/{i:04d}.png", int(labels[i]), DIGITS[labels[i]]) for i in order
    ]
    parts = [str(part_of[i]) for i in order]
    _write_split(folder, "split_zhou_Digits.json", images[order], entries, parts)


def _shapes_domains(folder: Path) -> None:
    for domain, style in enumerate(STYLES):
        rng = np.random.default_rng([104, domain])
        nouns = [shape for shape in SHAPES for _ in range(_PER_DOMAIN_AND_CLASS)]
        colours = [str(rng.choice(seen_colours(noun))) for noun in nouns]
        images = stylise(render(scenes_of(nouns, colours, rng), rng), style, rng)
        for i, (noun, image) in enumerate(zip(nouns, images, strict=True)):
            _save(folder / style / noun / f"{i % _PER_DOMAIN_AND_CLASS:03d}.png", image)


_WRITERS: dict[str, Callable[[Path], None]] = {
    "shapes": _shapes,
    "digits": _digits,
    "new_nouns": _new_nouns,
    "shapes_domains": _shapes_domains,
}
BUILTIN = tuple(_WRITERS)


def _version() -> str:
    return f"world {WORLD_VERSION}, layout {_LAYOUT_VERSION}\n"


def _is_current(folder: Path) -> bool:
    stamp = folder / _STAMP
    return stamp.is_file() and stamp.read_text(encoding="utf-8") == _version()


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Holds an exclusive file lock; without fcntl (Windows) there is none to hold."""
    with path.open("w") as file:
        try:
            import fcntl
        except ImportError:
            yield
            return
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def materialise(name: str, root: Path) -> Path:
    """Makes sure that `<root>/<name>` holds the built-in set and returns that folder.

    Rendered into a temporary folder and moved into place whole, so a killed run leaves nothing
    half done; a set of another version is replaced; of two processes one waits for the other.
    """
    if name not in _WRITERS:
        raise KeyError(f"no built-in data set {name!r}; there are {', '.join(BUILTIN)}")
    target = Path(root) / name
    if _is_current(target):
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with _lock(target.parent / f".{name}.lock"):
        if _is_current(target):
            return target
        part = Path(tempfile.mkdtemp(prefix=f".{name}.", dir=target.parent))
        try:
            (part / "new").mkdir()
            _WRITERS[name](part / "new")
            (part / "new" / _STAMP).write_text(_version(), encoding="utf-8")
            if target.exists():
                os.replace(target, part / "old")
            os.replace(part / "new", target)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    return target
