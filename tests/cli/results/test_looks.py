"""``fedvlm figures`` with images: maps of a run's model, and who has none."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from fedvlm.api import model as api_model
from fedvlm.api.images import as_list, batches
from fedvlm.api.model import Model
from fedvlm.cli.main import main
from fedvlm.cli.results import _looks
from fedvlm.core.errors import ConfigError, DataError
from fedvlm.core.trees import unstack
from tests import jobs
from tests.trainers.small_world import method, model, tree


@pytest.fixture
def folder(quick_run: Path) -> Path:
    return jobs.folder(quick_run)


def test_a_clients_test_images(folder: Path, tmp_path: Path) -> None:
    words = ["figures", str(folder), "--into", str(tmp_path / "new"), "--client", "1"]
    assert main([*words, "--test-images", "2", "--features", "40"]) == 0
    rows = list(csv.DictReader((tmp_path / "new" / "attention.csv").open()))
    assert [r["field"] for r in rows] == ["frozen feature", "shared adapter", "own adapter"] * 2
    for i in (0, 3):
        assert sum(float(r["weight"]) for r in rows[i : i + 3]) == pytest.approx(1)
    run = _looks.load(folder)
    some = _looks.test_images(run, "client-1", 2)
    mine = _looks.read_index_file(folder / "partition.json")["clients"][1]["test"]
    assert [d.key for d in some] == [mine[0], mine[-1]]
    said = run.client(1).predict(_looks.files_or_arrays(some)).top(1)
    assert [r["said"] for r in rows[::3]] == [f"says {c} ({p:.2f})" for ((c, p),) in said]
    points = list(csv.DictReader((tmp_path / "new" / "features.csv").open()))
    many = _looks.test_images(run, "client-1", 40)
    assert [r["true"] for r in points] == [_looks.spoken(d) for d in many]
    right = run.client(1).predict(_looks.files_or_arrays(many)).classes
    assert [r["right"] == "True" for r in points] == [
        said == r["true"] for said, r in zip(right, points, strict=True)]
    values = _looks.features(run.client(1), many).values
    assert np.allclose(np.linalg.norm(values, axis=1), 1)
    frozen = _looks.features(run.client(0), many).values  # another client's adapter
    assert not np.allclose(values, frozen)


def test_a_plan_is_that_of_the_class_that_is_said() -> None:
    trainer = method("FedOTP", N_CTX=2, ITERS=5)
    params = unstack(tree(trainer), 2)[1]
    images = np.random.default_rng(1).integers(0, 255, (3, 20, 24, 3), np.uint8)
    maps = Model(trainer, model(), params, "client 1 of 2").maps(images)
    size = model().backbone.transform_spec.size
    assert maps.pictures.shape == (3, size, size, 3) and maps.pictures.dtype == np.uint8
    data = _looks.looks(maps)
    side = data.fields["own context"].shape[1]
    for i, label in enumerate(maps.said.labels):
        want = maps.fields["own context"][i, label].view(side, side)
        assert torch.equal(torch.from_numpy(data.fields["own context"][i]).float(), want)
    with pytest.raises(ConfigError, match="are no square"):
        _looks._grid(np.ones((2, 6)))


def test_images_are_encoded_once_for_features_and_answers() -> None:
    trainer, images = method("FedAvg"), np.random.default_rng(1).integers(
        0, 255, (3, 20, 24, 3), np.uint8)
    one = Model(trainer, model(), unstack(tree(trainer), 2)[1], "client 1 of 2")
    some = [SimpleNamespace(path="", array=image, classname=one.classnames[0])
            for image in images]
    before = one.model.counters["image_forwards"]
    seen = _looks.features(one, some)
    assert one.model.counters["image_forwards"] - before == len(images)
    values = torch.nn.functional.normalize(one.features(list(images)), dim=-1)
    assert torch.equal(torch.from_numpy(seen.values), values.double())
    assert [*seen.right] == [*(one.predict(list(images)).labels == 0)]


@pytest.mark.parametrize(("name", "times"), [("FedOTP", 1), ("FedTV", 1), ("VPT", 2)])
def test_images_are_encoded_once_for_maps_and_answers(
    name: str, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for a method that changes the tower: its maps and its answers are two of its outputs."""
    images = list(np.random.default_rng(1).integers(0, 255, (3, 20, 24, 3), np.uint8))
    trainer = method(name)
    one = Model(trainer, model(), unstack(tree(trainer), 2)[1], "client 1 of 2")
    opened, before = list[int](), one.model.counters["image_forwards"]

    def count(found: Any, *more: Any) -> Iterator[torch.Tensor]:
        opened.append(len(found))
        return batches(found, *more)

    monkeypatch.setattr(api_model, "batches", count)
    maps = one.maps(iter(images))
    assert one.model.counters["image_forwards"] - before == times * len(images)
    assert opened == [3]
    assert torch.equal(maps.said.logits, one.predict(images).logits)
    pixels = next(iter(one._pixels(as_list(images)[0])))
    with torch.no_grad():
        plain = trainer.maps(one.model, one._stacked, {"pixels": pixels})
    assert list(plain) == list(maps.fields)
    assert all(torch.equal(maps.fields[n], rows[0].float()) for n, rows in plain.items())


def test_a_method_without_maps_names_those_that_have_them() -> None:
    with pytest.raises(ConfigError, match="FedAvg weighs no part.*FedOTP .transport., FedTV"):
        Model(method("FedAvg"), model(), {}, "global").maps([])


def test_features_without_pixels_are_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = _looks.load(folder)
    key = _looks.read_index_file(folder / "partition.json")["clients"][0]["test"][0]
    packed = SimpleNamespace(test=[SimpleNamespace(key=key, packed=object())])
    monkeypatch.setattr(_looks, "load_dataset", lambda cfg: packed)
    with pytest.raises(DataError, match="is a feature pack here, which has no pixels"):
        _looks.test_images(run, "client-0", 1)
    packed.test = []
    with pytest.raises(DataError, match="give images with --images"):
        _looks.test_images(run, "global", 1)


@pytest.mark.parametrize(("words", "code", "said"), [
    (["--images", "a.png", "--test-images", "2"], 2, "drop one of them"),
    (["--test-images", "2", "--client", "all"], 2, "such a figure is of one model"),
    (["--images", "nope.png"], 3, "no image"),
    (["--client", "1"], 2, "--client 1 chooses the model for --images"),
])
def test_mistakes_are_one_sentence(
    words: list[str], code: int, said: str, folder: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["figures", str(folder), "--into", str(tmp_path / "new"), *words]) == code
    err = capsys.readouterr().err
    assert said in err and "Traceback" not in err
    assert not (tmp_path / "new").exists()
