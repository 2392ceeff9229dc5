"""LaTeX to be pasted: whole rows, aligned numbers, comments, citations, and tables that fit."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from fedvlm.report.collect import collect
from fedvlm.report.tables.cells import TableCell
from fedvlm.report.tables.papers import Paper
from fedvlm.report.tables.table import ReportTable, Spec, tables
from fedvlm.report.tables.tex import Style, escape_tex, tex
from tests.report.table_runs import write_seeds
from tests.report.tables.test_render import BRACKET, NASTY

SPLIT = re.compile(r"(?<!\\)&")


@pytest.fixture(scope="module")
def nasty(tmp_path_factory: pytest.TempPathFactory) -> list[ReportTable]:
    root = tmp_path_factory.mktemp("nasty")
    values = {NASTY: [90.0, 92.0], BRACKET: [9.5, 8.5], "*": [70.0], "P": [99.0, 81.1]}
    for trainer, each in values.items():
        write_seeds(root, trainer, each, extra_data="a_b & <c>")
        write_seeds(root, trainer, [x + (0.5 if trainer == "P" else 1) for x in each], "DTD")
    return tables(collect([root]), Spec(versus="P"), f"fedvlm table --where 'tag={NASTY}'")


def wide(rows: int, columns: int) -> ReportTable:
    """Return a table of a size."""
    cell = TableCell("personal", 81.2, 1.2, n=5)
    labels = tuple(f"Method-{at}" for at in range(rows))
    return ReportTable(
        ("personal",), "trainer", labels, tuple(f"Flowers{at}" for at in range(columns)),
        ((cell,) * columns,) * rows, "caption", brief="Brief.", methods=labels,
        groups=("personal models",) * (rows // 2) + ("one shared model",) * (rows - rows // 2),
    )


def rows_of(text: str) -> list[tuple[int, int]]:
    """Return (cells, columns of the form) for every row, multicolumns counted."""
    seen = []
    tabular = r"\\begin\{tabular\}\{([^\n]*)\}\n(.*?)\\end\{tabular\}"
    for head, body in re.findall(tabular, text, re.S):
        form = re.sub(r"@\{[^}]*\}|\[[^\]]*\]", "", head).replace(" ", "")
        for line in body.splitlines():
            if not line.endswith(r"\\"):
                continue
            cells = SPLIT.split(line[:-2])
            spans = [re.match(r"\s*\\multicolumn\{(\d+)\}", cell) for cell in cells]
            seen.append((sum(int(m.group(1)) if m else 1 for m in spans), len(form)))
    return seen


def test_escapes_each_sign() -> None:
    assert escape_tex("a_b & 5% <c>") == r"a\_b \& 5\% \textless{}c\textgreater{}"
    assert escape_tex(r"\{#$~^}") == (
        r"\textbackslash{}\{\#\$\textasciitilde{}\textasciicircum{}\}"
    )
    assert escape_tex("数\n") == r"{[}U+6570]\textbackslash{}n"


def test_every_row_has_the_columns_of_the_table_and_braces_close(nasty: list[ReportTable]) -> None:
    for text in (tex(nasty), tex([wide(24, 10)]), tex([wide(9, 40)])):
        rows = rows_of(text)
        assert rows and all(cells == columns for cells, columns in rows), rows
        for environment in ("table", "tabular", "sidewaystable"):
            assert text.count(f"\\begin{{{environment}}}") == text.count(f"\\end{{{environment}}}")
        plain = re.sub(r"\\[{}]", "", "\n".join(
            line for line in text.splitlines() if not line.startswith("%")))
        assert plain.count("{") == plain.count("}")


def test_numbers_are_aligned_and_marked(nasty: list[ReportTable]) -> None:
    text = tex(nasty)
    assert "S[table-format=2.1]@{\\,}l" in text
    assert r"{\tiny$\pm$1.4}" in text and r"\dagger" in text
    assert r"$-$" in text and "{[}$-$" in text  # a difference and its interval


def test_the_caption_is_one_sentence_and_the_rest_is_comment(nasty: list[ReportTable]) -> None:
    text = tex(nasty, style=Style(label="tab:main"))
    caption = re.search(r"\\caption\{(.*)\}\n", text)
    assert caption is not None and caption.group(1).startswith("Personal accuracy")
    assert caption.group(1).count(". ") == 0 and "fedvlm" not in caption.group(1)
    comments = " ".join(line[2:] for line in text.splitlines() if line.startswith("% "))
    for words in ("Data digests:", "Made by: fedvlm table", "backbone tiny", "extra data"):
        assert words.lower() in comments.lower(), words
    assert r"\label{tab:main}" in text and r"\label{tab:main-2}" in text


def test_packages_citations_and_groups() -> None:
    style = Style(papers={"Method-0": Paper("Method-0", "", "li2021model", "@misc{}")})
    text = tex([wide(4, 2)], style=style)
    assert r"Method{-}0~\cite{li2021model}" in text and text.count(r"\cite") == 1
    assert text.startswith("% \\usepackage{booktabs,siunitx,graphicx}\n")
    assert text.count(r"\emph{personal models}") == text.count(r"\emph{one shared model}") == 1
    whole = tex([wide(4, 2)], True, Style(papers=style.papers, bibliography="t"))
    assert r"\bibliography{t}" in whole and "natbib" in whole


def test_24_methods_on_10_sets_fit_a_page() -> None:
    """Small letters first, then a rotated page, then blocks of columns below each other."""
    assert "sideways" not in tex([wide(24, 4)]) and r"\small" in tex([wide(24, 4)])
    assert "sideways" not in tex([wide(24, 10)]) and r"\scriptsize" in tex([wide(24, 10)])
    text = tex([wide(24, 11)])  # with an average
    assert r"\begin{sidewaystable}" in text and "rotating" in text
    blocks = tex([wide(24, 40)])
    assert blocks.count(r"\begin{tabular}") == 5 and "sideways" not in blocks
    assert blocks.count(r"\begin{table}") == 3 and blocks.count("(continued)") == 2
    assert blocks.count(r"\label") == 1


def test_it_compiles(nasty: list[ReportTable], tmp_path: Path) -> None:
    program = shutil.which("pdflatex")
    if program is None:
        pytest.skip("no pdflatex on this machine: the LaTeX was not compiled")
    every = "".join(map(chr, [*range(32, 127), *range(0xA1, 0x100)])) + "†±×≥≤–—…数"
    text = tex([*nasty, wide(24, 10), wide(24, 40)], True).replace(
        r"\end{document}", f"{escape_tex(every)}\n\\end{{document}}"
    )
    (tmp_path / "t.tex").write_text(text, encoding="utf-8")
    done = subprocess.run(
        [program, "-interaction=nonstopmode", "-halt-on-error", "-no-shell-escape", "-draftmode",
         "t.tex"],
        cwd=tmp_path, capture_output=True, text=True, errors="replace", timeout=120, check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:]
    assert done.stdout.count("Overfull \\hbox") <= 1  # the line of all signs, which has no blank
