"""Tables as LaTeX to be pasted into a paper: booktabs, siunitx, fitted to the width of a page.

What a reader of the paper needs is in the caption, one sentence; protocol, digests, versions and
the command are comments above the table. The size is chosen by an estimate of the width (letters
half as wide as the font is high): smaller letters, then a rotated page, then blocks of columns
below each other; a box that shrinks what is still too wide is the last resort.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fedvlm.console.rows import one_line
from fedvlm.report.tables.cells import BELOW, BEST, FEWER, MISSING, PEER, TableCell
from fedvlm.report.tables.papers import Paper
from fedvlm.report.tables.table import ReportTable

POINTS = 72.27  # of TeX per inch
SIZES = (("small", 9.0), ("footnotesize", 8.0), ("scriptsize", 7.0))
TINY, LETTER, GAP = 5.0, 0.5, 6.0  # size of a spread; width of a letter; between columns
LONG_SIDE, PAGE = 9.0, 8.0  # inches of a rotated page, and that blocks of a page may be high
HIGH = 1.2  # height of a row, in sizes of its letters
CITED = 5  # letters of ``~[12]``
_ESCAPES = {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}",
    '"': "''",  # \textquotedbl wants another font encoding
    **{c: f"\\{c}" for c in "&%$#_{}"},
    "±": r"$\pm$", FEWER: r"$\dagger$", BELOW: r"$\downarrow$", "×": r"$\times$",
    "≥": r"$\geq$", "≤": r"$\leq$", "–": "--", "—": "---", "…": "...",
    # No ligatures (`--tag`, ?`); after a line's end `[` and `*` would be arguments.
    **{c: f"{{{c}}}" for c in "-`[*"},
}


@dataclass(frozen=True)
class Style:
    """How a table is to stand in a paper.

    Attributes:
        label: of ``\\ref``; empty: ``tab:`` and the metric.
        papers: method -> what its card says; methods with a citation key get a ``\\cite``.
        width: of the text, in inches.
        bibliography: name of the .bib file for a whole document; empty for none.
    """

    label: str = ""
    papers: Mapping[str, Paper] = field(default_factory=dict)
    width: float = 5.5
    bibliography: str = ""


@dataclass(frozen=True)
class Column:
    """A column: how it is set, and its entries, one text or number and tail each."""

    head: str
    form: str
    entries: tuple[tuple[str, ...], ...]
    letters: float  # of its widest entry, in those of the table's size
    tail: float = 0.0  # of its widest tail, in those of a spread

    @property
    def span(self) -> int:
        """TeX columns."""
        return len(self.entries[0]) if self.entries else 1

    def points(self, size: float) -> float:
        """Return its estimated width."""
        return max(self.letters * size + self.tail * TINY, len(self.head) * LETTER * size) + GAP


def tex(tables: Sequence[ReportTable], standalone: bool = False, style: Style | None = None) -> str:
    """Return ``table`` environments, or a document that pdflatex turns into pages."""
    style = style or Style()
    body = "\n".join("\n".join(_lines(table, style, at)) for at, table in enumerate(tables)) + "\n"
    needs = ["booktabs", "siunitx", "graphicx", *(["rotating"] if "sidewaystable" in body else [])]
    if not standalone:
        return f"% \\usepackage{{{','.join(needs)}}}\n{body}"
    cites, end = "", ""
    if r"\cite{" in body:
        cites = "\\usepackage[numbers]{natbib}\n"
        end = (f"\\bibliographystyle{{plainnat}}\n\\bibliography{{{style.bibliography}}}\n"
               if style.bibliography else "")
    return (
        f"\\documentclass{{article}}\n\\usepackage{{{','.join(needs)}}}\n{cites}"
        f"\\setlength{{\\textwidth}}{{{style.width:g}in}}\n\\begin{{document}}\n{body}{end}"
        "\\end{document}\n"
    )


def escape_tex(text: str) -> str:
    """Return ``text`` as one line of LaTeX that shows it literally.

    A character that plain pdflatex has no glyph for stands as its code point: ``[U+6570]``.
    """
    return "".join(_character(c) for c in one_line(text))


def heading_at(table: ReportTable, at: int) -> str:
    """Return the heading that stands above a row; empty where its group goes on."""
    if not table.groups or (at and table.groups[at] == table.groups[at - 1]):
        return ""
    return table.groups[at]


def _character(c: str) -> str:
    if c in _ESCAPES:
        return _ESCAPES[c]
    accented = "\u00c0" <= c <= "\u00ff" and c not in "ÐÞðþ×÷"
    return c if c.isascii() or accented else f"{{[}}U+{ord(c):04X}]"


def _lines(table: ReportTable, style: Style, at: int) -> list[str]:
    """Return comments and environment of one table."""
    label = style.label or f"tab:{'-'.join(table.metrics)}"
    keys = [style.papers[m].key if m in style.papers else "" for m in table.methods]
    keys = keys or [""] * len(table.rows)
    columns = [_column(head, [line[i] for line in table.cells], table.ci)
               for i, head in enumerate(table.columns)]
    widest = max((len(row) + CITED * bool(key) for row, key in zip(table.rows, keys, strict=True)),
                 default=1)
    rows = len(table.rows) + sum(bool(heading_at(table, i)) for i in range(len(table.rows)))
    size, blocks, rotated = _plan(columns, widest * LETTER, style.width, rows)
    name = "sidewaystable" if rotated else "table"
    lines = _comments(table)
    a_page = max(1, int(PAGE * POINTS / (HIGH * dict(SIZES)[size] * (rows + 4))))
    for first in range(0, len(blocks), a_page):
        caption = escape_tex(table.brief or table.caption)
        lines += [
            rf"\begin{{{name}}}" + ("" if rotated else "[tbp]"), r"\centering",
            r"\setlength{\belowcaptionskip}{4pt}",
            r"\caption[]{(continued)}" if first else rf"\caption{{{caption}}}",
            *([] if first else [rf"\label{{{_label(label)}{f'-{at + 1}' if at else ''}}}"]),
            rf"\{size}", r"\setlength{\tabcolsep}{3pt}",
            r"\sisetup{detect-weight=true,mode=text,table-text-alignment=right}",
        ]
        for number, block in enumerate(blocks[first:first + a_page]):
            lines += [r"\par\medskip"] if number else []
            lines += _tabular(table, block, keys)
        lines.append(rf"\end{{{name}}}")
        if first + a_page < len(blocks):
            lines.append(r"\addtocounter{table}{-1}")  # the next page is of the same table
    return lines


def _plan(
    columns: Sequence[Column], first: float, width: float, rows: int
) -> tuple[str, list[list[Column]], bool]:
    """Return the size's name, the columns in blocks, and whether the page is rotated.

    Args:
        first: letters of the widest row label, times their width.
        width: of the text, in inches.
    """
    def points(block: Sequence[Column], size: float) -> float:
        return first * size + sum(column.points(size) for column in block)

    for name, size in SIZES:
        if points(columns, size) <= width * POINTS:
            return name, [list(columns)], False
    for name, size in SIZES:
        high = HIGH * size * (rows + 8)
        if points(columns, size) <= LONG_SIDE * POINTS and high <= width * POINTS:
            return name, [list(columns)], True
    name, size = SIZES[-1]
    blocks: list[list[Column]] = [[]]
    for column in columns:
        if blocks[-1] and points([*blocks[-1], column], size) > width * POINTS:
            blocks.append([])
        blocks[-1].append(column)
    return name, blocks, False


def _column(head: str, cells: Sequence[TableCell], ci: bool) -> Column:
    numbers = [c.text for c in cells if c.mean is not None and not c.words]
    if not numbers:
        texts = tuple((_words(c.text),) for c in cells)
        widest = max((len(c.text) for c in cells), default=1)
        return Column(head, "c", texts, widest * LETTER)
    tails = [_tail(cell, ci) for cell in cells]
    whole = max(len(text.lstrip("-").partition(".")[0]) for text in numbers)
    digits = max(len(text.partition(".")[2]) for text in numbers)
    sign = "-" if any(text.startswith("-") for text in numbers) else ""
    form = f"S[table-format={sign}{whole}.{digits}]"
    letters = LETTER * (len(sign) + whole + digits) + 0.28 * bool(digits)
    if not any(tail for tail, _ in tails):
        return Column(head, form, tuple((_number(c),) for c in cells), letters)
    entries = tuple((_number(c), tail) for c, (tail, _) in zip(cells, tails, strict=True))
    return Column(head, form + r"@{\,}l", entries, letters,
                  max(count for _, count in tails) * LETTER * 1.3)


def _number(cell: TableCell) -> str:
    """Return a number for an S column; what is not one stands in braces, aligned to the right."""
    if cell.mean is None or cell.words:
        return f"{{{_words(cell.text) if cell.words else '--'}}}"
    if cell.rank == BEST:
        return rf"\bfseries {cell.text}"
    return rf"{{\underline{{{cell.text}}}}}" if cell.rank == PEER else cell.text


def _tail(cell: TableCell, ci: bool) -> tuple[str, int]:
    """Return what follows a number, and its letters."""
    spread = cell.spread(ci)
    text = (rf"\tiny$\pm${spread}" if spread else "") + escape_tex(cell.suffix.strip())
    return (f"{{{text}}}" if text else ""), len(spread) + len(cell.suffix) + bool(spread)


def _words(text: str) -> str:
    """Return a difference with its interval, minus signs as such."""
    return "--" if text == MISSING else re.sub(r"\{-\}(?=[\d.])", "$-$", escape_tex(text))


def _tabular(table: ReportTable, columns: Sequence[Column], keys: Sequence[str]) -> list[str]:
    total = 1 + sum(column.span for column in columns)
    heads = ["Method" if table.corner == "trainer" else escape_tex(table.corner)] + [
        (rf"\multicolumn{{{c.span}}}{{c}}{{{escape_tex(c.head)}}}" if c.span > 1 else
         f"{{{escape_tex(c.head)}}}") for c in columns
    ]
    lines = [
        r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
        rf"\begin{{tabular}}{{l{''.join(' ' + column.form for column in columns)}}}", r"\toprule",
        _row(heads), r"\midrule",
    ]
    for at, (label, key) in enumerate(zip(table.rows, keys, strict=True)):
        heading = heading_at(table, at)
        if heading:
            lines += [r"\midrule"] if at else []
            lines.append(rf"\multicolumn{{{total}}}{{l}}{{\emph{{{escape_tex(heading)}}}}} \\")
        cited = rf"~\cite{{{key}}}" if key else ""
        lines.append(_row([escape_tex(label) + cited,
                           *(text for column in columns for text in column.entries[at])]))
    return [*lines, r"\bottomrule", r"\end{tabular}}"]


def _comments(table: ReportTable) -> list[str]:
    """Return provenance as comments: caption in full, notes, versions."""
    texts = [table.caption, *([f"Made with {table.made}."] if table.made else []), *table.notes]
    return [f"% {line}" for text in texts
            for line in textwrap.wrap(one_line(text), 96, break_long_words=False) or [""]]


def _label(text: str) -> str:
    """Return a text that TeX takes as a name."""
    return "".join(c if c.isascii() and (c.isalnum() or c in ":.-") else "-" for c in text)


def _row(words: Sequence[str]) -> str:
    return " & ".join(words) + r" \\"
