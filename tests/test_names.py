"""Public names: each stands in one file of the package, and a function is no bare participle."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from tests.jobs import REPOSITORY

#: Names that several files may have, with the reason; at most ``MOST`` of them.
SHARED: Mapping[str, str] = {
    # what every file of a folder of plugins has
    "select": "figures", "draw": "figures", "rows": "figures",
    "read": "export formats", "write": "export formats",
    "flags": "verbs", "main": "verbs and processes",
    "load": "backbone loaders; fedvlm.load; dassl's clip", "make": "the two apps of Flower",
    # words of another project's interface, which its files import from fedvlm.compat
    "Datum": "Dassl", "DatasetBase": "Dassl", "Registry": "Dassl", "read_json": "Dassl",
    "write_json": "Dassl", "Transformer": "clip", "ImageTower": "clip", "build_model": "clip",
    "download": "clip",
    # a file that is copied out of the package, and stands alone there
    "Model": "export/runner.py", "Predictions": "the API's, and evaluation's on samples",
    # both ends of one conversation
    "ask": "relay", "online": "relay", "converse": "relay and site",
    "linear": "of a tree with the client axis, and of frozen layers",
}
MOST = 40
#: Adjectives and participles that say nothing of what a function returns.
BARE = re.compile(
    r"(aggregated|clipped|counted|decoded|disputed|employed|escaped|factored|federated|filtered|"
    r"firmed|folded|forked|gathered|guarded|installed|joined|known|laid|listed|measured|merged|"
    r"moved|named|needed|noised|numbered|opened|outvoted|packed|paired|pooled|pulled|ranked|sealed|"
    r"searched|shared|sheltered|shortened|shown|signed|sized|stacked|stratified|styled|thinned|"
    r"trained|unfinished|unpaired|unsealed|told|judged|settled|beaten|queued|licensed|cut|short|"
    r"plain|whole|present|missing|even|connected)"
)


def public(root: Path) -> dict[str, dict[str, type[ast.stmt]]]:
    """Return public top-level functions and classes: name -> file -> kind of statement."""
    found: dict[str, dict[str, type[ast.stmt]]] = defaultdict(dict)
    for path in sorted(root.joinpath("fedvlm").rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) \
                    and not node.name.startswith("_"):
                found[node.name][path.relative_to(root).as_posix()] = type(node)
    return found


def several(found: Mapping[str, Mapping[str, object]], but: Iterable[str] = SHARED) -> list[str]:
    """Return the names that stand in two files or more, with the files."""
    return [f"{name}: {', '.join(files)}" for name, files in sorted(found.items())
            if len(files) > 1 and name not in but]


def bare(found: Mapping[str, Mapping[str, object]]) -> list[str]:
    """Return the functions whose names are bare participles or adjectives, with their files."""
    return [f"{name}: {file}" for name, files in sorted(found.items())
            for file, kind in files.items() if kind is not ast.ClassDef and BARE.fullmatch(name)]


@pytest.fixture(scope="module")
def found() -> dict[str, dict[str, type[ast.stmt]]]:
    """The package's public names."""
    return public(REPOSITORY)


def test_a_public_name_stands_in_one_file(found: Mapping[str, Mapping[str, object]]) -> None:
    assert several(found) == []
    assert len(SHARED) <= MOST
    assert [name for name in SHARED if len(found.get(name, ())) < 2] == [], "no exception needed"


def test_functions_are_no_bare_participles(found: Mapping[str, Mapping[str, object]]) -> None:
    assert bare(found) == []


def test_the_rules_can_fail(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / "fedvlm" / name).mkdir(parents=True)
        (tmp_path / "fedvlm" / name / "x.py").write_text("def merged(): ...\nclass Cut: ...\n")
    planted = public(tmp_path)
    assert several(planted) == [
        "Cut: fedvlm/a/x.py, fedvlm/b/x.py", "merged: fedvlm/a/x.py, fedvlm/b/x.py",
    ]
    assert bare(planted) == ["merged: fedvlm/a/x.py", "merged: fedvlm/b/x.py"]
