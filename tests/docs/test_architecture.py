"""docs/architecture.md names only what exists, and its tree is that of the package."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from fedvlm.config.keys import default_schema
from tests.test_house import FLOORS

TOP = Path(__file__).resolve().parents[2]
DOCS = TOP / "docs"
PACKAGE = TOP / "fedvlm"
PAGE = DOCS / "architecture.md"
LONGEST = 120
SPAN = re.compile(r"`([^`\n]+)`")
CODE = ("fedvlm", "trainers", "scripts", "docs/site")  # and pyproject's configs hold no names
PATH = re.compile(r"[\w./-]+/[\w.-]*|[\w-]+\.(?:py|md|yaml)")
NAME = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")
KEY = re.compile(r"[A-Z]+(?:\.[A-Z_0-9]+)+")
FILES = (  # of a run and of a site, and patterns that stand for names
    "results.json", "metrics.jsonl", "log.txt", "manifest.json", "private.json", "site.yaml",
    "config.yaml", "ledger.json", "batches/<tag>", "models/", "state/", "states/.runs/", ".runs/",
    "workers/", "fedvlm/_repo",
)
OUTSIDE = ("sys.modules", "torch.", "gc.", "index_select", "expand", "addcmul", "add", "w")
Tree = dict[str, tuple[set[str], set[str]]]


@cache
def _sources() -> str:
    """The text of all code, in which a name has to occur."""
    return "\n".join(
        path.read_text(encoding="utf-8") for folder in CODE
        for path in sorted((TOP / folder).rglob("*.py"))
    )


@cache
def _words() -> frozenset[str]:
    """All that is defined in the code (classes, functions, attributes, arguments), and its texts.

    A text counts up to 40 characters: the name of a key, slot, stream or number of a record.
    """
    text = _sources()
    found = re.findall(r"\b(?:class|def)\s+(\w+)", text)
    found += re.findall(r"^\s*(?:self\.)?(\w+)\s*[:=]", text, re.MULTILINE)
    found += re.findall(r"^\s*(\w+(?:, \w+)+)(?: =|:)", text, re.MULTILINE)
    texts = re.findall(r"[\"']([^\"'\n]{1,40})[\"']", text)
    return frozenset(w for f in found for w in f.split(", ")) | frozenset(texts)


def path_of(name: str, near: Path | None = None) -> Path | None:
    """Return the file or folder of a path as pages write it; None where there is none."""
    folders = [TOP, PACKAGE, *([near] if near else []), PACKAGE / "distributed"]
    return next((folder / name for folder in folders if (folder / name).exists()), None)


def lacking(file: Path, names: str) -> list[str]:
    """Return which of ``names`` (a comma between them) a file does not define."""
    text = file.read_text(encoding="utf-8")
    defined = r"^\s*(?:(?:class|def)\s+{0}\b|{0}\s*[:=])"
    wanted = [part for name in names.split(",") for part in name.strip().split(".")]
    return [n for n in wanted if not re.search(defined.format(re.escape(n)), text, re.MULTILINE)]


def fault(span: str) -> str:
    """Return what is wrong with what stands between two backquotes; empty: nothing."""
    if span in FILES or span.startswith(OUTSIDE) or " " in span and ": " not in span:
        return ""
    place, colon, names = span.partition(": ")
    if colon and PATH.fullmatch(place):
        file = path_of(place)
        gone = lacking(file, names) if file else [place]
        return f"{span}: no {', '.join(gone)}" if gone else ""
    if KEY.fullmatch(span) and span.split(".")[0] in SECTIONS:
        return "" if span in SCHEMA else f"{span}: no such key"
    if span.startswith("fedvlm.") or NAME.fullmatch(span):
        unknown = [part for part in span.split(".") if part not in _words() | {"fedvlm"}]
        module = PACKAGE.joinpath(*span.split(".")[1:]).with_suffix(".py").exists()
        return f"{span}: no {', '.join(unknown)}" if unknown and not module else ""
    if PATH.fullmatch(span):
        return "" if path_of(span) else f"{span}: no such file"
    return ""


SCHEMA = default_schema()
SECTIONS = {key.split(".")[0] for key in SCHEMA}


def read_tree(text: str) -> Tree:
    """Return package -> its subfolders and what it imports, of the page's first block."""
    block = text.split("```\n")[1].replace("\n ", " ")
    out: Tree = {}
    for line in block.splitlines():
        name, rest = line.split(maxsplit=1)
        what, imports = rest.split("<- ")
        known = {"nothing": set(), "all of the above but compat": {*out} - {"compat"}}
        below = {word.rstrip("/") for word in what.split() if word.endswith("/")}
        out[name] = below, known.get(imports, set(imports.split()))
    return out


def test_the_tree_is_the_package() -> None:
    folders = {path.parent for path in PACKAGE.rglob("*.py")} - {PACKAGE}
    top = {folder for folder in folders if folder.parent == PACKAGE}
    there = {folder.name: {f.name for f in folders if f.parent == folder} for folder in top}
    tree = read_tree(PAGE.read_text(encoding="utf-8"))
    assert {name: below for name, (below, _) in tree.items()} == there
    assert {name: imports for name, (_, imports) in tree.items()} == {
        name: allowed for name, allowed in FLOORS.items() if name in there
    }


@pytest.mark.parametrize("page", [PAGE, *sorted((DOCS / "design").glob("*.md"))],
                         ids=lambda p: p.name)
def test_what_a_page_names_exists_in_short_lines(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    spans = sorted({span for span in SPAN.findall(text)})
    assert len(spans) > 20
    assert [said for said in map(fault, spans) if said] == []
    long = [n for n, line in enumerate(text.splitlines(), 1) if len(line) > LONGEST]
    assert long == []
    for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        assert (page.parent / link).is_file(), link


@pytest.mark.parametrize(("span", "right"), [
    ("federation/rounds.py", True), ("federation/gone.py", False), ("docs/files.md", True),
    ("federation/rounds.py: Federation.run", True), ("federation/rounds.py: Federation.gone", False),
    ("FED.CHUNK", True), ("FED.GONE", False), ("Context.fit", True), ("Context.melt", False),
    ("fedvlm.method", True), ("fedvlm.gone", False), ("LocalEngine", True), ("GoneEngine", False),
])
def test_a_planted_name_is_found(span: str, right: bool) -> None:
    assert (fault(span) == "") == right
