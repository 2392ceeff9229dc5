"""Every ready dataset config agrees with the catalog and can be loaded by the reader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from data_helpers import config, write_split, write_tree

from fedvlm.data.catalog import CATALOG, dataset_info
from fedvlm.data.federated import build_federation

CONFIGS = Path(__file__).resolve().parents[2] / "configs" / "datasets"
FILES = sorted(CONFIGS.glob("*.yaml"))
OWN = {"custom_folders", "custom_split", "custom_domains", "custom_csv"}


def read(path: Path) -> dict[str, dict[str, Any]]:
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert isinstance(content, dict)
    return content


def keys_of(content: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return {f"{node}__{k}": v for node, inner in content.items() for k, v in inner.items()}


def test_every_known_set_has_a_config() -> None:
    found = {read(f)["DATASET"]["NAME"] for f in FILES if f.stem not in OWN}
    assert found == set(CATALOG)


@pytest.mark.parametrize("path", [f for f in FILES if f.stem not in OWN], ids=lambda p: p.stem)
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
    else:
        write_tree(tmp_path / "my_sites", ["n", "s", "e", "w"], ["a", "b"], 6)
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
