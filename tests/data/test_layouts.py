"""Every known set in miniature: each published layout gives the published lists."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from PIL import Image

from fedvlm.cli.main import main
from fedvlm.core.errors import ConfigError, DataError, fold
from fedvlm.core.plugins import Plugins
from fedvlm.data import formats as readers
from fedvlm.data.catalog import CATALOG
from fedvlm.data.datasets import FORMATS, load_dataset, templates
from fedvlm.data.datum import PARTS, DatasetBase
from fedvlm.data.federated import build_federation
from fedvlm.data.layouts import (
    DOMAIN_LAYOUTS,
    cached_split_path,
    layouts_of,
    prepared_name,
    reader_of,
)
from fedvlm.data.layouts import LAYOUTS as LAYOUTS_BY_SET
from fedvlm.job.flags import parse
from fedvlm.job.resolve import resolve
from tests.data.miniatures.domains import ABSENT, BROKEN, CLASSES, EVERY, write_domain_set
from tests.data.miniatures.fresh import order_of
from tests.data.miniatures.own import check_federation, config
from tests.data.miniatures.published import MINIS, Made, tree_of

CONFIGS = Path(__file__).resolve().parents[2] / "configs" / "datasets"
SPLIT_SETS = sorted(name for name in MINIS if CATALOG[name].split_file)
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
    cache = cached_split_path("EuroSAT", made.folder, config(tmp_path, tmp_path / "cache"))
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
    cache = cached_split_path("EuroSAT", one.folder, cfg)
    cache.parent.mkdir(parents=True)
    (one.folder / CATALOG["EuroSAT"].split_file).rename(cache)
    with pytest.raises(DataError, match="data prepare EuroSAT"):
        load_dataset(cfg)


@pytest.mark.parametrize(("name", "folder"), [("FGVCAircraft", "fgvc_aircraft")])
def test_image_dir_alone_says_nothing(name: str, folder: str, tmp_path: Path) -> None:
    tree_of(name, tmp_path)
    (tmp_path / folder / "images").rename(tmp_path / folder / "img")
    with pytest.raises(ConfigError, match="set DATASET.FORMAT too"):
        load(tmp_path, name, DATASET__IMAGE_DIR="img")


PROBE = """
import json, sys
from tests.data.miniatures.fresh import order_of
print(json.dumps(order_of(sys.argv[1], sys.argv[2:])))
"""


def test_class_order_does_not_depend_on_hashing(tmp_path: Path) -> None:
    """The family's classnames had a set's order, other in each process; lab2cname was reversed.

    Here names hash by this process's seed, in the other process by another one.
    """
    names = sorted(set(MINIS) - {"Cifar100", "ImageNetR"})
    wanted = {name: tree_of(name, tmp_path, "pickles" if name == "Cifar10" else "").classnames
              for name in names}
    for name, layout in (("DomainNet", "FedBN pickles"), ("OfficeCaltech10", "domain tree")):
        write_domain_set(name, layout, tmp_path)
        wanted[name] = list(CLASSES[name])
    other = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    done = subprocess.run(
        [sys.executable, "-c", PROBE, str(tmp_path), *wanted], capture_output=True, text=True,
        env=os.environ | {"PYTHONHASHSEED": other}, cwd=Path(__file__).parents[2], check=True,
    )
    said = json.loads(done.stdout)
    assert said == order_of(str(tmp_path), list(wanted))
    for classes, (kind, classnames, lab2cname, _) in zip(wanted.values(), said, strict=True):
        assert (kind, classnames) == ("list", classes)
        assert lab2cname == {str(label): name for label, name in enumerate(classes)}


def load_domains(name: str, root: Path, **keys: object) -> DatasetBase:
    return load_dataset(config(root, root / "cache", DATASET__NAME=name, **keys))


@pytest.mark.parametrize(("name", "layout"), EVERY, ids=lambda v: v.replace(" ", "-"))
def test_published_layout_of_domains(name: str, layout: str, tmp_path: Path) -> None:
    write_domain_set(name, layout, tmp_path)
    data = load_domains(name, tmp_path)
    assert data.classnames == list(CLASSES[name])
    assert data.domain_names == list(CATALOG[name].domains)
    for datum in data.all():
        folders = datum.key.split("/")
        assert datum.classname == folders[-2] == data.lab2cname[datum.label]
        assert fold(data.domain_names[datum.domain]) in {fold(f) for f in folders}
        assert datum.path.is_file()
    each = len(CLASSES[name]) * len(CATALOG[name].domains)
    tree = "tree" in layout and "trees" not in layout
    if tree:
        assert [len(data.parts[p]) for p in ("train", "val", "test")] == [3 * each, each, 2 * each]
    else:
        lost = 4 if name == ABSENT[0] else 0
        assert [len(data.parts[p]) for p in ("train", "val", "test")] == [4 * each - lost, 0,
                                                                        2 * each]
    assert any("not the published split" in note for note in data.notes) == tree
    if len(DOMAIN_LAYOUTS[name]) > 1:
        assert f"{name}: layout '{layout}'" in data.notes


@pytest.mark.parametrize("name", sorted(DOMAIN_LAYOUTS))
def test_first_layout_that_fits_wins(name: str, tmp_path: Path) -> None:
    for layout in reversed(DOMAIN_LAYOUTS[name]):
        write_domain_set(name, layout.name, tmp_path)
        notes = load_domains(name, tmp_path).notes
        assert len(DOMAIN_LAYOUTS[name]) == 1 or f"{name}: layout '{layout.name}'" in notes


def test_a_copy_of_another_size_says_so(tmp_path: Path) -> None:
    write_domain_set("PACS", "FLORA pickles", tmp_path)
    notes = load_domains("PACS", tmp_path).notes
    assert any("this copy has 3 classes" in n and "published set has 7" in n for n in notes)


def test_own_folder_name(tmp_path: Path) -> None:
    write_domain_set("PACS", "FLORA pickles", tmp_path).rename(tmp_path / "mine")
    data = load_domains("PACS", tmp_path, DATASET__DIR="mine")
    assert data.train_x[0].path.is_file() and len(data.train_x) == 48


def test_broken_image_of_pacs_is_left_out(tmp_path: Path) -> None:
    layout = DOMAIN_LAYOUTS["PACS"][0].name
    lists = write_domain_set("PACS", layout, tmp_path) / "splits" / "sketch_train_kfold.txt"
    assert BROKEN in lists.read_text()
    data = load_domains("PACS", tmp_path)
    assert all(d.key != BROKEN for d in data.all())
    assert any(BROKEN in note for note in data.notes)


def test_training_images_of_a_test_list_are_not_tested_on(tmp_path: Path) -> None:
    write_domain_set("PACS", "FedPHA folds", tmp_path)
    data = load_domains("PACS", tmp_path)
    assert not {d.key for d in data.train_x} & {d.key for d in data.test}
    assert any("48 image(s) of the test lists are in an earlier list too" in n for n in data.notes)


def test_a_class_missing_in_one_domain_shifts_no_label(tmp_path: Path) -> None:
    write_domain_set("DomainNetFull", "DomainNet lists", tmp_path)
    data = load_domains("DomainNetFull", tmp_path)
    painting = data.domain_names.index("painting")
    held = {d.label: d.classname for d in data.train_x if d.domain == painting}
    assert held == {0: "The_Eiffel_Tower", 2: "zebra"}
    assert any("domain 'painting' lacks 1 class(es) in train: t-shirt" in n for n in data.notes)


def test_what_is_missing_of_a_domain_set_is_named(tmp_path: Path) -> None:
    folder = write_domain_set("OfficeHome", "FedTV pickles", tmp_path)
    (folder / "Real World_test.pkl").unlink()
    with pytest.raises(DataError, match=r"OfficeHome/Real World_test.pkl missing .*other layouts"):
        load_domains("OfficeHome", tmp_path)


DOMAIN_CONFIGS = {
    "domainnet": "DomainNet", "domainnet_full": "DomainNetFull",
    "office_caltech10": "OfficeCaltech10", "pacs": "PACS", "office_home": "OfficeHome",
    "office31": "Office31",
}  # fmt: skip
CASES = [(stem, "domain") for stem in DOMAIN_CONFIGS] + [("pacs", "domain_dirichlet")]


@pytest.mark.parametrize(("stem", "kind"), CASES)
def test_config_deals_its_domains(stem: str, kind: str, tmp_path: Path) -> None:
    name = DOMAIN_CONFIGS[stem]
    write_domain_set(name, DOMAIN_LAYOUTS[name][-1].name, tmp_path)
    words = f"--root {tmp_path} --dataset {stem} --partition {kind} --shots 2 --trainer promptfl"
    (job,) = resolve(parse(words.split())).jobs
    data = build_federation(job.cfg)
    check_federation(data)
    domains, tested = CATALOG[name].domains, 2 * len(CLASSES[name])
    assert [client.domain for client in data.clients] == list(domains)
    assert [len(client.test) for client in data.clients] == [tested] * len(domains)


@pytest.mark.parametrize(("stem", "kind"), [("office31", "domain"), ("pacs", "domain_dirichlet")])
def test_config_runs(stem: str, kind: str, tmp_path: Path) -> None:
    name = DOMAIN_CONFIGS[stem]
    layout = DOMAIN_LAYOUTS[name][-1].name
    write_domain_set(name, layout, tmp_path / "DATA")
    line = (
        f"run --root {tmp_path}/DATA --dataset {stem} --partition {kind} --backbone tiny "
        f"--trainer promptfl --rounds 1 --shots 2 --output-dir {tmp_path}/out"
    )
    assert main(line.split()) == 0
    (found,) = (tmp_path / "out").rglob("results.json")
    last = json.loads(found.read_text(encoding="utf-8"))["results"]["last"]
    domains = CATALOG[name].domains
    tested = 2 * len(CLASSES[name])  # images of one domain in each miniature's test list
    assert [client["n"] for client in last["clients"]] == [tested] * len(domains)
    content = json.loads((found.parent / "partition.json").read_text(encoding="utf-8"))
    assert [client["domain"] for client in content["clients"]] == list(domains)


def test_every_reader_is_found_by_its_mark_and_named_by_a_format_or_a_layout() -> None:
    marked = set(Plugins(readers.__name__, "READER", "reader").names())
    tables = dict.fromkeys(("csv", "json", "jsonl", "parquet"), "table")
    named = {tables.get(form, form) for form in FORMATS}
    named |= {layout.reader for layouts in LAYOUTS_BY_SET.values() for layout in layouts}
    assert named == marked
    for name in sorted(named):
        assert reader_of(name).__name__ == f"read_{name}"
    with pytest.raises(ConfigError, match="unknown reader 'list'; did you mean 'lists'"):
        reader_of("list")


def test_a_layout_is_recognised_without_importing_a_reader(tmp_path: Path) -> None:
    """And reading a set imports the reader of its layout only."""
    tree_of("EuroSAT", tmp_path)
    (loaded,) = subprocess.run(
        [sys.executable, "-c", PROBE_OF_READERS, str(tmp_path)], capture_output=True, text=True,
        check=True, cwd=Path(__file__).parents[2],
    ).stdout.splitlines()
    assert json.loads(loaded) == [[], ["coop"]]


PROBE_OF_READERS = """
import json, sys
from pathlib import Path
from tests.data.miniatures.fresh import cfg_of
from fedvlm.data.catalog import CATALOG
from fedvlm.data.datasets import load_dataset
from fedvlm.data.layouts import choose, layouts_of
def readers():
    head = "fedvlm.data.formats."
    others = {"packs", "memory", "own", "untrusted"}
    assert not {name.split(".")[2] for name in sys.modules if name.count(".") > 1
                and name.startswith("fedvlm.data.")} & others
    return sorted(name.removeprefix(head) for name in sys.modules if name.startswith(head))
root = Path(sys.argv[1])
before = [choose(layouts_of(info), root) for info in CATALOG.values()] and readers()
load_dataset(cfg_of(str(root), "EuroSAT"))
print(json.dumps([before, readers()]))
"""
