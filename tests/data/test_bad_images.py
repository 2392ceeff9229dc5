"""Images as users have them: right pixels, or one message that names the file."""

from __future__ import annotations

import io
import json
import struct
import unicodedata
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fedvlm.core.errors import DataError
from fedvlm.core.pixels import check_decodes, decode
from fedvlm.data.datum import Datum
from fedvlm.data.federated import FederatedData, build_federation
from fedvlm.data.image_records import ImageRecords
from fedvlm.data.images import ImageLoader
from fedvlm.data.locate import other_spelling
from tests.data.miniatures.own import Spec, own_split, write_image, write_split

COLOUR = (200, 100, 50)
PLAIN = Image.new("RGB", (16, 16), COLOUR)


def encoded(image: Image.Image, form: str, **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, form, **options)
    return stream.getvalue()


def png(width: int, height: int, depth: int, colour: int, rows: list[bytes]) -> bytes:
    """A PNG by hand: Pillow writes neither 16-bit colour nor headers that lie."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(
            ">I", zlib.crc32(kind + data)
        )

    head = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    body = zlib.compress(b"".join(b"\0" + row for row in rows))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def deep(*values: int) -> bytes:
    """A 16 x 16 PNG of one colour, 16 bits a channel; the low bytes hold noise."""
    colour = {1: 0, 2: 4, 3: 2, 4: 6}[len(values)]
    pixel = struct.pack(f">{len(values)}H", *(v * 256 + 77 for v in values))
    return png(16, 16, 16, colour, [pixel * 16] * 16)


def indexed() -> Image.Image:
    image = Image.new("P", (16, 16), 3)
    image.putpalette([0, 0, 0] * 3 + list(COLOUR))
    return image


def cmyk() -> bytes:
    """A JPEG with Adobe's marker, whose four channels lie inverted in the file."""
    raw = encoded(PLAIN.convert("CMYK"), "JPEG", quality=100, subsampling=0)
    assert b"Adobe" in raw[:200]
    return raw


def big_endian() -> bytes:
    grey = Image.frombytes("I;16B", (16, 16), struct.pack(">H", 120 * 256 + 9) * 256)
    return encoded(grey, "TIFF")


