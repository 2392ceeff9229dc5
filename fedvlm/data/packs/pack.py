"""A feature pack: the features of a set's images under one backbone, without the images.

It holds every image of the set by name, label, domain and sha256, in the set's own three lists, so
that any shots, seeds and partitions are drawn from it as from the images. Images that did not
decode are listed with the reason and have no features. What a run needs to know to refuse it (the
backbone's digest, the transform, the numerics, the views) stands in the header (``About``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedvlm.core.errors import DataError
from fedvlm.core.spelling import name_fault, show_name
from fedvlm.data.packs.file import (
    GROUPED_FORMAT,
    Array,
    PackFile,
    Tensor,
    read_container,
    read_error,
    stamp_of,
)

_FEATURES, VIEW = "features", "view."  # tables: of the test view, and of each training view
KEYS, FAULTS, LABELS, DOMAINS, HASHES = "keys", "faults", "labels", "domains", "sha256"
GROUPS = "groups"
_DTYPES: dict[str, np.dtype[Any]] = {"float32": np.dtype("<f4"), "float64": np.dtype("<f8")}
_SHARE = "DATASET.TEST_SHARE"
# Of the config: what reads a set, or says how its clients share it.
PACK_SETTINGS = (
    "DATASET.NAME", "DATASET.DIR", "DATASET.IMAGE_DIR", "DATASET.SPLIT_FILE", "DATASET.FORMAT",
    "DATASET.NAMES_FILE", "DATASET.CLASSNAMES", "DATASET.LEAVE_OUT", _SHARE, "DATASET.TEMPLATE",
    "DATASET.TEMPLATES", "DATASET.GROUPS",
    "FED.PARTITION", "FED.BETA", "FED.CLIENTS",
)  # fmt: skip
_PARTS = 3  # train, val, test
_OPEN = 8  # packs that a process keeps open
_KINDS: dict[str, tuple[type, type | None]] = {
    "str": (str, None), "int": (int, None), "list[str]": (list, str), "list[int]": (list, int),
}  # fmt: skip
_TEXT = 4000  # characters of any text in the header but class names
Setting = str | float | int | list[str]


@dataclass(frozen=True)
class About:
    """The description in a pack's header.

    Attributes:
        name: of the set.
        settings: those of ``PACK_SETTINGS`` that were set, for a run that names the pack alone.
        classnames: by label; ``domains``: by number, empty for a set without.
        sizes: images in train, val and test, those that do not decode included.
        unreadable: how many of them do not decode, by part.
        notes: what the reader of the set said of that copy.
        cut_seed: DATA_SEED where the test images were drawn by it (DATASET.TEST_SHARE), else -1.
        split: sha256 of the set's lists.
        images: sha256 over the images' hashes, in order.
        backbone, weights, digest: of the towers; ``width``: numbers per image.
        transform: of the test view, in the words of ``ImageLoader.transform_key``.
        numerics: what decides the last bits; ``batch``: images per pass.
        dtype: ``float32`` or ``float64``.
        views: transforms of the training views, from view 0.
        view_seed: DATA_SEED of the views, -1 without.
        data_terms, weight_terms: licence notes.
        version: of fedvlm.
        groups: sha256 of the images' group numbers; empty: nothing says what belongs together.
    """

    name: str
    settings: dict[str, Setting]
    classnames: list[str]
    domains: list[str]
    sizes: list[int]
    unreadable: list[int]
    notes: list[str]
    cut_seed: int
    split: str
    images: str
    backbone: str
    weights: str
    digest: str
    width: int
    transform: str
    numerics: str
    batch: int
    dtype: str
    views: list[str] = field(default_factory=list)
    view_seed: int = -1
    data_terms: str = ""
    weight_terms: str = ""
    version: str = ""
    groups: str = ""

    @property
    def count(self) -> int:
        """Images in all lists."""
        return sum(self.sizes)

    @property
    def rows(self) -> list[int]:
        """Images with features, by part."""
        return [n - bad for n, bad in zip(self.sizes, self.unreadable, strict=True)]

    def tensors(self, texts: int, faults: int) -> list[Tensor]:
        """Return the tensors of the file in order; ``texts``, ``faults``: bytes of the two lists.

        The features come last, so that they can be written as they are made.
        """
        n, kind = self.count, _DTYPES[self.dtype]
        whole: np.dtype[Any] = np.dtype("<i8")
        byte: np.dtype[Any] = np.dtype("u1")
        lists: list[Tensor] = [
            (LABELS, whole, (n,)), (DOMAINS, whole, (n,)),
            *([(GROUPS, whole, (n,))] if self.groups else []), (HASHES, byte, (n, 32)),
            (KEYS, byte, (texts,)), (FAULTS, byte, (faults,)),
        ]
        # The features begin at a multiple of 8 bytes.
        lists.append(("pad", byte, (-(texts + faults) % 8,)))
        views: list[Tensor] = [
            (f"{VIEW}{v}", kind, (self.rows[0], self.width)) for v in range(len(self.views))
        ]
        return [*lists, (_FEATURES, kind, (sum(self.rows), self.width)), *views]


@dataclass(frozen=True, slots=True)
class PackedImage:
    """What a pack keeps of an image.

    Attributes:
        pack: the pack.
        row: of its features; -1 where it did not decode.
        sha256: of its bytes.
        fault: why it did not decode; empty where it did.
    """

    pack: Pack
    row: int
    sha256: str
    fault: str = ""


class Pack:
    """An open pack, its digest proved.

    Attributes:
        path: of the file.
        about: its description, checked.
        digest: sha256 of the file.
    """

    def __init__(self, container: PackFile) -> None:
        self.path, self.digest = container.path, container.digest
        self._container = container
        self.about = read_about(container)

    @cached_property
    def labels(self) -> NDArray[np.int64]:
        """Labels ``[n]`` of all images, train first."""
        return self._numbers(LABELS, len(self.about.classnames))

    @cached_property
    def domains(self) -> NDArray[np.int64]:
        """Domain numbers ``[n]``."""
        return self._numbers(DOMAINS, max(len(self.about.domains), 1))

    @cached_property
    def groups(self) -> list[str | None]:
        """What each image belongs to, as digits that sort as the numbers do; None: to nothing."""
        if not self.about.groups:
            return [None] * self.about.count
        numbers = self._numbers(GROUPS, self.about.count, -1)
        digits = len(str(numbers.max(initial=0)))
        return [None if n < 0 else f"{n:0{digits}d}" for n in numbers.tolist()]

    @cached_property
    def keys(self) -> list[str]:
        """Names ``[n]`` of the images."""
        keys = self._json(KEYS)
        if not isinstance(keys, list) or len(keys) != self.about.count or not all(
            isinstance(key, str) and is_key(key) for key in keys
        ):
            raise self._wrong("its images have no proper names")
        return keys

    @cached_property
    def faults(self) -> dict[int, str]:
        """Why images do not decode, by position."""
        faults = self._json(FAULTS)
        if not isinstance(faults, dict) or len(faults) != sum(self.about.unreadable):
            raise self._wrong("its list of unreadable images is invalid")
        try:
            reasons = {int(at): str(why)[:_TEXT] for at, why in faults.items()}
        except ValueError as error:
            raise self._wrong("its list of unreadable images is invalid") from error
        edges = np.cumsum([0, *self.about.sizes])
        by_part = np.histogram(list(reasons), edges)[0] if reasons else np.zeros(_PARTS)
        if by_part.tolist() != self.about.unreadable or not set(reasons) <= set(
            range(self.about.count)
        ):
            raise self._wrong("its list of unreadable images is invalid")
        return reasons

    @cached_property
    def hashes(self) -> list[str]:
        """The sha256 of each image's bytes, as hexadecimal digits."""
        return [row.tobytes().hex() for row in np.asarray(self._container.array(HASHES))]

    def rows(self, transform: str, at: NDArray[np.int64]) -> Array:
        """Return the features ``[m, width]`` of rows under a transform, as a copy.

        Args:
            transform: one of those that it has (``tables``).
            at: rows: places among the images that decode, train first.

        Raises:
            DataError: a feature that is no finite number.
        """
        table = self._container.array(self.tables[transform])
        out: Array = table[at]
        if not np.isfinite(out).all():
            raise self._wrong("some of its features are not finite")
        return out

    @property
    def tables(self) -> dict[str, str]:
        """The name of the tensor by transform."""
        views = {key: f"{VIEW}{v}" for v, key in enumerate(self.about.views)}
        return {self.about.transform: _FEATURES} | views

    def _numbers(self, name: str, end: int, start: int = 0) -> NDArray[np.int64]:
        values = np.asarray(self._container.array(name), dtype=np.int64)
        if len(values) and not (values.min() >= start and values.max() < end):
            raise self._wrong(f"its {name} are not from {start} to {end - 1}")
        return values

    def _json(self, name: str) -> Any:
        try:
            return json.loads(self._container.array(name).tobytes().decode("utf-8"))
        except (ValueError, RecursionError) as error:
            raise self._wrong(f"its list {name} is no JSON") from error

    def _wrong(self, why: str) -> DataError:
        return DataError(f"the feature pack {self.path} cannot be used: {why}; make it again")


