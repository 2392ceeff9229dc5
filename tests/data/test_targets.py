"""Test sets beside the run's own: the domain left out, and targets of transfer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedvlm.core.errors import ConfigError, DataError
from fedvlm.data.federated import FederatedData, build_federation
from fedvlm.data.targets import DATASET, DOMAIN
from tests.data.miniatures.own import config, own_split, write_split, write_tree

YAML = """
DATASET:
  NAME: {name}
  DIR: {folder}
  IMAGE_DIR: images
  SPLIT_FILE: split.json
  FORMAT: coop
  TEMPLATE: "a drawing of a {{}}."
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_split(tmp_path / "mine", ["a", "b", "c"], {"train": 4, "test": 2})
    for folder, classes in (("birds", ["hen", "owl"]), ("lorries", ["van", "bus", "cab", "suv"])):
        write_split(tmp_path / folder, classes, {"train": 1, "test": 3})
        (tmp_path / f"{folder}.yaml").write_text(YAML.format(name=folder, folder=folder))
    return tmp_path


def make(root: Path, *targets: str, **keys: Any) -> FederatedData:
    names = tuple(str(root / f"{t}.yaml") if (root / t).is_dir() else t for t in targets)
    return build_federation(own_split(root, root / "cache", TEST__TARGETS=names, **keys))


def test_targets(root: Path) -> None:
    plain, data = make(root), make(root, "birds", "lorries")
    assert [(o.name, o.kind, o.classnames) for o in data.others] == [
        ("birds", DATASET, ["hen", "owl"]), ("lorries", DATASET, ["van", "bus", "cab", "suv"])]
    for other in data.others:
        assert other.templates == ["a drawing of a {}."] and other.indices.dtype == np.int64
        assert not other.indices.flags.writeable
        names = [other.classnames[data.labels[i]] for i in other.indices]
        assert names == [data.samples[i].classname for i in other.indices]
        assert len(names) == 3 * len(other.classnames)
        assert (data.domains[other.indices] == -1).all()
    indices = np.concatenate([o.indices for o in data.others])
    assert indices.tolist() == list(range(len(plain.samples), len(data.samples)))
    assert data.samples[: len(plain.samples)] == plain.samples  # the run itself is untouched
    assert data.index_file() == plain.index_file() and plain.others == []
    assert any("18 more test images" in note for note in data.notes)


def test_targets_are_part_of_the_digest(root: Path) -> None:
    before = make(root, "birds").digest
    assert before == make(root, "birds").digest != make(root).digest
    assert len({before, make(root, "lorries").digest, make(root, "birds", "lorries").digest}) == 3
    file = root / "birds.yaml"
    file.write_text(file.read_text().replace("drawing", "photo"))
    assert make(root, "birds").digest != before


