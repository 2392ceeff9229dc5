"""The house rules of docs/architecture.md and DESIGN.md 2: ``ast``, and one run of all imports."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedvlm.federation.cards import card, trainer_files

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = sorted((ROOT / "fedvlm").rglob("*.py"))
TRAINERS = sorted((ROOT / "trainers").glob("*.py"))
OURS = [*PACKAGE, *TRAINERS, ROOT / "federated_main.py"]
MAX_FILE, MAX_FUNCTION = 300, 50

BASE = {"base", "config"}
FILES = {"runs", "console"}
MAY = {  # room -> rooms it may import (its own besides), docs/architecture.md section 1
    "base": set(),
    "config": {"base"},
    "data": BASE,
    "models": BASE,
    "federation": {"models", *BASE},
    "trainers": {"federation", "models", *BASE},
    "evaluation": {"federation", "models", *BASE},
    "runs": BASE,
    "console": BASE,
    "report": BASE | FILES,
    "check": {"federation", "models", *BASE, *FILES},
    "bench": {"data", "models", "federation", "evaluation", *BASE, *FILES},
    "cli": {"data", "models", "federation", "evaluation", "report", "check", "bench", *BASE,
            *FILES},
}
PREFIXES = {  # first part of a module's name below fedvlm -> room
    "__version__": "base", "errors": "base", "rng": "base", "registry": "base",
    "config": "config", "runs": "runs",
    "run": "runs", "atomic": "runs", "manifest": "runs", "console": "console", "cli": "cli",
}
CARD = (
    "Paper", "Equations", "Shared", "Personal", "Frozen", "Defaults", "Departures from the paper",
    "Departures from the authors' code", "Extra data", "Cost", "Command",
)


def room_of(module: str) -> str:
    """Return the room of ``fedvlm.a.b``; of a trainer file: trainers."""
    parts = module.split(".")
    if parts[0] != "fedvlm":
        return "trainers"
    if parts[-1] == "__main__":
        return "cli"
    if parts[1] in MAY:
        return parts[1]  # a folder
    return PREFIXES.get(parts[1]) or PREFIXES[parts[1].split("_")[0]]


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line, absolute module) of every import, lazy and type-checking ones included."""
    package = module_of(path).split(".")
    if path.name != "__init__.py":
        package = package[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            if module == "fedvlm":  # from fedvlm import rng
                yield from ((node.lineno, f"fedvlm.{alias.name}") for alias in node.names)
            else:
                yield node.lineno, module


def violations(path: Path) -> list[str]:
    room = room_of(module_of(path))
    found = []
    for line, module in imports(path):
        if module.split(".")[0] != "fedvlm" or module == "fedvlm":
            continue
        other = room_of(module)
        if other != room and other not in MAY[room]:
            found.append(f"{path.relative_to(ROOT)}:{line}: {room} imports {module} ({other})")
    return found


@pytest.mark.parametrize("path", [*PACKAGE, *TRAINERS], ids=lambda p: str(p.relative_to(ROOT)))
def test_who_imports_whom(path: Path) -> None:
    if path == ROOT / "fedvlm" / "__init__.py":
        assert list(imports(path)) == []
        return
    assert violations(path) == []


def test_the_import_rule_can_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    texts = {
        "fedvlm/data/x.py": "def f():\n    from fedvlm.models import text\n",
        "fedvlm/models/y.py": "from ..data import images\n",
        "fedvlm/run_z.py": "import fedvlm.core.trees\n",
        "trainers/mine.py": "from fedvlm import cli\n",
    }
    for name, text in texts.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        assert len(violations(path)) == 1, name


def test_nobody_imports_trainers_by_name() -> None:
    others = [*(ROOT / "tests").rglob("*.py"), ROOT / "federated_main.py"]
    for path in [*PACKAGE, *TRAINERS, *others]:
        for line, module in imports(path):
            assert module.split(".")[0] != "trainers", f"{path}:{line} imports {module}"


def test_report_knows_no_tensors() -> None:
    for path in (ROOT / "fedvlm" / "report").glob("*.py"):
        for line, module in imports(path):
            assert module.split(".")[0] != "torch", f"{path}:{line} imports {module}"


@pytest.mark.parametrize("path", OURS, ids=lambda p: str(p.relative_to(ROOT)))
def test_budgets(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    lines = text.count("\n") + (not text.endswith("\n") and text != "")
    assert lines <= MAX_FILE, f"{path.relative_to(ROOT)} has {lines} lines"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            size = (node.end_lineno or node.lineno) - node.lineno + 1
            assert size <= MAX_FUNCTION, f"{path.relative_to(ROOT)}: {node.name} has {size} lines"


@pytest.mark.parametrize("path", OURS, ids=lambda p: str(p.relative_to(ROOT)))
def test_only_console_writes_to_the_screen(path: Path) -> None:
    if path.name.startswith("console"):
        return
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            bad = name == "print" or re.fullmatch(r"sys\.(stdout|stderr)(\.buffer)?\.write", name)
            assert not bad, f"{path.relative_to(ROOT)}:{node.lineno} calls {name}"


PROBE = '''
import contextlib, importlib, io, json, os, pathlib, random, sys, warnings
import numpy, torch, torchvision, yacs.config, safetensors.torch, open_clip, sklearn.datasets
for optional in ("transformers", "peft", "rich.live", "matplotlib", "PIL.Image", "scipy.stats"):
    with contextlib.suppress(ImportError):
        importlib.import_module(optional)

def world():
    return {
        "environment": dict(os.environ), "folder": os.getcwd(), "warnings": list(warnings.filters),
        "random": random.getstate(), "numpy": repr(numpy.random.get_state()),
        "torch": torch.get_rng_state().tolist(), "threads": torch.get_num_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "dtype": torch.get_default_dtype(), "hook": sys.excepthook, "files": sorted(os.listdir()),
    }

changed, before = [], world()
import fedvlm
root = pathlib.Path(fedvlm.__file__).parent
names = [".".join(("fedvlm", *p.relative_to(root).with_suffix("").parts)) for p in
         sorted(root.rglob("*.py"))]
from fedvlm.federation.discovery import load_trainer, trainer_files
jobs = [(n.removesuffix(".__init__"), importlib.import_module) for n in names]
jobs += [(str(f), load_trainer) for f in trainer_files().values()]
jobs += [(sys.argv[1], load_trainer)]
for name, load in jobs:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            load(name)
        except Exception as error:
            changed.append(f"{name} cannot be loaded: {error!r}")
    after = world()
    changed += [f"{name} changes {k}" for k in after if after[k] != before[k]]
    changed += [f"{name} prints {out.getvalue()[:60]!r}"] if out.getvalue() else []
    before = after
print(json.dumps({"changed": changed, "loaded": len(jobs), "cuda": torch.cuda.is_available()}))
'''


BAD = '''
import os, random, torch
from fedvlm.federation.trainer import Trainer

os.environ["CUDA_VISIBLE_DEVICES"] = "0"
torch.manual_seed(7)
random.random()
print("hello")

class Bad(Trainer):
    name = "Bad"
'''


def test_importing_leaves_the_process_alone(tmp_path: Path) -> None:
    """Every module loads with CUDA hidden; environment, folder, generators stay as they were.

    The last one loaded is a bad one of our own, to see that the probe notices.
    """
    bad = tmp_path / "bad.py"
    bad.write_text(BAD)
    env = os.environ | {"CUDA_VISIBLE_DEVICES": "", "PYTHONDONTWRITEBYTECODE": "1"}
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT), env.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", PROBE, str(bad)], cwd=tmp_path, env=env, capture_output=True,
        text=True, timeout=300, check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    said = [f"{bad} changes {k}" for k in ("environment", "random", "torch")]
    assert found["changed"] == [*said, f"{bad} prints 'hello\\n'"]
    assert found["cuda"] is False
    assert found["loaded"] == len(PACKAGE) + len(trainer_files()) + 1


def fields(text: str) -> dict[str, str]:
    """Return the ``Field: text`` parts of a card; continued lines are indented."""
    found = re.findall(r"^([A-Z][^:\n]*):(.*(?:\n[ \t]+.*)*)", text, flags=re.MULTILINE)
    return {name: " ".join(value.split()) for name, value in found}


@pytest.mark.parametrize("field", CARD)
@pytest.mark.parametrize("path", TRAINERS, ids=lambda p: p.stem)
def test_every_card_has_every_field(path: Path, field: str) -> None:
    found = fields(card(path))
    assert found.get(field), f"the card of {path.stem} lacks '{field}:' (it has {list(found)})"


@pytest.mark.parametrize("path", TRAINERS, ids=lambda p: p.stem)
def test_every_card_opens_with_its_name_and_names_a_year(path: Path) -> None:
    text = card(path)
    name, colon, line = text.partition("\n")[0].partition(":")
    assert colon and line.strip() and name.replace("-", "_").lower().replace("_", "") == (
        path.stem.replace("_", "")
    )
    assert re.search(r"\b(19|20)\d\d\b", fields(text)["Paper"])
