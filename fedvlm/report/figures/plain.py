"""The partition's picture as a run writes it: PNG and SVG without matplotlib, which takes 1 s.

What stands where is ``partition.dot_layout``'s, as for the figure that ``fedvlm figures`` draws.
"""

from __future__ import annotations

import base64
import html
import io
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from fedvlm.report.figures import style
from fedvlm.report.figures.partition import VECTOR, DotLayout, Holdings, dot_layout, spans

_PIXELS = style.DPI / 72  # a point has so many
_FINE = 8  # a dot is drawn so much larger, then reduced: smooth edges
_ANCHORS = {"start": "lm", "middle": "mm", "end": "rm"}


@dataclass(frozen=True)
class _Text:
    """Words at a point, in points from the upper left; ``up``: turned, read from below."""

    x: float
    y: float
    words: str
    anchor: str = "middle"
    size: float = style.SMALL
    up: bool = False


@dataclass(frozen=True)
class _Line:
    x0: float
    y0: float
    x1: float
    y1: float
    color: str
    width: float


@dataclass(frozen=True)
class _Scene:
    """All that is drawn, in points; ``dots`` and ``key`` are (x, y, diameter)."""

    width: float
    height: float
    lines: list[_Line]
    dots: list[tuple[float, float, float]]
    key: list[tuple[float, float, float]]
    texts: list[_Text]


def pictures(data: Holdings, title: str = "") -> dict[str, bytes]:
    """Return the picture by file name: ``partition.png`` and ``partition.svg``.

    The same data gives the same bytes. Text of the SVG stays text; of more than ``VECTOR`` dots the
    SVG holds a picture of them.
    """
    scene = _scene(data, dot_layout(data), title)
    return {"partition.png": _png(scene), "partition.svg": _svg(scene).encode()}


def _scene(data: Holdings, plan: DotLayout, title: str) -> _Scene:
    k, c = max(len(data.clients), 1), max(len(data.classes), 1)
    domains = spans(data)
    left = 22 + max((_wide(word) for _, word in plan.rows), default=0)
    right = 8 + max((_wide(name) for name, *_ in domains), default=0)
    top = max(plan.dot, 9.0) + 26
    wide, tall = min(72 * plan.wide, 72 * style.PAGE - left - right), 72 * plan.tall
    below = 10 + max((_wide(word) for _, word in plan.columns), default=0) if plan.named else 26

    def x(j: float) -> float:
        return left + wide * (j + 0.6) / (c + 0.2)

    def y(i: float) -> float:
        return top + tall * (i + 0.6) / (k + 0.2)

    grid = [*(_Line(x(j), top, x(j), top + tall, style.GRID, 0.5) for j, _ in plan.columns),
            *(_Line(left, y(i), left + wide, y(i), style.GRID, 0.5) for i, _ in plan.rows)]
    between = [_Line(left, y(first - 0.5), left + wide, y(first - 0.5), style.FAINT, 0.6)
               for _, first, _ in domains if first]
    key, labels = _legend(plan, left + wide + right - 3)
    most = int((wide + right) / (0.62 * 7.5))
    texts = [
        *labels,
        _Text(left, top - 8, style.cut_label(title, most), "start", 7.5),
        _Text(9, top + tall / 2, "client", up=True),
        *(_Text(left - 4, y(i), word, "end") for i, word in plan.rows),
        *(_Text(x(j), top + tall + (4 if plan.named else 7), word,
                "end" if plan.named else "middle", up=plan.named) for j, word in plan.columns),
        *(_Text(left + wide + 4, y((first + last) / 2), name, "start")
          for name, first, last in domains),
    ]
    if plan.under:
        texts.append(_Text(left + wide / 2, top + tall + 18, plan.under))
    return _Scene(
        left + wide + right, top + tall + below, [*(grid if plan.grid else []), *between],
        [(x(j), y(i), plan.size(n)) for (i, j), n in sorted(data.counts.items())], key, texts,
    )


def _legend(plan: DotLayout, end: float) -> tuple[list[tuple[float, float, float]], list[_Text]]:
    """Return dots and words of the legend, which ends at ``end`` points from the left."""
    dots, words = [], []
    middle = max(plan.dot, 9.0) / 2 + 3
    for n, label in reversed(plan.shown()):
        words.append(_Text(end - _wide(label), middle, label, "start"))
        end -= _wide(label) + 4 + plan.dot / 2
        dots.append((end, middle, plan.size(n)))
        end -= plan.dot / 2 + 8
    return dots, words


def _wide(words: str) -> float:
    """Return about how many points a text takes: East Asian signs are square."""
    return sum(style.SMALL if unicodedata.east_asian_width(c) in "WF" else 0.62 * style.SMALL
               for c in words)


