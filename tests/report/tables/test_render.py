"""Markdown, CSV and HTML: marks, and names that hold the format's own signs."""

from __future__ import annotations

import csv
import io
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from fedvlm.report.collect import collect
from fedvlm.report.tables.render import FORMATS, escape_markdown
from fedvlm.report.tables.table import ReportTable, Spec, tables
from tests.report.table_runs import write_seeds

NASTY = r"_a & 50% <b> #1 $x$ {y} ~z^2 \w |p| `q` [r] *s* é 数 'single' \"double\""
BRACKET = "[starts with a bracket"


@pytest.fixture()
def nasty(tmp_path: Path) -> list[ReportTable]:
    for trainer, values in {NASTY: [90.0, 92.0], BRACKET: [79.55, 81.45], "*": [70.0]}.items():
        write_seeds(tmp_path, trainer, values, extra_data="a_b & <c>")
    return tables(collect([tmp_path]), Spec(), f"fedvlm table --where 'tag={NASTY}'")


def cells_of(line: str) -> list[str]:
    """Split a pipe-table line at bars that are not escaped."""
    return [c.strip() for c in line.replace(r"\\", "\0").replace(r"\|", "\1").split("|")[1:-1]]


def test_markdown(nasty: list[ReportTable]):
    lines = FORMATS["md"](nasty, False).splitlines()
    rows = [cells_of(line) for line in lines if line.startswith("|")]
    assert {len(row) for row in rows} == {2}
    assert [row[1] for row in rows[2:]] == ["70.0 (n=1)†", "80.5 ± 1.3", "**91.0** ± 1.4"]
    assert "<b>" not in "\n".join(lines) and r"\<b\>" in "\n".join(lines)
    assert escape_markdown("a_b|c<d>\n") == r"a\_b\|c\<d\>\\n"


def test_text_is_aligned_and_escapes_nothing(nasty: list[ReportTable]):
    head, *rows = FORMATS["text"](nasty, False).splitlines()[:4]
    assert head.startswith("trainer ") and head.endswith("  Pets")
    assert rows[2].startswith(f"{NASTY}*  ") and rows[2].endswith("**91.0** ± 1.4")
    assert len({len(line) for line in (head, *rows)}) == 1


def test_csv_is_long_and_exact(nasty: list[ReportTable]):
    rows = list(csv.DictReader(io.StringIO(FORMATS["csv"](nasty, False))))
    found = {row["row"]: row for row in rows}
    one = found[f"{NASTY}*"]
    assert (float(one["mean"]), float(one["std"]), one["n"]) == (91.0, 2**0.5, "2")
    assert (one["column"], one["metric"], one["mark"]) == ("Pets", "personal", "best")
    assert (found["**"]["mark"], found["**"]["std"]) == ("fewer", "")


def test_html_is_well_formed_and_shows_names_as_they_are(nasty: list[ReportTable]):
    fragment = FORMATS["html"](nasty, False)
    root = ElementTree.fromstring(f"<div>{fragment}</div>")
    heads = [th.text for th in root.iter("th")]
    assert f"{NASTY}*" in heads and f"{BRACKET}*" in heads
    assert [s.text for s in root.iter("strong")] == ["91.0"]
    assert [u.text for u in root.iter("u")] == []
    assert {td.get("title") for td in root.iter("td")} == {"n = 1", "n = 2"}
    page = FORMATS["html"](nasty, True)
    ElementTree.fromstring(page.partition("\n")[2])
    assert "<script" not in page and "http" not in page
