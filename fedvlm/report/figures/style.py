"""The look of all figures, and how they are written: PDF, PNG, SVG and the CSV behind them.

Figures are made with matplotlib's objects, never with pyplot, so that no state is left behind.
Settings apply inside ``use_style()`` only. No text is smaller than 7 points at the width asked for.
"""

from __future__ import annotations

import contextlib
import csv
import io
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from fedvlm.core import files
from fedvlm.core.spelling import cell_text, visible_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMN, PAGE = 3.3, 6.8  # inches: one and two columns of a paper
METHOD = "method:"  # before a method's label, in an SVG
SMALL = 7  # points, the least that venues take
DPI = 200
INK, FAINT, GRID = "#222222", "#6b6b6b", "#e4e4e4"
REST = "#bdbdc2"  # the lines of others, behind those that matter
ON_LIGHT, ON_DARK = "#212121", "#fefefe"  # inside coloured cells: a dark page leaves them alone
# Okabe and Ito 2008, grey for yellow (unreadable on white); more than eight are dashed
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#7f7f7f")
DASHES: tuple[Any, ...] = ("-", (0, (4, 1.6)), (0, (1.2, 1.4)), (0, (5, 1.5, 1.2, 1.5)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
# Family of a method -> colour and marker: distinct without colours too.
FAMILIES = {
    "": ("#0072B2", "o"), "one shared model": ("#0072B2", "o"),
    "personal models": ("#D55E00", "D"), "no collaboration": ("#009E73", "s"),
}
# STIX is Times' companion and comes with matplotlib, as DejaVu does: the same bytes everywhere.
FONTS = {"sans": ["DejaVu Sans", "Verdana", "Arial"], "serif": ["STIXGeneral", "DejaVu Serif"]}
_FONT: ContextVar[str] = ContextVar("font", default="sans")
LEVELS = "viridis"  # accuracy: one direction
DIVERGING = "RdBu_r"  # cosines: 0 in the middle
STYLE: dict[Any, Any] = {
    "font.sans-serif": FONTS["sans"], "font.serif": FONTS["serif"],
    "font.size": SMALL, "axes.titlesize": 7.5, "axes.labelsize": SMALL, "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL, "legend.fontsize": SMALL,
    "text.parse_math": False, "text.usetex": False,  # names may hold $ and _
    "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": FAINT, "xtick.color": FAINT,
    "ytick.color": FAINT, "xtick.labelcolor": INK, "ytick.labelcolor": INK,
    "axes.spines.top": False, "axes.spines.right": False, "axes.linewidth": 0.6,
    "axes.grid": True, "axes.axisbelow": True, "grid.color": GRID, "grid.linewidth": 0.5,
    "axes.titlelocation": "left", "axes.titlepad": 4, "axes.labelpad": 3,
    "xtick.major.size": 2.5, "ytick.major.size": 2.5, "xtick.major.width": 0.6,
    "ytick.major.width": 0.6, "xtick.minor.size": 0, "ytick.minor.size": 0,
    "lines.linewidth": 1.3, "lines.markersize": 3.2, "figure.facecolor": "white",
    "figure.constrained_layout.h_pad": 0.05, "figure.constrained_layout.w_pad": 0.05,
    "svg.fonttype": "none", "svg.hashsalt": "fedvlm",  # text stays text; the same ids every time
    "pdf.fonttype": 42,  # TrueType: some venues refuse type 3
}


@contextlib.contextmanager
def use_style() -> Iterator[None]:
    """Apply the look inside the block, whatever the user's own matplotlib settings are."""
    import matplotlib  # start-up: 1 s; a run's picture needs the colours only

    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing", UserWarning)  # SVG viewers have it
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)
        family = "serif" if _FONT.get() == "serif" else "sans-serif"
        matplotlib.rcParams["font.family"] = family
        yield


@contextlib.contextmanager
def font(name: str) -> Iterator[None]:
    """Draw in a font of ``FONTS`` inside the block."""
    token = _FONT.set(name)
    try:
        yield
    finally:
        _FONT.reset(token)


def blank(width: float, height: float) -> Figure:
    """Return an empty figure of a size in inches; call inside ``use_style()``."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # start-up: see ``use_style``
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def panels(count: int, width: float, height: float, most: int = 0) -> tuple[Figure, list[Axes]]:
    """Return a figure with ``count`` axes in a grid, each ``height`` inches tall.

    Args:
        most: columns at most (0: as many as stay 1.6 inches wide).
    """
    columns = min(count, most or max(int(width / 1.6), 1))
    rows = math.ceil(count / columns)
    columns = math.ceil(count / rows)  # 4 as 2 x 2, not as 3 + 1
    figure = blank(width, height * rows)
    return figure, axes_in(figure, rows, columns, count)


def axes_in(figure: Figure, rows: int, columns: int, count: int) -> list[Axes]:
    """Return the first ``count`` axes of a grid, row by row; the others are removed."""
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for spare in axes[count:]:
        spare.remove()
    return axes[:count]


def line_style(index: int | None) -> dict[str, Any]:
    """Return colour and dashes of the ``index``-th line of a figure; None: one of the rest."""
    if index is None:
        return {"color": REST, "linestyle": "-"}
    return {
        "color": PALETTE[index % len(PALETTE)],
        "linestyle": DASHES[index // len(PALETTE) % len(DASHES)],
    }


def family_index(family: str) -> int:
    """Return the index of the line that has a family's colour."""
    return PALETTE.index(FAMILIES.get(family, FAMILIES[""])[0])


def gid(label: str) -> str:
    """Return the name that an artist of a method has in an SVG: the page finds it by that."""
    return f"{METHOD}{quote(label, safe='')}"  # quoted: matplotlib's own quoting is not one rule


def marker(index: int) -> str:
    """Return the marker that goes with ``line_style(index)``."""
    return MARKERS[index % len(MARKERS)]


def cut_label(text: str, most: int) -> str:
    """Return ``text`` with its middle left out where it is longer than ``most`` characters.

    What cannot be printed (line ends, control characters, halves of a surrogate pair) is a space.
    """
    text = "".join(c if c.isprintable() else " " for c in text)
    if len(text) <= most:
        return text
    tail = (most - 1) // 2
    return f"{text[: most - 1 - tail]}\N{HORIZONTAL ELLIPSIS}{text[len(text) - tail :]}"


def even_places(count: int, most: int) -> list[int]:
    """Return at most ``most`` of ``range(count)``, evenly spaced by a round number, from 0."""
    step = next(
        s * 10**e for e in range(12) for s in (1, 2, 5) if math.ceil(count / (s * 10**e)) <= most
    )
    return list(range(0, count, step))


def png_bytes(figure: Figure) -> bytes:
    """Return a figure as PNG at 200 dots per inch."""
    return _saved(figure, "png", dpi=DPI, metadata={"Software": None})


def svg_text(figure: Figure) -> str:
    """Return a figure as SVG with text as text; the same figure gives the same bytes."""
    return _saved(figure, "svg", dpi=DPI, metadata={"Date": None}).decode()


def figure_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as CSV, columns in the order of their first appearance; None is an empty cell."""
    def cell(value: Any) -> Any:
        return cell_text(visible_text(value)) if isinstance(value, str) else value

    names = list(dict.fromkeys(name for row in rows for name in row))
    out = io.StringIO()
    writer = csv.DictWriter(out, names, restval="", lineterminator="\n")
    writer.writerow({name: cell(name) for name in names})
    writer.writerows({k: cell(v) for k, v in row.items()} for row in rows)
    return out.getvalue()


def write_figure(
    folder: Path, name: str, figure: Figure, rows: Sequence[Mapping[str, Any]] | None
) -> list[Path]:
    """Write ``name.png``, ``name.svg`` and, with ``rows``, ``name.pdf`` and ``name.csv``.

    Returns:
        Their paths.

    Raises:
        DataError: the folder cannot be written.
    """
    with files.explain_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    figure.set_dpi(DPI)  # hinted text is as wide as in the PNG: no name is cut off
    with use_style():
        figure.draw_without_rendering()
    figure.set_layout_engine("none")  # laid out once for all kinds: of many axes it takes seconds
    contents = {"png": png_bytes(figure), "svg": svg_text(figure).encode()}
    if rows is not None:
        undated = {"CreationDate": None, "Producer": None, "Creator": None}
        contents["pdf"] = _saved(figure, "pdf", dpi=DPI, metadata=undated)
        contents["csv"] = figure_csv(rows).encode("utf-8", errors="surrogateescape")
    for kind, data in contents.items():
        files.write_bytes(folder / f"{name}.{kind}", data)
    return [folder / f"{name}.{kind}" for kind in contents]


def _saved(figure: Figure, kind: str, **options: Any) -> bytes:
    out = io.BytesIO()
    with use_style():
        figure.savefig(out, format=kind, **options)
    return out.getvalue()
