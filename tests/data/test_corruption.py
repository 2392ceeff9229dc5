"""Corruptions of Hendrycks & Dietterich: closed forms, severities, and test images alone."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from fedvlm.config.keys import _CORRUPTIONS
from fedvlm.core.errors import ConfigError
from fedvlm.data.corruption import KINDS, CorruptPicture, corrupt, corrupt_tests
from fedvlm.data.datum import DatasetBase, Datum
from fedvlm.data.images import ImageLoader
from fedvlm.job.flags import parse
from fedvlm.job.resolve import resolve
from tests import jobs

RAMP = np.linspace(0, 255, 48 * 48 * 3).reshape(48, 48, 3).astype(np.uint8)


def one(array: np.ndarray, name: str, severity: int = 3, key: str = "k") -> np.ndarray:
    return np.asarray(corrupt(Image.fromarray(array), name, severity, key)).astype(float)


def grey(value: int, side: int = 48) -> np.ndarray:
    return np.full((side, side, 3), value, np.uint8)


@pytest.mark.parametrize("name", KINDS)
def test_each_is_a_function_of_content_and_hurts_more_with_severity(name: str) -> None:
    assert np.array_equal(one(RAMP, name), one(RAMP, name))
    far = [np.abs(one(RAMP, name, s) - RAMP).mean() for s in (1, 3, 5)]
    assert 0 < far[0] < far[1] < far[2], far
    assert len(KINDS[name].small) == len(KINDS[name].large) == 5
    random = name.endswith("noise")
    assert np.array_equal(one(RAMP, name), one(RAMP, name, key="other")) is not random


def test_noises_have_their_sizes() -> None:
    x = grey(128, 64)
    assert one(x, "gaussian_noise", 3).std() == pytest.approx(0.08 * 255, rel=0.03)
    assert one(x, "shot_noise", 5).std() == pytest.approx(255 * (128 / 255 / 50) ** 0.5, rel=0.03)
    hit = one(x, "impulse_noise", 5)
    assert (hit != 128).mean() == pytest.approx(0.07, abs=0.01)
    assert set(np.unique(hit)) == {0, 128, 255}


def test_brightness_and_contrast_by_hand() -> None:
    x = np.zeros((48, 48, 3), np.uint8)
    x[..., 0], x[..., 1] = 100, 50
    assert one(x, "brightness", 3)[0, 0].tolist() == pytest.approx([138, 69, 0], abs=1)
    x[:, :24] = 200
    x[:, 24:] = 100
    assert np.unique(one(x, "contrast", 3)).tolist() == pytest.approx([130, 170], abs=1)
    assert one(grey(90), "gaussian_blur", 5) == pytest.approx(90, abs=1)


def test_large_images_are_reduced_and_have_the_other_constants() -> None:
    big = one(grey(128, 300), "gaussian_noise", 3)
    assert big.shape == (224, 224, 3) and big.std() == pytest.approx(0.18 * 255, rel=0.03)
    assert one(grey(128, 100), "gaussian_noise", 3).shape == (100, 100, 3)


def test_test_images_alone_are_corrupted_and_have_keys_of_their_own(tmp_path: Path) -> None:
    file = tmp_path / "a.png"
    Image.fromarray(RAMP).save(file)
    data = DatasetBase(
        [Datum(str(file), 0, classname="a", key="a")], [],
        [Datum(str(file), 0, classname="a", key="t"), Datum("", 0, classname="a", key="u",
                                                            array=RAMP)], name="x")
    spec = SimpleNamespace(size=48, interpolation="bicubic", resize_mode="shortest",
                           mean=(0.0,) * 3, std=(1.0,) * 3)
    loader = ImageLoader(corrupt_tests(data, "contrast:5").all(), spec)  # type: ignore[arg-type]
    clean, *rest = (loader.load(i).permute(1, 2, 0).numpy() * 255 for i in range(3))
    assert clean == pytest.approx(RAMP, abs=1)
    for found in rest:
        assert found == pytest.approx(one(RAMP, "contrast", 5), abs=1)
    keys = {loader.content_key(i) for i in range(3)}
    assert len(keys) == 3 and data.notes == ["test images are corrupted: contrast, severity 5 of 5"]
    other = CorruptPicture(data.test[0].array.source, "contrast", 4)  # type: ignore[union-attr]
    assert other.key not in keys


def test_a_run_is_another_run_in_another_place(tmp_path: Path) -> None:
    for words in ((), ("DATASET.CORRUPTION", "gaussian_noise:5")):
        assert jobs.run(tmp_path, "--trainer", "ZeroShot", "--opts", "TEST.REFERENCES", "False",
                        *words) == 0
    places = {p.parent.parent.name for p in tmp_path.rglob("results.json")}
    assert places == {"disjoint-K2-f1", "disjoint-gaussian_noise5-K2-f1"}


@pytest.mark.parametrize("words", ["fog:3", "contrast", "contrast:6", "contrast:3:1"])
def test_other_words_are_refused(words: str) -> None:
    with pytest.raises(ConfigError, match="must be one of gaussian_noise, shot_noise"):
        resolve(parse(["--demo", "DATASET.CORRUPTION", words]))


def test_the_key_names_every_kind() -> None:
    assert tuple(KINDS) == _CORRUPTIONS


def test_a_pack_is_refused() -> None:
    packed = Datum("", 0, classname="a", key="a", packed=SimpleNamespace())  # type: ignore[arg-type]
    data = DatasetBase([packed], [], [Datum("", 0, classname="a", key="b",
                                            packed=packed.packed)], name="x")
    with pytest.raises(ConfigError, match="a feature pack has no pixels to corrupt"):
        corrupt_tests(data, "jpeg:1")
