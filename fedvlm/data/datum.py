"""One image with its label, and a data set as three lists of them (Dassl's vocabulary)."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from fedvlm.core.errors import ConfigError, DataError
from fedvlm.core.spelling import name_fault, show_name
from fedvlm.data.locate import first_names

if TYPE_CHECKING:
    from fedvlm.data.packs.pack import PackedImage

IntArray = NDArray[np.int64]
PARTS = ("train", "val", "test")
NO_LABEL = "no label"  # the class by which images with an empty set of labels are dealt
ONE_SIDED = "one_sided_labels"  # a fault of what is trained on only
_FIRST = 5  # labels that a message lists
_MOST = 0.5  # of the classes: where more of them have no test image there is no test


class Picture(Protocol):
    """An image without a file, read on demand and not kept."""

    @property
    def key(self) -> str:
        """Its content key, ``image_records.array_key``."""
        ...

    def read(self) -> NDArray[np.uint8]:
        """Return uint8 ``[H, W, 3]``.

        Raises:
            DataError: it cannot be read, or is not the one that ``key`` stands for.
        """
        ...


@dataclass(frozen=True, slots=True)
class Passage:
    """A sample that is a text, where others are images (``Datum.array``)."""

    text: str

    @property
    def key(self) -> str:
        """Its content key: the sha256 of the text."""
        return hashlib.sha256(self.text.encode("utf-8", "surrogatepass")).hexdigest()

    def read(self) -> NDArray[np.uint8]:
        """Refuse: there are no pixels.

        Raises:
            DataError: always.
        """
        raise DataError("this sample is a text, and what was asked for needs images")


@dataclass(frozen=True, slots=True)
class Datum:
    """One labelled image, or a text (``array`` is then a ``Passage``).

    Attributes:
        impath: absolute path of the image file, or of the file that holds it.
        label: class number from 0; -1 of an image that nobody has labelled.
        domain: number into ``DatasetBase.domain_names`` (0 where there is one domain).
        classname: as in the split file or folder name; ``_`` becomes a blank at prompt time.
        key: path relative to the image folder, with ``/``: the image's name in index files.
        array: uint8 ``[H, W, 3]`` where the image comes out of an archive, a ``Picture`` where it
            is read from memory when it is wanted, else None.
        packed: what a feature pack knows of it, which has no pixels; None for an image.
        client: who holds it, by the column that DATASET.CLIENTS_BY names; empty without one, and
            the partition decides.
        group: what it shares with other images that are no independent evidence (a patient, a
            slide, a video), by the column that DATASET.GROUPS names; None without one. A group
            never stands on two sides of a split, a fold or a partition.
        labels: its set of labels, ascending and perhaps empty, by the columns that DATASET.LABELS
            names; None where it has one class. ``label`` is then the rarest of them, by which
            images are dealt and drawn, and the number of labels for an image without one.
        captions: texts that describe it, by the column that DATASET.CAPTIONS names; ``label`` is
            then its topic, by which images are dealt.
    """

    impath: str
    label: int
    domain: int = 0
    classname: str = ""
    key: str = ""
    array: NDArray[np.uint8] | Picture | None = field(default=None, compare=False, repr=False)
    packed: PackedImage | None = field(default=None, compare=False, repr=False)
    client: str = ""
    group: str | None = field(default=None, compare=False, repr=False)
    labels: tuple[int, ...] | None = None
    captions: tuple[str, ...] = field(default=(), repr=False)

    @property
    def path(self) -> Path:
        """The image file, or the file that holds the image."""
        return Path(self.impath)


@dataclass(frozen=True)
class Finding:
    """One thing to say of a set.

    Attributes:
        check: a stable key of what was looked for: ``missing_files``, ``leak_paths``, ...
        text: the message, one line, without the set's name.
        count: how many images, rows or classes it is about.
        broken: a run would fail or give wrong numbers; False is a remark.
    """

    check: str
    text: str
    count: int = 1
    broken: bool = True


class DatasetBase:
    """The train, validation and test lists of one data set, with its names and notes.

    A class of your own calls this constructor with its lists, which are checked. Readers give
    theirs by ``of``, unchecked: ``datasets`` checks them, and the doctor wants faulty ones too.

    Args:
        train_x, val, test: the three lists; ``val`` may be empty.
        name: shown in messages and files.
        domain_names: names of the domains by number; empty where there is one unnamed domain.
        notes: what the user should know of this copy (subset, own split, chosen layout).

    Attributes:
        parts: the lists as ``train``, ``val`` and ``test``.
        lab2cname, classnames: names by label; empty until ``check`` has passed.
        label_names: of all labels where an image has a set of them (``Datum.labels``), set by the
            reader; else empty. ``classnames`` is then these, and ``NO_LABEL`` where one has none.
        unlabelled: training images without a label (``add_unlabelled``); they are in no part.
        whole: whether it is there to be trained on (``CopyInfo.whole``).
        client_names: sorted names of the clients that the data say (``Datum.client``) and that have
            a training image; empty where the partition decides.

    Raises:
        DataError: as ``check``.
    """

    def __init__(
        self,
        train_x: Sequence[Datum],
        val: Sequence[Datum],
        test: Sequence[Datum],
        *,
        name: str = "",
        domain_names: Sequence[str] = (),
        notes: Iterable[str] = (),
        check: bool = True,
    ) -> None:
        self.parts = {"train": list(train_x), "val": list(val), "test": list(test)}
        self.name = name
        self.domain_names = list(domain_names)
        self.notes = list(notes)
        self.label_names: list[str] = []
        self.unlabelled: list[Datum] = []
        self.whole = True
        self.lab2cname: dict[int, str] = {}
        self.classnames: list[str] = []
        self.client_names = sort_names({d.client for d in self.parts["train"]} - {""})
        if check:
            self.check()

    @staticmethod
    def of(
        parts: Mapping[str, Sequence[Datum]],
        domain_names: Sequence[str] = (),
        notes: Iterable[str] = (),
    ) -> DatasetBase:
        """Return the lists that a reader got from disk, not checked and without a name."""
        lists = (parts[part] for part in PARTS)
        return DatasetBase(*lists, domain_names=domain_names, notes=notes, check=False)

    def check(self) -> None:
        """Refuse lists that no run can use.

        Raises:
            DataError: labels with gaps, a label with two names, a name with two labels or that
                is none, or an image that is in two parts or twice in one.
        """
        faults = list_faults(self.parts, self.domain_names, self.label_names)
        if not self.whole:
            faults = [fault for fault in faults if fault.check != ONE_SIDED]
        if faults:
            raise DataError(f"{self.name}: {faults[0].text}")
        self.lab2cname = {d.label: d.classname for d in self.all()}
        if self.label_names:
            self.lab2cname |= dict(enumerate(self.label_names))
        self.classnames = [self.lab2cname[label] for label in sorted(self.lab2cname)]

    def add_unlabelled(self, items: Iterable[Datum]) -> None:
        """Take training images without a label, but those of a validation or test image's group."""
        torn = {d.group for part in ("val", "test") for d in self.parts[part]} - {None}
        every = list(items)
        kept = [d for d in every if d.group not in torn]
        if len(kept) < len(every):
            self.notes.append(
                f"{len(every) - len(kept):,} images without a label were left out: others of their "
                "groups are validation or test images")
        self.unlabelled += kept
        named = {d.client for d in (*self.parts["train"], *self.unlabelled)} - {""}
        self.client_names = sort_names(named)

    @property
    def kind(self) -> str:
        """What messages call a sample: ``image`` or ``text``."""
        texts = any(isinstance(d.array, Passage) for part in PARTS for d in self.parts[part][:1])
        return "text" if texts else "image"

    @property
    def captioned(self) -> bool:
        """Whether images have captions; their classes are then topics."""
        return any(d.captions for part in PARTS for d in self.parts[part][:1])

    @property
    def num_classes(self) -> int:
        """Number of classes over all three lists (Dassl counts train only)."""
        return len(self.classnames)

    @property
    def train_x(self) -> list[Datum]:
        """The training list."""
        return self.parts["train"]

    @property
    def val(self) -> list[Datum]:
        """The validation list."""
        return self.parts["val"]

    @property
    def test(self) -> list[Datum]:
        """The test list."""
        return self.parts["test"]

    def client_numbers(self) -> dict[str, IntArray]:
        """Return by part the number of each image's client, -1 for none; empty without clients."""
        if not self.client_names:
            return {}
        number = {name: i for i, name in enumerate(self.client_names)}
        return {
            part: np.array([number.get(d.client, -1) for d in rows], dtype=np.int64)
            for part, rows in self.parts.items()
        }

    def all(self) -> list[Datum]:
        """Return all images: train, then val, then test."""
        return [datum for part in PARTS for datum in self.parts[part]]


