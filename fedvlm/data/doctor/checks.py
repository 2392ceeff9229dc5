"""What can be wrong with a data set's lists and image files: one finding, one message.

Of the lists: what a run refuses (``datum.list_faults``; a run names the first, here all are
reported), and what may be a mistake. Of the files: missing, in no list, unreadable, the same bytes
twice. Whether a file decodes and what its bytes hash to is kept in the records that runs use, so
that a second look is quick and a run after it too.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from PIL import Image

from fedvlm.core.errors import plural
from fedvlm.core.pixels import check_decodes
from fedvlm.core.progress import Progress
from fedvlm.core.rng import numpy_stream
from fedvlm.data.datum import PARTS, Datum, Finding, list_faults, untested_classes
from fedvlm.data.image_records import ImageRecords
from fedvlm.data.locate import first_names, folded_path, image_files

READY, PREPARED, BUILT_IN = "ready", "prepared", "built in"
BROKEN, PARTLY, ABSENT, UNKNOWN = "broken", "partly", "absent", "unknown"
_FIRST = 5  # names that a message lists
_FIRST_BROKEN = 10  # broken images that a message lists
_MAJORITY = 0.9  # share of one label that makes a folder the folder of that class
_ROTATED = 0x0112  # EXIF's tag of the orientation; 1 is upright
_Lists = Mapping[str, Sequence[Datum]]  # by part


@dataclass
class Checkup:
    """What was found of one set.

    Attributes:
        name: of the set.
        state: ``ready``, ``prepared`` (the split is of ``data prepare``), ``built in``, ``broken``,
            ``partly`` (files of the layout are missing), ``absent`` or ``unknown`` (a folder that
            is none of the known sets').
        layout: the layout that was read, or the nearest one.
        folder: of the set, below the root.
        classes, sizes: found; ``sizes`` by part. None and empty where nothing was read.
        unit: what ``classes`` counts where it is no class: labels, or topics of captions.
        published_classes, published_sizes: of the catalog; None where not known.
        images: number of distinct images in the lists.
        looked: images that were decoded; ``unreadable`` of them do not decode.
        leaks: images in train and in test or val, by path or by bytes.
        modes: kinds of images that are converted: grey, CMYK, ...; their number among ``looked``.
        findings: problems and remarks.
        get: how to get what is missing; ``page`` is the URL in it, where it is got by hand.
    """

    name: str
    state: str = ABSENT
    layout: str = ""
    folder: str = ""
    classes: int | None = None
    sizes: dict[str, int] = field(default_factory=dict)
    unit: str = ""
    published_classes: int | None = None
    published_sizes: dict[str, int | None] = field(default_factory=dict)
    images: int = 0
    looked: int = 0
    unreadable: int = 0
    leaks: int = 0
    modes: dict[str, int] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    get: str = ""
    page: str = ""

    @property
    def problems(self) -> list[Finding]:
        """What must be mended."""
        return [finding for finding in self.findings if finding.broken]

    @property
    def remarks(self) -> list[Finding]:
        """What should be known."""
        return [finding for finding in self.findings if not finding.broken]


def check_lists(
    lists: _Lists, test_only: bool = False, domain_names: Sequence[str] = ()
) -> list[Finding]:
    """Return what is wrong with the lists, problems and remarks; opens no image.

    Args:
        lists: train, val and test.
        test_only: the set is published without training images.
    """
    images = [datum for part in PARTS for datum in lists[part]]
    faults = list_faults(lists, domain_names)
    if not images:
        return faults
    names = _names_by_label(images)
    return [
        *faults,
        *_same_prompt(names),
        *_other_folder(images),
        *_collisions(images),
        *_bare_classes(lists, names, test_only),
    ]


def _names_by_label(items: Sequence[Datum]) -> dict[int, Counter[str]]:
    names: dict[int, Counter[str]] = defaultdict(Counter)
    for datum in items:
        names[datum.label][datum.classname] += 1
    return dict(sorted(names.items()))


def _same_prompt(names: Mapping[int, Counter[str]]) -> list[Finding]:
    """Find names that prompts cannot tell apart: ``_`` becomes a blank, CLIP folds case."""
    groups: dict[str, set[str]] = defaultdict(set)
    for name in {name for row in names.values() for name in row}:
        groups[" ".join(name.replace("_", " ").casefold().split())].add(name)
    lines = [" and ".join(f"'{n}'" for n in sorted(group))
             for _, group in sorted(groups.items()) if len(group) > 1]
    return _count("same_prompt", lines, f"{plural(len(lines), 'group')} of class names give the "
                  "same prompt, since case and underscores do not show in it")


def _other_folder(items: Sequence[Datum]) -> list[Finding]:
    """Find images that lie in the folder of another class.

    A folder belongs to a class where nine tenths of its images have that label; in a set whose
    folders are not those of its classes, nothing is looked for.
    """
    folders: dict[str, Counter[int]] = defaultdict(Counter)
    for datum in items:
        folders[datum.key.rpartition("/")[0]][datum.label] += 1
    owner: dict[str, int] = {}
    for folder, labels in folders.items():
        label, most = labels.most_common(1)[0]
        if most >= _MAJORITY * labels.total():
            owner[folder] = label
    names = {datum.label: datum.classname for datum in items}
    if len(owner) < 2 or 2 * len(set(owner.values())) < len(names):
        return []
    lines = [
        f"{d.key} is '{d.classname}', but its folder is that of '{names[label]}'"
        for d in items
        if (label := owner.get(d.key.rpartition("/")[0], d.label)) != d.label
        and names[label] != d.classname  # one class with two labels is reported as that
    ]
    text = f"{plural(len(lines), 'image')} in the folder of another class"
    return _count("other_folder", lines, text)


def _collisions(items: Sequence[Datum]) -> list[Finding]:
    first: dict[str, str] = {}
    groups: dict[str, set[str]] = defaultdict(set)
    for datum in items:
        folded = folded_path(datum.key)
        if first.setdefault(folded, datum.key) != datum.key:
            groups[folded] |= {first[folded], datum.key}
    lines = [" and ".join(sorted(group)) for _, group in sorted(groups.items())]
    return _count("colliding_paths", lines, f"{plural(len(lines), 'group')} of paths differ only "
                   "in case or Unicode form; a file system that folds these keeps one of each",
                   broken=False)


def _bare_classes(
    lists: _Lists, names: Mapping[int, Counter[str]], test_only: bool
) -> list[Finding]:
    findings = []
    most = len(untested_classes(lists)) > 0
    for part in ("test",) if test_only else ("train", "test"):
        labels = {d.label for d in lists[part]}
        bare = [f"'{row.most_common(1)[0][0]}'" for label, row in names.items()
                if label not in labels]
        if bare:
            classes = plural(len(bare), "class", "classes")
            text = f"{classes} without a {part} image: {first_names(bare, _FIRST)}"
            broken = part == "test" and most
            text += "; a run refuses data where most classes have none" if broken else ""
            findings.append(Finding(f"no_{part}_images", text, len(bare), broken))
    return findings


class ImageCheck:
    """A set's images as they lie on disk.

    Args:
        lists: train, val and test.
        records: of the set's folder, shared with runs.
        sample: how many images are decoded; None for all.
        progress: reports how many are read.
        drop: folders below the image folder that are no class.
        policy: of a run about images that do not decode, ``skip`` or ``refuse``.
    """

    def __init__(
        self, lists: _Lists, records: ImageRecords, sample: int | None,
        progress: Progress | None = None, drop: Iterable[str] = (), policy: str = "skip",
    ) -> None:
        """List the folder, then decode and hash the sample."""
        self.images = list({d.key: d for part in PARTS for d in lists[part]}.values())
        self.findings: list[Finding] = []
        absent = self._compare_with_disk(tuple(drop))
        there = [d for d in self.images if d.key not in absent]
        self.sample = sample_images(there, sample)
        records.progress = progress
        self.broken = records.find_broken(self.sample, check_decodes)
        self._say_broken(lists, policy)
        whole = [d for i, d in enumerate(self.sample) if i not in self.broken]
        self.twins = duplicates(lists, whole, records)
        records.save()
        self.modes = image_modes(whole)
        if self.modes:
            kinds = ", ".join(f"{n:,} {kind}" for kind, n in self.modes.items())
            text = f"of {plural(len(whole), 'image')} looked at: {kinds}; all are read as RGB"
            self.findings.append(Finding("modes", text, sum(self.modes.values()), broken=False))

    def _compare_with_disk(self, drop: tuple[str, ...]) -> set[str]:
        """Say which files are missing and which are in no list; return the keys of the missing."""
        files = [d for d in self.images if d.array is None]
        root = next((Path(d.impath.removesuffix(d.key)) for d in files
                     if d.key and d.impath.endswith(f"/{d.key}")), None)
        if root is None:
            return set()
        on_disk = set(image_files(root)) if root.is_dir() else set()
        absent = [d.key for d in files if d.key not in on_disk and not os.path.isfile(d.impath)]
        keys = {d.key for d in files}
        extra = sorted(k for k in on_disk - keys if k.split("/")[0] not in drop)
        near = {folded_path(key): key for key in extra}
        spellings = [f"'{key}' is {ascii(near[folded_path(key)])} on disk"
                     for key in absent if folded_path(key) in near]
        self.findings += [
            *_count("missing_files", absent, f"{len(absent):,} of {len(files):,} images that the "
                   "lists name do not exist"),
            *_count("other_spelling", spellings, f"{len(spellings):,} of the missing images are "
                   "there in another spelling that differs in case or Unicode form"),
            *_count("unnamed_files", extra, f"{plural(len(extra), 'image')} below {root} in none "
                   "of the lists", broken=False),
        ]  # fmt: skip
        return set(absent)

    def _say_broken(self, lists: _Lists, policy: str) -> None:
        """Say which images do not decode: a problem where a run stops at them."""
        bad = {self.sample[i].key for i in self.broken}
        classes: dict[int, set[str]] = defaultdict(set)
        for datum in lists["train"] or lists["test"]:
            classes[datum.label].add(datum.key)
        stops = "a run stops at them (DATASET.ON_CORRUPT)" if policy == "refuse" else (
            "a class has no other image to train on"
            if any(keys <= bad for keys in classes.values()) else "")
        lines = [f"{self.sample[i].key}: {why}" for i, why in sorted(self.broken.items())]
        if lines:  # several, so that they are mended at once
            first = "; ".join(lines[:_FIRST_BROKEN])
            first += "; ..." if len(lines) > _FIRST_BROKEN else ""
            text = (f"{'' if stops else 'usable: '}{len(lines):,} of "
                    f"{plural(len(self.sample), 'image')} looked at do not decode (first: {first})"
                    f"; {stops or 'a run leaves them out'}")
            self.findings.append(Finding("unreadable", text, len(lines), bool(stops)))


def sample_images(items: Sequence[Datum], number: int | None) -> list[Datum]:
    """Return ``number`` images, spread over the classes as evenly as they allow; all for None.

    The same list gives the same images, so a second look finds their records.
    """
    if number is None or number >= len(items):
        return list(items)
    groups: dict[int, list[Datum]] = {}
    for datum in items:
        groups.setdefault(datum.label, []).append(datum)
    ranked: list[tuple[int, int, Datum]] = []
    classes = numpy_stream(0, "doctor", "classes").permutation(len(groups))
    for turn, label in zip(classes, sorted(groups), strict=True):
        images = sorted(groups[label], key=lambda d: d.key)
        order = numpy_stream(0, "doctor", label).permutation(len(images))
        ranked += [(rank, int(turn), images[i]) for rank, i in enumerate(order[:number])]
    ranked.sort(key=lambda row: row[:2])
    return [datum for _, _, datum in ranked[:number]]


def duplicates(lists: _Lists, sample: Sequence[Datum], records: ImageRecords) -> list[str]:
    """Return the test images that have the bytes of a training image under another path.

    Both must be in the sample.
    """
    keys = {part: {d.key for d in lists[part]} for part in ("train", "test")}
    first: dict[str, str] = {}
    hashed = [(d, records.content_key(d)) for d in sample]
    for datum, digest in hashed:
        if datum.key in keys["train"]:
            first.setdefault(digest, datum.key)
    return [
        f"{d.key} has the bytes of {first[digest]}" for d, digest in hashed
        if digest in first and d.key in keys["test"] and d.key not in keys["train"]
    ]


def image_modes(images: Sequence[Datum]) -> dict[str, int]:
    """Return how many images are of each kind that is not plain 8-bit RGB; reads headers only."""
    numbers: Counter[str] = Counter()
    for datum in images:
        if datum.array is None and datum.packed is None:
            with Image.open(datum.impath) as image:
                numbers.update(_kinds(image))
    return dict(sorted(numbers.items()))


def _kinds(image: Image.Image) -> list[str]:
    mode = image.mode
    raw = [str(tile[3]) for tile in getattr(image, "tile", ())]  # how a file stores its pixels
    deep = mode in ("I", "F") or "16" in mode or any("16" in text for text in raw)
    kinds = {
        "grey": mode in ("1", "L", "LA", "La", "I", "F") or mode.startswith("I;"),
        "CMYK": mode in ("CMYK", "YCCK"),
        "with a palette": mode in ("P", "PA"),
        "with transparency": mode in ("RGBA", "LA", "PA") or "transparency" in image.info,
        "of more than 8 bits": deep,
    }
    if image.format == "JPEG" and "exif" in image.info and image.getexif().get(_ROTATED, 1) != 1:
        kinds["rotated by EXIF (read as stored, as CoOp does)"] = True
    return [kind for kind, is_one in kinds.items() if is_one]


def _count(check: str, names: Sequence[str], text: str, broken: bool = True) -> list[Finding]:
    """Return a finding that counts ``names`` and shows the first; none where there are none."""
    return [Finding(check, f"{text} (first: {names[0]})", len(names), broken)] if names else []
