"""The look: a user's own settings, PNG and SVG, ticks and names."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

import matplotlib
import pytest
from matplotlib.text import Text
from PIL import Image, ImageChops

from fedvlm.report.figures import convergence, distribution, style

from .drawings import lines

PLAIN = [lines(["FedAvg", "FedTV"])]


def test_the_same_data_give_the_same_svg_without_a_date() -> None:
    first, second = (
        style.svg_text(convergence.draw(PLAIN)) for _ in range(2)
    )
    assert first == second and "dc:date" not in first and "<text" in first


def test_a_users_own_settings_neither_change_a_figure_nor_are_changed() -> None:
    plain = style.svg_text(convergence.draw(PLAIN))
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "red"}):
        assert style.svg_text(convergence.draw(PLAIN)) == plain
        assert matplotlib.rcParams["font.size"] == 30


def test_a_png_has_200_dots_per_inch() -> None:
    data = style.png_bytes(convergence.draw(PLAIN, width=style.COLUMN))
    with Image.open(io.BytesIO(data)) as png:
        assert png.format == "PNG" and png.width == 660


def test_pyplot_is_not_loaded() -> None:
    if "matplotlib.pyplot" in sys.modules:
        pytest.skip("another test loaded pyplot in this process")
    convergence.draw(PLAIN)
    assert "matplotlib.pyplot" not in sys.modules


def test_ticks_are_thinned_by_round_numbers() -> None:
    assert style.even_places(5, 10) == [0, 1, 2, 3, 4]
    assert style.even_places(100, 10) == list(range(0, 100, 10))
    assert style.even_places(0, 3) == []


def test_what_cannot_be_printed_is_a_space() -> None:
    assert style.cut_label("a\nb\x00\udc80c", 9) == "a b  c"
    assert re.fullmatch("a{5}.a{4}", style.cut_label("a" * 50, 10))


def test_a_name_without_glyphs_warns_nobody(recwarn: pytest.WarningsRecorder):
    with style.use_style():
        figure = convergence.draw([lines(["\u6570\u5b66"])], width=style.PAGE)
    style.png_bytes(figure)
    assert not [w for w in recwarn if "Glyph" in str(w.message)]


def test_two_calls_write_the_same_bytes_with_fonts_inside(tmp_path: Path) -> None:
    kinds = ("pdf", "png", "svg", "csv")
    for folder in ("a", "b"):
        with style.font("serif"):
            style.write_figure(tmp_path / folder, "x", convergence.draw(PLAIN, width=3), [{"x": 1}])
    for kind in kinds:
        one, other = ((tmp_path / folder / f"x.{kind}").read_bytes() for folder in ("a", "b"))
        assert one == other
    pdf = (tmp_path / "a" / "x.pdf").read_bytes()
    assert b"STIXGeneral" in pdf and b"/Type3" not in pdf


def test_no_text_is_smaller_than_seven_points() -> None:
    figure = convergence.draw([*PLAIN, *PLAIN], width=5.5)
    assert min(text.get_fontsize() for text in figure.findobj(Text)) >= style.SMALL


@pytest.mark.parametrize("font", list(style.FONTS))
def test_no_row_name_is_cut_off_in_any_kind(font: str, tmp_path: Path) -> None:
    spread = distribution.Distribution("DTD", {distribution.REFERENCE: [1.0, 2.0]}, {})
    with style.font(font):
        style.write_figure(tmp_path, "rows", distribution.draw([spread], width=3.3), None)
    with Image.open(tmp_path / "rows.png") as png:
        margin = ImageChops.invert(png.convert("L")).point(lambda ink: ink > 100 and 255).getbbox()
    assert margin is not None and margin[0] >= 0.8 * 0.05 * style.DPI  # of w_pad, in inches