def is_key(key: str) -> bool:
    """Tell whether a text can be an image's name: it names nothing outside and moves no cursor."""
    parts = key.split("/")
    return key.isprintable() and len(key) <= _TEXT and parts[0] != "" and ".." not in parts


def open_pack(path: Path) -> Pack:
    """Return the pack at a path; the file is hashed unless this process did so before.

    Raises:
        DataError: it cannot be read, is no pack, was cut or changed.
    """
    try:
        stat = path.stat()
    except OSError as error:
        raise read_error(path, error) from error
    return _opened(path.resolve(), stamp_of(stat))


@lru_cache(maxsize=_OPEN)
def _opened(path: Path, _stamp: tuple[int, ...]) -> Pack:
    container = read_container(path)
    container.verify()
    return Pack(container)


def read_about(container: PackFile) -> About:
    """Return what a header says, every value checked.

    Raises:
        DataError: a value is missing, of another kind, or does not agree with the tensors.
    """
    content = {k: v for k, v in container.about.items() if k != "format"}
    try:
        about = About(**content)
        _check_kinds(about)
        _check_sizes(about, container)
        if bool(about.groups) != (container.about["format"] == GROUPED_FORMAT):
            raise ValueError("groups and a format without, or the reverse")
    except (TypeError, ValueError, KeyError) as error:
        said = " ".join(str(error).split())[:200]
        raise DataError(
            f"the feature pack {container.path} cannot be used: its header does not say what it "
            f"is ({said}); make it again"
        ) from error
    return about


