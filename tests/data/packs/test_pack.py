"""A set's lists in a pack and out of it; what lists of others may not hold."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedvlm.core.errors import DataError
from fedvlm.core.pixels import check_decodes
from fedvlm.data.datum import DatasetBase, group_numbers
from fedvlm.data.image_records import ImageRecords
from fedvlm.data.images import ImageLoader, decodable
from fedvlm.data.packs.file import read_container
from fedvlm.data.packs.lists import read_pack_lists
from fedvlm.data.packs.pack import open_pack
from fedvlm.data.targets import split_digest
from tests.data.miniatures.own import Spec
from tests.data.packs.packs import TRANSFORM, hashes_of, lists, make_pack, resealed, rewritten

NAME = "x.pack.safetensors"


def rows_of(data: DatasetBase) -> list[tuple[Any, ...]]:
    lists = data.parts.items()
    return [(part, d.key, d.label, d.domain, d.classname) for part, all_ in lists for d in all_]


@pytest.mark.parametrize("domains", [0, 2])
def test_lists_come_back_as_they_were(tmp_path: Path, domains: int) -> None:
    data = lists(domains=domains)
    back = read_pack_lists(open_pack(make_pack(tmp_path / NAME, data)))
    back.check()
    assert rows_of(back) == rows_of(data) and back.domain_names == data.domain_names
    assert split_digest(back) == split_digest(data)
    records = ImageRecords(None)
    assert [records.content_key(d) for d in back.all()] == hashes_of(data)
    assert back.notes[0] == "a note" and "there are no images" in back.notes[1]


def grouped(data: DatasetBase) -> DatasetBase:
    """The lists with a patient for every two images of a part, but the first, in no order."""
    for part, items in data.parts.items():
        data.parts[part] = [replace(d, group=f"{part}-Jones-{9 - i // 2}" if i else None)
                            for i, d in enumerate(items)]
    return data


def test_groups_come_back_as_numbers_in_the_order_of_their_names(tmp_path: Path) -> None:
    data = grouped(lists())
    path = make_pack(tmp_path / NAME, data)
    pack = open_pack(path)
    back = read_pack_lists(pack)
    back.check()
    for part, items in back.parts.items():
        assert group_numbers(items).tolist() == group_numbers(data.parts[part]).tolist()
        assert items[0].group is None and len({d.group for d in items[1:]}) > 1
    assert b"Jones" not in path.read_bytes() and split_digest(back) == split_digest(data)
    names = [d.group for d in data.all()]
    assert [(a == b) for a in pack.groups for b in pack.groups] == [
        (a == b) for a in names for b in names]
    assert read_container(path).about["format"] == "fedvlm-pack/2"
    other = make_pack(tmp_path / f"o.{NAME}", DatasetBase(*(
        [replace(d, group="Jones-of-another") for d in items] for items in data.parts.values()
    ), name="Mine", notes=["a note"]))
    assert open_pack(other).about != pack.about  # one that is there is not taken for it


def test_a_pack_without_groups_is_the_file_that_it_was(tmp_path: Path) -> None:
    pack = open_pack(make_pack(tmp_path / NAME, views=["crop:0"]))
    assert pack.digest == "12ba09e423f9e90bc60bb3421eb7d6c5c76c0916902796d976da6e9a3dfe7f4d"
    assert read_container(pack.path).about["format"] == "fedvlm-pack/1"
    assert {d.group for d in read_pack_lists(pack).all()} == {None}


@pytest.mark.parametrize("value", [-2, 18])
def test_hostile_groups(tmp_path: Path, value: int) -> None:
    path = make_pack(tmp_path / NAME, grouped(lists()))
    pack = open_pack(tensors(path, "groups", struct.pack("<q", value)))
    with pytest.raises(DataError, match="its groups are not from -1 to 17"):
        read_pack_lists(pack)


def test_a_header_that_leaves_out_its_groups(tmp_path: Path) -> None:
    path = make_pack(tmp_path / NAME, grouped(lists()))
    for changes in ({"groups": ""}, {"groups": "short"}):
        with pytest.raises(DataError, match="its header does not say what it is"):
            open_pack(rewritten(path, tmp_path / f"r.{NAME}", **changes))
    bare = make_pack(tmp_path / f"b.{NAME}")
    with pytest.raises(DataError, match="its header does not say what it is"):
        open_pack(rewritten(bare, tmp_path / f"r.{NAME}", groups="0" * 64))


def test_images_that_do_not_decode_stay_named_and_have_no_row(tmp_path: Path) -> None:
    pack = open_pack(make_pack(tmp_path / NAME, faults={1: "cut short", 13: "the file is empty"}))
    data = read_pack_lists(pack)
    rows = [d.packed.row for d in data.all() if d.packed]
    assert rows[:4] == [0, -1, 1, 2] and rows[12:15] == [11, -1, 12] and max(rows) == 15
    records = ImageRecords(None)
    assert records.find_broken(data.train_x, check_decodes) == {1: "cut short"}
    assert records.verify(data.all(), check_decodes) == []
    kept, (note,) = decodable("Mine", data.test, records, "skip")
    assert kept == [data.test[0], *data.test[2:]]
    (note,) = decodable("Mine", data.train_x, records, "skip")[1]
    assert "train/0/1.png (cut short)" in note
    with pytest.raises(DataError, match="replace them"):
        decodable("Mine", data.train_x, records, "refuse")


def test_rows_by_transform(tmp_path: Path) -> None:
    pack = open_pack(make_pack(tmp_path / NAME, views=["crop:0", "crop:1"]))
    at = np.array([2, 0, 2])
    assert pack.rows(TRANSFORM, at)[:, 0].tolist() == [2, 0, 2]
    assert pack.rows("crop:1", at)[:, 0].tolist() == [202, 200, 202]
    assert isinstance(pack._container.array("features"), np.memmap)


def test_pixels_of_a_pack_are_refused(tmp_path: Path) -> None:
    data = read_pack_lists(open_pack(make_pack(tmp_path / NAME)))
    with pytest.raises(DataError, match=r"train/0/0.png is in the feature pack .* has no pixels"):
        ImageLoader(data.all(), Spec()).load(0)


def test_a_pack_is_hashed_once_until_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_pack(tmp_path / NAME)
    first = open_pack(path)
    assert open_pack(path) is first
    make_pack(path, lists(classes=2))
    assert open_pack(path).about.classnames == ["class 0", "class 1"]


@pytest.mark.parametrize("how", ["replaced", "in place", "gone"])
def test_rows_come_from_the_file_that_was_hashed(tmp_path: Path, how: str) -> None:
    path = make_pack(tmp_path / NAME)
    pack = open_pack(path)
    if how == "replaced":  # same header, same size
        tensors(path, "features", b"\0\0\0\0").replace(path)
    elif how == "in place":
        raw = path.read_bytes()
        path.write_bytes(raw[:-4] + b"\0\0\0\0")
    else:
        path.unlink()
    with pytest.raises(DataError, match="cannot read" if how == "gone" else "changed or replaced"):
        pack.rows(TRANSFORM, np.array([0]))


def tensors(path: Path, name: str, values: bytes) -> Path:
    """A pack whose tensor ``name`` begins with other bytes, with a digest that agrees."""
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + length])
    at = 8 + length + header[name]["data_offsets"][0]
    raw = raw[:at] + values + raw[at + len(values) :]
    return resealed(path.with_name(f"other.{path.name}"), header, raw[8 + length :])


@pytest.mark.parametrize(("name", "values", "says"), [
    ("labels", struct.pack("<q", 3), "its labels are not from 0 to 2"),
    ("labels", struct.pack("<q", -1), "its labels are not from 0 to 2"),
    ("domains", struct.pack("<q", 1), "its domains are not from 0 to 0"),
    ("keys", b'["../../abcdefg"', "no proper names"),
    ("keys", b'["tr\\u001bABCDE"', "no proper names"),
    ("keys", b"[[[[[[[[[", "is no JSON"),
    ("faults", b"[]", "unreadable images is invalid"),
])
def test_hostile_lists(tmp_path: Path, name: str, values: bytes, says: str) -> None:
    pack = open_pack(tensors(make_pack(tmp_path / NAME), name, values))
    with pytest.raises(DataError, match=says):
        read_pack_lists(pack)


def test_features_that_are_no_numbers(tmp_path: Path) -> None:
    pack = open_pack(tensors(make_pack(tmp_path / NAME), "features", struct.pack("<f", np.nan)))
    with pytest.raises(DataError, match="features are not finite"):
        pack.rows(TRANSFORM, np.array([0]))
    pack.rows(TRANSFORM, np.array([1]))


def test_an_image_name_that_does_not_print_is_not_packed(tmp_path: Path) -> None:
    data = lists()
    data.parts["train"][0] = type(data.train_x[0])("/x", 0, 0, "class 0", "a\nb.png")
    with pytest.raises(DataError, match=r"'a\\nb.png' cannot be named in a pack"):
        make_pack(tmp_path / NAME, data)
    assert list(tmp_path.iterdir()) == []
