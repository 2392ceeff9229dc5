"""The partition in a run's folder: its CSV, its name in the path, and a given index file."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data_helpers import config, write_tree
from yacs.config import CfgNode

from fedvlm.data.federated import build_federation
from fedvlm.data.partition.counts import count_rows, partition_csv
from fedvlm.data.partition.index_file import read_index_file
from fedvlm.job.describe import partition_name
from fedvlm.job.identity import WHERE
from tests import jobs


def named(**fed: Any) -> str:
    plain = {
        "CLIENTS": 10, "FRAC": 1.0, "PARTITION": "disjoint", "BETA": 0.3, "BETA_FINE": 10.0,
        "MIN_SIZE": 2, "CLASSES_PER_CLIENT": 2, "REPEAT_RATE": 0.0, "LEGACY": False,
        "HELD_OUT_DOMAIN": "", "INDEX_FILE": "",
    }  # fmt: skip
    return partition_name(CfgNode({"FED": CfgNode(plain | fed)}))


@pytest.mark.parametrize(
    ("fed", "name"),
    [({}, "disjoint-K10-f1"), ({"LEGACY": True}, "disjoint-legacy-K10-f1"),
     ({"REPEAT_RATE": 0.2}, "disjoint-repeat0.2-K10-f1"), ({"FRAC": 0.25}, "disjoint-K10-f0.25"),
     ({"BETA": 9.0, "MIN_SIZE": 9, "CLASSES_PER_CLIENT": 9}, "disjoint-K10-f1"),
     ({"PARTITION": "dirichlet"}, "dirichlet-0.3-K10-f1"),
     ({"PARTITION": "dirichlet", "MIN_SIZE": 10}, "dirichlet-0.3-min10-K10-f1"),
     ({"PARTITION": "superclass_dirichlet"}, "superclass_dirichlet-0.3-K10-f1"),
     ({"PARTITION": "superclass_dirichlet", "BETA_FINE": 1.0},
      "superclass_dirichlet-0.3-fine1-K10-f1"),
     ({"PARTITION": "n_classes"}, "n_classes-2-K10-f1"), ({"PARTITION": "iid"}, "iid-K10-f1"),
     ({"PARTITION": "quantity", "BETA": 1.0}, "quantity-1-K10-f1"),
     ({"PARTITION": "domain", "HELD_OUT_DOMAIN": "Real World"},
      "domain-without-Real_World-K10-f1")],
)  # fmt: skip
def test_the_path_shows_what_changes_the_partition(fed: dict[str, Any], name: str) -> None:
    assert named(**fed) == name


def test_rows_count_every_image_once(tmp_path: Path) -> None:
    write_tree(tmp_path / "mine", ["north", "south, east"], ["a", 'b "x"', "c"], 10)
    cfg = config(
        tmp_path, tmp_path / "cache", DATASET__DIR="mine", DATASET__FORMAT="domains",
        FED__PARTITION="dirichlet", FED__CLIENTS=3,
    )  # fmt: skip
    data = build_federation(cfg)
    rows = count_rows(data)
    assert rows == sorted(
        rows, key=lambda r: (r["client"], ["train", "val", "test"].index(r["part"]), r["domain"],
                             r["class"]),
    )  # fmt: skip
    for number, client in enumerate(data.clients):
        for part in ("train", "val", "test"):
            held = getattr(client, part)
            for domain, name in enumerate(data.domain_names):
                for label, called in enumerate(data.classnames):
                    here = (data.labels[held] == label) & (data.domains[held] == domain)
                    want = int(here.sum())
                    key = {"client": number, "domain": name, "part": part, "class": called}
                    found = [r["images"] for r in rows if key.items() <= r.items()]
                    assert found == ([want] if want else [])
    read = list(csv.DictReader(partition_csv(data).splitlines()))
    assert read == [{k: str(v) for k, v in row.items()} for row in rows]


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output folder of a run that drew its partition."""
    output = tmp_path_factory.mktemp("drawn")
    assert jobs.run(output) == 0
    return output


def test_a_run_writes_it(drawn: Path) -> None:
    text = (jobs.folder(drawn) / "partition.csv").read_text()
    rows = list(csv.DictReader(text.splitlines()))
    train = [int(r["images"]) for r in rows if r["part"] == "train"]
    assert sum(train) == 20 and set(train) == {2} and {r["domain"] for r in rows} == {""}
    assert np.unique([r["client"] for r in rows]).tolist() == ["0", "1"]


def test_an_index_file_may_move(
    drawn: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run goes on where it was: the path of the file is no part of what the run is."""
    first, second = tmp_path / "a.json", tmp_path / "elsewhere.json"
    shutil.copy(jobs.folder(drawn) / "partition.json", first)
    shutil.copy(first, second)
    assert jobs.run(tmp_path / "given", "--opts", "FED.INDEX_FILE", str(first)) == 0
    given = jobs.folder(tmp_path / "given")
    assert given.parent.name == f"index-{read_index_file(first)['sha256'][:8]}-K2-f1"
    assert jobs.records(tmp_path / "given") == jobs.records(drawn)
    (given / "results.json").unlink()
    assert jobs.run(tmp_path / "given", "--opts", "FED.INDEX_FILE", str(second)) == 0
    assert "going on after round 2" in (given / "log.txt").read_text()
    assert jobs.folder(tmp_path / "given") == given
    capsys.readouterr()
    assert jobs.run(tmp_path / "given", "--opts", "FED.INDEX_FILE", str(tmp_path / "no.json")) == 3
    said = capsys.readouterr()
    assert "no.json" in said.out + said.err


def test_what_a_file_says_counts_not_where_it_lies() -> None:
    assert {"FED.INDEX_FILE", "DATASET.FEWSHOT_FILE"} <= set(WHERE)
