"""From an image file to a tensor: decoding, the test transform, augmented views, broken files.

An image is converted to RGB first (``core.images.pixels``), then goes through open_clip's
test transform. Augmented view v is a function of (data seed, content of the image, v) and of
nothing else, so features of views can be cached exactly. Files that do not decode are counted and
named, or refused (``DATASET.ON_CORRUPT``).

Pixels are torchvision's bit for bit (tests hold them to it), without importing it: 2 s of CPU.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Mapping, Sequence
from threading import Lock

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from fedvlm.core.errors import ConfigError, DataError, UnreadableError, did_you_mean
from fedvlm.core.pixels import check_decodes, decode
from fedvlm.core.rng import numpy_stream
from fedvlm.core.transform import TextSpec, TransformSpec
from fedvlm.data.datum import Datum, Passage
from fedvlm.data.image_records import ImageRecords, describe_failure

CROP_SCALE = (0.08, 1.0)
_RATIO = (3 / 4, 4 / 3)  # aspect ratios of torchvision's RandomResizedCrop
_CROP_TRIES = 10
_FIRST = 10  # broken images that a note lists
_MODES = {"bicubic": Image.Resampling.BICUBIC, "bilinear": Image.Resampling.BILINEAR}
RESIZE_MODES = ("shortest", "longest", "squash")


class ImageLoader:
    """Images of a list as normalised tensors, by position and view.

    Args:
        samples: what to load, ``FederatedData.samples``.
        spec: the backbone's transform.
        views: INPUT.VIEWS; 1 = every view is the test view, n > 1 = n augmented views.
        data_seed: DATA_SEED, varies the augmented views.
        crop_scale: INPUT.RRCROP_SCALE, share of the area a crop keeps.
        records: known content keys (``FederatedData.records``); None = this object's own memory.

    Raises:
        ConfigError: unknown interpolation or resize mode, views < 1, crop scale not within (0, 1];
            texts for a tower that reads images, or images for one that reads texts.
    """

    def __init__(
        self,
        samples: Sequence[Datum],
        spec: TransformSpec,
        views: int = 1,
        data_seed: int = 0,
        *,
        crop_scale: Sequence[float] = CROP_SCALE,
        records: ImageRecords | None = None,
    ) -> None:
        _check(spec, views, crop_scale)
        _check_kind(samples, spec, views)
        self.samples, self.spec, self.views, self.data_seed = samples, spec, views, data_seed
        self.crop_scale = (float(crop_scale[0]), float(crop_scale[1]))
        self.records = records if records is not None else ImageRecords(None)
        self.reading = 0.0  # seconds of file access of ``load``, summed over threads
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self.samples)

    def load(self, i: int, view: int | None = None, *, key: str = "") -> Tensor:
        """Return image ``i`` as float32 ``[3, S, S]``, normalised; a text as its tokens ``[L]``.

        Args:
            view: None for the deterministic test view; a training view from 0 to views - 1
                (also the test view where ``views`` is 1).
            key: the content key that the result is to be kept under; the bytes read now are
                checked against it.

        Raises:
            DataError: the image cannot be decoded (it was readable when the run began), or is no
                longer the one that ``key`` stands for.
        """
        if isinstance(self.spec, TextSpec):
            return self._tokens(i, self.spec)
        image = self._decode(i, key)
        if view is None or self.views == 1:
            image = resize_for_test(image, self.spec)
        else:
            if not 0 <= view < self.views:
                raise IndexError(f"view {view} of {self.views}")
            rng = numpy_stream(self.data_seed, "view", self.content_key(i), view)
            image = random_crop_and_flip(image, self.spec, self.crop_scale, rng)
        return normalise(image, self.spec)

    def batch(
        self, indices: Sequence[int] | np.ndarray | Tensor, view: int | None = None
    ) -> Tensor:
        """Return images as float32 ``[n, 3, S, S]`` (see ``load``)."""
        size = self.spec.size
        loaded = [self.load(int(i), view) for i in indices]
        return torch.stack(loaded) if loaded else torch.zeros(0, 3, size, size)

    def content_key(self, i: int) -> str:
        """Return the sha256 of the image's bytes: the same for a copy, other for any change."""
        return self.records.content_key(self.samples[i])

    def transform_key(self, view: int | None = None) -> str:
        """Return a text that changes whenever the pixels of the same image would change.

        With ``content_key`` it names a cached feature exactly.
        """
        spec = self.spec
        if isinstance(spec, TextSpec):
            return f"text:v1:{spec.size}:{spec.vocabulary}"
        numbers = ",".join(repr(float(v)) for v in (*spec.mean, *spec.std))
        base = f"v1:{spec.size}:{spec.interpolation}:{spec.resize_mode}:{numbers}"
        if view is None or self.views == 1:
            return f"test:{base}"
        scale = f"{self.crop_scale[0]!r}-{self.crop_scale[1]!r}"
        return f"crop-flip:{base}:{scale}:seed{self.data_seed}:view{view}"

    def _tokens(self, i: int, spec: TextSpec) -> Tensor:
        """Return a text's token numbers, float32 ``[L]`` (whole numbers up to 2^24 are exact)."""
        held = self.samples[i].array
        if not isinstance(held, Passage):
            raise DataError(f"{self.samples[i].key} is an image, and the tower reads texts")
        return torch.tensor(list(spec.tokenize(held.text)), dtype=torch.float32)

    def _decode(self, i: int, key: str = "") -> Image.Image:
        sample = self.samples[i]
        if sample.packed is not None:
            raise DataError(f"{sample.key} is in the feature pack {sample.impath}, which has no "
                            "pixels: give the folder of the images as --root")
        if sample.array is not None:
            held = sample.array
            return Image.fromarray(held if isinstance(held, np.ndarray) else held.read())
        began = time.perf_counter()
        try:
            raw = sample.path.read_bytes()
            changed = bool(key) and hashlib.sha256(raw).hexdigest() != key
            with self._lock:
                self.reading += time.perf_counter() - began
            if not changed:
                return decode(raw)
        except Exception as error:  # Pillow raises many kinds on broken files
            why = describe_failure(error)
            raise UnreadableError(f"cannot read the image {sample.impath}: {why}") from error
        raise DataError(
            f"the image {sample.impath} has changed since this command began; leave the images "
            "alone while it works, and start it again (what is encoded so far is kept)"
        )


