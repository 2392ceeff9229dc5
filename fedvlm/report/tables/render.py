"""Tables as plain text, Markdown, CSV, LaTeX (``tex``) or HTML, names escaped for the format."""

from __future__ import annotations

import csv
import html
import io
from collections.abc import Callable, Sequence

from fedvlm.console.rows import one_line
from fedvlm.core.spelling import cell_text
from fedvlm.report.tables.cells import BEST, PEER, TableCell
from fedvlm.report.tables.table import ReportTable
from fedvlm.report.tables.tex import heading_at, tex

_MARKDOWN = "\\`*_{}[]<>#|&~$"
_CSV_HEAD = ("row", "column", "metric", "mean", "std", "ci95", "n", "runs", "mark",
             "text", "group")


def table_text(tables: Sequence[ReportTable], standalone: bool = False) -> str:
    """Return aligned columns with their captions, for a screen: nothing is escaped."""
    return "\n\n".join("\n".join(_text_lines(table)) for table in tables) + "\n"


def table_markdown(tables: Sequence[ReportTable], standalone: bool = False) -> str:
    """Return pipe tables with their captions; best bold, its peers underlined."""
    return "\n\n".join("\n".join(_markdown_lines(table)) for table in tables) + "\n"


def csv_text(tables: Sequence[ReportTable], standalone: bool = False) -> str:
    """Return one line per cell, numbers in full and unscaled (bytes, not MB).

    Caption and notes have no place in CSV; ``fedvlm table`` says them on stderr.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(_CSV_HEAD)
    for table in tables:
        groups = table.groups or ("",) * len(table.rows)
        for row, group, line in zip(table.rows, groups, table.cells, strict=True):
            for column, cell in zip(table.columns, line, strict=True):
                marks = ({BEST: "best", PEER: "peer"}.get(cell.rank, ""),
                         "fewer" if cell.fewer else "", "below" if cell.below else "")
                count = ["", ""] if cell.average else [cell.n, cell.of]
                writer.writerow([
                    cell_text(one_line(row)), cell_text(one_line(column)), cell.metric,
                    *("" if v is None else repr(v) for v in (cell.mean, cell.std, cell.ci)),
                    *count, " ".join(mark for mark in marks if mark), cell_text(cell.text),
                    cell_text(one_line(group)),
                ])
    return out.getvalue()


def html_text(tables: Sequence[ReportTable], standalone: bool = False) -> str:
    """Return ``<table>`` elements, or a whole page: well-formed, no scripts, nothing external."""
    body = "\n".join("\n".join(_html_lines(table)) for table in tables) + "\n"
    if not standalone:
        return body
    style = ("table{border-collapse:collapse;margin:1em 0}th,td{border:1px solid #999;"
             "padding:.2em .6em}caption{text-align:left}")
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/><title>fedvlm table'
        f"</title><style>{style}</style></head><body>\n{body}</body></html>\n"
    )


FORMATS: dict[str, Callable[[Sequence[ReportTable], bool], str]] = {
    "text": table_text, "md": table_markdown, "csv": csv_text, "tex": tex, "html": html_text,
}


def escape_markdown(text: str) -> str:
    """Return ``text`` as one line of Markdown that shows it literally."""
    return "".join(f"\\{c}" if c in _MARKDOWN else c for c in one_line(text))


def escape_html(text: str) -> str:
    """Return ``text`` as one line of HTML that shows it literally."""
    return html.escape(one_line(text))


def _text_lines(table: ReportTable) -> list[str]:
    names = [one_line(text) for text in (table.corner, *table.rows)]
    columns = [
        [one_line(head), *(_marked(row[at], table.ci, "**{}**", "_{}_") for row in table.cells)]
        for at, head in enumerate(table.columns)
    ]
    width, widths = max(map(len, names)), [max(map(len, column)) for column in columns]
    lines: list[str] = []
    for at, name in enumerate(names):
        if at and (heading := heading_at(table, at - 1)):
            lines.append(f"{one_line(heading)}:")
        words = [column[at].rjust(w) for column, w in zip(columns, widths, strict=True)]
        lines.append("  ".join([name.ljust(width), *words]).rstrip())
    notes = [f"- {one_line(note)}" for note in table.notes]
    return [*lines, "", one_line(table.caption), *([""] if notes else []), *notes]


def _markdown_lines(table: ReportTable) -> list[str]:
    heads = [escape_markdown(text) for text in (table.corner, *table.columns)]
    lines = [_pipes(heads), _pipes(["---", *["---:"] * len(table.columns)])]
    for at, (row, cells) in enumerate(zip(table.rows, table.cells, strict=True)):
        if heading := heading_at(table, at):
            lines.append(_pipes([f"*{escape_markdown(heading)}*", *[""] * len(table.columns)]))
        words = [_marked(cell, table.ci, "**{}**", "<u>{}</u>") for cell in cells]
        lines.append(_pipes([escape_markdown(row), *words]))
    notes = [f"- {escape_markdown(note)}" for note in table.notes]
    return [*lines, "", escape_markdown(table.caption), *([""] if notes else []), *notes]


def _html_lines(table: ReportTable) -> list[str]:
    head = "".join(f"<th>{escape_html(text)}</th>" for text in (table.corner, *table.columns))
    lines = ['<table class="fedvlm-table">', f"<caption>{escape_html(table.caption)}</caption>",
             f"<thead><tr>{head}</tr></thead>", "<tbody>"]
    for at, (row, cells) in enumerate(zip(table.rows, table.cells, strict=True)):
        if heading := heading_at(table, at):
            lines.append(f'<tr class="group"><th colspan="{len(table.columns) + 1}">'
                         f"{escape_html(heading)}</th></tr>")
        data = "".join(
            f'<td title="{cell.counted}">'
            f"{_marked(cell, table.ci, '<strong>{}</strong>', '<u>{}</u>')}</td>" for cell in cells
        )
        lines.append(f"<tr><th>{escape_html(row)}</th>{data}</tr>")
    lines += ["</tbody>", "</table>"]
    if table.notes:
        items = "".join(f"<li>{escape_html(note)}</li>" for note in table.notes)
        lines.append(f'<ul class="fedvlm-notes">{items}</ul>')
    return lines


def _marked(cell: TableCell, ci: bool, best: str, peer: str) -> str:
    """Return a cell's words, which need no escaping, with its mark."""
    form = {BEST: best, PEER: peer}.get(cell.rank, "{}")
    spread = cell.spread(ci)
    return form.format(cell.text) + (f" ± {spread}" if spread else "") + cell.suffix


def notes_text(tables: Sequence[ReportTable]) -> str:
    """Return what stands behind tables, for a file beside one: captions, notes, versions."""
    parts = []
    for table in tables:
        made = [f"Made with {table.made}."] if table.made else []
        parts.append("\n".join([table.caption, *made, *(f"- {note}" for note in table.notes)]))
    return "\n\n".join(parts) + "\n"


def _pipes(words: Sequence[str]) -> str:
    return f"| {' | '.join(words)} |"