@pytest.mark.parametrize("targets, words", [
    (("brids",), ("TEST.TARGETS", "brids", "known datasets")),
    (("birds", "birds"), ("birds twice",)),
    (("MySet",), ("TEST.TARGETS", "MySet")),
    (("eurosta",), ("did you mean 'eurosat'",)),
])
def test_wrong_targets(root: Path, targets: tuple[str, ...], words: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as caught:
        make(root, *targets)
    assert all(word in str(caught.value) for word in words), caught.value


def test_the_runs_own_set_is_no_target(root: Path) -> None:
    (root / "mine.yaml").write_text(YAML.format(name="MySet", folder="mine"))
    with pytest.raises(ConfigError, match="own set: its test images are `global`"):
        make(root, "mine")


def test_a_missing_target_is_told_before_any_image_is_opened(root: Path) -> None:
    for image in (root / "mine").rglob("*.png"):
        image.write_bytes(b"broken")
    (root / "birds" / "split.json").unlink()
    with pytest.raises(DataError, match=r"split\.json"):
        make(root, "birds", DATASET__ON_CORRUPT="refuse")


def test_broken_images_of_a_target(root: Path) -> None:
    bad = next((root / "birds" / "images" / "hen").glob("2.png"))
    bad.write_bytes(b"broken")
    data = make(root, "birds")
    assert len(data.others[0].indices) == 5 and data.skipped == []
    assert any(n.startswith("birds: 1 image(s) do not decode") for n in data.notes)
    with pytest.raises(DataError, match="birds: 1 image"):
        make(root, "birds", DATASET__ON_CORRUPT="refuse")


def test_by_an_alias_of_the_facts_table(root: Path) -> None:
    """The missing folder of OxfordFlowers is named."""
    with pytest.raises(DataError, match="OxfordFlowers"):
        make(root, "flowers102")


def domains(root: Path, **keys: Any) -> FederatedData:
    given: dict[str, Any] = {
        "DATASET__DIR": "sites", "DATASET__FORMAT": "domains", "FED__PARTITION": "domain",
        "FED__CLIENTS": 2, "FED__HELD_OUT_DOMAIN": "south",
    }
    return build_federation(config(root, root / "cache", **(given | keys)))


@pytest.mark.parametrize("half", ["all", "base"])
def test_a_domain_left_out(tmp_path: Path, half: str) -> None:
    """Nobody holds it, the global test set lacks it; its test images are all there once."""
    write_tree(tmp_path / "sites", ["east", "north", "south"], ["a", "b", "c"], 10)
    data = domains(tmp_path, DATASET__SUBSAMPLE_CLASSES=half)
    (other,) = data.others
    assert (other.name, other.kind, other.classnames) == ("south", DOMAIN, data.classnames)
    keys = {data.samples[i].key for i in other.indices}
    classes = {"all": "abc", "base": "ab"}[half]
    assert {key.split("/")[1] for key in keys} == set(classes)
    assert len(keys) == len(other.indices) == 3 * len(classes)
    assert all(key.startswith("south/") for key in keys)
    rest = set(range(len(data.samples))) - set(other.indices.tolist())
    assert not any(data.samples[i].key.startswith("south/") for i in rest)
    assert {i for c in data.clients for p in (c.train, c.val, c.test) for i in p} <= rest
    assert set(data.global_test.tolist()) | set(data.new_test.tolist()) <= rest
    assert [c.domain for c in data.clients] == ["east", "north"]
    names = [data.classnames[data.labels[i]] for i in other.indices]
    assert names == [data.samples[i].classname for i in other.indices]


def test_each_domain_gives_another_digest(tmp_path: Path) -> None:
    write_tree(tmp_path / "sites", ["east", "north", "south"], ["a", "b", "c"], 10)
    found = [domains(tmp_path, FED__HELD_OUT_DOMAIN=d).digest for d in ("east", "north", "south")]
    none = domains(tmp_path, FED__HELD_OUT_DOMAIN="", FED__CLIENTS=3).digest
    assert len({*found, none}) == 4


def test_a_domain_without_test_images(tmp_path: Path) -> None:
    write_tree(tmp_path / "sites", ["east"], ["a", "b", "c"], 10)
    write_tree(tmp_path / "sites", ["north"], ["c"], 10)
    with pytest.raises(DataError, match="FED.HELD_OUT_DOMAIN north: it has no test image"):
        domains(
            tmp_path, FED__CLIENTS=1, FED__HELD_OUT_DOMAIN="north",
            DATASET__SUBSAMPLE_CLASSES="base",
        )


def test_a_target_with_the_runs_class_names_keeps_its_own_labels(tmp_path: Path) -> None:
    """The same words in another order, and one of them missing: labels are the target's."""
    write_split(tmp_path / "mine", ["a", "b", "c"], {"train": 4, "test": 2})
    write_split(tmp_path / "far", ["c", "a"], {"train": 1, "test": 3})
    (tmp_path / "far.yaml").write_text(
        "DATASET: {NAME: far, DIR: far, IMAGE_DIR: images, SPLIT_FILE: split.json, FORMAT: coop}"
    )
    keys = {"TEST__TARGETS": (str(tmp_path / "far.yaml"),)}
    data = build_federation(own_split(tmp_path, tmp_path / "cache", **keys))
    (other,) = data.others
    assert data.classnames == ["a", "b", "c"] and other.classnames == ["c", "a"]
    pairs = {(int(data.labels[i]), data.samples[i].classname) for i in other.indices}
    assert pairs == {(0, "c"), (1, "a")}
    mine = {i for client in data.clients for part in (client.train, client.val, client.test)
            for i in part.tolist()} | set(data.global_test.tolist())
    assert not mine & set(other.indices.tolist())