def normalise(image: Image.Image, spec: TransformSpec) -> Tensor:
    """Return an RGB image as float32 ``[3, H, W]``: ``(value / 255 - mean) / std``."""
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()
    mean, std = (torch.tensor(v, dtype=torch.float32).view(-1, 1, 1) for v in (spec.mean, spec.std))
    return pixels.to(torch.float32).div_(255).sub_(mean).div_(std)


def resize_for_test(image: Image.Image, spec: TransformSpec) -> Image.Image:
    """Return the image as ``S x S`` RGB, as open_clip's test transform cuts it.

    Raises:
        ConfigError: the tower reads texts.
    """
    if isinstance(spec, TextSpec):
        raise ConfigError("these are images, and the model reads texts (DATASET.FORMAT texts): "
                          "name a run that was trained on images")
    size, mode = spec.size, _MODES[spec.interpolation]
    width, height = image.size
    if spec.resize_mode == "squash":
        return _resized(image, size, size, mode)
    if spec.resize_mode == "longest":  # fits inside, the rest is black
        ratio = max(height, width) / size
        width, height = max(round(width / ratio), 1), max(round(height / ratio), 1)
    elif width <= height:
        width, height = size, int(size * height / width)
    else:
        width, height = int(size * width / height), size
    return _centre(_resized(image, width, height, mode), size)


def _resized(image: Image.Image, width: int, height: int, mode: Image.Resampling) -> Image.Image:
    return image if image.size == (width, height) else image.resize((width, height), mode)


