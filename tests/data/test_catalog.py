"""The catalog: its numbers, names and superclasses; every ready dataset config agrees with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from fedvlm.core.errors import ConfigError, fold
from fedvlm.data.catalog import (
    CATALOG,
    CIFAR100_SUPERCLASSES,
    compare_sizes,
    dataset_info,
    superclasses_of,
)
from fedvlm.data.datasets import load_dataset
from fedvlm.data.datum import DatasetBase
from fedvlm.data.federated import build_federation
from fedvlm.data.fewshot import relabel
from fedvlm.data.formats.coop import read_coop
from fedvlm.data.partition.kinds import check_fits
from fedvlm.data.partition.spec import ImagePool, PartitionSpec
from fedvlm.job.describe import partition_name
from fedvlm.job.flags import parse
from fedvlm.job.resolve import resolve
from tests.data.miniatures.own import config, copy, shared, write_split, write_tree
from tests.data.miniatures.published import MINIS
from tests.data.partition.pools import NAMES

CONFIGS = Path(__file__).resolve().parents[2] / "configs" / "datasets"
FILES = sorted(CONFIGS.glob("*.yaml"))
OWN = {"custom_folders", "custom_split", "custom_domains", "custom_nico", "custom_csv",
       "custom_texts"}
TEXTS = {"20news"}  # published, and no images: the catalogue has sets of images
PUBLISHED = {
    "Caltech101": "split_zhou_Caltech101.json",
    "DescribableTextures": "split_zhou_DescribableTextures.json",
    "EuroSAT": "split_zhou_EuroSAT.json",
    "OxfordFlowers": "split_zhou_OxfordFlowers.json",
    "OxfordPets": "split_zhou_OxfordPets.json",
    "StanfordCars": "split_zhou_StanfordCars.json",
    "UCF101": "split_zhou_UCF101.json",
}
SPLIT_SETS = sorted(name for name in MINIS if CATALOG[name].split_file)
SPLITS_AT_HAND = sorted(set(SPLIT_SETS) - {"Food101", "SUN397"})  # in ../shared/data/splits
OWN_DOMAINS = CONFIGS / "custom_domains.yaml"


def read(path: Path) -> dict[str, dict[str, Any]]:
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert isinstance(content, dict)
    return content


def keys_of(content: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return {f"{node}__{k}": v for node, inner in content.items() for k, v in inner.items()}


def test_every_known_set_has_a_config() -> None:
    found = {read(f)["DATASET"]["NAME"] for f in FILES if f.stem not in OWN | TEXTS}
    assert found == set(CATALOG)


@pytest.mark.parametrize(
    "path", [f for f in FILES if f.stem not in OWN | TEXTS], ids=lambda p: p.stem
)
def test_config_agrees_with_the_facts(path: Path) -> None:
    node = read(path)["DATASET"]
    info = dataset_info(path.stem)
    assert info is not None and info.name == node["NAME"]
    assert node["DIR"] == info.folder and node["TEMPLATE"] == info.template
    assert node.get("IMAGE_DIR", "") == info.image_dir
    assert node.get("SPLIT_FILE", "") == info.split_file
    own = ("coop", "aircraft", "imagenet")  # forms that no key can ask for by name
    assert node.get("FORMAT", "") == ("" if info.form in own else info.form)


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_config_uses_known_keys_only(path: Path, tmp_path: Path) -> None:
    known = config(tmp_path, tmp_path)
    for node, inner in read(path).items():
        for key, value in inner.items():
            assert isinstance(value, type(known[node][key])), f"{node}.{key}"


@pytest.mark.parametrize("stem", sorted(OWN))
def test_own_data_examples_work_as_they_stand(stem: str, tmp_path: Path) -> None:
    if stem == "custom_folders":
        write_tree(tmp_path / "my_set" / "images", [""], ["a", "b"], 6)
    elif stem == "custom_split":
        write_split(tmp_path / "my_set", ["a", "b"], {"train": 3, "test": 2})
        (tmp_path / "my_set" / "split.json").rename(tmp_path / "my_set" / "split_my_set.json")
    elif stem == "custom_csv":
        split = write_split(tmp_path / "my_set", ["a", "b"], {"train": 3, "test": 2})
        rows = [f"{path},{name},{part}" for part in split for path, _, name in split[part]]
        text = "\n".join(["path,classname,split", *rows])
        (tmp_path / "my_set" / "table.csv").write_text(text, encoding="utf-8")
    elif stem == "custom_texts":
        lines = [f"{name} number {i},{name},{part}" for part in ("train", "test")
                 for name in ("a", "b") for i in range(60 if part == "train" else 61, 120)]
        (tmp_path / "my_texts").mkdir()
        (tmp_path / "my_texts" / "table.csv").write_text("\n".join(["text,label,split", *lines]))
    else:
        node = read(CONFIGS / f"{stem}.yaml")
        domains = [f"site{i}" for i in range(node["FED"]["CLIENTS"])]
        write_tree(tmp_path / node["DATASET"]["DIR"], domains, ["a", "b"], 6)
    cfg = config(tmp_path, tmp_path / "c", **keys_of(read(CONFIGS / f"{stem}.yaml")))
    assert all(len(c.train) and len(c.test) for c in build_federation(cfg).clients)


@pytest.mark.parametrize(
    "path", [f for f in FILES if read(f)["DATASET"].get("SPLIT_FILE") and f.stem not in OWN],
    ids=lambda p: p.stem,
)  # fmt: skip
def test_published_layout_in_miniature(path: Path, tmp_path: Path) -> None:
    """A tiny copy in the set's own layout loads with nothing but its config."""
    node = read(path)["DATASET"]
    home = tmp_path / node["DIR"]
    write_split(home, ["a", "b"], {"train": 2, "val": 1, "test": 1})
    target = home / node["IMAGE_DIR"] if node["IMAGE_DIR"] else home
    if target != home / "images":
        for folder in sorted((home / "images").iterdir()):
            target.mkdir(parents=True, exist_ok=True)
            folder.rename(target / folder.name)
    (home / "split.json").rename(home / node["SPLIT_FILE"])
    keys = keys_of(read(path)) | {"FED__CLIENTS": 2}
    data = build_federation(config(tmp_path, tmp_path / "c", **keys))
    assert data.classnames == ["a", "b"] and len(data.global_test) == 2
    assert data.templates == [node["TEMPLATE"]]
    assert any("numbers are not comparable with papers" in note for note in data.notes)


