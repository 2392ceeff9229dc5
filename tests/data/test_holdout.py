"""The server's own images: no client's in any split, for any partition; another set; a folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedvlm.config.build import build_config
from fedvlm.config.keys import default_schema
from fedvlm.core.errors import ConfigError, DataError
from fedvlm.core.transform import TransformSpec
from fedvlm.data.datum import DatasetBase, Datum
from fedvlm.data.federated import FederatedData, build_federation
from fedvlm.data.holdout import other_images
from fedvlm.data.image_records import ImageRecords
from fedvlm.data.images import ImageLoader
from tests.data.miniatures.own import config, own_split, write_image, write_split, write_tree
from tests.data.partition.pools import KINDS

CLASSES = ["beaver", "dolphin", "otter", "apple"]  # known superclasses
SIZES = {"train": 6, "val": 3, "test": 3}
SPEC = TransformSpec(16, (0.48, 0.46, 0.41), (0.27, 0.26, 0.28))
PIXEL = np.zeros((2, 2, 3), dtype=np.uint8)
BEFORE = {  # digests of data and of the index file as the code before this key made them
    ("digits", "dirichlet", 2, "base", 1, ""): ("a2b4fd61", "39e4aece"),
    ("shapes", "disjoint", 16, "all", 2, ""): ("ba1b83ca", "daa223e4"),
    ("shapes", "iid", 2, "all", 1, ""): ("3421672f", "bfb5c3ce"),
    ("shapes_domains", "domain_dirichlet", 2, "all", 1, "sketch"): ("3f4aefdb", "5a174ae3"),
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_split(tmp_path / "mine", CLASSES, SIZES)
    return tmp_path


def make(root: Path, each: int = 0, **keys: Any) -> FederatedData:
    return build_federation(own_split(root, root / "cache", DATASET__SERVER_HOLDOUT=each, **keys))


def server_keys(data: FederatedData) -> list[str]:
    return sorted(data.samples[i].key for i in data.server)


def in_memory(sizes: dict[str, list[int]]) -> DatasetBase:
    """A set of one pixel per image, over two domains; ``sizes``: images per class, by part."""
    parts = {
        part: [
            Datum("", label, n % 2, CLASSES[label], f"{part}/{label}/{n}", PIXEL)
            for label, count in enumerate(counts) for n in range(count)
        ]
        for part, counts in sizes.items()
    }
    return DatasetBase(*parts.values(), name="Pixels", domain_names=("a", "b"))


def counts(most: int, least: int = 0) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(least, most), min_size=4, max_size=4)


@settings(deadline=None, max_examples=250, suppress_health_check=[HealthCheck.too_slow])
@given(
    kind=st.sampled_from(KINDS), train=counts(12, 1), val=counts(5), test=counts(6, 2),
    shots=st.sampled_from([-1, 1, 2, 4]), val_shots=st.sampled_from([-1, 0, 2]),
    each=st.integers(0, 5), clients=st.integers(1, 4), seed=st.integers(0, 2**40),
    half=st.sampled_from(["all", "base", "new"]), held_out=st.sampled_from(["", "b"]),
)
def test_no_client_has_an_image_of_the_server(
    kind: str, train: list[int], val: list[int], test: list[int], shots: int, val_shots: int,
    each: int, clients: int, seed: int, half: str, held_out: str,
) -> None:
    lists = in_memory({"train": train, "val": val, "test": test})
    cfg = config(
        "", "", FED__PARTITION=kind, FED__CLIENTS=clients, FED__HELD_OUT_DOMAIN=held_out,
        DATASET__NUM_SHOTS=shots, DATASET__VAL_SHOTS=val_shots, DATA_SEED=seed,
        DATASET__SUBSAMPLE_CLASSES=half, DATASET__SERVER_HOLDOUT=each,
    )  # fmt: skip
    with mock.patch("fedvlm.data.federated.load_for_training", return_value=lists):
        try:
            data = build_federation(cfg)
        except (ConfigError, DataError):
            return  # too few images for the clients or for the server: a message, never a leak
    server = set(data.server.tolist())
    every = [data.global_test, data.new_test, *(o.indices for o in data.others)]
    every += [getattr(c, part) for c in data.clients for part in ("train", "val", "test")]
    assert not server & {int(i) for part in every for i in part}
    keys = {data.samples[i].key for i in data.server}
    assert not keys & {data.samples[int(i)].key for part in every for i in part}
    domains = (0,) if held_out else (0, 1)
    published = {
        part: [d for d in lists.parts[part] if d.domain in domains] for part in ("train", "val")
    }
    assert keys <= {d.key for items in published.values() for d in items}
    for name in data.classnames:
        own = [data.samples[i] for i in data.server if data.samples[i].classname == name]
        there = {part: sum(d.classname == name for d in published[part]) for part in published}
        assert len(own) == (each if any(there.values()) else 0)
        for part, count in there.items():  # each list keeps an image of the class
            assert not count or sum(d.key.startswith(part) for d in own) < count
        if own:  # training images first
            assert sum(d.key.startswith("train") for d in own) == min(each, there["train"] - 1)
    assert [data.classnames[data.labels[i]] for i in data.server] == [
        data.samples[i].classname for i in data.server]


def test_the_server_has_the_same_images_whatever_the_clients_do(root: Path) -> None:
    """For every method, partition and number of shots alike; another DATA_SEED draws others."""
    first = server_keys(make(root, 2))
    assert len(first) == 8
    for keys in (
        {"FED__PARTITION": "dirichlet", "FED__BETA": 5.0}, {"FED__PARTITION": "iid"},
        {"DATASET__NUM_SHOTS": 1}, {"FED__CLIENTS": 4}, {"DATASET__VAL_SHOTS": 0},
    ):
        assert server_keys(make(root, 2, **keys)) == first
    half = server_keys(make(root, 2, DATASET__SUBSAMPLE_CLASSES="base"))
    assert half == [key for key in first if key.split("/")[0] in CLASSES[:2]]
    assert server_keys(make(root, 2, DATA_SEED=2)) != first


def test_without_it_nothing_moves() -> None:
    for (name, kind, shots, half, seed, held_out), digests in BEFORE.items():
        flags = {
            "DATASET.NAME": name, "FED.PARTITION": kind,
            "DATASET.NUM_SHOTS": str(shots), "DATASET.SUBSAMPLE_CLASSES": half,
            "DATA_SEED": str(seed), "FED.CLIENTS": "4", "FED.HELD_OUT_DOMAIN": held_out,
        }
        data = build_federation(build_config(None, None, flags, [], default_schema())[0])
        index = data.index_file()
        assert (data.digest[:8], index["sha256"][:8]) == digests
        assert "server" not in index and "server_holdout" not in index["spec"]
        assert len(data.server) == 0


def test_digest_index_file_and_notes_say_it(root: Path) -> None:
    plain, data = make(root), make(root, 4)
    index = data.index_file()
    assert index["spec"]["server_holdout"] == 4 and sorted(index["server"]) == server_keys(data)
    assert len({plain.digest, data.digest, make(root, 3).digest}) == 3
    assert data.notes == [
        "DATASET.SERVER_HOLDOUT 4: no client gets 16 images (16 of the training and 0 of the "
        "validation list), which are set aside for the server"
    ]
    assert data.index_file() == make(root, 4).index_file()
    assert "(20 of the training and 4 of the validation list)" in make(root, 6).notes[0]


def test_an_index_file_brings_the_servers_images(root: Path) -> None:
    data, path = make(root, 2), root / "index.json"
    path.write_text(json.dumps(data.index_file()))
    again = make(root, 2, FED__INDEX_FILE=str(path), DATA_SEED=9)
    assert server_keys(again) == server_keys(data)
    assert again.index_file() == data.index_file()
    for each in (0, 1):
        with pytest.raises(ConfigError, match=f"HOLDOUT is {each}.*made with 2; set it to 2"):
            make(root, each, FED__INDEX_FILE=str(path))
    path.write_text(json.dumps(make(root).index_file()))
    with pytest.raises(ConfigError, match="SERVER_HOLDOUT is 2.*made with 0"):
        make(root, 2, FED__INDEX_FILE=str(path))


def test_shots_of_a_file_stay_with_the_clients(root: Path) -> None:
    split = json.loads((root / "mine" / "split.json").read_text())
    shots = [row[0] for row in split["train"] if row[0].endswith(("/0.png", "/1.png"))]
    (root / "shots.json").write_text(json.dumps({"train": shots, "val": []}))
    data = make(root, 5, DATASET__NUM_SHOTS=2, DATASET__VAL_SHOTS=0,
                DATASET__FEWSHOT_FILE=str(root / "shots.json"))
    trained = {data.samples[i].key for c in data.clients for i in c.train}
    assert trained == set(shots) and len(data.server) == 20
    assert not trained & set(server_keys(data))


def test_a_class_keeps_its_last_image(tmp_path: Path) -> None:
    split = write_split(tmp_path / "mine", CLASSES[:2], SIZES)
    split["train"] = [row for row in split["train"] if row[1] == 0 or row[0].endswith("/0.png")]
    split["val"] = [row for row in split["val"] if row[1] == 0 or not row[0].endswith("/8.png")]
    (tmp_path / "mine" / "split.json").write_text(json.dumps(split))
    with pytest.raises(ConfigError, match=(
        "SERVER_HOLDOUT 2: class 'dolphin' has 1 training and 2 validation images .* would lose "
        "its last one; set it to 1 or less"
    )):
        make(tmp_path, 2)
    data = make(tmp_path, 1)
    assert sorted(data.labels[data.server].tolist()) == [0, 1]
    with pytest.raises(ConfigError, match=r"would lose its last one \(and 1 more classes"):
        make(tmp_path, 9)


def test_images_that_do_not_decode_are_no_images_of_the_server(root: Path) -> None:
    key = server_keys(make(root, 2))[0]
    (root / "mine" / "images" / key).write_bytes(b"nothing")
    data = make(root, 2)
    assert len(data.server) == 7 and key in data.skipped
    assert any("1 image(s) do not decode and are left out" in note for note in data.notes)
    with pytest.raises(DataError, match="1 image"):
        make(root, 2, DATASET__ON_CORRUPT="refuse")


# ---- other images ---------------------------------------------------------------------------
def others(root: Path, source: str, **keys: Any) -> Any:
    cfg = build_config(None, None, {
        "DATASET.ROOT": str(root), "CACHE_DIR": str(root / "cache"), **keys}, [],
        default_schema())[0]
    return other_images(source, cfg, "Mine", ["otter", "red_Panda", "apple"], SPEC)


def test_images_of_a_folder(root: Path) -> None:
    folder = write_tree(root / "loose", ["", "deep/er"], ["x"], 3)
    images, notes = others(root, f"folder:{folder}")
    assert len(images) == 6 and notes == [] and images.labels.tolist() == [-1] * 6
    files = sorted(folder.rglob("*.png"), key=lambda p: p.relative_to(folder).as_posix())
    loader = ImageLoader([Datum(str(p), 0, key=p.name) for p in files], SPEC)
    at = torch.tensor([4, 0, 4])
    assert torch.equal(images.pixels(at), loader.batch(at))
    digest = images.digest
    write_image(files[3], 77)
    assert others(root, f"folder:{folder}")[0].digest != digest
    files[0].write_bytes(b"nothing")
    images, notes = others(root, f"folder:{folder}")
    assert len(images) == 5 and "do not decode" in notes[0]
    with pytest.raises(DataError, match="do not decode"):
        others(root, f"folder:{folder}", **{"DATASET.ON_CORRUPT": "refuse"})


def test_images_of_another_set_have_labels_as_far_as_names_agree(root: Path) -> None:
    write_split(root / "zoo", ["Otter", "red panda", "yak"], {"train": 2, "val": 1, "test": 1})
    (root / "zoo.yaml").write_text(
        "DATASET: {NAME: zoo, DIR: zoo, IMAGE_DIR: images, SPLIT_FILE: split.json, FORMAT: coop}")
    images, _ = others(root, f"dataset:{root / 'zoo.yaml'}")
    assert images.labels.tolist() == [0, 0, 1, 1, -1, -1]  # training images only
    with pytest.raises(ConfigError, match="that is the run's own set"):
        cfg = build_config(None, None, {"DATASET.ROOT": str(root)}, [], default_schema())[0]
        other_images(f"dataset:{root / 'zoo.yaml'}", cfg, "zoo", [], SPEC)


@pytest.mark.parametrize(("source", "said"), [
    ("folder:{root}/nome", "nome does not exist; did you mean 'none'"),
    ("folder:{root}/none", "no image below"),
    ("folder:{root}/file", "file is a file, not a folder"),
    ("dataset:digit", "server images dataset:digit: .*did you mean 'digits'"),
    ("dataset:caltech101", "server images dataset:caltech101: .*does not exist"),
    ("folder:{root}/bad", "none of them decodes"),
])
def test_mistakes_are_sentences(root: Path, source: str, said: str) -> None:
    (root / "none").mkdir()
    (root / "bad").mkdir()
    (root / "bad" / "x.png").write_bytes(b"nothing")
    (root / "file").write_text("x")
    with pytest.raises((ConfigError, DataError), match=said):
        others(root, source.format(root=root))


def test_server_images_know_no_other_image(root: Path) -> None:
    """What the server holds has its own files and nothing of the list they were taken from."""
    from fedvlm.data.holdout import ServerImages

    samples = [Datum(str(p), 0, key=p.name) for p in sorted((root / "mine").rglob("*.png"))]
    images = ServerImages.of("holdout", samples[:3], [0, 0, 0], SPEC, ImageRecords(None))
    assert images.loader.samples == samples[:3]
    with pytest.raises(IndexError):
        images.pixels(torch.tensor([3]))
