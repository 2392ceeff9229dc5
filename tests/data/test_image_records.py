"""A changed image is noticed: by its times, while it is read, or by reading all again."""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from fedvlm.core.errors import DataError
from fedvlm.core.pixels import check_decodes
from fedvlm.data.datum import Datum
from fedvlm.data.image_records import ImageRecords
from fedvlm.data.images import ImageLoader
from tests.data.miniatures.own import Spec, write_image


def datum(path: Path) -> Datum:
    return Datum(str(path), 0, key=path.name)


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def change_behind_its_date(path: Path) -> None:
    """Write other bytes of the same size and put the modification time back."""
    before = path.stat()
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    while path.stat().st_ctime_ns == before.st_ctime_ns:  # the file system's clock ticks slowly
        path.write_bytes(raw)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        time.sleep(0.001)
    now = path.stat()
    assert (now.st_size, now.st_mtime_ns) == (before.st_size, before.st_mtime_ns)


def test_same_size_and_date_but_other_bytes(tmp_path: Path) -> None:
    path = write_image(tmp_path / "a.png", 1)
    records = ImageRecords(tmp_path / "r.json")
    records.find_broken([datum(path)], check_decodes)
    first = records.content_key(datum(path))
    change_behind_its_date(path)
    assert ImageRecords(tmp_path / "r.json").content_key(datum(path)) == digest(path) != first


def test_verify_finds_what_no_time_shows(tmp_path: Path) -> None:
    paths = [write_image(tmp_path / name, n) for n, name in enumerate(("a.png", "b.png", "c.png"))]
    items, file = [datum(p) for p in paths], tmp_path / "r.json"
    ImageRecords(file).find_broken(items, check_decodes)
    content = json.loads(file.read_text())
    content["images"][str(paths[1])][3] = "0" * 64  # as if these bytes had come later, unseen
    file.write_text(json.dumps(content))
    records = ImageRecords(file)
    assert records.content_key(items[1]) == "0" * 64
    assert file.stat().st_mode & 0o77 == 0  # names of files may be of patients
    assert records.verify(items, check_decodes) == [str(paths[1])]
    assert ImageRecords(file).content_key(items[1]) == digest(paths[1])
    assert records.verify(items, check_decodes) == []


def test_a_new_date_alone_does_not_decode_again(tmp_path: Path) -> None:
    good, cut = write_image(tmp_path / "a.png", 1), tmp_path / "b.png"
    cut.write_bytes(good.read_bytes()[:40])
    items, records = [datum(good), datum(cut)], ImageRecords(None)
    broken = records.find_broken(items, check_decodes)
    assert list(broken) == [1]
    for path in (good, cut):
        os.utime(path, ns=(1, 1))

    def never(raw: bytes) -> None:
        raise AssertionError("decoded again")

    assert records.find_broken(items, never) == broken


def test_two_writers_of_one_file_keep_each_others_records(tmp_path: Path) -> None:
    a, b = (datum(write_image(tmp_path / name, 1)) for name in ("a.png", "b.png"))
    one, two = ImageRecords(tmp_path / "r.json"), ImageRecords(tmp_path / "r.json")
    one.find_broken([a], check_decodes)
    two.find_broken([b], check_decodes)
    assert set(json.loads((tmp_path / "r.json").read_text())["images"]) == {a.impath, b.impath}


def test_an_image_that_changes_after_its_key_was_taken_is_refused(tmp_path: Path) -> None:
    path = write_image(tmp_path / "a.png", 1)
    loader = ImageLoader([datum(path)], Spec())
    key = loader.content_key(0)
    loader.load(0, key=key)
    write_image(path, 2)
    with pytest.raises(DataError, match=r"a\.png has changed since this command began"):
        loader.load(0, key=key)
    loader.load(0)  # without a store nothing can be kept under the wrong key


def test_reading_is_timed(tmp_path: Path) -> None:
    loader = ImageLoader([datum(write_image(tmp_path / "a.png", 1))], Spec())
    assert loader.reading == 0.0
    loader.load(0)
    assert loader.reading > 0.0


def close(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Refuse what lies below ``folder``, as a folder without the right x does; root is let in."""
    real = os.stat

    def stat(path: Any, *args: Any, **more: Any) -> Any:
        if isinstance(path, str | Path) and folder in Path(path).parents:
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *args, **more)

    monkeypatch.setattr(os, "stat", stat)


def test_images_in_a_closed_folder_are_not_called_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shut").mkdir()
    paths = [write_image(tmp_path / "a.png", 1), write_image(tmp_path / "shut" / "b.png", 2)]
    close(monkeypatch, tmp_path / "shut")
    items = [Datum(str(p), 0, key=p.name) for p in paths]
    with pytest.raises(DataError, match=r"1 of 2 images .* cannot be reached .*b\.png: Permission"):
        ImageRecords(None).find_broken(items, check_decodes)
