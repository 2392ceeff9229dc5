"""The partition: clients x classes, a dot's area by its number of training images.

``draw`` is matplotlib's figure, for files and pages; ``pictures`` are what a run writes as it
starts: PNG and SVG without matplotlib, which takes 1 s. Both paint one ``_Scene``.
"""

from __future__ import annotations

import base64
import html
import io
import itertools
import math
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image, ImageDraw, ImageFont

from fedvlm.core.errors import DataError
from fedvlm.report.figures import style
from fedvlm.runs.names import class_names, read_partition

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fedvlm.report.figures.selection import FigureRuns

NAME, ORDER, OF = "partition", 30, "run"
CAPTION = "Training images of each client by class; the area of a dot is their number."

_NAMED = 60  # classes named on the axis; of more, some of their numbers
_NAME_LENGTH = 22
VECTOR = 2000  # dots drawn as shapes; of more, the SVG holds a picture
_PIXELS = style.DPI / 72  # a point has so many
_FINE = 8  # a dot is drawn so much larger, then reduced: smooth edges
_ANCHORS = {"start": "lm", "middle": "mm", "end": "rm"}
_SIDES = {"start": "left", "middle": "center", "end": "right"}


@dataclass(frozen=True)
class Holdings:
    """Training images of ``clients[i]`` (of ``domains[i]``) in ``classes[j]``: ``counts[i, j]``.

    Pairs without images are left out of ``counts``. Clients of one domain stand together. ``rows``
    are those of ``partition.csv``, test images too.
    """

    clients: Sequence[int]
    domains: Sequence[str]
    classes: Sequence[str]
    counts: Mapping[tuple[int, int], int]
    rows: Sequence[Mapping[str, Any]] = ()


def select(selection: FigureRuns) -> Holdings:
    """Return what the run's clients hold.

    Raises:
        DataError: ``partition.csv`` cannot be read.
    """
    return folder_holdings(selection.run.path)


def folder_holdings(folder: Path) -> Holdings:
    """Return what the clients of a run folder hold, finished or not.

    Raises:
        DataError: ``partition.csv`` cannot be read.
    """
    return from_rows(read_partition(folder), class_names(folder))


def rows(data: Holdings) -> Sequence[Mapping[str, Any]]:
    """Return the rows of ``partition.csv``: clients x parts x classes."""
    return data.rows


def from_rows(rows: Sequence[Mapping[str, Any]], classes: Sequence[str] = ()) -> Holdings:
    """Return the training part; clients by domain and id.

    Args:
        classes: all names in the set's order; any others follow in the order of their first row.

    Raises:
        DataError: a client or a count is not a number.
    """
    named = (str(r["class"]) for r in rows if r["class"] or r["part"] == "train")
    every = list(dict.fromkeys([*classes, *named]))
    column = {name: j for j, name in enumerate(every)}
    domains: dict[int, set[str]] = {}
    counts: Counter[tuple[int, int]] = Counter()
    for row in rows:
        try:
            client, images = int(row["client"]), int(row["images"])
        except (TypeError, ValueError):
            raise DataError(f"partition row {dict(row)}: client and images are numbers") from None
        of_client = domains.setdefault(client, set())
        if row["part"] == "train" and images > 0:
            of_client.add(str(row["domain"] or ""))
            counts[client, column[str(row["class"])]] += images
    domain = {
        c: names.pop() if len(names) == 1 else "several" if names else ""
        for c, names in domains.items()
    }
    if set(domain.values()) <= {"several", ""}:  # every client has images of many: no grouping
        domain = dict.fromkeys(domain, "")
    order = sorted(domain, key=lambda client: (domain[client], client))
    at = {client: i for i, client in enumerate(order)}
    dots = {(at[c], j): n for (c, j), n in counts.items()}
    return Holdings(order, [domain[c] for c in order], every, dots, rows)


@dataclass(frozen=True)
class DotLayout:
    """Sizes in inches, ``dot`` in points; columns and rows that have a label, with it."""

    wide: float
    tall: float
    dot: float
    most: int
    named: bool
    columns: Sequence[tuple[int, str]]
    rows: Sequence[tuple[int, str]]
    under: str
    grid: bool

    def size(self, images: float) -> float:
        """Return the diameter in points of the dot of a number of images: area by number."""
        return max(self.dot * math.sqrt(images / self.most), 0.7)

    def shown(self) -> list[tuple[int, str]]:
        """Return up to three numbers that the legend shows, with their labels."""
        counts = sorted({_round(self.most / 10), _round(self.most / 3), self.most} - {0})
        return [(n, f"{n:,}") for n in counts[:-1]] + [
            (self.most, f"{self.most:,} training images")]


