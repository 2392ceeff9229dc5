"""The pages on how the package is built name only what exists; the tree is the package's."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from fedvlm.config.keys import default_schema
from tests.test_house import FLOORS

TOP = Path(__file__).resolve().parents[2]
DOCS, PACKAGE = TOP / "docs", TOP / "fedvlm"
PAGE = DOCS / "architecture.md"
PAGES = [PAGE, *sorted((DOCS / "design").glob("*.md"))]
LONGEST = 120
SPAN = re.compile(r"`([^`\n]+)`")
PATH = re.compile(r"[\w./-]*/[\w.-]*|[\w-]+\.(?:py|md|yaml)")
NAME = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")
DEFINED = r"^\s*(?:(?:class|def) {0}\b|(?:self\.)?(?:\w+, )*{0}(?:, \w+)*(?:\[.*?\])?(?::| =))"
CLASS = re.compile(r"^class (\w+)(?:\[\w+\])?(?:\(([^)]*)\))?:", re.MULTILINE)
MADE = {  # what a wheel, a run, a site or a frame has, not the repository
    "fedvlm/_repo", "results.json", "metrics.jsonl", "log.txt", "manifest.json", "private.json",
    "site.yaml", "ledger.json", "models/", "fedvlm-wire/1", "fedvlm-socket/1", "fedvlm-site/1",
}
FOREIGN = ("sys.", "torch.", "gc.", "expand", "index_select", "addcmul", "add", "NaN")
SCHEMA = default_schema()
SECTIONS = {key.partition(".")[0] for key in SCHEMA}


@cache
def sources() -> dict[Path, str]:
    """The code in which a name may be defined."""
    folders = [TOP / "trainers", PACKAGE, TOP / "tests"]
    files = [path for folder in folders for path in sorted(folder.rglob("*.py"))]
    return {p: p.read_text(encoding="utf-8") for p in files if p != Path(__file__)}


@cache
def classes() -> dict[str, tuple[str, set[str]]]:
    """The text of the file of each class, and its bases."""
    return {
        name: (text, set(re.findall(r"\w+", bases)))
        for path, text in sources().items() if PACKAGE in path.parents
        for name, bases in CLASS.findall(text)
    }


def defines(text: str, name: str) -> bool:
    """Say whether a file's text defines a class, a function, a field or a constant."""
    return re.search(DEFINED.format(re.escape(name)), text, re.MULTILINE) is not None


def has(cls: str, name: str) -> bool:
    """Say whether the file of a class, or of one of its bases, defines a name."""
    text, bases = classes().get(cls, ("", set()))
    return bool(text) and (defines(text, name) or any(has(base, name) for base in bases))


def is_named(span: str) -> bool:
    """Say whether a name is a module, in a class, defined anywhere, or a text of the code."""
    head, _, rest = span.partition(".")
    if head == "fedvlm":
        return PACKAGE.joinpath(*rest.split(".")).with_suffix(".py").is_file()
    if head in classes() and rest:
        return has(head, rest)
    known = (PACKAGE / span).is_dir() or f'"{span}"' in whole()
    return known or all(defines(whole(), part) for part in span.split("."))


@cache
def whole() -> str:
    return "\n".join(sources().values())


def fault(span: str) -> str:
    """Return what is wrong with what stands between two backquotes; empty: nothing."""
    place, colon, names = span.partition(": ")
    if span in MADE or span.startswith(FOREIGN) or "<" in span:
        return ""
    if PATH.fullmatch(place):
        file = next((f / place for f in (TOP, PACKAGE) if (f / place).exists()), None)
        if file is None:
            return f"{span}: no such file"
        text = file.read_text(encoding="utf-8") if colon else ""
        lost = [n for n in re.findall(r"\w+", names) if not defines(text, n)]
        return f"{span}: it has no {', '.join(lost)}" if lost else ""
    if span.partition(".")[0] in SECTIONS and "." in span:
        return "" if span in SCHEMA else f"{span}: no such key"
    return f"{span}: not there" if NAME.fullmatch(span) and not is_named(span) else ""


def read_tree(text: str) -> dict[str, tuple[set[str], set[str]]]:
    """Return package -> its subfolders and what it may import, of a page's first block."""
    out: dict[str, tuple[set[str], set[str]]] = {}
    for line in text.split("```\n")[1].replace("\n ", " ").splitlines():
        name, rest = line.split(maxsplit=1)
        what, imports = rest.split("<- ")
        words = {"nothing": set(), "all of the above but compat": set(out) - {"compat"}}
        below = {word.rstrip("/") for word in what.split() if word.endswith("/")}
        out[name] = below, words.get(imports, set(imports.split()))
    return out


def test_the_tree_is_the_package() -> None:
    folders = {path.parent for path in PACKAGE.rglob("*.py")} - {PACKAGE}
    top = {folder.name for folder in folders if folder.parent == PACKAGE}
    below = {name: {f.name for f in folders if f.parent == PACKAGE / name} for name in top}
    tree = read_tree(PAGE.read_text(encoding="utf-8"))
    assert {name: inner for name, (inner, _) in tree.items()} == below
    assert {name: may for name, (_, may) in tree.items()} == {n: FLOORS[n] for n in top}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_names_is_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    spans = set(SPAN.findall(text))
    assert len(spans) > 50
    assert sorted(filter(None, map(fault, spans))) == []
    assert [n for n, line in enumerate(text.splitlines(), 1) if len(line) > LONGEST] == []


@pytest.mark.parametrize("span", [
    "federation/gone.py", "gone/", "docs/gone.md", "federation/rounds.py: Gone", "FED.GONE",
    "Context.melt", "Federation.stream", "GoneEngine", "fedvlm.gone", "tests/test_gone.py",
])
def test_a_planted_name_is_found(span: str) -> None:
    assert fault(span).startswith(span)
