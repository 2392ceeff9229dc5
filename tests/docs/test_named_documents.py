"""No file of the repository names a document that is not there."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]
TEXT = {".py", ".md", ".toml", ".yml", ".yaml", ".patch", ".sh", ".txt", ".cff", ""}
NAMED = re.compile(r"\w[\w./-]*\.(?:md|rst)\b|\bDESIGN\b")
ELSEWHERE = {  # a document that is named and not in the repository -> whose it is
    "acceptance.md": "written by fedvlm reproduce",
    "cases.md": "made by docs/site", "cli.md": "made by docs/site",
    "keys.md": "made by docs/site", "lines.md": "made by docs/site",
    "contributing.md": "made by docs/site", "fedtv.md": "made by docs/site",
    "FILE.md": "a name for the user's own", "gone.md": "a dead link that a test plants",
    "table.md": "written by fedvlm table", "t.md": "written by fedvlm table in its test",
    "DATASETS.md": "CoOp's page of data sets",
    "record.md": "written by fedvlm site record",
    "reproduced.md": "written by make publish TAKE=PACK",
    "results.md": "where docs/results/README.md was once, in the CHANGELOG",
}
SELF = "tests/docs/test_named_documents.py"


def tracked() -> list[str]:
    try:
        told = subprocess.run(  # noqa: S603
            ["git", "-C", str(TOP), "ls-files"], capture_output=True, text=True, check=True  # noqa: S607
        ).stdout.splitlines()
    except (OSError, subprocess.SubprocessError):
        told = []
    if not told:
        pytest.skip("no checkout of git")
    return told


def unknown(text: str, pages: set[str]) -> Iterator[str]:
    """Yield what a text names of documents that are not there.

    Args:
        pages: paths of the repository's documents.
    """
    names = {Path(page).name for page in pages}
    for found in NAMED.findall(text):
        _, docs, below = found.rpartition("docs/")
        name = found.rsplit("/", 1)[-1]
        made = name in ELSEWHERE
        there = f"docs/{below}" in pages if docs else name in names
        if not (there or made):
            yield found


def test_every_document_that_is_named_is_there() -> None:
    files = tracked()
    pages = {file for file in files if file.endswith((".md", ".rst"))}
    wrong = []
    for file in files:
        path = TOP / file
        if path.suffix in TEXT and path.is_file() and file != SELF and "/fixtures/" not in file:
            text = path.read_text(encoding="utf-8", errors="replace")
            wrong += [f"{file}: {name}" for name in unknown(text, pages)]
    assert wrong == []


def test_a_planted_name_is_found() -> None:
    pages = {"docs/files.md", "README.md"}
    text = "see docs/files.md, README.md, docs/missing.md, personalized_fl.md 5.1, DESIGN 4.10"
    assert list(unknown(text, pages)) == ["docs/missing.md", "personalized_fl.md", "DESIGN"]
    assert not ELSEWHERE.keys() & {Path(file).name for file in tracked()}
