"""An encoded image to 8-bit RGB: the one place where files become pixels.

An export has this very file beside its model, as ``pixels.py``: it imports nothing of fedvlm.
"""

import io
import warnings

import numpy as np
from PIL import Image

# Pillow's limit, above which it warns: a file of kilobytes can say that it is larger
MAX_PIXELS = Image.MAX_IMAGE_PIXELS or 89_478_485


def decode(raw: bytes) -> Image.Image:
    """Return the first frame of an encoded image as RGB.

    The content says what it is, never the file's name. Pixels are as stored: the orientation in
    EXIF is not applied, as in CoOp's ``read_image`` and torchvision's loaders.

    Raises:
        Exception: of many kinds, for anything Pillow cannot decode whole.
    """
    with _opened(raw) as image:
        image.load()
        return to_rgb(image)


def check_decodes(raw: bytes) -> None:
    """Decode as cheaply as shows that the file is whole (JPEG at an eighth of its size).

    Raises:
        Exception: as ``decode``.
    """
    with _opened(raw) as image:
        image.draft(None, (max(image.width // 8, 1), max(image.height // 8, 1)))
        image.load()
        to_rgb(image)


def _opened(raw: bytes) -> Image.Image:
    with warnings.catch_warnings():  # too large ones are refused here, and need no warning
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        image = Image.open(io.BytesIO(raw))
    if image.width * image.height > MAX_PIXELS:
        raise ValueError(f"{image.width} x {image.height} pixels are more than {MAX_PIXELS:,}")
    if image.format == "EPS":  # Pillow would have Ghostscript run it
        raise ValueError("PostScript is not accepted: it is a program, not an image")
    return image


def to_rgb(image: Image.Image) -> Image.Image:
    """Convert any Pillow mode to 8-bit RGB; transparency is dropped.

    Of 16 bits the upper 8 are kept; of 12 bits stored in 16 (X-rays, microscopes: no value above
    4095) the upper 8 of those 12, and of 8 in 16 all.

    Raises:
        ValueError: pixels that are no numbers.
    """
    if image.mode.startswith("I"):  # Pillow's own conversion would clip at 255: all white
        values = np.asarray(image).astype(np.int64)
        most = values.max(initial=0)
        shift = 0 if most < 1 << 8 else 4 if most < 1 << 12 else 8
        return Image.fromarray(np.clip(values >> shift, 0, 255).astype(np.uint8)).convert("RGB")
    if image.mode == "F":
        values = np.asarray(image, dtype=np.float64)
        if not np.isfinite(values).all():
            raise ValueError("it has pixels that are no numbers (NaN or infinite)")
        unit = values.max(initial=0.0) <= 1.0
        return Image.fromarray(
            np.clip(values * 255 if unit else values, 0, 255).astype(np.uint8)
        ).convert("RGB")
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")
    return image.convert("RGB") if image.mode != "RGB" else image.copy()
