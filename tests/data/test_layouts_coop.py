"""Every single-domain set in miniature: each published layout gives the published lists."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from data_helpers import config, shared
from PIL import Image
from trees import MINIS, Made, tree_of

from fedvlm.core.errors import ConfigError, DataError
from fedvlm.data.catalog import CATALOG, compare
from fedvlm.data.datasets import load_dataset, templates
from fedvlm.data.datum import PARTS, DatasetBase
from fedvlm.data.layouts import layouts_of, prepared_in_cache, prepared_name

CONFIGS = Path(__file__).resolve().parents[2] / "configs" / "datasets"
SPLIT_SETS = sorted(name for name in MINIS if CATALOG[name].split_file)
SPLITS_AT_HAND = sorted(set(SPLIT_SETS) - {"Food101", "SUN397"})  # in ../shared/data/splits
LAYOUTS = [
    *((name, "") for name in sorted(MINIS)),
    ("FGVCAircraft", "archive"), ("ImageNet", "torchvision"),
    ("Cifar10", "pickles"), ("Cifar10", "pickles in root"),
    ("Cifar100", "pickles"), ("Cifar100", "pickles in root"),
]  # fmt: skip


def load(root: Path, name: str, **keys: object) -> DatasetBase:
    return load_dataset(config(root, root / "cache", DATASET__NAME=name, **keys))


def rows(data: DatasetBase, made: Made) -> dict[str, list[tuple[str, int, str]]]:
    return {p: [(d.key, d.label, d.classname) for d in data.parts[p]] for p in made.rows}


@pytest.mark.parametrize(("name", "layout"), LAYOUTS)
def test_published_layout(name: str, layout: str, tmp_path: Path) -> None:
    made = tree_of(name, tmp_path, layout)
    data = load(tmp_path, name)
    assert data.classnames == made.classnames
    assert rows(data, made) == made.rows
    assert sum(len(data.parts[p]) for p in PARTS) == sum(map(len, made.rows.values()))
    assert data.lab2cname == dict(enumerate(made.classnames))
    for datum in data.all()[::5]:
        if datum.array is None:
            Image.open(datum.impath).load()
        else:
            assert datum.array.shape == (32, 32, 3)
    tried = layouts_of(CATALOG[name])
    number = {"archive": 1, "torchvision": 1, "pickles": 1, "pickles in root": 3}.get(layout, 0)
    reported = f"{name}: layout '{tried[number].name}'" in data.notes
    assert reported == (len(tried) > 1 or CATALOG[name].split_file != "")
    assert any("not comparable with papers" in note for note in data.notes)


@pytest.mark.parametrize(("name", "layout"), LAYOUTS)
def test_the_shipped_config_reads_the_same(name: str, layout: str, tmp_path: Path) -> None:
    """A YAML that repeats the catalog goes through the layouts, whichever folder was found."""
    tree_of(name, tmp_path, layout)
    nodes = [yaml.safe_load(p.read_text(encoding="utf-8"))["DATASET"] for p in CONFIGS.glob("*")]
    node = next(n for n in nodes if n["NAME"] == name)
    keys = {f"DATASET__{key}": value for key, value in node.items()}
    cfg = config(tmp_path, tmp_path / "cache", **keys)
    assert rows_of(load_dataset(cfg)) == rows_of(load(tmp_path, name))
    assert templates(cfg) == [CATALOG[name].template]


def rows_of(data: DatasetBase) -> list[object]:
    return [data.parts[p] for p in PARTS] + [data.classnames, data.notes]


@pytest.mark.parametrize("name", SPLIT_SETS)
def test_no_split_is_invented(name: str, tmp_path: Path) -> None:
    tree_of(name, tmp_path, without=("split",))
    with pytest.raises(DataError, match=f"python -m fedvlm data prepare {name} --root ") as caught:
        load(tmp_path, name)
    assert CATALOG[name].split_file in str(caught.value) and "\n" not in str(caught.value)
    assert not list(tmp_path.rglob("*.json"))


def test_without_images_nothing_can_be_prepared(tmp_path: Path) -> None:
    (tmp_path / "eurosat").mkdir()
    with pytest.raises(DataError, match=r"eurosat/2750, eurosat/split_zhou_EuroSAT.json") as caught:
        load(tmp_path, "EuroSAT")
    assert "prepare" not in str(caught.value) and "get it from http" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "make", "says"),
    [
        ("Cifar10", "cifar-10", "batches-py/batches.meta missing.*layouts.*: class folders"),
        ("Cifar10", "cifar10", "folder .*cifar-10 does not exist.*did you mean 'cifar10'"),
        ("FGVCAircraft", "fgvc_aircraft/images", "variants.txt.*found there: images; other"),
        ("ImageNet", "imagenet/images/train", "imagenet/images/val missing"),
        ("ImageNetA", "imagenet-adversarial", "imagenet-adversarial/imagenet-a missing"),
    ],
)
def test_what_is_missing_is_named(name: str, make: str, says: str, tmp_path: Path) -> None:
    (tmp_path / make).mkdir(parents=True)
    with pytest.raises(DataError, match=says) as caught:
        load(tmp_path, name)
    assert "\n" not in str(caught.value)


def test_prepared_splits_are_found_and_named(tmp_path: Path) -> None:
    """The published split first, then one beside the images, then the cache's own."""
    made = tree_of("EuroSAT", tmp_path)
    published = made.folder / CATALOG["EuroSAT"].split_file
    content = json.loads(published.read_text(encoding="utf-8"))
    content["train"], content["val"] = content["train"] + content["val"], []
    cache = prepared_in_cache("EuroSAT", made.folder, config(tmp_path, tmp_path / "cache"))
    cache.parent.mkdir(parents=True)
    cache.write_text(json.dumps(content), encoding="utf-8")
    assert [len(load(tmp_path, "EuroSAT").parts[p]) for p in PARTS] == [12, 4, 8]
    published.unlink()
    for dir_key in ("", "eurosat"):
        data = load(tmp_path, "EuroSAT", DATASET__DIR=dir_key)
        assert [len(data.parts[p]) for p in PARTS] == [16, 0, 8]
        assert "EuroSAT: not the published split (prepared split in the cache)" in data.notes
    content["val"] = content["train"][-2:]
    del content["train"][-2:]
    beside = made.folder / prepared_name("EuroSAT")
    beside.write_text(json.dumps(content), encoding="utf-8")
    data = load(tmp_path, "EuroSAT")
    assert [len(data.parts[p]) for p in PARTS] == [14, 2, 8]
    assert "EuroSAT: not the published split (prepared split beside the images)" in data.notes
    told = load(tmp_path, "EuroSAT", DATASET__SPLIT_FILE=beside.name)
    assert rows_of(told)[:4] == rows_of(data)[:4]
    assert f"EuroSAT: not the published split ({beside.name})" in told.notes


