"""Metadata files as their publishers write them are understood: classes, clients, groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedvlm.core.errors import DataError
from fedvlm.data.datum import PARTS
from fedvlm.data.own.add import OwnSet, understand
from tests.data.columns.publishers import PUBLISHED, flair


def read(folder: Path, word: str, cache: Path, **flags: str) -> OwnSet:
    given = {f"DATASET.{key}": value for key, value in flags.items()}
    return understand(folder / word if word else folder, {"CACHE_DIR": str(cache)} | given)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_publishers_file_is_understood(name: str, tmp_path: Path) -> None:
    said = PUBLISHED[name]
    (tmp_path / "set").mkdir()
    word = said.make(tmp_path / "set")
    own = read(tmp_path / "set", word, tmp_path / "cache", **said.flags)
    data = own.data
    assert tuple(data.classnames) == said.classes
    assert len(data.client_names) == said.clients
    everyone = data.all()
    assert all(Path(d.impath).is_file() for d in everyone)
    groups = {d.group for d in everyone} - {None}
    assert len(groups) == said.groups
    for group in groups:
        sides = [part for part in PARTS if any(d.group == group for d in data.parts[part])]
        assert len(sides) == 1
    if said.clients:
        assert own.keys["FED.PARTITION"] == "natural"
        assert own.keys["FED.CLIENTS"] == said.clients
    bare = {key: value for key, value in said.flags.items() if key == "COLUMNS"}
    if said.proposed:
        notes = " ".join(read(tmp_path / "set", word, tmp_path / "cache", **bare).notes)
        for column in said.proposed:
            assert f"the column '{column}' (" in notes
            assert f"--clients-by {column}" in notes or f"--groups {column}" in notes


def test_a_set_of_labels_is_no_class(tmp_path: Path) -> None:
    word = flair(tmp_path)
    with pytest.raises(DataError, match=r"is a set of labels.*--columns classname=COLUMN"):
        read(tmp_path, word, tmp_path / "cache", COLUMNS="classname=labels")
