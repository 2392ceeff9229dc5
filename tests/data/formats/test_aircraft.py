"""FGVC-Aircraft: labels by its own lists, and every way to be wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedvlm.core.errors import DataError
from fedvlm.data.datasets import load_dataset
from fedvlm.data.datum import DatasetBase
from tests.data.miniatures.own import config
from tests.data.miniatures.published import tree_of


def load(root: Path, name: str, **keys: object) -> DatasetBase:
    return load_dataset(config(root, root / "cache", DATASET__NAME=name, **keys))


def test_aircraft_labels_follow_variants_txt(tmp_path: Path) -> None:
    home = tree_of("FGVCAircraft", tmp_path).folder
    names = (home / "variants.txt").read_text(encoding="utf-8").splitlines()
    (home / "variants.txt").write_text("\n".join(reversed(names)) + "\n", encoding="utf-8")
    assert load(tmp_path, "FGVCAircraft").classnames == names[::-1]


@pytest.mark.parametrize(
    ("file", "line", "says"),
    [
        ("images_variant_train.txt", "0000099", "line 13: '0000099' is not '<number> <variant>'"),
        ("images_variant_val.txt", "0000099 A300B5", "'A300B5' is not in variants.txt; did you m"),
        ("images_variant_test.txt", "0000001 707-320", "also at images_variant_train.txt, line 1"),
        ("images_variant_test.txt", "../x 707-320", "relative path without '..'"),
        ("variants.txt", "A300B4", "line 5: 'A300B4' is listed twice"),
    ],
)
def test_bad_aircraft_lists(file: str, line: str, says: str, tmp_path: Path) -> None:
    home = tree_of("FGVCAircraft", tmp_path).folder
    with (home / file).open("a", encoding="utf-8") as out:
        out.write(f"{line}\n")
    with pytest.raises(DataError, match=says):
        load(tmp_path, "FGVCAircraft")


def test_a_variant_with_blanks(tmp_path: Path) -> None:
    home = tree_of("FGVCAircraft", tmp_path).folder
    for path in home.glob("*.txt"):
        text = path.read_text(encoding="utf-8").replace("An-12", "Boeing  717 x")
        path.write_text(text, encoding="utf-8")
    assert load(tmp_path, "FGVCAircraft").classnames[3] == "Boeing  717 x"