def test_a_cached_split_is_bound_to_its_folder(tmp_path: Path) -> None:
    one = tree_of("EuroSAT", tmp_path / "one")
    tree_of("EuroSAT", tmp_path / "two", without=("split",))
    cfg = config(tmp_path / "two", tmp_path / "cache", DATASET__NAME="EuroSAT")
    cache = prepared_in_cache("EuroSAT", one.folder, cfg)
    cache.parent.mkdir(parents=True)
    (one.folder / CATALOG["EuroSAT"].split_file).rename(cache)
    with pytest.raises(DataError, match="data prepare EuroSAT"):
        load_dataset(cfg)


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
    assert compare(info, 10, sizes, 4200) == []
    (note,) = compare(info, 10, sizes, 4199)
    assert "4199/3901 test images of base/new classes" in note and "4200/3900" in note


def test_facts_add_up() -> None:
    for info in CATALOG.values():
        assert info.base + info.new == info.classes
        if info.base_test is not None and info.new_test is not None:
            assert info.base_test + info.new_test == info.test, info.name
        assert info.template.count("{}") == 1


@pytest.mark.parametrize(("name", "folder"), [("FGVCAircraft", "fgvc_aircraft")])
def test_image_dir_alone_says_nothing(name: str, folder: str, tmp_path: Path) -> None:
    tree_of(name, tmp_path)
    (tmp_path / folder / "images").rename(tmp_path / folder / "img")
    with pytest.raises(ConfigError, match="set DATASET.FORMAT too"):
        load(tmp_path, name, DATASET__IMAGE_DIR="img")


PROBE = """
import json, sys
from data_helpers import config
from fedvlm.data.datasets import load_dataset
root, names = sys.argv[1], sys.argv[2:]
sets = [load_dataset(config(root, root, DATASET__NAME=n)) for n in names]
print(json.dumps([[type(s.classnames).__name__, s.classnames, s.lab2cname,
                   [d.key for d in s.all()]] for s in sets]))
"""


def test_class_order_does_not_depend_on_hashing(tmp_path: Path) -> None:
    """The family's classnames had a set's order, other in each process; lab2cname was reversed."""
    names = sorted(set(MINIS) - {"Cifar100", "ImageNetR"})
    made = [tree_of(name, tmp_path, "pickles" if name == "Cifar10" else "") for name in names]
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    running = [
        subprocess.Popen(
            [sys.executable, "-c", PROBE, str(tmp_path), *names],
            env=env | {"PYTHONHASHSEED": seed}, stdout=subprocess.PIPE, text=True,
        )
        for seed in ("1", "2")
    ]  # fmt: skip
    said = [json.loads(job.communicate(timeout=120)[0]) for job in running]
    assert said[0] == said[1]
    for one, (kind, classnames, lab2cname, _) in zip(made, said[0], strict=True):
        assert (kind, classnames) == ("list", one.classnames)
        assert lab2cname == {str(label): name for label, name in enumerate(one.classnames)}