def refuse_targets(
    what: str, *, sets: object = False, captions: object = False, unlabelled: object = False
) -> None:
    """Refuse images that do not have one class each.

    Args:
        what: asks; begins the sentence.
        sets, captions, unlabelled: something true where images have sets of labels, have captions,
            or where some have no label.

    Raises:
        ConfigError: one of them is true.
    """
    for there, words in (
        (sets, "these have sets of labels (DATASET.LABELS)"),
        (captions, "these have captions (DATASET.CAPTIONS)"),
        (unlabelled, "some of these have no label: take them out of the table, or leave their "
                     "folder out with DATASET.LEAVE_OUT"),
    ):
        if there:
            raise ConfigError(f"{what} needs one class for each image, and {words}")


def refuse_client_texts(what: str, own: Mapping[int, Sequence[str]]) -> None:
    """Refuse clients with templates of their own.

    Args:
        what: asks; begins the sentence.
        own: templates by client (``FederatedData.client_templates``).

    Raises:
        ConfigError: there are some.
    """
    if own:
        raise ConfigError(f"{what} reads the same templates for all clients, and DATASET.TEMPLATES "
                          f"has those of {len(own)} single client(s): take the key 'clients' out "
                          "of a copy of that file")


def labels_of(items: Sequence[Datum]) -> IntArray:
    """Return the labels ``[n]`` of a list."""
    return np.fromiter((d.label for d in items), dtype=np.int64, count=len(items))


