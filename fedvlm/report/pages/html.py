"""Elements of a page as text: whatever is not made here is escaped, so no name becomes markup."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Mapping, Sequence

from fedvlm.console.rows import one_line

LONG = 32  # characters; longer text in a cell is given room
MINUS = "\N{MINUS SIGN}"
_CELL = re.compile(r"<t[hd]\b[^>]*>")
_VOID = {"meta", "input", "br"}  # elements without an end tag


class Html(str):
    """Text that is markup already; only what this room made, or an escaped name."""

    __slots__ = ()


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


def items(contents: Iterable[Content], **attributes: object) -> Html:
    """Return a list; nothing where there is nothing in it."""
    lines = [element("li", one) for one in contents]
    return element("ul", *lines, **attributes) if lines else Html("")


def facts(values: Mapping[str, Content]) -> Html:
    """Return names with their values as a definition list; empty values are left out."""
    pairs = [
        element("div", element("dt", key), element("dd", value))
        for key, value in values.items() if value not in (None, "")
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
    body = [row if isinstance(row, Html) else _row(row) for row in rows]
    numbers = {
        at for row in body for at, one in enumerate(_CELL.findall(row)) if 'class="number"' in one
    }
    head = element("tr", *(
        element("th", one, scope="col", class_="number" if at in numbers else None)
        for at, one in enumerate(heads)
    ))
    inside = element(
        "table", element("caption", element("span", caption)) if caption else None,
        element("thead", head), element("tbody", *body),
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


def cell(content: Content, value: float | None, **attributes: object) -> Html:
    """Return a table cell whose rank in a sorted column is ``value``; None is always last."""
    rank = "" if value is None else repr(float(value))
    return element("td", content, class_="number", data_value=rank, **attributes)


def decimal(value: float | None, digits: int = 1) -> str:
    """Return a number with so many decimals; an en dash where there is none."""
    return "\N{EN DASH}" if value is None else f"{value:.{digits}f}"


def signed(value: float) -> str:
    """Return a difference with its sign, one decimal."""
    text = f"{abs(value):.1f}"
    return text if text == "0.0" else f"{'+' if value > 0 else MINUS}{text}"


def _row(cells: Sequence[Content]) -> Html:
    return element("tr", *(_cell(at, one) for at, one in enumerate(cells)))


def _cell(at: int, content: Content) -> Html:
    if isinstance(content, Html) and content.startswith("<td"):
        return content
    plain = isinstance(content, str) and not isinstance(content, Html)
    size = len(str(content)) if plain else 0
    kind = ("number" if isinstance(content, int | float) and at else
            "words" if size > LONG else "short" if size else None)
    if at == 0:
        return element("th", content, scope="row", class_=kind)
    return element("td", content, class_=kind)
