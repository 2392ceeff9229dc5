"""fedvlm.method: what it gives stands in one list, and rare tools are loaded when asked for."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import fedvlm.method as method

ROOT = Path(__file__).resolve().parents[1]
PROBE = """
import json, sys
import fedvlm.method
before = set(sys.modules)
from fedvlm.method import TemplateTrainer, distill, pull
print(json.dumps([sorted(before), sorted(sys.modules)]))
"""


def imported() -> dict[str, str]:
    """Return name -> module of every import in the file, those for type checkers included."""
    tree = ast.parse(Path(method.__file__).read_text(encoding="utf-8"))
    return {
        alias.name: node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if node.module and node.module.startswith(("fedvlm.", "yacs."))
    }


def test_every_name_is_given_from_where_a_type_checker_sees_it() -> None:
    names = imported()
    assert sorted(method.__all__) == sorted(names)
    for name, module in names.items():
        value = getattr(method, name)
        home = value.__name__ if isinstance(value, ModuleType) else f"{module}.{name}"
        assert home == f"{module}.{name}"
        assert name in dir(method)
    with pytest.raises(AttributeError, match="no attribute 'Trainr'"):
        _ = method.Trainr


def test_every_name_is_in_the_docstring() -> None:
    text = method.__doc__ or ""
    assert [name for name in method.__all__ if f"``{name}``" not in text] == []


def test_every_name_is_used_by_a_method_or_shown() -> None:
    """A promise that nobody needs is dropped."""
    files = [*(ROOT / "trainers").glob("*.py"), *(ROOT / "docs/cookbook").glob("*.py"),
             ROOT / "fedvlm/cli/methods/_templates.py", ROOT / "docs/own_method.md"]
    text = "\n".join(f.read_text(encoding="utf-8") for f in files)
    words = set(text.replace(",", " ").split())
    assert [name for name in method.__all__ if name not in words] == []


def test_rare_tools_are_loaded_when_they_are_asked_for() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROBE], capture_output=True, text=True, check=True, cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)}, timeout=300,
    )
    before, after = (set(modules) for modules in json.loads(done.stdout))
    tools = "fedvlm.federation.toolbox"
    rare = {f"{tools}.{name}" for name in ("distill", "moments", "privacy", "templates")} | {
        "fedvlm.federation.peft_trainer", "fedvlm.federation.module_trainer",
        "fedvlm.models.adapt.gates", "scipy.special",
    }
    assert before & rare == set()
    assert {f"{tools}.distill", f"{tools}.templates"} <= after
    assert f"{tools}.moments" not in after
