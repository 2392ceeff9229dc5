"""What can be wrong with image files: missing, in no list, unreadable, the same bytes twice.

Whether a file decodes and what its bytes hash to is kept in the records that runs use, so that a
second look is quick and a run after it too.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from PIL import Image

from fedvlm.data.datum import PARTS, Datum
from fedvlm.data.doctor_found import Finding, Look, counted, plural
from fedvlm.data.image_records import ImageRecords
from fedvlm.data.images import check_decodes
from fedvlm.data.locate import folded_path
from fedvlm.data.readers import image_files
from fedvlm.rng import numpy_stream

_ROTATED = 0x0112  # EXIF's tag of the orientation; 1 is upright
_NAMED = 10  # broken images that a sentence lists


class Looked:
    """A set's images as they lie on disk.

    Args:
        lists: train, val and test.
        records: of the set's folder, shared with runs.
        look: how many images are decoded.
        drop: folders below the image folder that are no class.
    """

    def __init__(
        self, lists: Mapping[str, Sequence[Datum]], records: ImageRecords, look: Look,
        drop: Iterable[str] = (),
    ) -> None:
        """List the folder, then decode and hash the sample."""
        self.every = list({d.key: d for part in PARTS for d in lists[part]}.values())
        self.findings: list[Finding] = []
        gone = self._compare_with_disk(tuple(drop))
        there = [d for d in self.every if d.key not in gone]
        self.sample = pick(there, look.sample)
        records.progress = look.progress
        self.broken = records.find_broken(self.sample, check_decodes)
        self._say_broken()
        whole = [d for i, d in enumerate(self.sample) if i not in self.broken]
        self.twins = twins(lists, whole, records)
        records.save()
        self.modes = modes(whole)
        if self.modes:
            kinds = ", ".join(f"{n:,} {kind}" for kind, n in self.modes.items())
            text = f"of {plural(len(whole), 'image')} looked at: {kinds}; all are read as RGB"
            self.findings.append(Finding("modes", text, sum(self.modes.values()), broken=False))

    def _compare_with_disk(self, drop: tuple[str, ...]) -> set[str]:
        """Say which files are missing and which are in no list; return the keys of the missing."""
        files = [d for d in self.every if d.array is None]
        root = next((Path(d.impath.removesuffix(d.key)) for d in files
                     if d.key and d.impath.endswith(f"/{d.key}")), None)
        if root is None:
            return set()
        seen = set(image_files(root)) if root.is_dir() else set()
        missing = [d.key for d in files if d.key not in seen and not os.path.isfile(d.impath)]
        named = {d.key for d in files}
        extra = sorted(k for k in seen - named if k.split("/")[0] not in drop)
        near = {folded_path(key): key for key in extra}
        spelt = [f"'{key}' is {ascii(near[folded_path(key)])} on disk"
                 for key in missing if folded_path(key) in near]
        self.findings += [
            *counted("missing_files", missing,
                     lambda n: f"{n:,} of {len(files):,} images that the lists name do not exist"),
            *counted("other_spelling", spelt, lambda n: f"{n:,} of the missing images are there in "
                     "another spelling, which differs in case or Unicode form"),
            *counted("unnamed_files", extra, lambda n: f"{plural(n, 'image')} below {root} in none "
                     "of the lists", broken=False),
        ]  # fmt: skip
        return set(missing)

    def _say_broken(self) -> None:
        shown = [f"{self.sample[i].key}: {why}" for i, why in sorted(self.broken.items())]
        if shown:  # several, so that they are mended at once
            named = "; ".join(shown[:_NAMED]) + ("; ..." if len(shown) > _NAMED else "")
            text = (f"{len(shown):,} of {plural(len(self.sample), 'image')} looked at do not "
                    f"decode (first: {named})")
            self.findings.append(Finding("unreadable", text, len(shown)))


def pick(items: Sequence[Datum], number: int | None) -> list[Datum]:
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
        mine = sorted(groups[label], key=lambda d: d.key)
        order = numpy_stream(0, "doctor", label).permutation(len(mine))
        ranked += [(rank, int(turn), mine[i]) for rank, i in enumerate(order[:number])]
    ranked.sort(key=lambda row: row[:2])
    return [datum for _, _, datum in ranked[:number]]


def twins(
    lists: Mapping[str, Sequence[Datum]], looked: Sequence[Datum], records: ImageRecords
) -> list[str]:
    """Return the test images that have the bytes of a training image under another path.

    Both must be among ``looked``.
    """
    keys = {part: {d.key for d in lists[part]} for part in ("train", "test")}
    first: dict[str, str] = {}
    hashed = [(d, records.content_key(d)) for d in looked]
    for datum, digest in hashed:
        if datum.key in keys["train"]:
            first.setdefault(digest, datum.key)
    return [
        f"{d.key} has the bytes of {first[digest]}" for d, digest in hashed
        if digest in first and d.key in keys["test"] and d.key not in keys["train"]
    ]


def modes(looked: Sequence[Datum]) -> dict[str, int]:
    """Return how many images are of each kind that is not plain 8-bit RGB; reads headers only."""
    found: Counter[str] = Counter()
    for datum in looked:
        if datum.array is None:
            with Image.open(datum.impath) as image:
                found.update(_kinds(image))
    return dict(sorted(found.items()))


def _kinds(image: Image.Image) -> list[str]:
    mode = image.mode
    raw = [str(tile[3]) for tile in getattr(image, "tile", ())]  # how a file stores its pixels
    deep = mode in ("I", "F") or "16" in mode or any("16" in text for text in raw)
    told = {
        "grey": mode in ("1", "L", "LA", "La", "I", "F") or mode.startswith("I;"),
        "CMYK": mode in ("CMYK", "YCCK"),
        "with a palette": mode in ("P", "PA"),
        "with transparency": mode in ("RGBA", "LA", "PA") or "transparency" in image.info,
        "of more than 8 bits": deep,
    }
    if image.format == "JPEG" and "exif" in image.info and image.getexif().get(_ROTATED, 1) != 1:
        told["rotated by EXIF (read as stored, as CoOp does)"] = True
    return [kind for kind, is_one in told.items() if is_one]
