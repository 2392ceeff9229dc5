"""Figures inside a page: ids, colours, readable in light and dark."""

from __future__ import annotations

import re

import pytest

from fedvlm.report.pages.frame import static
from fedvlm.report.pages.svg import COLOURS, inline


def test_figures_lose_their_sheet_and_share_no_id():
    svg = ('<?xml version="1.0"?><!DOCTYPE svg><svg width="100.5pt" height="9pt" '
           'viewBox="0 0 100 9"><metadata>m</metadata><defs>\n<style type="text/css">*{}</style>'
           '\n</defs><g id="a"><path d="M 1.23456 2" style="fill: #222222; stroke: #123456"/>'
           '<use xlink:href="#a" clip-path="url(#a)"/></g></svg>')
    assert inline(svg, "one", "what <it> is") == (
        '<svg viewBox="0 0 100 9" role="img" aria-label="what &lt;it&gt; is" style="width: 186px">'
        '<g id="one-a"><path d="M 1.23 2" style="fill:var(--fig-ink);stroke:#123456"/>'
        '<use href="#one-a" clip-path="url(#one-a)"/></g></svg>'
    )
    with pytest.raises(ValueError, match="no SVG"):
        inline("<p>", "x", "")


def variables(text: str) -> dict[str, str]:
    return dict(re.findall(r"(--[\w-]+): (#[0-9a-f]{6})", text))


def contrast(a: str, b: str) -> float:
    """Return the contrast of two colours as WCAG 2 defines it."""
    def light(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((light(a), light(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_text_is_readable_in_light_and_dark():
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    light, _, rest = static("page.css").partition("@media screen and (prefers-color-scheme")
    themes = [variables(light), variables(light) | variables(rest)]
    for theme in themes:
        for ink in ("--ink", "--soft", "--accent", "--up", "--down"):
            for ground in ("--ground", "--card", "--stripe"):
                assert contrast(theme[ink], theme[ground]) >= 4.5, (ink, ground)
        assert contrast(theme["--warn"], theme["--warn-ground"]) >= 4.5
        for ink in ("--fig-ink", "--fig-faint"):
            assert contrast(theme[ink], theme["--fig-ground"]) >= 4.5, ink
    assert set(COLOURS.values()) <= set(themes[0]) and themes[0] != themes[1]
