"""Figures for a page: matplotlib's SVG made fit to stand inside HTML, in light and in dark."""

from __future__ import annotations

import re
from urllib.parse import unquote

from fedvlm.report.figures.style import METHOD
from fedvlm.report.pages.html import Html, element, to_html

# What the figures are drawn in (``style``), and the page's variables that take its place. The
# labels inside heat-map cells have colours of their own and stay: so do the cells.
COLOURS = {
    "#222222": "--fig-ink", "#6b6b6b": "--fig-faint", "#e4e4e4": "--fig-grid",
    "#ffffff": "--fig-ground", "#000000": "--fig-ink",
    "#0072b2": "--fig-1", "#d55e00": "--fig-2", "#009e73": "--fig-3", "#cc79a7": "--fig-4",
    "#e69f00": "--fig-5", "#56b4e9": "--fig-6", "#7f7f7f": "--fig-8",
    "#bdbdc2": "--fig-rest",
}
SCALE = 1.85  # pixels per point at most: 7-point text becomes 13 pixels
_COLOUR = re.compile(r"#[0-9a-f]{6}\b", re.IGNORECASE)
_STYLE = re.compile(r'style="([^"]*)"')
_SIZE = re.compile(r'<svg\b[^>]*?\swidth="([\d.]+)pt"[^>]*?>|<svg\b[^>]*?>', re.DOTALL)
_VIEW = re.compile(r'\bviewBox="([^"]+)"')
_ID = re.compile(r'\sid="([^"]+)"')
_REFERENCE = re.compile(r'(url\(#|href="#)([^")]+)')
_PLACE = re.compile(r'(?<=\s)(d|x|y)="([^"]*)"')
_LONG = re.compile(r"(?<=\d)(\.\d{2})\d+\b")


def inline(svg: str, name: str, label: str) -> Html:
    """Return an SVG document of ``style.svg_text`` as an element of a page.

    Ids get ``name`` before them, so that several figures can stand on one page; its document type,
    metadata and style sheet go (the page has the rules); coordinates keep two decimals, a hundredth
    of a point; the figures' colours become the page's variables.

    Args:
        label: what a screen reader says of the figure.
    """
    opening = _SIZE.search(svg)
    if opening is None:
        raise ValueError(f"figure {name} is no SVG")
    view = _VIEW.search(opening.group())
    body = svg[opening.end() : svg.rindex("</svg>")]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r"<defs>\s*<style\b.*?</style>\s*</defs>", "", body, flags=re.DOTALL)
    body = re.sub(r"<!--.*?-->", "", body, flags=re.DOTALL)
    body = _with_ids(body, name)
    body = _STYLE.sub(lambda at: f'style="{_recoloured(at[1])}"', body)
    body = _PLACE.sub(lambda at: f'{at[1]}="{_LONG.sub(lambda n: n[1], at[2])}"', body)
    body = re.sub(r"\s*\n\s*", "\n", body).replace("xlink:href=", "href=").strip()
    width = opening.group(1)
    return element(
        "svg", Html(body), viewBox=view.group(1) if view else None, role="img", aria_label=label,
        style=f"width: {float(width) * SCALE:.0f}px" if width else None,
    )


def _with_ids(body: str, name: str) -> str:
    """Return the markup with ``name`` in its ids; those that nothing refers to, or repeat, go.

    Those that name a method (``style.gid``) become ``data-method``.
    """
    used = {at[2] for at in _REFERENCE.finditer(body)}

    def keep(at: re.Match[str]) -> str:
        if at[1].startswith(METHOD):
            return f' data-method="{to_html(unquote(at[1].removeprefix(METHOD)))}"'
        if at[1] not in used:
            return ""
        used.discard(at[1])
        return f' id="{name}-{at[1]}"'

    return _REFERENCE.sub(lambda f: f"{f[1]}{name}-{f[2]}", _ID.sub(keep, body))


def _recoloured(rules: str) -> str:
    """Return a style attribute with the page's variables for the figures' colours."""
    def swap(at: re.Match[str]) -> str:
        name = COLOURS.get(at.group().lower())
        return f"var({name})" if name else at.group()

    short = _COLOUR.sub(swap, rules)
    return re.sub(r";\s+", ";", re.sub(r":\s+", ":", short))
