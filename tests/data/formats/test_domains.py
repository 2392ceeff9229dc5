"""Lists of multi-domain sets as people have them: author's folders, damage, disagreement."""

from __future__ import annotations

import io
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedvlm.core.errors import DataError
from fedvlm.data.datasets import load_dataset
from fedvlm.data.datum import DatasetBase
from fedvlm.data.formats.rows import image_path
from fedvlm.data.untrusted.arrays import load_arrays
from tests.data.miniatures.domains import write_domain_set
from tests.data.miniatures.own import config

PATHS = ["office_caltech_10/amazon/bike/1.jpg", "office_caltech_10/amazon/mug/2.jpg"]
LABELS = ["bike", "mug"]


@pytest.fixture
def office(tmp_path: Path) -> Path:
    return write_domain_set("OfficeCaltech10", "FedBN pickles", tmp_path)


def load(folder: Path, name: str = "OfficeCaltech10") -> DatasetBase:
    root = folder.parent
    return load_dataset(config(root, root / "cache", DATASET__NAME=name))


@pytest.mark.parametrize(
    "path",
    ["Set/real/dog/1.jpg", "real/dog/1.jpg", "./real//dog/./1.jpg", "../../data/Set/real/dog/1.jpg",
     "../../data/real/dog/1.jpg", "/home/x/Set/real/dog/1.jpg", "C:\\data\\Set\\real\\dog\\1.jpg",
     "Set/Set/real/dog/1.jpg"],
)  # fmt: skip
def test_the_authors_folders_are_dropped(path: str) -> None:
    assert image_path(path, ("Set",), "real", "x") == "real/dog/1.jpg"


@pytest.mark.parametrize(
    "path",
    ["../../etc/shadow/x/y", "/etc/a/b/c", "C:\\a\\b\\c\\d", "Set/../../etc/passwd", "Set",
     "Set/real/../../../x.jpg", "real/dog/../../../../x", "dog/1.jpg", "", "Set/real/do\0g/1.jpg",
     "Set/real/\ud800/1.jpg"],
)  # fmt: skip
def test_no_path_leaves_the_set(path: str) -> None:
    with pytest.raises(DataError, match=r"list.txt:3: the path .* expected real/<class>/<image>"):
        image_path(path, ("Set",), "real", "list.txt:3")


def as_npy(content: Any) -> bytes:
    stream = io.BytesIO()
    np.save(stream, content, allow_pickle=True)
    return stream.getvalue()


def as_npz() -> bytes:
    stream = io.BytesIO()
    np.savez(stream, np.array(PATHS), np.array(LABELS, dtype=object))
    return stream.getvalue()


FORMS = {
    "tuple of arrays": pickle.dumps((np.array(PATHS), np.array(LABELS)), 2),
    "list of lists": pickle.dumps([PATHS, LABELS], 4),
    "one array": pickle.dumps(np.array([PATHS, LABELS]), 3),
    "object arrays": pickle.dumps((np.array(PATHS, object), np.array(LABELS, object)), 5),
    "numbers": pickle.dumps((np.array(PATHS), np.array([1, 2]))),
    "npy": as_npy(np.array([PATHS, LABELS])),
    "npy of objects": as_npy(np.array([PATHS, LABELS], dtype=object)),
    "npy by columns": as_npy(np.asfortranarray(np.array([PATHS, LABELS]))),
    "npz": as_npz(),
}


@pytest.mark.parametrize("form", FORMS)
def test_what_numpy_load_takes_is_read(form: str, office: Path) -> None:
    if form == "numbers":
        for path in office.glob("*.pkl"):
            names, labels = pickle.loads(path.read_bytes())
            numbers = [["back_pack", "bike", "mug"].index(y) for y in labels]
            path.write_bytes(pickle.dumps((names, np.array(numbers))))
    (office / "amazon_test.pkl").write_bytes(FORMS[form])
    mine = [(d.key, d.classname, d.label) for d in load(office).test if d.domain == 0]
    assert mine == [("amazon/bike/1.jpg", "bike", 1), ("amazon/mug/2.jpg", "mug", 2)]


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return bytes, (10**12,)


def huge_npy() -> bytes:
    raw = as_npy(np.zeros(3))
    return raw.replace(b"(3,), }" + b" " * 9, b"(3000000000,), }")