def _centre(image: Image.Image, size: int) -> Image.Image:
    """Cut the middle ``size x size`` out; black where the image is smaller."""
    # Half a pixel: rounded to even where something is cut off, down where black is added.
    left, top = (round((n - size) / 2) if n >= size else -((size - n) // 2) for n in image.size)
    return image.crop((left, top, left + size, top + size))


def random_crop_and_flip(
    image: Image.Image,
    spec: TransformSpec,
    scale: tuple[float, float],
    rng: np.random.Generator,
) -> Image.Image:
    """Return a random crop, resized to ``S x S``, mirrored with probability 1/2 (CoOp's train)."""
    top, left, height, width = crop_box(image.height, image.width, scale, rng)
    crop = image.crop((left, top, left + width, top + height))
    crop = _resized(crop, spec.size, spec.size, _MODES[spec.interpolation])
    return crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if rng.random() < 0.5 else crop


def crop_box(
    height: int, width: int, scale: tuple[float, float], rng: np.random.Generator
) -> tuple[int, int, int, int]:
    """Return (top, left, height, width), distributed as torchvision's RandomResizedCrop."""
    for _ in range(_CROP_TRIES):
        area = height * width * rng.uniform(*scale)
        ratio = math.exp(rng.uniform(math.log(_RATIO[0]), math.log(_RATIO[1])))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return int(rng.integers(height - h + 1)), int(rng.integers(width - w + 1)), h, w
    w, h = width, height
    if width / height < _RATIO[0]:
        h = max(round(width / _RATIO[0]), 1)
    elif width / height > _RATIO[1]:
        w = max(round(height * _RATIO[1]), 1)
    return (height - h) // 2, (width - w) // 2, h, w


def _check(spec: TransformSpec, views: int, crop_scale: Sequence[float]) -> None:
    for what, value, choices in (
        ("interpolation", spec.interpolation, tuple(_MODES)),
        ("resize mode", spec.resize_mode, RESIZE_MODES),
    ):
        if value not in choices:
            hint = did_you_mean(value, choices)
            raise ConfigError(f"unknown {what} '{value}'{hint} (known: {', '.join(choices)})")
    if views < 1:
        raise ConfigError(f"INPUT.VIEWS is {views}; it must be at least 1")
    if len(crop_scale) != 2 or not 0 < crop_scale[0] <= crop_scale[1] <= 1:
        raise ConfigError(f"INPUT.RRCROP_SCALE is {tuple(crop_scale)}; give 0 < low <= high <= 1")


def _check_kind(samples: Sequence[Datum], spec: TransformSpec, views: int) -> None:
    """Refuse a tower that cannot read what a list holds (``ConfigError``); the first one tells."""
    if not samples:
        return
    if isinstance(samples[0].array, Passage) != isinstance(spec, TextSpec):
        raise ConfigError(
            "these samples are images, and the backbone reads texts: use a CLIP or image backbone "
            "(--backbone ViT-B/16), or give a set of texts (DATASET.FORMAT texts)"
            if isinstance(spec, TextSpec) else
            "these samples are texts (DATASET.FORMAT texts), and the backbone reads images: use "
            "--backbone transformers-text:FOLDER, an encoder such as BERT")
    if isinstance(spec, TextSpec) and views > 1:
        raise ConfigError(f"INPUT.VIEWS is {views}, but texts have no augmented views: set "
                          "--views 1")


def decodable(
    name: str, items: Sequence[Datum], records: ImageRecords, policy: str
) -> tuple[list[Datum], list[str]]:
    """Return the images that decode, and a note that names the others.

    Args:
        name: of the data set.
        policy: ``skip`` or ``refuse``.

    Raises:
        DataError: there are some and ``policy`` is ``refuse``; or files that do not exist.
    """
    places, lines = find_broken({"": items}, records)
    broken = set(places[""])
    kept = [item for i, item in enumerate(items) if i not in broken]
    return kept, say_broken(name, lines, policy)


def find_broken(
    lists: Mapping[str, Sequence[Datum]], records: ImageRecords
) -> tuple[dict[str, list[int]], list[str]]:
    """Return the places in each list whose image does not decode, and a word on each.

    Raises:
        DataError: files that do not exist.
    """
    places: dict[str, list[int]] = {}
    lines: list[str] = []
    for part, items in lists.items():
        reasons = records.find_broken(items, check_decodes)
        places[part] = sorted(reasons)
        lines += [f"{items[i].key} ({reason})" for i, reason in reasons.items()]
    return places, lines


def say_broken(name: str, lines: Sequence[str], policy: str) -> list[str]:
    """Return a note on broken images, at most one.

    Raises:
        DataError: there are some and ``policy`` is ``refuse``.
    """
    if not lines:
        return []
    first = "; ".join(lines[:_FIRST]) + ("; ..." if len(lines) > _FIRST else "")
    if policy == "refuse":
        raise DataError(
            f"{name}: {len(lines)} image(s) do not decode: {first}; "
            "replace them, or set DATASET.ON_CORRUPT skip"
        )
    return [f"{len(lines)} image(s) do not decode and are left out: {first}"]
