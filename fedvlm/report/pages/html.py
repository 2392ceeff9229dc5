"""Elements of a page as text: whatever is not made here is escaped, so no name becomes markup.

Figures for a page: matplotlib's SVG made fit to stand inside HTML, in light and in dark.

The frame of every page: one file that loads nothing, with its style and script inside.
"""

from __future__ import annotations

import base64
import hashlib
import html
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources

from fedvlm.console.rows import one_line

_CELL = re.compile(r"<t[hd]\b[^>]*>")
_VOID = {"meta", "input", "br"}  # elements without an end tag


class Html(str):
    """Text that is markup already; only what this room made, or an escaped name."""

    __slots__ = ()


LONG = 32  # characters; longer text in a cell is given room

Content = str | int | float | None | Html


def escaped(text: object) -> Html:
    """Return text that shows literally, on one line, in elements and attributes."""
    return Html(html.escape(one_line(text)))


def lines(text: str) -> Html:
    """Return text of several lines that shows literally in ``<pre>``."""
    return Html("\n".join(escaped(line) for line in text.splitlines()))


def join(parts: Iterable[Content], between: str = "") -> Html:
    """Return parts one after the other; those that are no markup are escaped, None is nothing."""
    return Html(between.join(
        part if isinstance(part, Html) else escaped(part) for part in parts if part is not None
    ))


def element(name: str, /, *content: Content, **attributes: object) -> Html:
    """Return ``<name ...>content</name>``.

    Args:
        content: escaped unless it is ``Html``.
        attributes: ``_`` stands for ``-``, a trailing one is dropped (``class_``); True is an
            attribute without value, None and False are left out.
    """
    words = [name]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        key = key.rstrip("_").replace("_", "-")
        words.append(key if value is True else f'{key}="{escaped(value)}"')
    opened = f"<{' '.join(words)}>"
    return Html(opened) if name in _VOID else Html(f"{opened}{join(content)}</{name}>")


def items(found: Iterable[Content], **attributes: object) -> Html:
    """Return a list; nothing where there is nothing in it."""
    made = [element("li", one) for one in found]
    return element("ul", *made, **attributes) if made else Html("")


def facts(found: Mapping[str, Content]) -> Html:
    """Return names with their values as a definition list; empty values are left out."""
    pairs = [
        element("div", element("dt", key), element("dd", value))
        for key, value in found.items() if value not in (None, "")
    ]
    return element("dl", *pairs, class_="facts") if pairs else Html("")


def table(
    heads: Sequence[Content], rows: Iterable[Sequence[Content] | Html], *,
    caption: Content = None, sortable: bool = False, tall: bool = False, key: str = "",
) -> Html:
    """Return a table in a box of its own, which scrolls where the table is wide.

    The first cell of a row is its header. Numbers are set to the right; a cell made by ``cell``
    is taken as it is, a whole row too.

    Args:
        caption: what the table shows.
        sortable: whether the page's script makes its headers buttons.
        tall: whether the box scrolls downwards too.
        key: id of the table.
    """
    made = [row if isinstance(row, Html) else _row(row) for row in rows]
    numbers = {
        at for row in made for at, one in enumerate(_CELL.findall(row)) if 'class="number"' in one
    }
    head = element("tr", *(
        element("th", one, scope="col", class_="number" if at in numbers else None)
        for at, one in enumerate(heads)
    ))
    inside = element(
        "table", element("caption", element("span", caption)) if caption else None,
        element("thead", head), element("tbody", *made),
        class_="sortable" if sortable else None, id=key or None,
    )
    # tabindex: a box that scrolls can be reached by keyboard
    return element("div", inside, class_="box tall" if tall else "box", tabindex="0", role="region",
                   aria_label=caption if caption and not isinstance(caption, Html) else "table")


def search(key: str, hint: str) -> Html:
    """Return a field that filters the rows of the table ``key``; the page's script shows it."""
    field = element("input", type="search", autocomplete="off", placeholder=hint)
    return element("div", element("label", "Filter ", field), element("output", class_="soft"),
                   class_="filter", data_filter=key, hidden=True)


def cell(shown: Content, value: float | None, **attributes: object) -> Html:
    """Return a table cell whose rank in a sorted column is ``value``; None is always last."""
    rank = "" if value is None else repr(float(value))
    return element("td", shown, class_="number", data_value=rank, **attributes)


def _row(cells: Sequence[Content]) -> Html:
    return element("tr", *(_cell(at, one) for at, one in enumerate(cells)))


