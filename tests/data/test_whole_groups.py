"""A group stands on one side of whatever is cut or dealt."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedvlm.core.errors import ConfigError, DataError
from fedvlm.data.datum import PARTS, Datum
from fedvlm.data.federated import FederatedData, build_federation
from fedvlm.data.whole_groups import cut_whole, place_groups, refuse_torn
from tests.data.miniatures.own import config, write_image

CLASSES = ("cat", "cow", "dog", "fox")


def images(groups: int, each: int) -> list[Datum]:
    """Groups with images of two classes each."""
    return [
        Datum(f"/x/{g}/{i}", (g + i % 2) % 4, 0, CLASSES[(g + i % 2) % 4], f"{g}/{i}",
              group=f"p{g}")
        for g, i in product(range(groups), range(each))
    ]


def test_the_numbers_that_are_wanted_are_met_where_groups_allow_it() -> None:
    counts = np.array([[4, 0], [0, 4], [2, 0], [0, 2], [2, 0], [0, 2]])
    wanted = np.array([[4, 4], [4, 4]])
    places = place_groups(counts, wanted)
    got = np.array([counts[places == p].sum(axis=0) for p in (0, 1)])
    assert got.tolist() == wanted.tolist()


def test_a_cut_keeps_groups_and_meets_the_shares() -> None:
    items = images(40, 4)
    parts = cut_whole(items, (0.5, 0.2, 0.3))
    assert sorted(d.key for part in parts for d in part) == sorted(d.key for d in items)
    named = [{d.group for d in part} for part in parts]
    assert not (named[0] & named[1] or named[0] & named[2] or named[1] & named[2])
    assert [len(part) for part in parts] == [80, 32, 48]
    assert [[d.key for d in part] for part in cut_whole(items[::-1], (0.5, 0.2, 0.3))] == [
        [d.key for d in part] for part in parts]


def test_images_without_a_group_are_groups_of_their_own() -> None:
    parts = cut_whole([Datum(f"/{i}", i % 2, 0, "ab"[i % 2], str(i)) for i in range(20)],
                      (0.5, 0.5))
    assert [len(part) for part in parts] == [10, 10]


def datum(key: str, group: str, client: str = "") -> Datum:
    return Datum(f"/{key}", 0, 0, "a", key, client=client, group=group)


def test_a_group_on_two_sides_is_named() -> None:
    torn = {"train": [datum("1", "P7")], "val": [], "test": [datum("2", "P7")]}
    with pytest.raises(DataError, match=r"1 group\(s\) stand on two sides.*'P7'; in train and "
                                        r"test.*--columns split=-"):
        refuse_torn(torn, "ward")


def test_a_group_at_two_clients_is_named_with_both_remedies() -> None:
    torn = {"train": [datum("1", "7", "Lyon"), datum("2", "7", "Porto")], "val": [], "test": []}
    with pytest.raises(DataError, match=r"'7', at 'Lyon' and 'Porto'.*--groups CLIENT_COLUMN,"
                                        r"GROUP_COLUMN.*to one client in the table"):
        refuse_torn(torn, "ward")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 patients with 4 images of two classes each, 8 at each of three hospitals."""
    place = tmp_path_factory.mktemp("groups")
    lines = ["file,class,hospital,patient"]
    for p, i in product(range(24), range(4)):
        write_image(place / "mine" / f"{p}_{i}.png", (p + i) % 50)
        name = CLASSES[(p // 3 + i % 2) % 4]
        lines.append(f"{p}_{i}.png,{name},{('Utrecht', 'Lyon', 'Porto')[p % 3]},P{p}")
    (place / "mine" / "t.csv").write_text("\n".join(lines))
    return place


def make(root: Path, **keys: Any) -> FederatedData:
    cfg = config(root, root / "cache", DATASET__DIR="mine", DATASET__SPLIT_FILE="t.csv",
                 DATASET__GROUPS="patient", DATASET__CLIENTS_BY="", DATASET__COLUMNS="", **keys)
    return build_federation(cfg)


@pytest.mark.parametrize("shots", [-1, 2])
@pytest.mark.parametrize("kind", ["iid", "disjoint", "n_classes", "dirichlet", "quantity"])
def test_no_partition_divides_a_group(kind: str, shots: int, root: Path) -> None:
    data = make(root, FED__PARTITION=kind, FED__CLIENTS=2, DATASET__NUM_SHOTS=shots)
    seen: dict[str, tuple[int, str]] = {}
    for number, client in enumerate(data.clients):
        for part in PARTS:
            for i in getattr(client, part):
                group = data.samples[i].group
                assert group is not None
                assert seen.setdefault(group, (number, part)) == (number, part)
    assert data.groups is not None and len(data.groups) == len(data.samples)


def test_the_servers_images_take_their_groups_along(root: Path) -> None:
    data = make(root, FED__PARTITION="iid", FED__CLIENTS=2, DATASET__SERVER_HOLDOUT=1)
    server = {data.samples[i].group for i in data.server}
    clients = {data.samples[i].group for c in data.clients for i in (*c.train, *c.val)}
    assert len(data.server) == 4 and not server & clients
    assert any("of the same groups as the server's" in note for note in data.notes)


def test_a_partition_file_that_divides_a_group_is_refused(root: Path, tmp_path: Path) -> None:
    lines = (root / "mine" / "t.csv").read_text().splitlines()
    parts = ["split", *(("train", "test")[i // 4 % 2] for i in range(len(lines) - 1))]
    text = "\n".join(f"{line},{part}" for line, part in zip(lines, parts, strict=True))
    (root / "mine" / "parts.csv").write_text(text)
    keys = {"DATASET__DIR": "mine", "DATASET__SPLIT_FILE": "parts.csv", "FED__PARTITION": "iid",
            "FED__CLIENTS": 2, "DATASET__CLIENTS_BY": "", "DATASET__COLUMNS": ""}
    file = tmp_path / "partition.json"
    file.write_text(json.dumps(build_federation(config(root, root / "c", **keys)).index_file()))
    grouped = keys | {"DATASET__GROUPS": "patient", "FED__INDEX_FILE": str(file)}
    with pytest.raises(DataError, match="a group of DATASET.GROUPS stands at two clients in train"):
        build_federation(config(root, root / "c", **grouped))


def test_the_partition_is_the_tables(root: Path) -> None:
    keys = {"FED__PARTITION": "natural", "DATASET__GROUPS": "patient"}
    cfg = config(root, root / "cache", DATASET__DIR="mine", DATASET__SPLIT_FILE="t.csv",
                 DATASET__CLIENTS_BY="hospital", DATASET__COLUMNS="", FED__CLIENTS=3, **keys)
    data = build_federation(cfg)
    assert data.client_names == ["Lyon", "Porto", "Utrecht"]
    for name, client in zip(data.client_names, data.clients, strict=True):
        for part in PARTS:
            assert {data.samples[i].client for i in getattr(client, part)} == {name}
    assert [len(c.train) for c in data.clients] == [16, 16, 16]
    assert all("Lyon" not in str(note) for note in data.notes)
    assert "Lyon" not in str(data.index_file())
    cfg.FED.CLIENTS = 2
    with pytest.raises(ConfigError, match=r"DATASET.CLIENTS_BY names 3 client\(s\): set "
                                          r"FED.CLIENTS 3"):
        build_federation(cfg)
    cfg.DATASET.CLIENTS_BY = ""
    with pytest.raises(ConfigError, match="--clients-by COLUMN"):
        build_federation(cfg)


def test_a_patient_in_tenfold_moves_only_their_own_part(root: Path) -> None:
    """The same patients with ten copies of each image are cut the same."""
    once = cut_whole(images(30, 2), (0.5, 0.2, 0.3))
    tenfold = cut_whole([
        Datum(d.impath, d.label, 0, d.classname, f"{d.key}/{n}", group=d.group)
        for d in images(30, 2) for n in range(10)
    ], (0.5, 0.2, 0.3))
    assert [{d.group for d in part} for part in once] == [
        {d.group for d in part} for part in tenfold]
    assert np.array_equal([10 * len(part) for part in once], [len(part) for part in tenfold])
