"""Which pack serves a config, and under which settings it does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from yacs.config import CfgNode

from fedvlm.cli.main import main
from fedvlm.core.errors import ConfigError, DataError
from fedvlm.data.datasets import load_dataset, pack_of
from fedvlm.data.doctor.examine import examine, examine_own_packs
from fedvlm.data.locate import find_root
from fedvlm.job.flags import parse
from fedvlm.job.resolve import resolve
from tests.data.miniatures.own import config
from tests.data.packs.packs import lists, make_pack

NAME = "mine.pack.safetensors"
DTD = "DescribableTextures"


def of(root: Path, **keys: Any) -> CfgNode:
    return config(root, root / "cache", **{"DATASET__NAME": "Mine", **keys})


def test_the_root_is_a_pack(tmp_path: Path) -> None:
    path = make_pack(tmp_path / "any.pack.safetensors", lists(domains=2))
    data = load_dataset(of(path))
    assert data.name == "Mine" and data.domain_names == ["domain 0", "domain 1"]
    with pytest.raises(DataError, match="is a feature pack, which has no images"):
        find_root(str(path))


def test_a_pack_in_the_root_is_found_by_the_sets_name(tmp_path: Path) -> None:
    path = make_pack(tmp_path / NAME)
    assert pack_of(of(tmp_path, DATASET__NAME="MINE")) == path
    assert pack_of(of(tmp_path, DATASET__NAME="Other")) is None
    assert pack_of(of(tmp_path / "nowhere")) is None
    make_pack(tmp_path / "dtd.pack.safetensors", lists())
    assert pack_of(of(tmp_path, DATASET__NAME="DescribableTextures")) is not None
    with pytest.raises(ConfigError, match="DescribableTextures: .* is a pack of Mine"):
        load_dataset(of(tmp_path, DATASET__NAME="DescribableTextures"))


def test_images_go_first(tmp_path: Path) -> None:
    make_pack(tmp_path / NAME)
    (tmp_path / "mine").mkdir()
    assert pack_of(of(tmp_path, DATASET__DIR="mine")) is None
    assert pack_of(of(tmp_path, DATASET__DIR="elsewhere")) is not None


def test_of_several_the_run_takes_its_backbones(tmp_path: Path) -> None:
    make_pack(tmp_path / "mine.a.pack.safetensors", backbone="ViT-B/16")
    other = make_pack(tmp_path / "mine.b.pack.safetensors", backbone="RN50")
    cfg = of(tmp_path)
    cfg.MODEL = CfgNode({"BACKBONE": CfgNode({"NAME": "rn50"})})
    assert pack_of(cfg) == other
    cfg.MODEL.BACKBONE.NAME = "tiny"
    with pytest.raises(ConfigError, match=r"2 packs of Mine .*none of them of backbone 'tiny'"):
        pack_of(cfg)


def test_settings_that_read_the_set_otherwise_are_refused(tmp_path: Path) -> None:
    path = make_pack(tmp_path / NAME, cut_seed=1)
    data = load_dataset(of(path, DATASET__FORMAT="folders"))
    assert "make the pack again with --groups COLUMN" in data.notes[-1]
    with pytest.raises(ConfigError, match=r"DATASET.GROUPS patient: .* with none set; drop it .*"
                                          "or make a pack with it"):
        load_dataset(of(path, DATASET__GROUPS="patient"))
    with pytest.raises(ConfigError, match=r"DATASET.FORMAT coop: .* was made with folders"):
        load_dataset(of(path, DATASET__FORMAT="coop"))
    with pytest.raises(ConfigError, match=r"DATASET.SPLIT_FILE a.json: .* with none set"):
        load_dataset(of(path, DATASET__SPLIT_FILE="a.json"))
    with pytest.raises(ConfigError, match=r"DATASET.TEST_SHARE 0.5: .* made with none set;"):
        load_dataset(of(path, DATASET__TEST_SHARE=0.5))
    with pytest.raises(ConfigError, match=r"DATA_SEED 2: the test images .* set --data-seed 1"):
        load_dataset(of(path, DATA_SEED=2))


@pytest.mark.parametrize(("key", "value", "text"), [
    ("LEAVE_OUT", ["a", "b"], "a,b"), ("SPLIT_FILE", "s.json", "s.json"),
    ("NAMES_FILE", "words.txt", "words.txt"), ("TEST_SHARE", 0.3, "0.3"),
])
def test_a_config_that_says_nothing_does_not_take_a_pack_read_otherwise(
    tmp_path: Path, key: str, value: Any, text: str
) -> None:
    said = {"DATASET.NAME": "Mine", f"DATASET.{key}": value}
    path = make_pack(tmp_path / NAME, settings=said)
    with pytest.raises(ConfigError, match=rf"DATASET.{key} is not set: .*; give DATASET.{key} "
                                          rf"{text}, or --root .* without --dataset"):
        load_dataset(of(path))
    load_dataset(of(path, **{f"DATASET__{key}": value}))
    assert main(["doctor", "--root", str(path)]) == 0


@pytest.mark.parametrize("said", [{}, {"DATASET.SPLIT_FILE": f"split_zhou_{DTD}.json"}])
def test_a_sets_own_split_need_not_be_said(tmp_path: Path, said: dict[str, str]) -> None:
    path = make_pack(tmp_path / "dtd.pack.safetensors", name=DTD, settings=said)
    load_dataset(of(path, DATASET__NAME=DTD))
    load_dataset(of(path, DATASET__NAME=DTD, DATASET__SPLIT_FILE=f"split_zhou_{DTD}.json"))
    with pytest.raises(ConfigError, match=r"SPLIT_FILE mine.json: .* with split_zhou"):
        load_dataset(of(path, DATASET__NAME=DTD, DATASET__SPLIT_FILE="mine.json"))


def test_a_pack_that_is_named_alone_brings_how_its_set_is_read(tmp_path: Path) -> None:
    said = {"DATASET.LEAVE_OUT": ["a", "b"], "DATASET.TEST_SHARE": 0.3, "DATASET.FORMAT": "coop"}
    path = make_pack(tmp_path / "dtd.pack.safetensors", name=DTD, settings=said)
    (job,) = resolve(parse(["--root", str(path)])).jobs
    assert job.cfg.DATASET.LEAVE_OUT == ("a", "b") and job.cfg.DATASET.TEST_SHARE == 0.3
    (job,) = resolve(parse(["--root", str(path), "--dataset", "dtd"])).jobs
    assert job.cfg.DATASET.LEAVE_OUT == () and job.cfg.DATASET.NAME == DTD


def test_the_doctor_knows_packs(tmp_path: Path) -> None:
    path = make_pack(tmp_path / NAME, faults={0: "cut short"})
    for root in (path, tmp_path):
        check = examine(of(root), 4)
        assert check.layout == "feature pack" and check.folder == NAME
        assert check.sizes == {"train": 9, "val": 3, "test": 6} and check.unreadable == 1
        assert any("by tiny" in finding.text for finding in check.remarks)
    (other,) = examine_own_packs(tmp_path)
    assert other.name == NAME and other.state == "ready" and other.classes == 3
    path.write_bytes(path.read_bytes()[:-1])
    (cut,) = examine_own_packs(tmp_path)
    assert cut.state == examine(of(path), 4).state == "broken"
    assert "it was cut" in cut.problems[0].text
