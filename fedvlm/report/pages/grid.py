"""Tables of a page: a box that scrolls, headers that sort, cells that know their rank."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence

from fedvlm.report.pages.html import Content, Html, element, render_template

LONG = 32  # characters; longer text in a cell is given room
_CELL = re.compile(r"<t[hd]\b[^>]*>")


def table(
    heads: Sequence[Content], rows: Iterable[Sequence[Content] | Html], *,
    caption: Content = None, sortable: bool = False, tall: bool = False, key: str = "",
    lower: Collection[int] = (), name: str = "",
) -> Html:
    """Return a table in a box of its own, which scrolls where the table is wide.

    The first cell of a row is its header. Numbers are set to the right; a cell made by ``cell``
    is taken as it is, a whole row too.

    Args:
        caption: what the table shows.
        sortable: whether the page's script makes its headers buttons.
        tall: whether the box scrolls downwards too.
        key: id of the table.
        lower: columns in which smaller is better: a first click sorts them upwards, other numbers
            downwards.
        name: of the box, for who cannot see it; the caption by default.
    """
    body = [row if isinstance(row, Html) else row_of(row) for row in rows]
    numbers = {
        at for row in body for at, one in enumerate(_CELL.findall(row)) if 'class="number"' in one
    }
    said = name or (caption if isinstance(caption, str) and not isinstance(caption, Html) else "")
    return render_template(
        "table", heads=heads, rows=body, caption=caption, sortable=sortable, tall=tall, key=key,
        numbers=numbers, lower=set(lower), name=said or "table")


def row_of(cells: Sequence[Content], **attributes: object) -> Html:
    """Return a table's row, its first cell the header."""
    return element("tr", *(_cell(at, one) for at, one in enumerate(cells)), **attributes)


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