GREY = (120,) * 3
KINDS: dict[str, tuple[bytes, tuple[int, ...]]] = {
    "L": (encoded(Image.new("L", (16, 16), 120), "PNG"), GREY),
    "LA": (encoded(Image.new("LA", (16, 16), (120, 0)), "PNG"), GREY),
    "1": (encoded(Image.new("1", (16, 16), 1), "PNG"), (255,) * 3),
    "palette": (encoded(indexed(), "PNG"), COLOUR),
    "palette, one colour clear": (encoded(indexed(), "PNG", transparency=3), COLOUR),
    "palette, alpha table": (encoded(indexed(), "PNG", transparency=bytes(256)), COLOUR),
    "RGB, one colour clear": (encoded(PLAIN, "PNG", transparency=COLOUR), COLOUR),
    "RGBA, invisible": (encoded(Image.new("RGBA", (16, 16), (*COLOUR, 0)), "PNG"), COLOUR),
    "CMYK tiff": (encoded(PLAIN.convert("CMYK"), "TIFF"), COLOUR),
    "CMYK jpeg": (cmyk(), COLOUR),
    "16 bits grey": (deep(120), GREY),
    "16 bits grey, alpha": (deep(120, 0), GREY),
    "16 bits RGB": (deep(*COLOUR), COLOUR),
    "16 bits RGBA": (deep(*COLOUR, 0), COLOUR),
    "16 bits big-endian": (big_endian(), GREY),
    "gif": (encoded(indexed(), "GIF"), COLOUR),
    "webp": (encoded(PLAIN, "WEBP", lossless=True), COLOUR),
    "bmp": (encoded(PLAIN, "BMP"), COLOUR),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_gives_the_right_pixels(tmp_path: Path, kind: str) -> None:
    raw, colour = KINDS[kind]
    path = tmp_path / "a.jpg"  # the content says what it is, not the name
    path.write_bytes(raw)
    image = decode(raw)
    assert image.mode == "RGB" and image.size == (16, 16)
    off = np.asarray(image).astype(int) - np.array(colour)
    assert np.abs(off).max() <= (2 if kind == "CMYK jpeg" else 0)
    sample = Datum(str(path), 0, key="a.jpg")
    assert ImageRecords(None).find_broken([sample], check_decodes) == {}
    pixels = ImageLoader([sample], Spec(mean=(0, 0, 0), std=(1, 1, 1))).load(0)
    assert pixels.mean(dim=(1, 2)).mul(255).tolist() == pytest.approx(colour, abs=2)


def test_animated_gives_the_first_frame_and_exif_turns_nothing() -> None:
    frames = [Image.new("RGB", (8, 8), c) for c in ("red", "blue")]
    raw = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    red, _, blue = np.asarray(decode(raw))[4, 4]
    assert red > 200 and blue < 50
    wide = Image.new("RGB", (20, 10), COLOUR)
    exif = Image.Exif()
    exif[0x0112] = 6  # a quarter turn
    assert decode(encoded(wide, "JPEG", exif=exif)).size == (20, 10)


def noisy(form: str) -> bytes:
    pixels = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    return encoded(Image.fromarray(pixels), form)


def flipped() -> bytes:
    raw = bytearray(noisy("PNG"))
    raw[2000] ^= 255
    return bytes(raw)


BROKEN: dict[str, Callable[[], bytes]] = {
    "zero bytes": lambda: b"",
    "text": lambda: b"hello",
    "html": lambda: b"<html>404 not found</html>",
    "header only": lambda: noisy("JPEG")[:30],
    "half a jpeg": lambda: noisy("JPEG")[:1500],
    "jpeg less its end": lambda: noisy("JPEG")[:-2],
    "half a png": lambda: noisy("PNG")[:1500],
    "a flipped bit": flipped,
    "half a bmp": lambda: noisy("BMP")[:-100],
    "a bomb": lambda: png(60_000, 60_000, 8, 2, [b""]),
    "no pixels": lambda: png(0, 0, 8, 2, []),
    "PostScript": lambda: b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n",
}


@pytest.mark.parametrize("kind", BROKEN)
def test_what_is_broken_gets_one_sentence_with_the_file(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "bad one é.jpg"
    path.write_bytes(BROKEN[kind]())
    sample = Datum(str(path), 0, key=path.name)
    (why,) = ImageRecords(None).find_broken([sample], check_decodes).values()
    with pytest.raises(DataError, match=r"cannot read the image .*bad one é\.jpg: ") as caught:
        ImageLoader([sample], Spec()).load(0)
    for text in (why, str(caught.value)):
        assert text and "\n" not in text and "0x" not in text and "BytesIO" not in text


def test_postscript_never_reaches_ghostscript(monkeypatch: pytest.MonkeyPatch) -> None:
    from PIL import EpsImagePlugin

    def run(*_: Any, **__: Any) -> None:
        pytest.fail("Ghostscript was started")

    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", run)
    for call in (decode, check_decodes):
        with pytest.raises(ValueError, match="not an image"):
            call(BROKEN["PostScript"]())


def test_a_machine_without_memory_breaks_no_record(tmp_path: Path) -> None:
    sample = Datum(str(write_image(tmp_path / "a.png", 0)), 0, key="a.png")
    records = ImageRecords(tmp_path / "records.json")

    def starved(_: bytes) -> None:
        raise MemoryError

    with pytest.raises(DataError, match=r"not enough memory .*a\.png"):
        records.find_broken([sample], starved)
    assert ImageRecords(tmp_path / "records.json").find_broken([sample], check_decodes) == {}


def make(root: Path, **keys: Any) -> FederatedData:
    return build_federation(own_split(root, root / "cache", **keys))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_split(tmp_path / "mine", ["a", "b"], {"train": 3, "val": 1, "test": 2})
    return tmp_path


def test_refuse_names_the_test_images_and_the_training_images_at_once(root: Path) -> None:
    for key in ("a/0.png", "b/3.png", "b/5.png"):  # train, val, test
        (root / "mine" / "images" / key).write_bytes(b"broken")
    with pytest.raises(DataError) as caught:
        make(root, DATASET__ON_CORRUPT="refuse")
    said = str(caught.value)
    assert "3 image(s) do not decode" in said and "\n" not in said
    for key in ("a/0.png", "b/3.png", "b/5.png"):
        assert said.count(key) == 1
    (note,) = [n for n in make(root).notes if "do not decode" in n]
    assert note.startswith("3 image(s)") and make(root).skipped == ["a/0.png", "b/3.png", "b/5.png"]


NAMES = ["b lank.png", "žluťoučký.png", "猫.png", "a'b\"c.png", "-rf.png", "#%$(x).png", "n" * 240
         + ".png"]  # fmt: skip


def test_odd_names_load(root: Path) -> None:
    path = root / "mine" / "split.json"
    split = json.loads(path.read_text())
    for n, name in enumerate(NAMES):
        write_image(root / "mine" / "images" / "ä b" / name, n)
        split["train"].append([f"ä b/{name}", 0, "a"])
    split["train"].append(["ä b\\x.png", 0, "a"])  # written on Windows
    write_image(root / "mine" / "images" / "ä b" / "x.png", 77)
    path.write_text(json.dumps(split), encoding="utf-8")
    data = make(root, DATASET__NUM_SHOTS=-1)
    held = {s.key for s in data.samples}
    assert {f"ä b/{name}" for name in [*NAMES, "x.png"]} <= held and data.skipped == []
    loader = ImageLoader(data.samples, Spec())
    assert all(loader.load(i).shape == (3, 16, 16) for i in range(len(data.samples)))


@pytest.mark.parametrize(("form", "other"), [("NFC", "NFD"), ("NFD", "NFC")])
def test_another_unicode_form_is_named(root: Path, form: str, other: str) -> None:
    name, there = (unicodedata.normalize(f, "é.png") for f in (form, other))
    folder = root / "mine" / "images" / "a"
    (folder / "0.png").rename(folder / there)
    if (folder / name).exists():
        pytest.skip("this file system folds Unicode forms")
    path = root / "mine" / "split.json"
    path.write_text(path.read_text().replace("a/0.png", f"a/{name}"), encoding="utf-8")
    with pytest.raises(DataError, match="differs in case or Unicode form") as caught:
        make(root)
    assert ascii(there) in str(caught.value) and ascii(name) in str(caught.value)


def test_another_case_is_named_and_nothing_else(tmp_path: Path) -> None:
    write_image(tmp_path / "A.PNG", 0)
    assert "'A.PNG' is there" in other_spelling(str(tmp_path / "a.png"))
    assert other_spelling(str(tmp_path / "b.png")) == ""
    assert other_spelling(str(tmp_path / "absent" / "b.png")) == ""
