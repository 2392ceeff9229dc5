"""Corrupted test images: ``DATASET.CORRUPTION gaussian_noise:3``.

Hendrycks & Dietterich, Benchmarking Neural Network Robustness to Common Corruptions and
Perturbations, ICLR 2019: eight of its corruptions at its five severities, on any data set. Images
of at most 64 pixels have CIFAR-10-C's constants; larger ones are first reduced to a shorter side of
224 pixels and have ImageNet-C's. Training and validation images stay as they are. What is random
is a function of the image's content, the corruption and its severity.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fedvlm.core.errors import ConfigError, DataError
from fedvlm.core.pixels import decode
from fedvlm.core.rng import numpy_stream
from fedvlm.data.datum import DatasetBase, Datum
from fedvlm.data.image_records import array_key, describe_failure

Floats = NDArray[np.float64]  # [H, W, 3] in [0, 1]
SMALL, LARGE = 64, 224  # pixels of the shorter side: CIFAR's constants; what others are reduced to
REACH = 4  # of a blur's kernel, standard deviations


def _impulse_noise(x: Floats, c: float, rng: np.random.Generator) -> Floats:
    """Replace a share ``c`` of the numbers by 0 or 1, each equally often (salt and pepper)."""
    hit, salt = rng.random(x.shape) < c, rng.random(x.shape) < 1 / 2
    return np.where(hit, salt.astype(np.float64), x)


def _gaussian_blur(x: Floats, c: float, rng: np.random.Generator) -> Floats:
    reach = int(REACH * c + 0.5)
    weight = np.exp(-0.5 * (np.arange(-reach, reach + 1) / c) ** 2)
    weight /= weight.sum()
    for axis in (0, 1):
        pad = [(reach, reach) if a == axis else (0, 0) for a in range(x.ndim)]
        wide, size = np.pad(x, pad, mode="edge"), x.shape[axis]
        x = np.asarray(sum(
            w * wide.take(range(i, i + size), axis=axis) for i, w in enumerate(weight)
        ))
    return x


def _brightness(x: Floats, c: float, rng: np.random.Generator) -> Floats:
    """Add ``c`` to the value of HSV: hue and saturation stay."""
    value = x.max(-1, keepdims=True)
    lighter = np.clip(value + c, 0, 1)
    return np.where(value > 0, x * lighter / np.where(value > 0, value, 1), lighter)


def _contrast(x: Floats, c: float, rng: np.random.Generator) -> Floats:
    mean = x.mean((0, 1), keepdims=True)
    return (x - mean) * c + mean


def _pixelate(x: Floats, c: float, rng: np.random.Generator) -> Floats:
    image = Image.fromarray(_bytes(x))
    size = (max(int(image.width * c), 1), max(int(image.height * c), 1))
    small = image.resize(size, Image.Resampling.BOX)
    return np.asarray(small.resize(image.size, Image.Resampling.NEAREST)) / 255.0


def _jpeg(x: Floats, c: float, rng: np.random.Generator) -> Floats:
    held = io.BytesIO()
    Image.fromarray(_bytes(x)).save(held, "JPEG", quality=int(c))
    return np.asarray(Image.open(held).convert("RGB")) / 255.0


@dataclass(frozen=True)
class Corruption:
    """A corruption: what it does with a constant, which CIFAR-10-C and ImageNet-C have by severity.
    """

    apply: Callable[[Floats, float, np.random.Generator], Floats]
    small: Sequence[float]
    large: Sequence[float]


KINDS: Mapping[str, Corruption] = {
    "gaussian_noise": Corruption(
        lambda x, c, rng: x + rng.normal(size=x.shape, scale=c),
        (.04, .06, .08, .09, .10), (.08, .12, .18, .26, .38)),
    "shot_noise": Corruption(
        lambda x, c, rng: rng.poisson(x * c) / c, (500, 250, 100, 75, 50), (60, 25, 12, 5, 3)),
    "impulse_noise": Corruption(
        _impulse_noise, (.01, .02, .03, .05, .07), (.03, .06, .09, .17, .27)),
    "gaussian_blur": Corruption(_gaussian_blur, (.4, .6, .7, .8, 1), (1, 2, 3, 4, 6)),
    "brightness": Corruption(_brightness, (.05, .1, .15, .2, .3), (.1, .2, .3, .4, .5)),
    "contrast": Corruption(_contrast, (.75, .5, .4, .3, .15), (.4, .3, .2, .1, .05)),
    "pixelate": Corruption(_pixelate, (.95, .9, .85, .75, .65), (.6, .5, .4, .3, .25)),
    "jpeg": Corruption(_jpeg, (80, 65, 58, 50, 40), (25, 18, 15, 10, 7)),
}


def corrupt(image: Image.Image, name: str, severity: int, key: str) -> Image.Image:
    """Return a corrupted RGB image.

    Args:
        name: of ``KINDS``.
        severity: 1 to 5.
        key: of the image's content, which draws what is random.
    """
    kind, short = KINDS[name], min(image.size)
    if short > SMALL:
        share = LARGE / short
        if share < 1:
            size = (max(round(image.width * share), LARGE), max(round(image.height * share), LARGE))
            image = image.resize(size, Image.Resampling.BICUBIC)
    constant = (kind.small if short <= SMALL else kind.large)[severity - 1]
    rng = numpy_stream(severity, "corruption", name, key)
    return Image.fromarray(_bytes(kind.apply(np.asarray(image) / 255.0, constant, rng)))


def corrupt_tests(data: DatasetBase, words: str) -> DatasetBase:
    """Corrupt a set's test images, when they are read, by ``DATASET.CORRUPTION``; return the set.

    Args:
        words: ``name:severity``.

    Raises:
        ConfigError: a feature pack or texts, which have no pixels.
    """
    name, _, severity = words.partition(":")
    if data.kind == "text":
        raise ConfigError(f"DATASET.CORRUPTION {words} corrupts pixels, and the samples of "
                          f"{data.name} are texts: leave it out")
    if any(d.packed is not None for d in data.test):
        raise ConfigError(
            f"DATASET.CORRUPTION {words}: a feature pack has no pixels to corrupt; give the folder "
            "of the images as --root"
        )
    data.parts["test"] = [
        replace(d, array=CorruptPicture(d, name, int(severity))) for d in data.test
    ]
    data.notes.append(f"test images are corrupted: {name}, severity {severity} of 5")
    return data


@dataclass(frozen=True)
class CorruptPicture:
    """A corrupted test image, made when it is read and not kept."""

    source: Datum
    name: str
    severity: int

    @property
    def key(self) -> str:
        """Its content key: by the clean image's bytes and the corruption."""
        words = f"{self._clean()[1]}:{self.name}:{self.severity}:v1"
        return hashlib.sha256(words.encode()).hexdigest()

    def read(self) -> NDArray[np.uint8]:
        """Return uint8 ``[H, W, 3]``.

        Raises:
            DataError: the image cannot be read.
        """
        held, key = self._clean()
        try:
            image = decode(held) if isinstance(held, bytes) else Image.fromarray(held)
        except Exception as error:
            raise DataError(
                f"cannot read the image {self.source.impath}: {describe_failure(error)}"
            ) from error
        return np.asarray(corrupt(image, self.name, self.severity, key))

    def _clean(self) -> tuple[Any, str]:
        """Return the clean image, encoded or as an array, and its content key."""
        held = self.source.array
        if isinstance(held, np.ndarray):
            return held, array_key(held)
        if held is not None:
            return held.read(), held.key
        try:
            raw = self.source.path.read_bytes()
        except OSError as error:
            raise DataError(
                f"cannot read the image {self.source.impath}: {error.strerror or error}"
            ) from None
        return raw, hashlib.sha256(raw).hexdigest()


def _bytes(x: Floats) -> NDArray[np.uint8]:
    return (np.clip(x, 0, 1) * 255).astype(np.uint8)
