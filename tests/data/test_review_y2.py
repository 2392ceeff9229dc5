"""Second review of the data layer: one name per domain, shares too thin, folders closed to us."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data_helpers import own_split, write_image, write_split
from trees import tree_of

from fedvlm.cli.main import main
from fedvlm.core.errors import ConfigError, DataError
from fedvlm.data.datum import Datum
from fedvlm.data.federated import build_federation
from fedvlm.data.image_records import ImageRecords
from fedvlm.data.images import check_decodes
from fedvlm.data.partition.kinds import make_partition
from fedvlm.data.partition.spec import ImagePool, PartitionSpec
from fedvlm.job.describe import partition_name
from fedvlm.job.flags import parse
from fedvlm.job.resolve import resolve

OWN = Path(__file__).resolve().parents[2] / "configs" / "datasets" / "custom_domains.yaml"


def named(*words: str) -> tuple[str, str]:
    """Return the held-out domain as a run's config has it, and the partition in its path."""
    cfg = resolve(parse(["--backbone", "tiny", *words])).jobs[0].cfg
    return cfg.FED.HELD_OUT_DOMAIN, partition_name(cfg)


@pytest.mark.parametrize(("words", "spellings", "is_called"), [
    (("--dataset", "pacs"), ("photo", "PHOTO", "Photo"), "photo"),
    (("--dataset", "pacs"), ("art_painting", "Art Painting", "ART-PAINTING"), "art_painting"),
    (("--dataset", "office_home"), ("real_world", "Real World", "RealWorld"), "real_world"),
    (("--dataset-config-file", str(OWN)), ("Site-A", "site_a", "SITE A"), "sitea"),
])  # fmt: skip
def test_a_held_out_domain_has_one_name(
    words: tuple[str, ...], spellings: tuple[str, ...], is_called: str
) -> None:
    found = {named(*words, "--held-out-domain", spelling) for spelling in spellings}
    assert len(found) == 1
    (held_out, path), = found
    assert held_out == is_called and f"-without-{is_called}-" in path


def pool_of(classes: int, each: int) -> ImagePool:
    labels = {p: np.repeat(np.arange(classes), n) for p, n in
              (("train", each), ("val", 1), ("test", 2))}
    return ImagePool(labels, classes, {p: np.zeros_like(a) for p, a in labels.items()}, [],
                [f"c{i}" for i in range(classes)])


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize(("classes", "shots", "rate", "clients"), [
    (2, 2, 0.5, 4), (4, 2, 0.5, 8), (3, 2, 1.0, 9), (50, 1, 0.02, 90),
])  # fmt: skip
def test_shared_classes_that_do_not_reach_all_clients_name_a_number_that_fits(
    classes: int, shots: int, rate: float, clients: int, seed: int
) -> None:
    pool = pool_of(classes, shots)
    spec = PartitionSpec("disjoint", clients, seed, repeat_rate=rate, shots=shots)
    with pytest.raises(ConfigError, match="without a training image; use FED.CLIENTS") as found:
        make_partition(pool, spec)
    fits = int(re.findall(r"FED\.CLIENTS (\d+)", str(found.value))[0])
    dealt = make_partition(pool, replace(spec, clients=fits))
    assert all(len(mine) for mine in dealt.train)
    assert sorted(np.concatenate(dealt.train)) == list(range(classes * shots))
    if fits + 1 < clients:
        with pytest.raises(ConfigError, match=f"use FED.CLIENTS {fits}, or"):
            make_partition(pool, replace(spec, clients=fits + 1))


def close(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Refuse what lies below ``folder``, as a folder without the right x does; root is let in."""
    real = os.stat

    def stat(path: Any, *args: Any, **more: Any) -> Any:
        if isinstance(path, str | Path) and folder in Path(path).parents:
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *args, **more)

    monkeypatch.setattr(os, "stat", stat)


def test_images_in_a_closed_folder_are_not_called_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shut").mkdir()
    paths = [write_image(tmp_path / "a.png", 1), write_image(tmp_path / "shut" / "b.png", 2)]
    close(monkeypatch, tmp_path / "shut")
    items = [Datum(str(p), 0, key=p.name) for p in paths]
    with pytest.raises(DataError, match=r"1 of 2 images .* cannot be reached .*b\.png: Permission"):
        ImageRecords(None).find_broken(items, check_decodes)


def test_a_cache_that_cannot_be_made_is_called_that(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree_of("EuroSAT", tmp_path / "DATA", without=("split",))
    (tmp_path / "file").write_text("")
    words = ["data", "prepare", "eurosat", "--root", f"{tmp_path}/DATA"]
    assert main([*words, "--cache-dir", f"{tmp_path}/file/cache"]) == 3
    said = capsys.readouterr().err
    assert "cannot make the folder" in said and "--cache-dir" in said and "deleted" not in said


def test_a_download_into_a_folder_to_come_says_how_to_begin(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["data", "download", "eurosat", "--root", f"{tmp_path}/DATA"]) == 3
    assert f"to begin with an empty one: mkdir -p {tmp_path}/DATA" in capsys.readouterr().err


def test_the_doctor_names_several_broken_images(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tree_of("EuroSAT", tmp_path).folder
    broken = sorted(folder.rglob("*.jpg"))[:12]
    for path in broken:
        path.write_bytes(b"")
    words = ["doctor", "--root", str(tmp_path), "--cache-dir", str(tmp_path / "cache"), "eurosat"]
    assert main(words) == 3
    said = capsys.readouterr().out
    assert "12 of 24 images looked at do not decode" in said
    assert sum(f"{path.name}: the file is empty" in said for path in broken) == 10


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