def dot_layout(data: Holdings, width: float = style.PAGE) -> DotLayout:
    """Return where things stand in a picture of at most ``width`` inches."""
    k, c = max(len(data.clients), 1), max(len(data.classes), 1)
    names = _class_names(data, width)
    beside = 0.55 + (0.75 if any(data.domains) else 0.0)
    wide = min(width - beside, max(0.3 * c, 1.9))
    cell = min(wide / c, 0.24 if k <= 20 else 0.16)
    tall = min(max(cell * k, 0.12 * min(k, 25), 0.4), 0.75 * width + 1.0)
    pitch = 72 * min(wide / c, tall / k, 0.24)  # points from a dot to the next
    columns = list(enumerate(names)) if names else [
        (i, str(i)) for i in style.even_places(len(data.classes), max(int(wide * 3), 2))]
    rows = style.even_places(len(data.clients), max(int(tall * 72 / 8.5), 1))
    return DotLayout(
        wide, tall, dot=max(0.92 * pitch, min(1.3 * pitch, 3.0), 1.2),
        most=max(data.counts.values(), default=1), named=bool(names), columns=columns,
        rows=[(i, str(data.clients[i])) for i in rows],
        under="" if names else f"class ({len(data.classes)} in all)",
        grid=len(data.clients) <= 60 and len(data.classes) <= _NAMED,
    )


def draw(data: Holdings, title: str = "", width: float = style.PAGE) -> Figure:
    """Return the picture: a row per client, a column per class; at most ``width`` inches wide."""
    from matplotlib.lines import Line2D  # start-up: as in ``style``

    scene = _scene(data, dot_layout(data, width), title, width)
    look: dict[str, Any] = {"linestyle": "none", "marker": "o", "markeredgewidth": 0,
                            "color": style.PALETTE[0], "clip_on": False}
    with style.use_style():
        figure = style.blank(scene.width / 72, scene.height / 72)
        figure.set_layout_engine("none")
        left, top, wide, tall = scene.place
        axes = figure.add_axes(
            (left / scene.width, 1 - (top + tall) / scene.height, wide / scene.width,
             tall / scene.height),
            xlim=(left, left + wide), ylim=(top + tall, top), xticks=(), yticks=())
        axes.set_axis_off()
        for a in scene.lines:
            figure.add_artist(Line2D([a.x0, a.x1], [a.y0, a.y1], color=a.color, linewidth=a.width,
                                     transform=axes.transData, zorder=0))
        by_size = itemgetter(2)  # dots of one size together: SVG then holds their shape once
        for size, dots in itertools.groupby(sorted(scene.dots, key=by_size), by_size):
            x, y, _ = zip(*dots, strict=True)
            axes.plot(x, y, markersize=size, rasterized=len(scene.dots) > VECTOR, **look)
        for cx, cy, d in scene.key:
            figure.add_artist(Line2D([cx], [cy], markersize=d, transform=axes.transData, **look))
        for t in scene.texts:
            axes.text(t.x, t.y, t.words, fontsize=t.size, rotation=90 * t.up,
                      ha="center" if t.up else _SIDES[t.anchor],
                      va={"end": "top"}.get(t.anchor, "center") if t.up else "center")
    return figure


def _class_names(data: Holdings, width: float) -> list[str]:
    """Return the classes' names where they are few enough to be read, else nothing."""
    if len(data.classes) > min(_NAMED, width * 9):
        return []
    return [style.cut_label(name, _NAME_LENGTH) for name in data.classes]


def spans(data: Holdings) -> list[tuple[str, int, int]]:
    """Return the label of each domain with its first and its last row; nothing without domains."""
    if not any(data.domains):
        return []
    starts = [i for i, d in enumerate(data.domains) if i == 0 or d != data.domains[i - 1]]
    return [(style.cut_label(data.domains[start] or "none", 14), start, end - 1)
            for start, end in zip(starts, [*starts[1:], len(data.domains)], strict=True)]


def _round(value: float) -> int:
    """Return ``value`` with one significant digit: 137 -> 100, 0.4 -> 0."""
    if value < 1:
        return 0
    unit = 10 ** math.floor(math.log10(value))
    return int(math.floor(value / unit) * unit)


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
    """All that is drawn, in points; ``dots`` and ``key`` are (x, y, diameter).

    ``place`` is that of the dots: left, top, width and height.
    """

    width: float
    height: float
    place: tuple[float, float, float, float]
    lines: list[_Line]
    dots: list[tuple[float, float, float]]
    key: list[tuple[float, float, float]]
    texts: list[_Text]


def pictures(data: Holdings, title: str = "") -> dict[str, bytes]:
    """Return the picture by file name: ``partition.png`` and ``partition.svg``.

    The same data gives the same bytes. Text of the SVG stays text; of more than ``VECTOR`` dots the
    SVG holds a picture of them.
    """
    scene = _scene(data, dot_layout(data), title, style.PAGE)
    return {"partition.png": _png(scene), "partition.svg": _svg(scene).encode()}


def _scene(data: Holdings, plan: DotLayout, title: str, width: float) -> _Scene:
    k, c = max(len(data.clients), 1), max(len(data.classes), 1)
    domains = spans(data)
    left = 22 + max((_wide(word) for _, word in plan.rows), default=0)
    right = 8 + max((_wide(name) for name, *_ in domains), default=0)
    top = max(plan.dot, 9.0) + 26
    wide, tall = min(72 * plan.wide, 72 * width - left - right), 72 * plan.tall
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
        left + wide + right, top + tall + below, (left, top, wide, tall),
        [*(grid if plan.grid else []), *between],
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