def domains_of(items: Sequence[Datum]) -> IntArray:
    """Return the domain numbers ``[n]`` of a list."""
    return np.fromiter((d.domain for d in items), dtype=np.int64, count=len(items))


def sort_names(names: Iterable[str]) -> list[str]:
    """Return names in order, numbers among them by their value (``site 2`` before ``site 10``)."""
    def key(name: str) -> list[tuple[int, int, str]]:
        pieces = re.split(r"([0-9]+)", name)
        return [(0, int(p), "") if p.isdecimal() else (1, 0, p) for p in pieces if p]

    return sorted(names, key=lambda name: (key(name), name))


def group_numbers(items: Sequence[Datum]) -> IntArray:
    """Return the group numbers ``[n]`` of a list, from 0 by the groups' sorted names.

    An image without a group is a group of its own, and comes after the named ones.
    """
    names = sorted({d.group for d in items if d.group is not None})
    number = {name: i for i, name in enumerate(names)}
    alone = iter(range(len(names), len(names) + len(items)))
    rows = (next(alone) if d.group is None else number[d.group] for d in items)
    return np.fromiter(rows, dtype=np.int64, count=len(items))


def untested_classes(parts: Mapping[str, Sequence[Datum]]) -> list[str]:
    """Return the names of the trained classes without a test image, where these are most."""
    trained = {d.label: d.classname for d in parts["train"]}
    tested = {d.label for d in parts["test"]}
    bare = [name for label, name in sorted(trained.items()) if label not in tested]
    return bare if tested and len(bare) > _MOST * len(trained) else []


