"""LaTeX tables for plain pdflatex: no package is needed."""

from __future__ import annotations

from collections.abc import Sequence

from fedvlm.console_rows import one_line
from fedvlm.report.table import Table
from fedvlm.report.table_cells import BEST, FEWER, SECOND, Cell

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


def _cell(cell: Cell, ci: bool) -> str:
    form = {BEST: r"\textbf{%s}", SECOND: r"\underline{%s}"}.get(cell.rank, "%s")
    spread = cell.spread(ci)
    mean = f"${cell.text}$" if cell.text.startswith("-") and cell.mean is not None else cell.text
    return form % mean + (rf" $\pm$ {spread}" if spread else "") + escape_tex(cell.suffix)


def _row(words: Sequence[str]) -> str:
    return " & ".join(words) + r" \\"
