"""SECURITY.md promises what tests hold; what is installed has licences that allow it."""

from __future__ import annotations

import ast
import lzma
import re
from importlib.metadata import PackageNotFoundError, metadata, requires
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
PROMISES = 8
# Licences under which no part of a permissive package can be handed on.
FORBIDDEN = re.compile(
    r"\b(AGPL|GPL|Affero|GNU General Public|SSPL|Non-?Commercial|CC-BY-NC)", re.IGNORECASE)


def test_every_promise_names_tests_that_exist() -> None:
    parts = re.split(r"^\d\. ", TEXT, flags=re.MULTILINE)[1:]
    assert len(parts) == PROMISES
    for part in parts:
        named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", part)
        assert named, part[:60]
        for file, name in named:
            tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
            there = {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)}
            assert name in there, f"{file}::{name}"


def needed(name: str = "fedvlm") -> set[str]:
    """Return the names of what a plain install brings, with what that brings."""
    found: set[str] = set()
    queue = [name]
    while queue:
        for line in requires(queue.pop()) or []:
            word = re.match(r"[\w.-]+", line)
            if word is None or "extra ==" in line or word[0].lower() in found:
                continue
            try:
                metadata(word[0])
            except PackageNotFoundError:
                continue  # of another platform
            found.add(word[0].lower())
            queue.append(word[0])
    return found


def test_no_requirement_has_a_forbidden_licence() -> None:
    names = needed()
    assert {"torch", "numpy", "pillow"} <= names
    for name in names:
        about = metadata(name)
        words = [about.get("License-Expression") or "", (about.get("License") or "")[:200],
                 *(about.get_all("Classifier") or [])]
        licences = [w for w in words if "classifier" not in w.lower() and (
            w in words[:2] or w.startswith("License"))]
        bad = [w for w in licences if FORBIDDEN.search(w) and "Lesser" not in w and "LGPL" not in w]
        assert not bad, f"{name}: {bad}"


@pytest.mark.parametrize("word", ["GPL-3.0", "GNU General Public License", "CC-BY-NC-4.0"])
def test_a_forbidden_licence_is_seen(word: str) -> None:
    assert FORBIDDEN.search(word) and not FORBIDDEN.search("BSD-3-Clause")


@pytest.mark.slow
@pytest.mark.parametrize("pack", sorted((ROOT / "docs/results/cells").glob("*.xz")),
                         ids=lambda pack: pack.name)
def test_published_runs_name_no_machine(pack: Path) -> None:
    """scripts/scrub_cells.py took hosts, process numbers and folders out of them."""
    text = lzma.decompress(pack.read_bytes()).decode()
    found = re.search(
        r'\\"(host|pid|folder)\\":|(?<![\w.])/(home|Users|root|work|tmp)/\w+', text)
    assert found is None, found
