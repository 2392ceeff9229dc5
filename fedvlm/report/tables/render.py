"""Tables as text: Markdown, CSV, LaTeX or HTML; every name is escaped for its format.

LaTeX is for plain pdflatex: no package is needed.
"""

from __future__ import annotations

import csv
import html
import io
from collections.abc import Callable, Sequence

from fedvlm.console.rows import one_line
from fedvlm.core.spelling import cell_text
from fedvlm.report.tables.cells import BEST, FEWER, SECOND, TableCell
from fedvlm.report.tables.table import Table

_ESCAPES = {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}",
    '"': "''",  # \textquotedbl wants another font encoding
    **{c: f"\\{c}" for c in "&%$#_{}"},
    "±": r"$\pm$", FEWER: r"$\dagger$", "×": r"$\times$", "≥": r"$\geq$", "≤": r"$\leq$",
    "–": "--", "—": "---", "…": "...",
    # No ligatures (`--tag`, ?`); after a line's end `[` and `*` would be arguments.
    **{c: f"{{{c}}}" for c in "-`[*"},
}


def tex(tables: Sequence[Table], standalone: bool = False) -> str:
    """Return ``table`` environments, or a document that pdflatex turns into pages."""
    body = "\n".join("\n".join(_lines(table)) for table in tables) + "\n"
    if not standalone:
        return body
    return f"\\documentclass{{article}}\n\\begin{{document}}\n{body}\\end{{document}}\n"


def escape_tex(text: str) -> str:
    """Return ``text`` as one line of LaTeX that shows it literally.

    A character that plain pdflatex has no glyph for stands as its code point: ``[U+6570]``.
    """
    return "".join(_character(c) for c in one_line(text))


def _character(c: str) -> str:
    if c in _ESCAPES:
        return _ESCAPES[c]
    accented = "\u00c0" <= c <= "\u00ff" and c not in "ÐÞðþ×÷"
    return c if c.isascii() or accented else f"{{[}}U+{ord(c):04X}]"


def _lines(table: Table) -> list[str]:
    heads = [escape_tex(text) for text in (table.corner, *table.columns)]
    lines = [r"\begin{table}[htbp]", r"\centering", r"\footnotesize",
             rf"\caption{{{escape_tex(table.caption)}}}",
             rf"\begin{{tabular}}{{l{'r' * len(table.columns)}}}", r"\hline", _row(heads),
             r"\hline"]
    for label, cells in zip(table.rows, table.cells, strict=True):
        lines.append(_row([escape_tex(label), *(_cell(cell, table.ci) for cell in cells)]))
    lines += [r"\hline", r"\end{tabular}"]
    lines += [rf"\par {escape_tex(note)}" for note in table.notes]
    return [*lines, r"\end{table}"]


def _cell(cell: TableCell, ci: bool) -> str:
    form = {BEST: r"\textbf{%s}", SECOND: r"\underline{%s}"}.get(cell.rank, "%s")
    spread = cell.spread(ci)
    mean = f"${cell.text}$" if cell.text.startswith("-") and cell.mean is not None else cell.text
    return form % mean + (rf" $\pm$ {spread}" if spread else "") + escape_tex(cell.suffix)


def _row(words: Sequence[str]) -> str:
    return " & ".join(words) + r" \\"


_MARKDOWN = "\\`*_{}[]<>#|&~$"
_CSV_HEAD = ("row", "column", "metric", "mean", "std", "ci95", "n", "runs", "mark")


def markdown(tables: Sequence[Table], standalone: bool = False) -> str:
    """Return pipe tables with their captions; best bold, second underlined."""
    return "\n\n".join("\n".join(_markdown_lines(table)) for table in tables) + "\n"


def csv_text(tables: Sequence[Table], standalone: bool = False) -> str:
    """Return one line per cell, numbers in full and unscaled (bytes, not MB).

    Caption and notes have no place in CSV; ``fedvlm table`` says them on stderr.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(_CSV_HEAD)
    for table in tables:
        for row, line in zip(table.rows, table.cells, strict=True):
            for column, cell in zip(table.columns, line, strict=True):
                mark = {BEST: "best", SECOND: "second"}.get(cell.rank, "")
                count = ["", ""] if cell.average else [cell.n, cell.of]
                writer.writerow([
                    cell_text(one_line(row)), cell_text(one_line(column)), cell.metric,
                    *("" if v is None else repr(v) for v in (cell.mean, cell.std, cell.ci)),
                    *count, " ".join(w for w in (mark, "fewer" if cell.fewer else "") if w),
                ])
    return out.getvalue()


def html_text(tables: Sequence[Table], standalone: bool = False) -> str:
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


FORMATS: dict[str, Callable[[Sequence[Table], bool], str]] = {
    "md": markdown, "csv": csv_text, "tex": tex, "html": html_text,
}


def escape_markdown(text: str) -> str:
    """Return ``text`` as one line of Markdown that shows it literally."""
    return "".join(f"\\{c}" if c in _MARKDOWN else c for c in one_line(text))


def escape_html(text: str) -> str:
    """Return ``text`` as one line of HTML that shows it literally."""
    return html.escape(one_line(text))


def _markdown_lines(table: Table) -> list[str]:
    heads = [escape_markdown(text) for text in (table.corner, *table.columns)]
    lines = [_pipes(heads), _pipes(["---", *["---:"] * len(table.columns)])]
    for row, cells in zip(table.rows, table.cells, strict=True):
        words = [_marked(cell, table.ci, "**{}**", "<u>{}</u>") for cell in cells]
        lines.append(_pipes([escape_markdown(row), *words]))
    notes = [f"- {escape_markdown(note)}" for note in table.notes]
    return [*lines, "", escape_markdown(table.caption), *([""] if notes else []), *notes]


def _html_lines(table: Table) -> list[str]:
    head = "".join(f"<th>{escape_html(text)}</th>" for text in (table.corner, *table.columns))
    lines = ['<table class="fedvlm-table">', f"<caption>{escape_html(table.caption)}</caption>",
             f"<thead><tr>{head}</tr></thead>", "<tbody>"]
    for row, cells in zip(table.rows, table.cells, strict=True):
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


def _marked(cell: TableCell, ci: bool, best: str, second: str) -> str:
    """Return a cell's words, which need no escaping, with its mark."""
    form = {BEST: best, SECOND: second}.get(cell.rank, "{}")
    spread = cell.spread(ci)
    return form.format(cell.text) + (f" ± {spread}" if spread else "") + cell.suffix


def _pipes(words: Sequence[str]) -> str:
    return f"| {' | '.join(words)} |"