def test_the_table_of_superclasses() -> None:
    assert len(CIFAR100_SUPERCLASSES) == 20
    assert {len(group) for group in CIFAR100_SUPERCLASSES.values()} == {5}
    assert len({fold(name) for name in NAMES}) == 100
    assert np.bincount(superclasses_of(NAMES)).tolist() == [5] * 20
    assert superclasses_of(["pickup truck", "Aquarium_Fish", "whale"]).tolist() == [18, 1, 0]


def test_the_table_has_the_names_of_the_real_set() -> None:
    folders = {path.name for path in (shared("cifar-100") / "train").iterdir() if path.is_dir()}
    assert folders == set(NAMES)


@pytest.mark.parametrize("names", [["cat", "dog"], [], ["apple", "truck"]])
def test_other_sets_have_no_superclasses(names: list[str]) -> None:
    pool = ImagePool({p: np.repeat(np.arange(len(names)), 9) for p in ("train", "val", "test")},
                len(names), {}, (), names)  # fmt: skip
    spec = PartitionSpec("superclass_dirichlet", 2)
    with pytest.raises(ConfigError, match="DATASET.NAME Cifar100 only.*use FED.PARTITION dirich"):
        check_fits(spec, pool, len(names))


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_published_split_agrees_with_the_facts(name: str) -> None:
    folder, info = shared("splits"), CATALOG[name]
    assert info.split_file == PUBLISHED[name]
    split = read_coop(folder, copy(Path("/nowhere/images"), folder / info.split_file))
    data = DatasetBase(split.train_x, split.val, split.test, name=name)
    sizes = {"train": len(data.train_x), "val": len(data.val), "test": len(data.test)}
    assert compare_sizes(info, data.num_classes, sizes) == []
    base = relabel(data.num_classes, "base")
    assert (len(base), data.num_classes - len(base)) == (info.base, info.new)
    in_base = sum(d.label in base for d in data.test)
    assert (in_base, len(data.test) - in_base) == (info.base_test, info.new_test)
    assert data.lab2cname == dict(enumerate(data.classnames))
    assert data.test[0].impath.startswith("/nowhere/images/")


def test_a_subset_gets_a_note() -> None:
    notes = compare_sizes(CATALOG["EuroSAT"], 10, {"train": 1000, "val": 400, "test": 1000})
    assert len(notes) == 1 and "not comparable with papers" in notes[0]