def zip_bomb() -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", b"x" * 1000)
    raw = stream.getvalue()
    return raw.replace((1000).to_bytes(4, "little"), (2**31).to_bytes(4, "little"))


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (pickle.dumps([Bomb()]), "is not a plain pickle"),
        (as_npy(np.array([Bomb()], dtype=object)), "is not a plain pickle"),
        (huge_npy(), r"shape \(3000000000,\).*has other content"),
        (as_npy(np.zeros(2, [("a", "i4")])), "has other content"),
        (b"\x93NUMPY\x01\x00\x04\x00exit", "is not an array file"),
        (b"PK\x03\x04 nothing", "is not an archive of arrays"),
        (zip_bomb(), "unpacks to more than 1024 MiB"),
        (pickle.dumps([PATHS]), "expected two lists"),
        (pickle.dumps({"a": 1, "b": 2}), "expected two lists"),
        (pickle.dumps(("a", "b")), "expected two lists"),
        (pickle.dumps((PATHS, LABELS[:1])), "2 paths but 1 labels"),
        (pickle.dumps(([], [])), "must hold the paths"),
        (pickle.dumps(([1, 2], LABELS)), "must hold the paths"),
        (pickle.dumps((PATHS, [0.5, 1])), "must be class names or whole numbers"),
        (pickle.dumps((PATHS, [True, False])), "must be class names or whole numbers"),
        (pickle.dumps((PATHS, ["bike", 1])), "must be class names or whole numbers"),
        (pickle.dumps((PATHS, [0, 1])), "some of the lists give class names and some give numbers"),
        (pickle.dumps((PATHS, LABELS[::-1])), "'mug' but lies in the folder of 'bike'"),
        (pickle.dumps((["amazon/bike/../../../x"] * 2, LABELS)), "does not lead to an image"),
    ],
    ids=range(19),
)
def test_bad_pickles_are_refused(raw: bytes, says: str, office: Path) -> None:
    (office / "amazon_test.pkl").write_bytes(raw)
    with pytest.raises(DataError, match=says) as error:
        load(office)
    assert "amazon_test.pkl" in str(error.value) or "some of the lists" in says


def test_zip_bomb_that_lies_about_its_size(tmp_path: Path) -> None:
    """An entry that unpacks to more than it states ends with an error, not with the memory."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", b"\0" * 10**7)
    raw = stream.getvalue().replace((10**7).to_bytes(4, "little"), (10).to_bytes(4, "little"))
    (tmp_path / "f.pkl").write_bytes(raw)
    with pytest.raises(DataError, match="is not an a"):
        load_arrays(tmp_path / "f.pkl")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("clipart/zebra/1.jpg", "a line is 'path label'"),
        ("clipart/zebra/1.jpg two", "a line is 'path label'"),
        ("clipart/zebra/1.jpg -1", "a line is 'path label'"),
        ("clipart/zebra/1.jpg ²", "a line is 'path label'"),
        ("clipart/zebra/1.jpg " + "9" * 5000, "a line is 'path label'"),
        ("7", "a line is 'path label'"),
        ("../../etc/zebra/1.jpg 2", "does not lead to an image"),
        ("clipart/zebra/1.jpg 1", "label 1 is 'zebra', elsewhere 't-shirt'"),
        ("clipart/zebra/1.jpg 3", "'zebra' has label 3, elsewhere 2"),
        ("clipart/okapi/1.jpg 2", "label 2 is 'okapi', elsewhere 'zebra'"),
        ("clipart/okapi/1.jpg 9", "labels must be 0..3 without gaps"),
    ],
)
def test_bad_lines_are_named(line: str, says: str, tmp_path: Path) -> None:
    folder = write_domain_set("DomainNetFull", "DomainNet lists", tmp_path)
    path = folder / "clipart_test.txt"
    path.write_text(path.read_text() + "\n" + line + "\n")
    with pytest.raises(DataError, match=says) as error:
        load(folder, "DomainNetFull")
    assert "clipart_test.txt:8" in str(error.value) or "labels must be" in says


def test_lists_that_count_from_one(tmp_path: Path) -> None:
    folder = write_domain_set("PACS", "FedPHA folds", tmp_path)
    (folder / "label" / "photo_train_kfold.txt").write_text("photo/dog/1.jpg 0\n")
    with pytest.raises(DataError, match=r"kfold.txt:1: label 0, but this list counts from 1"):
        load(folder, "PACS")


def test_list_that_is_no_text(tmp_path: Path) -> None:
    folder = write_domain_set("DomainNetFull", "DomainNet lists", tmp_path)
    (folder / "real_test.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="real_test.txt is not a text file in UTF-8"):
        load(folder, "DomainNetFull")


def test_an_image_twice_is_one_image_and_two_labels_are_an_error(tmp_path: Path) -> None:
    folder = write_domain_set("PACS", "FLORA pickles", tmp_path)
    path = folder / "photo_train.pkl"
    names, labels = pickle.loads(path.read_bytes())
    path.write_bytes(pickle.dumps((list(names) + [names[0]], list(labels) + [labels[0]])))
    assert len(load(folder, "PACS").train_x) == 48
    flat = [name.replace("/dog/", "/all/") for name in names]
    path.write_bytes(pickle.dumps((flat + [flat[0]], [*labels, "person"])))
    with pytest.raises(DataError, match=r"is 'person' here and 'dog' in .*photo_train.pkl\[0\]"):
        load(folder, "PACS")


def test_a_domain_whose_test_list_is_its_train_list_is_refused(tmp_path: Path) -> None:
    folder = write_domain_set("PACS", "FLORA pickles", tmp_path)
    (folder / "photo_test.pkl").write_bytes((folder / "photo_train.pkl").read_bytes())
    with pytest.raises(DataError, match="leave domain 'photo' without a test image of its own"):
        load(folder, "PACS")