def _cell(at: int, found: Content) -> Html:
    if isinstance(found, Html) and found.startswith("<td"):
        return found
    plain = isinstance(found, str) and not isinstance(found, Html)
    size = len(str(found)) if plain else 0
    kind = ("number" if isinstance(found, int | float) and at else
            "words" if size > LONG else "short" if size else None)
    if at == 0:
        return element("th", found, scope="row", class_=kind)
    return element("td", found, class_=kind)


# What the figures are drawn in (``style``), and the page's variables that take its place. The
# labels inside heat-map cells have colours of their own and stay: so do the cells.
COLOURS = {
    "#222222": "--fig-ink", "#6b6b6b": "--fig-faint", "#e4e4e4": "--fig-grid",
    "#ffffff": "--fig-ground", "#000000": "--fig-ink",
    "#0072b2": "--fig-1", "#d55e00": "--fig-2", "#009e73": "--fig-3", "#cc79a7": "--fig-4",
    "#e69f00": "--fig-5", "#56b4e9": "--fig-6", "#7f7f7f": "--fig-8",
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
    of a point; colours of the house become the page's variables.

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
    body = _STYLE.sub(lambda found: f'style="{_recoloured(found[1])}"', body)
    body = _PLACE.sub(lambda found: f'{found[1]}="{_LONG.sub(lambda n: n[1], found[2])}"', body)
    body = re.sub(r"\s*\n\s*", "\n", body).replace("xlink:href=", "href=").strip()
    width = opening.group(1)
    return element(
        "svg", Html(body), viewBox=view.group(1) if view else None, role="img", aria_label=label,
        style=f"width: {float(width) * SCALE:.0f}px" if width else None,
    )


def _with_ids(body: str, name: str) -> str:
    """Return the markup with ``name`` in its ids; those that nothing refers to, or repeat, go."""
    used = {found[2] for found in _REFERENCE.finditer(body)}

    def keep(found: re.Match[str]) -> str:
        if found[1] not in used:
            return ""
        used.discard(found[1])
        return f' id="{name}-{found[1]}"'

    return _REFERENCE.sub(lambda f: f"{f[1]}{name}-{f[2]}", _ID.sub(keep, body))


def _recoloured(rules: str) -> str:
    """Return a style attribute with the page's variables for the colours of the house."""
    def swap(found: re.Match[str]) -> str:
        name = COLOURS.get(found.group().lower())
        return f"var({name})" if name else found.group()

    short = _COLOUR.sub(swap, rules)
    return re.sub(r";\s+", ";", re.sub(r":\s+", ":", short))


@dataclass(frozen=True)
class Section:
    """A part of a page: its id, heading and content; one without content is left out."""

    key: str
    heading: str
    content: Html


def page(title: str, intro: Content, sections: Sequence[Section], origin: str = "") -> str:
    """Return a whole document.

    The policy in its head forbids every load: scripts and style sheets but the two inside (by
    their digests), fonts, frames, requests; images may be data in the page only.

    Args:
        title: shown as the first heading too.
        intro: what stands below it.
        origin: what made the page.
    """
    style, script = static("page.css"), static("page.js")
    shown = [s for s in sections if s.content]
    links = [element("a", s.heading, href=f"#{s.key}") for s in shown]
    body = [
        element("section", element("h2", s.heading), s.content, id=s.key) for s in shown
    ]
    policy = (
        f"default-src 'none'; style-src-elem '{_digest(style)}'; style-src-attr 'unsafe-inline'; "
        f"script-src '{_digest(script)}'; img-src data:; base-uri 'none'; form-action 'none'"
    )
    head = element(
        "head", element("meta", charset="utf-8"),
        Html(f'<meta http-equiv="Content-Security-Policy" content="{policy}">'),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("meta", name="generator", content="fedvlm"),
        element("title", title), Html(f"<style>{style}</style>"),
    )
    made = element("footer", element("p", "Made by ", element("code", origin))) if origin else None
    main = join([
        element("header", element("h1", title), intro),
        element("nav", items(links), aria_label="Sections"), element("main", *body), made,
        Html(f"<script>{script}</script>"),
    ], "\n")
    return f'<!DOCTYPE html>\n<html lang="en">{head}\n<body>\n{main}\n</body></html>\n'


def static(name: str) -> str:
    """Return a file that comes with the package, as text."""
    file = resources.files("fedvlm.report") / "static" / name
    return file.read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