@pytest.mark.parametrize(
    ("word", "name"),
    [("dtd", "DescribableTextures"), ("oxford-pets", "OxfordPets"), ("CIFAR_100", "Cifar100"),
     ("caltech-101", "Caltech101"), ("shapes_domains", "ShapesDomains")],
)  # fmt: skip
def test_names_are_found(word: str, name: str) -> None:
    info = dataset_info(word)
    assert info is not None and info.name == name


def load(root: Path, name: str, **keys: object) -> DatasetBase:
    return load_dataset(config(root, root / "cache", DATASET__NAME=name, **keys))


@pytest.mark.parametrize("name", SPLITS_AT_HAND)
def test_published_split_files_agree_with_the_facts(name: str, tmp_path: Path) -> None:
    """Class counts, sizes and halves of the real files; no image is opened for them."""
    info = CATALOG[name]
    source = shared("splits") / info.split_file
    (tmp_path / info.folder / info.image_dir).mkdir(parents=True)
    (tmp_path / info.folder / info.split_file).write_bytes(source.read_bytes())
    data = load(tmp_path, name)
    assert not any("not comparable" in note for note in data.notes)
    assert len(data.classnames) == len(set(data.classnames)) == info.classes
    halves = [sum((d.label < info.base) == half for d in data.test) for half in (True, False)]
    assert halves == [info.base_test, info.new_test]


def test_halves_and_domains_are_compared() -> None:
    info, sizes = CATALOG["EuroSAT"], {"train": 13500, "val": 5400, "test": 8100}
    assert compare_sizes(info, 10, sizes, 4200) == []
    (note,) = compare_sizes(info, 10, sizes, 4199)
    assert "4199/3901 test images of base/new classes" in note and "4200/3900" in note


def test_facts_add_up() -> None:
    for info in CATALOG.values():
        assert info.base + info.new == info.classes
        if info.base_test is not None and info.new_test is not None:
            assert info.base_test + info.new_test == info.test, info.name
        assert info.template.count("{}") == 1


@pytest.mark.parametrize(
    ("alias", "name"),
    [("office", "OfficeCaltech10"), ("office-caltech-10", "OfficeCaltech10"), ("pacs", "PACS"),
     ("officehome", "OfficeHome"), ("office_31", "Office31"), ("domainnet", "DomainNet"),
     ("domainnet_full", "DomainNetFull")],
)  # fmt: skip
def test_aliases(alias: str, name: str) -> None:
    found = dataset_info(alias)
    assert found is not None and found.name == name


@pytest.mark.parametrize(
    ("name", "classes", "base", "new", "domains"),
    [("DomainNet", 10, 5, 5, 6), ("DomainNetFull", 345, 173, 172, 6), ("PACS", 7, 4, 3, 4),
     ("OfficeCaltech10", 10, 5, 5, 4), ("OfficeHome", 65, 33, 32, 4), ("Office31", 31, 16, 15, 3)],
)  # fmt: skip
def test_facts(name: str, classes: int, base: int, new: int, domains: int) -> None:
    info = CATALOG[name]
    assert (info.classes, info.base, info.new, len(info.domains)) == (
        classes, base, new, domains
    )  # fmt: skip
    assert list(info.domains) == sorted(info.domains)


def named(*words: str) -> tuple[str, str]:
    """Return the held-out domain as a run's config has it, and the partition in its path."""
    cfg = resolve(parse(["--backbone", "tiny", *words])).jobs[0].cfg
    return cfg.FED.HELD_OUT_DOMAIN, partition_name(cfg)


@pytest.mark.parametrize(("words", "spellings", "is_called"), [
    (("--dataset", "pacs"), ("photo", "PHOTO", "Photo"), "photo"),
    (("--dataset", "pacs"), ("art_painting", "Art Painting", "ART-PAINTING"), "art_painting"),
    (("--dataset", "office_home"), ("real_world", "Real World", "RealWorld"), "real_world"),
    (("--dataset-config-file", str(OWN_DOMAINS)), ("Site-A", "site_a", "SITE A"), "sitea"),
])  # fmt: skip
def test_a_held_out_domain_has_one_name(
    words: tuple[str, ...], spellings: tuple[str, ...], is_called: str
) -> None:
    found = {named(*words, "--held-out-domain", spelling) for spelling in spellings}
    assert len(found) == 1
    (held_out, path), = found
    assert held_out == is_called and f"-without-{is_called}-" in path
