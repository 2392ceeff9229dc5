"""The index file: a run given one is the run that wrote it, and a wrong one is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from fedvlm.core.errors import ConfigError, DataError
from fedvlm.data.federated import FederatedData, build_federation
from fedvlm.data.partition.index_file import read_index_file, seal
from fedvlm.job.identity import WHERE
from tests import jobs
from tests.data.miniatures.own import check_federation, own_split, write_split

CLASSES = ["a", "b", "c", "d", "e"]
SIZES = {"train": 6, "val": 2, "test": 3}


def test_an_index_file_may_move(
    quick_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run goes on where it was: the path of the file is no part of what the run is."""
    first, second = tmp_path / "a.json", tmp_path / "elsewhere.json"
    shutil.copy(jobs.folder(quick_run) / "partition.json", first)
    shutil.copy(first, second)
    assert jobs.run(tmp_path / "given", "--opts", "FED.INDEX_FILE", str(first)) == 0
    given = jobs.folder(tmp_path / "given")
    assert given.parent.name == f"index-{read_index_file(first)['sha256'][:8]}-K2-f1"
    assert jobs.records(tmp_path / "given") == jobs.records(quick_run)
    (given / "results.json").unlink()
    assert jobs.run(tmp_path / "given", "--opts", "FED.INDEX_FILE", str(second)) == 0
    assert "resuming after round 2" in (given / "log.txt").read_text()
    assert jobs.folder(tmp_path / "given") == given
    capsys.readouterr()
    assert jobs.run(tmp_path / "given", "--opts", "FED.INDEX_FILE", str(tmp_path / "no.json")) == 3
    said = capsys.readouterr()
    assert "no.json" in said.out + said.err


def test_what_a_file_says_counts_not_where_it_lies() -> None:
    assert {"FED.INDEX_FILE", "DATASET.FEWSHOT_FILE"} <= set(WHERE)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_split(tmp_path / "mine", CLASSES, SIZES)
    return tmp_path


def make(root: Path, **keys: Any) -> FederatedData:
    return build_federation(own_split(root, root / "cache", **keys))


def test_index_file_gives_the_same_run(root: Path) -> None:
    data = make(root, FED__PARTITION="dirichlet", DATASET__SUBSAMPLE_CLASSES="base")
    path = root / "partition.json"
    path.write_text(json.dumps(data.index_file()))
    assert read_index_file(path) == data.index_file()
    keys = {"FED__INDEX_FILE": str(path), "DATASET__SUBSAMPLE_CLASSES": "base"}
    again = make(root, DATA_SEED=99, **keys)
    check_federation(again)
    assert again.digest == data.digest
    assert again.index_file() == data.index_file()
    assert "partition read from" in again.notes[0]
    for key, value, says in (
        ("FED__CLIENTS", 3, "set FED.CLIENTS 2"),
        ("DATASET__SUBSAMPLE_CLASSES", "all", "set it to base"),
        ("DATASET__NUM_SHOTS", 16, "made with -1; set it to -1"),  # a run's folder names the shots
    ):
        with pytest.raises(ConfigError, match=says):
            make(root, **(keys | {key: value}))


def altered(content: dict[str, Any], **changes: Any) -> dict[str, Any]:
    body = {k: v for k, v in content.items() if k not in ("sha256", "format")} | changes
    return seal(body)


def test_bad_index_files(root: Path) -> None:
    good = make(root).index_file()
    client = good["clients"][0]
    other = client | {"train": ["nowhere.png"]}
    leak = client | {"train": client["train"] + client["test"][:1]}
    cases: list[tuple[Any, str]] = [
        ({"format": "x"}, "is not an index file of format"),
        (good | {"classnames": ["z"]}, "does not match its sha256"),
        (altered(good, clients=[]), "a list of clients"),
        (altered(good, clients=[{"train": [1]}, client]), "client 0 must have lists of paths"),
        (altered(good, spec={"kind": "iid"}), "its spec cannot be used"),
        (altered(good, spec=good["spec"] | {"seed": None}), "seed is 'None', not of type int"),
        (altered(good, spec=good["spec"] | {"held_out": 3}), "held_out is '3', not of type str"),
        (altered(good, spec=good["spec"] | {"clients": True}), "clients is 'True', not of type"),
        (altered(good, classnames=["z"]), "was made for MySet with 1 classes, first 'z'; this run"),
        (altered(good, clients=[client | {"train": []}, client]), "client 0 has no train image"),
        (altered(good, clients=[other, client]), "not in the train list of this set .first: nowh"),
        (altered(good, clients=[leak, client]), "not in the train list of this set"),
        (
            altered(good, clients=[client | {"val": client["val"] * 2}, client]),
            "names a val image twice",
        ),
    ]
    path = root / "index.json"
    for content, says in cases:
        path.write_text(json.dumps(content))
        with pytest.raises(DataError, match=says):
            make(root, FED__INDEX_FILE=str(path))
    path.rename(root / "partition.json")
    for name, says in (
        ("partition.jsn", "does not exist; did you mean 'partition.json'"),
        ("", "is a folder, not a file: give .*partition.json"),
    ):
        with pytest.raises(DataError, match=f"FED.INDEX_FILE .*{says}"):
            make(root, FED__INDEX_FILE=str(root / name))
