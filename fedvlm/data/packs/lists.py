"""A set's lists out of a pack, and a pack out of a set's lists."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from fedvlm.core.errors import DataError
from fedvlm.data.datum import PARTS, DatasetBase, Datum, IntArray, group_numbers
from fedvlm.data.packs.file import Writer, write_container
from fedvlm.data.packs.pack import About, Pack, PackedImage, header_of, is_key


def read_pack_lists(pack: Pack) -> DatasetBase:
    """Return the lists of a pack, not checked: its images have features and no pixels.

    Raises:
        DataError: the pack's lists are not what its header says.
    """
    about, path = pack.about, str(pack.path)
    labels, domains, hashes = pack.labels.tolist(), pack.domains.tolist(), pack.hashes
    faults, groups = pack.faults, pack.groups
    parts: dict[str, list[Datum]] = {part: [] for part in PARTS}
    at = row = 0
    for part, count in zip(PARTS, about.sizes, strict=True):
        for key in pack.keys[at : at + count]:
            fault = faults.get(at, "")
            image = PackedImage(pack, -1 if fault else row, hashes[at], fault)
            row += not fault
            name = about.classnames[labels[at]]
            parts[part].append(Datum(path, labels[at], domains[at], name, key, packed=image,
                                     group=groups[at]))
            at += 1
    data = DatasetBase.of(parts, about.domains, about.notes)
    data.notes.append(f"{about.name}: features of the pack {pack.path.name} (sha256 "
                      f"{pack.digest[:12]}), made with {about.backbone}; there are no images")
    return data


def hash_images(hashes: Sequence[str]) -> str:
    """Return the sha256 over the hashes of images, in order."""
    return hashlib.sha256("".join(hashes).encode()).hexdigest()


def pack_groups(images: Sequence[Datum]) -> IntArray | None:
    """Return the group number of each image ``[n]``, -1 without; None where no image has a group.

    Groups are numbered in the order of their names, so that all that is cut or dealt by groups is
    what it is with the names; the names themselves (a patient's) are nowhere.
    """
    alone = np.array([d.group is None for d in images])
    return None if alone.all() else np.where(alone, -1, group_numbers(images))


def hash_groups(images: Sequence[Datum]) -> str:
    """Return the sha256 of what ``pack_groups`` gives; empty where that is nothing."""
    numbers = pack_groups(images)
    return "" if numbers is None else hashlib.sha256(numbers.astype("<i8").tobytes()).hexdigest()


@contextmanager
def write_pack_file(
    path: Path, about: About, parts: Mapping[str, Sequence[Datum]], hashes: Sequence[str],
    faults: Mapping[int, str],
) -> Iterator[Writer]:
    """Give a writer that wants the features: all rows of the test view, then view by view.

    The file is there when the block ends, whole, or not at all.

    Args:
        about: what the pack is to say of itself.
        parts: the set's lists.
        hashes: of all images' bytes, train first.
        faults: why images do not decode, by position; they have no row.

    Raises:
        DataError: it cannot be written, or an image has a name that does not print.
    """
    images = [datum for part in PARTS for datum in parts[part]]
    strange = next((d.key for d in images if not is_key(d.key)), None)
    if strange is not None:
        raise DataError(f"{about.name}: the image {ascii(strange)} cannot be named in a pack; "
                        "rename its file")
    keys = json.dumps([d.key for d in images]).encode()
    reasons = json.dumps({str(at): " ".join(why.split()) for at, why in faults.items()}).encode()
    tensors = about.tensors(len(keys), len(reasons))
    with write_container(path, header_of(about), tensors) as out:
        out.add(np.array([d.label for d in images], dtype="<i8"))
        out.add(np.array([d.domain for d in images], dtype="<i8"))
        if about.groups:
            out.add(np.asarray(pack_groups(images), dtype="<i8"))
        out.add(np.frombuffer(bytes.fromhex("".join(hashes)), dtype="u1"))
        out.add(np.frombuffer(keys + reasons, dtype="u1"))
        out.add(np.zeros(-(len(keys) + len(reasons)) % 8, dtype="u1"))
        yield out
