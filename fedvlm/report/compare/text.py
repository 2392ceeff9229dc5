"""A comparison as topics of sentences and small tables: plain text, Markdown, JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedvlm.console.rows import one_line, table_lines
from fedvlm.core import files
from fedvlm.report.tables.render import escape_markdown

TextRow = Mapping[str, str]


@dataclass(frozen=True)
class Topic:
    """A heading with sentences, a table of ready texts, and sentences after it."""

    title: str
    lines: Sequence[str] = ()
    rows: Sequence[TextRow] = ()
    after: Sequence[str] = ()


class Comparison:
    """A finished comparison.

    Attributes:
        topics: for a reader; those without a line or row are left out.
        data: the same numbers in full, for a program.
    """

    def __init__(self, topics: Sequence[Topic], data: Mapping[str, Any]) -> None:
        self.topics = [topic for topic in topics if topic.lines or topic.rows]
        self.data = data


def pairs_text(comparison: Comparison) -> str:
    """Return plain text with aligned tables."""
    blocks = []
    for topic in comparison.topics:
        lines = [*map(one_line, topic.lines), *table_lines(topic.rows), *map(one_line, topic.after)]
        blocks.append("\n".join([topic.title, *(f"  {line}" for line in lines)]))
    return "\n\n".join(blocks) + "\n"


def pairs_markdown(comparison: Comparison) -> str:
    """Return Markdown: a heading, a list of sentences and a pipe table per topic."""
    blocks = []
    for topic in comparison.topics:
        blocks.append(f"## {escape_markdown(topic.title)}")
        blocks += _bullets(topic.lines)
        if topic.rows:
            names = list(dict.fromkeys(k for row in topic.rows for k in row))
            lines = [_pipes(names), "|" + " --- |" * len(names)]
            lines += [_pipes([row.get(name, "-") for name in names]) for row in topic.rows]
            blocks.append("\n".join(lines))
        blocks += _bullets(topic.after)
    return "\n\n".join(blocks) + "\n"


def as_json(comparison: Comparison) -> str:
    """Return the numbers in full as strict JSON; what is not finite becomes null and is listed."""
    return json.dumps(files.json_ready(dict(comparison.data)), indent=2, allow_nan=False) + "\n"


PAIR_FORMATS: dict[str, Callable[[Comparison], str]] = {
    "text": pairs_text, "md": pairs_markdown, "json": as_json,
}


def signed_number(value: float | None) -> str:
    """Return a difference with its sign; a dash for None."""
    return "-" if value is None else f"{value:+.2f}"


def plain_number(value: float | None, digits: int = 2) -> str:
    """Return a number; a dash for None."""
    return "-" if value is None else f"{value:,.{digits}f}"


def interval(ends: tuple[float, float] | None) -> str:
    """Return ``[low, high]`` with signs; a dash for None."""
    return "-" if ends is None else f"[{ends[0]:+.2f}, {ends[1]:+.2f}]"


def p_value(p: float | None) -> str:
    """Return ``0.031``; a dash for None."""
    if p is None:
        return "-"
    return "< 0.0001" if p < 1e-4 else f"{p:.4f}"


def _bullets(lines: Sequence[str]) -> list[str]:
    return ["\n".join(f"- {escape_markdown(line)}" for line in lines)] if lines else []


def _pipes(words: Sequence[str]) -> str:
    return f"| {' | '.join(escape_markdown(word) for word in words)} |"