def _svg(scene: _Scene) -> str:
    size = f"{scene.width:.1f} {scene.height:.1f}"
    wide, tall = size.split()
    family = html.escape(", ".join((*style.FONTS["sans"], "sans-serif")))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide}pt" height="{tall}pt" '
        f'viewBox="0 0 {size}">\n<rect width="{wide}" height="{tall}" '
        f'fill="{style.STYLE["figure.facecolor"]}"/>\n']
    parts += [
        f'<path d="M{a.x0:.1f} {a.y0:.1f}L{a.x1:.1f} {a.y1:.1f}" stroke="{a.color}" '
        f'stroke-width="{a.width}"/>\n' for a in scene.lines]
    dots = scene.dots if len(scene.dots) <= VECTOR else []
    if not dots:
        image = Image.new("RGBA", _pixels(scene), "#ffffff00")
        _stamp_dots(image, scene.dots)
        data = base64.b64encode(_file(image)).decode()
        parts.append(f'<image width="{wide}" height="{tall}" '
                     f'href="data:image/png;base64,{data}"/>\n')
    circles = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{d / 2:.2f}"/>\n'
                      for x, y, d in (*dots, *scene.key))
    parts.append(f'<g fill="{style.PALETTE[0]}">\n{circles}</g>\n')
    parts.append(f'<g font-family="{family}" fill="{style.INK}">\n')
    for t in scene.texts:
        turn = f' transform="rotate(-90 {t.x:.1f} {t.y:.1f})"' if t.up else ""
        parts.append(
            f'<text x="{t.x:.1f}" y="{t.y:.1f}" dy="0.35em" font-size="{t.size}" '
            f'text-anchor="{t.anchor}"{turn}>{html.escape(t.words)}</text>\n')
    return "".join([*parts, "</g>\n</svg>\n"])


def _png(scene: _Scene) -> bytes:
    image = Image.new("RGB", _pixels(scene), style.STYLE["figure.facecolor"])
    pen = ImageDraw.Draw(image)
    for a in scene.lines:
        at = [round(v * _PIXELS) for v in (a.x0, a.y0, a.x1, a.y1)]
        pen.line(at, fill=a.color, width=max(round(a.width * _PIXELS), 1))
    _stamp_dots(image, [*scene.dots, *scene.key])
    for t in scene.texts:
        _write(image, pen, t)
    return _file(image)


def _stamp_dots(image: Image.Image, dots: list[tuple[float, float, float]]) -> None:
    """Paint the dots; those that fall on one pixel with one size are one."""
    for x, y, pixels in dict.fromkeys(_on_pixels(dots)):
        image.paste(style.PALETTE[0], (x, y), _mask(pixels))


def _on_pixels(dots: list[tuple[float, float, float]]) -> Iterator[tuple[int, int, float]]:
    for x, y, d in dots:
        pixels = round(d * _PIXELS, 1)
        half = _mask(pixels).width / 2
        yield round(x * _PIXELS - half), round(y * _PIXELS - half), pixels


_MASKS: dict[float, Image.Image] = {}


def _mask(pixels: float) -> Image.Image:
    """Return a disc of a diameter in pixels, in the middle of a square of whole pixels."""
    if pixels not in _MASKS:
        side = int(pixels) + 2
        edge = _FINE * (side - pixels) / 2
        large = Image.new("L", (_FINE * side, _FINE * side))
        ImageDraw.Draw(large).ellipse([edge, edge, _FINE * side - edge, _FINE * side - edge], 255)
        _MASKS[pixels] = large.reduce(_FINE)
    return _MASKS[pixels]


def _write(image: Image.Image, pen: ImageDraw.ImageDraw, text: _Text) -> None:
    font = _font(text.size)
    x, y = text.x * _PIXELS, text.y * _PIXELS
    if not text.up:
        pen.text((x, y), text.words, fill=style.INK, font=font, anchor=_ANCHORS[text.anchor])
        return
    mask = Image.new("L", (int(font.getlength(text.words)) + 4, int(2 * text.size * _PIXELS)))
    middle = mask.height / 2
    ImageDraw.Draw(mask).text((1, middle), text.words, fill=255, font=font, anchor="lm")
    mask = mask.transpose(Image.Transpose.ROTATE_90)
    down = {"start": mask.height, "middle": mask.height / 2, "end": 0}[text.anchor]
    image.paste(style.INK, (round(x - middle), round(y - down)), mask)


_OPEN: dict[float, ImageFont.FreeTypeFont] = {}


def _font(size: float) -> ImageFont.FreeTypeFont:
    """Return DejaVu Sans, which matplotlib brings, in points; found without importing it."""
    if size not in _OPEN:
        found = find_spec("matplotlib")
        if found is None or not found.submodule_search_locations:
            raise OSError("matplotlib is not installed, and its font is needed")
        path = Path(next(iter(found.submodule_search_locations))) / "mpl-data/fonts/ttf"
        _OPEN[size] = ImageFont.truetype(
            str(path / "DejaVuSans.ttf"), size * _PIXELS, layout_engine=ImageFont.Layout.BASIC)
    return _OPEN[size]


def _pixels(scene: _Scene) -> tuple[int, int]:
    return round(scene.width * _PIXELS), round(scene.height * _PIXELS)


def _file(image: Image.Image) -> bytes:
    out = io.BytesIO()
    image.save(out, "PNG", dpi=(style.DPI, style.DPI))
    return out.getvalue()