def list_faults(
    parts: Mapping[str, Sequence[Datum]], domain_names: Sequence[str] = (),
    label_names: Sequence[str] = (),
) -> list[Finding]:
    """Return why no run can use lists, one fault of a kind; none where one can.

    Args:
        label_names: of all labels, where images have sets of them.
    """
    at: dict[tuple[int, str], str] = {}  # (label, name) -> first image
    for part in PARTS:
        for d in parts[part]:
            at.setdefault((d.label, d.classname), d.key)
    if not at:
        return [Finding("no_images", "no images at all")]
    if label_names:
        named = dict.fromkeys(enumerate(label_names), "")
        sides = [] if len(parts["train"]) == 0 else _one_sided(parts["train"], label_names)
        return [*_wrong_names(named, domain_names), *_wrong_labels(named), *sides, *_repeats(parts)]
    return [*_wrong_names(at, domain_names), *_wrong_labels(at), *_repeats(parts)]


def _one_sided(train: Sequence[Datum], names: Sequence[str]) -> Iterator[Finding]:
    """Yield labels that no training image has, or all have: nothing can be learnt of them."""
    counts = Counter(label for d in train for label in d.labels or ())
    odd = [name for i, name in enumerate(names) if counts[i] in (0, len(train))]
    if odd:
        i = list(names).index(odd[0])
        yield Finding(ONE_SIDED, f"the label '{odd[0]}' is on "
                        f"{'all' if counts[i] else 'none'} of the {len(train)} training images"
                        f"{_more(odd)}: leave it out, or give another split", len(odd))


def _wrong_names(
    at: Mapping[tuple[int, str], str], domain_names: Sequence[str]
) -> Iterator[Finding]:
    for domain in domain_names:
        if fault := name_fault(domain):
            yield Finding("domain_names", f"the domain's name {show_name(domain)} {fault}")
    for label, name in sorted(at):
        if fault := name_fault(name):
            yield Finding("class_names", f"the name of class {label}, {show_name(name)}, "
                            f"{fault}; rename it")


def _wrong_labels(at: Mapping[tuple[int, str], str]) -> Iterator[Finding]:
    names: dict[int, list[str]] = {}
    labels: dict[str, list[int]] = {}
    for label, name in at:
        names.setdefault(label, []).append(name)
        labels.setdefault(name, []).append(label)
    several = [(label, row) for label, row in names.items() if len(row) > 1]
    for label, (one, other, *_) in several[:1]:
        yield Finding("label_names", f"label {label} is called both '{one}' and '{other}' (at "
                        f"{at[label, other]}); a label has one name{_more(several)}", len(several))
    gaps = sorted(set(range(max(names) + 1)) - set(names))
    if gaps or min(names) < 0:
        yield Finding(
            "label_gaps", f"labels must be 0..{len(names) - 1} without gaps, but they go from "
            f"{min(names)} to {max(names)} with {len(names)} classes"
            + (f" (first missing: {first_names(map(str, gaps), _FIRST)})" if gaps else ""),
            len(gaps) or 1)
    doubles = [(name, sorted(row)) for name, row in sorted(labels.items()) if len(row) > 1]
    for name, (first, second, *_) in doubles[:1]:
        yield Finding("duplicate_names", f"labels {first} and {second} are both called "
                        f"'{name}'; class names must differ{_more(doubles)}", len(doubles))


def _repeats(parts: Mapping[str, Sequence[Datum]]) -> Iterator[Finding]:
    """Yield images that are named twice: they would leak, weigh double, or have two labels."""
    keys = {part: {d.key for d in parts[part]} for part in PARTS}
    for part in PARTS:
        if len(keys[part]) < len(parts[part]):
            times = Counter(d.key for d in parts[part])
            twice = sorted(key for key, n in times.items() if n > 1)
            yield Finding("listed_twice", f"{len(twice)} image(s) are named twice or more in "
                            f"{part} (first: {twice[0]}); leave each of them there once",
                            len(twice))
    for a, b in (("train", "test"), ("train", "val"), ("val", "test")):
        both = sorted(keys[a] & keys[b])
        if both:
            yield Finding("leak_paths", f"{len(both)} image(s) are in {a} and in {b} (first: "
                            f"{both[0]}); remove them from one of the two", len(both))


def _more(faults: Sequence[object]) -> str:
    return f" ({len(faults) - 1} more)" if len(faults) > 1 else ""
