"""Images without a label: groups, the domain that no client holds, a pattern of folders."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedvlm.core.errors import ConfigError
from fedvlm.data.datum import DatasetBase, Datum, refuse_targets
from fedvlm.data.formats.folders import read_folders
from fedvlm.data.layouts import CopyInfo
from tests.data.miniatures.own import copy


def one(key: str, label: int, group: str | None = None, client: str = "") -> Datum:
    return Datum(f"/x/{key}", label, 0, "ab"[label] if label >= 0 else "", key, group=group,
                 client=client)


def test_groups_of_measured_images_are_left_out() -> None:
    data = DatasetBase(
        [one("1", 0, "p1"), one("2", 1, "p2")], [one("3", 0, "p3")], [one("4", 1, "p4")])
    data.add_unlabelled([one(str(10 + i), -1, f"p{i}") for i in range(1, 6)])
    assert [d.key for d in data.unlabelled] == ["11", "12", "15"]
    assert data.notes == ["2 images without a label were left out: others of their groups are "
                          "validation or test images"]


def test_a_client_may_have_nothing_else() -> None:
    data = DatasetBase([one("1", 0, client="b"), one("2", 1, client="b")], [], [])
    data.add_unlabelled([one("3", -1, client="a")])
    assert data.client_names == ["a", "b"]
    assert [d.key for d in data.all()] == ["1", "2"]


def test_a_pattern_of_folders(tmp_path: Path) -> None:
    for client in ("lyon", "porto"):
        for name in ("cat", "dog", "todo"):
            for i in range(4):
                place = tmp_path / client / name
                place.mkdir(parents=True, exist_ok=True)
                (place / f"{i}.png").touch()
    info: CopyInfo = copy(tmp_path, clients_by="{client}/{class}/*", unlabelled="todo")
    data = read_folders(tmp_path, info)
    assert {d.classname for d in data.all()} == {"cat", "dog"}
    assert sorted((d.client, d.label) for d in data.unlabelled) == (
        [("lyon", -1)] * 4 + [("porto", -1)] * 4)


@pytest.mark.parametrize(("kind", "words"), [
    ("sets", "sets of labels"), ("captions", "have captions"), ("unlabelled", "have no label"),
])
def test_one_sentence_for_each_other_kind_of_target(kind: str, words: str) -> None:
    refuse_targets("this", **{kind: 0})
    with pytest.raises(ConfigError, match=f"^this needs one class for each image, and .*{words}"):
        refuse_targets("this", **{kind: 1})
