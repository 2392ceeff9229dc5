"""Who holds how much: every image counted once, as rows and as a run's CSV."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from fedvlm.data.federated import build_federation
from fedvlm.data.partition.counts import count_rows, partition_csv
from tests import jobs
from tests.data.miniatures.own import config, write_tree


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
    read = list(csv.DictReader(partition_csv(count_rows(data)).splitlines()))
    assert read == [{k: str(v) for k, v in row.items()} for row in rows]


def test_a_run_writes_it(quick_run: Path) -> None:
    text = (jobs.folder(quick_run) / "partition.csv").read_text()
    rows = list(csv.DictReader(text.splitlines()))
    train = [int(r["images"]) for r in rows if r["part"] == "train"]
    assert sum(train) == 20 and set(train) == {2} and {r["domain"] for r in rows} == {""}
    assert np.unique([r["client"] for r in rows]).tolist() == ["0", "1"]
