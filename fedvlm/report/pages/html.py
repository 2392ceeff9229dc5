"""Elements of a page as text: whatever is not made here is escaped, so no name becomes markup.

Larger parts are templates (``report/templates``), where whatever is put in is escaped, too.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from fedvlm.console.rows import one_line

MINUS = "\N{MINUS SIGN}"
_VOID = {"meta", "input", "br"}  # elements without an end tag


class Html(str):
    """Text that is markup already; only what this room made, or an escaped name."""

    __slots__ = ()

    def __html__(self) -> str:
        """Tell a template that this is markup."""
        return str(self)


Content = str | int | float | None | Html


def to_html(text: object) -> Html:
    """Return text that shows literally, on one line, in elements and attributes."""
    return Html(html.escape(one_line(text)))


def lines(text: str) -> Html:
    """Return text of several lines that shows literally in ``<pre>``."""
    return Html("\n".join(to_html(line) for line in text.splitlines()))


def join_content(parts: Iterable[Content]) -> Html:
    """Return parts one after the other; those that are no markup are escaped, None is nothing."""
    return Html("".join(
        part if isinstance(part, Html) else to_html(part) for part in parts if part is not None
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
        words.append(key if value is True else f'{key}="{to_html(value)}"')
    opened = f"<{' '.join(words)}>"
    return Html(opened) if name in _VOID else Html(f"{opened}{join_content(content)}</{name}>")


def items(contents: Iterable[Content], **attributes: object) -> Html:
    """Return a list; nothing where there is nothing in it."""
    lines = [element("li", one) for one in contents]
    return element("ul", *lines, **attributes) if lines else Html("")


def fact_list(values: Mapping[str, Content]) -> Html:
    """Return names with their values as a definition list; empty values are left out."""
    pairs = [
        element("div", element("dt", key), element("dd", value))
        for key, value in values.items() if value not in (None, "")
    ]
    return element("dl", *pairs, class_="facts") if pairs else Html("")


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


def signed_text(value: float) -> str:
    """Return a difference with its sign, one decimal."""
    text = f"{abs(value):.1f}"
    return text if text == "0.0" else f"{'+' if value > 0 else MINUS}{text}"


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("fedvlm.report", "templates"), autoescape=True,
        undefined=StrictUndefined, keep_trailing_newline=False, finalize=_on_one_line,
    )


def render_template(template: str, /, **values: Any) -> Html:
    """Return a template filled in; values that are no ``Html`` show literally, on one line."""
    return Html(_environment().get_template(f"{template}.html").render(values))


def _on_one_line(value: Any) -> Any:
    return value if hasattr(value, "__html__") else one_line(value)
