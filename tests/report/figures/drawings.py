"""What the tests of drawings share: lines and panels of our choosing; nothing may be clipped."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from fedvlm.report.figures import style
from fedvlm.report.figures.drawing.lines import LinePanel, MethodLine

AWKWARD = r"_a_$b$ & 100 % <c> \alpha{x}^2"


def line(label: str, count: int = 5, base: float = 40.0, seeds: int = 3) -> MethodLine:
    std = [2.0 if seeds > 1 else None] * count
    means = [base + i for i in range(count)]
    return MethodLine(label, list(range(count)), means, std, [seeds] * count)


def lines(labels: list[str], **more: Any) -> LinePanel:
    return LinePanel("Set", [line(n, base=40 + 3 * i, **more) for i, n in enumerate(labels)], 33.0)


def check(figure: Figure) -> None:
    """Nothing drawn leaves the edges of a figure."""
    with style.use_style():
        figure.draw_without_rendering()  # lays out
        drawn = figure.get_tightbbox()  # inches
    width, height = figure.get_size_inches()
    assert drawn.x0 > 0 and drawn.x1 < width, (drawn.x0, drawn.x1, width)
    assert drawn.y0 > 0 and drawn.y1 < height, (drawn.y0, drawn.y1, height)
