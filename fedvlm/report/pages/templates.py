"""The pages' templates (``report/templates``): whatever is put into one is escaped."""

from __future__ import annotations

from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from fedvlm.console.rows import one_line
from fedvlm.report.pages.html import Html


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