def _check_kinds(about: About) -> None:
    """Raise ``ValueError`` where a value is of another kind than its annotation, or hostile."""
    for one in fields(About):
        value = getattr(about, one.name)
        kind, inner = _KINDS.get(str(one.type), (dict, None))
        items = list(value) if inner and type(value) is list else []
        if type(value) is not kind or not all(type(item) is inner for item in items):
            raise ValueError(f"{one.name} is not {one.type}")
    texts = [about.backbone, about.weights, about.numerics, about.transform, about.data_terms,
             about.weight_terms, about.version, *about.notes, *about.views]
    if not all(text.isprintable() and len(text) <= _TEXT for text in texts):
        raise ValueError("a text with unprintable characters")
    for name in (about.name, *about.classnames, *about.domains):
        if fault := name_fault(name):
            raise ValueError(f"the name {show_name(name)} {fault}")
    if not set(about.settings) <= set(PACK_SETTINGS):
        raise ValueError("settings that are not those of a data set")
    for value in about.settings.values():
        several: list[Any] = value if isinstance(value, list) else [value]
        if not all(type(v) in (str, int, float) and str(v).isprintable() for v in several):
            raise ValueError("settings hold something else than texts and numbers")
    share = about.settings.get(_SHARE, 0)
    if not isinstance(share, int | float) or not 0 <= share < 1:  # no NaN either
        raise ValueError(f"{_SHARE} is no share")
    if not all(len(d) == 64 for d in (about.digest, about.split, about.images,
                                      *([about.groups] if about.groups else []))):
        raise ValueError("an invalid digest")


def _check_sizes(about: About, container: PackFile) -> None:
    """Raise ``ValueError`` or ``KeyError`` where the tensors are not those of the header."""
    pairs = list(zip(about.sizes, about.unreadable, strict=True))
    if len(pairs) != _PARTS or not all(0 <= bad <= n for n, bad in pairs) or about.width < 1:
        raise ValueError("sizes that cannot be")
    slots = container.slots
    texts, faults = (slots[name].shape for name in (KEYS, FAULTS))
    wanted = about.tensors(texts[0] if texts else 0, faults[0] if faults else 0)
    there = [(name, slot.dtype, slot.shape) for name, slot in slots.items()]
    if [(n, np.dtype(d), s) for n, d, s in wanted] != there:
        raise ValueError("its tensors are not those of its header")
    if len({about.transform, *about.views}) != 1 + len(about.views):
        raise ValueError("two views of one transform")


def header_of(about: About) -> Mapping[str, Any]:
    """Return what a header holds, as JSON values; of groups nothing where there are none."""
    content = asdict(about)
    if not content["groups"]:
        del content["groups"]
        return content
    return content | {"format": GROUPED_FORMAT}
