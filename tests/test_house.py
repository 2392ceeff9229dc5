"""The package's rules: layers, sizes, imports that wait (``docs/architecture.md`` 1)."""

from __future__ import annotations

import ast
import gc
import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from fedvlm.federation.cards import card, fields, trainer_files
from tests.waiting import WAITING

ROOT = Path(__file__).resolve().parents[1]
TRAINERS = sorted((ROOT / "trainers").glob("*.py"))
LOOSE = {"__init__", "__main__", "method"}  # modules of fedvlm/ that are in no room
MAX_FILES, MAX_LINES, MAX_FUNCTION, PREFIX = 15, 700, 80, 3
MAX_CLASS, MAX_METHODS = 300, 20

# Room -> the rooms that it may import besides itself. Read from the top: data flows down.
FLOORS: Mapping[str, set[str]] = {
    "core": set(),
    "config": {"core"},
    "console": {"core"},
    "runs": {"core", "config"},
    "models": {"core"},
    "data": {"core", "config"},
    "federation": {"core", "config", "models"},
    "evaluation": {"core", "models", "federation"},
    "compat": {"core", "config", "models", "federation"},
    "distributed": {"core", "config", "runs", "models", "data", "federation", "evaluation"},
    "report": {"core", "config", "console", "runs"},
    "check": {"core", "config", "models", "federation", "runs"},
    "export": {"core", "config", "models", "federation"},
    "job": {"core", "config", "console", "runs", "models", "data", "federation", "evaluation",
            "distributed", "report"},
    "advise": {"core", "config", "runs", "models", "data", "federation", "evaluation", "job"},
    "sweep": {"core", "config", "console", "runs", "models", "data", "federation", "report",
              "job"},
    "recipes": {"core", "config", "models", "data", "federation", "report", "runs", "job", "sweep"},
    "api": {"core", "config", "console", "runs", "models", "data", "federation", "evaluation",
            "report", "export", "job"},
    "cli": {"core", "config", "console", "runs", "models", "data", "federation", "evaluation",
            "distributed", "report", "check", "export", "job", "api", "sweep",
            "recipes", "advise"},
    "evidence": {"core", "config", "console", "runs", "models", "data", "federation", "evaluation",
                 "report", "job", "sweep", "cli"},  # scripts/evidence: outside the package
    "method": {"core", "config", "models", "federation"},  # fedvlm/method.py
    "trainers": {"method"},
}  # fmt: skip
CARD = (
    "Paper", "Equations", "Shared", "Personal", "Frozen", "Defaults", "Knobs",
    "Departures from the paper",
    "Departures from the authors' code", "Extra data", "Cost", "Claim", "Command",
)


def walk_all(files: Iterable[Path]) -> dict[Path, list[ast.AST]]:
    """Return all nodes of each file, for all rules; the garbage collector need not look at them."""
    on = gc.isenabled()
    gc.disable()
    try:
        return {p: list(ast.walk(ast.parse(p.read_text(encoding="utf-8")))) for p in files}
    finally:
        if on:
            gc.enable()


class House:
    """The package below a folder: its modules, and who imports whom (waiting imports included)."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.files = [*sorted((root / "fedvlm").rglob("*.py")),
                      *sorted((root / "trainers").glob("*.py")),
                      *sorted((root / "scripts" / "evidence").rglob("*.py"))]
        self.nodes = walk_all(self.files)
        self.modules = {self.module(p): p for p in self.files}

    def module(self, path: Path) -> str:
        """Return the dotted name of a file."""
        parts = path.relative_to(self.root).with_suffix("").parts
        parts = parts[1:] if parts[0] == "scripts" else parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    def name(self, path: Path) -> str:
        """Return a file's path as a message has it."""
        return path.relative_to(self.root).as_posix()

    def room(self, module: str) -> str:
        """Return the room of ``fedvlm.room.file``; ``cli`` for ``__main__``, which starts it."""
        parts = module.split(".")
        if parts[0] != "fedvlm":
            return parts[0]
        return {"__main__": "cli"}.get(parts[1], parts[1]) if len(parts) > 1 else ""

    def targets(self, path: Path, node: ast.stmt) -> Iterator[str]:
        """Yield the modules, ours by their full name, that an import statement loads."""
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = self.module(path).split(".")
            package = package if path.name == "__init__.py" else package[:-1]
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                inner = f"{module}.{alias.name}"
                yield inner if inner in self.modules else module

    def imports(self, path: Path) -> Iterator[tuple[int, str]]:
        """Yield (line, module) of every import in a file, wherever it stands."""
        for node in self.nodes[path]:
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                line = node.lineno
                yield from ((line, target) for target in self.targets(path, node))

    def waiting(self, path: Path) -> Iterator[tuple[int, str]]:
        """Yield (line, module) of the imports inside functions."""
        functions = [(node.lineno, node.end_lineno or node.lineno) for node in self.nodes[path]
                     if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
        yield from ((line, module) for line, module in self.imports(path)
                    if any(first <= line <= last for first, last in functions))

    @cached_property
    def graph(self) -> dict[str, set[str]]:
        """Return module -> modules of ours that it imports."""
        edges: dict[str, set[str]] = defaultdict(set)
        for path in self.files:
            here = self.module(path)
            edges[here] |= {m for _, m in self.imports(path) if m in self.modules and m != here}
        return edges

    def rooms(self) -> dict[str, set[str]]:
        """Return room -> other rooms that it imports."""
        edges: dict[str, set[str]] = defaultdict(set)
        for here, others in self.graph.items():
            edges[self.room(here)] |= {self.room(o) for o in others} - {self.room(here), ""}
        return edges


def circle(edges: Mapping[str, set[str]]) -> list[str]:
    """Return a round trip through the graph, or nothing where there is none."""
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def climbs(house: House) -> list[str]:
    """Return the imports that go to a room which the floors do not allow."""
    lines = []
    for path in house.files:
        room = house.room(house.module(path))
        for line, module in house.imports(path):
            if module.split(".")[0] == "trainers":
                lines.append(f"{house.name(path)}:{line} imports a trainer by name")
            ours = module.split(".")[0] in ("fedvlm", "evidence")
            if not ours or module == "fedvlm" or not room:
                continue
            other = house.room(module)
            if other != room and other not in FLOORS.get(room, set()):
                lines.append(f"{house.name(path)}:{line}: {room} imports {module} ({other})")
    return lines


def crowds(house: House) -> list[str]:
    """Return what is too large: folders, files, functions; and what lies loose or unsorted."""
    lines, folders = [], defaultdict(list)
    for path in house.files:
        if path.parent.name != "trainers":
            folders[path.parent].append(path)
        text = path.read_text(encoding="utf-8")
        if (size := text.count("\n")) > MAX_LINES:
            lines.append(f"{house.name(path)} has {size} lines")
        for node in house.nodes[path]:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                size = (node.end_lineno or node.lineno) - node.lineno + 1
                if size > MAX_FUNCTION:
                    lines.append(f"{house.name(path)}: {node.name} has {size} lines")
    for folder, paths in folders.items():
        stems = [p.stem for p in paths if p.stem != "__init__"]
        if len(stems) > MAX_FILES:
            lines.append(f"{house.name(folder)}/ holds {len(stems)} files")
        heads = [s.partition("_")[0] for s in stems]
        lines += [f"{house.name(folder)}/{h}_* wants a folder" for h in set(heads)
                  if h and heads.count(h) >= PREFIX]
    top = house.root / "fedvlm"
    lines += [f"fedvlm/{p.name} lies loose" for p in top.glob("*.py") if p.stem not in LOOSE]
    return lines + [f"fedvlm/{f.name}/ is no room of FLOORS" for f in top.iterdir()
                    if (f / "__init__.py").exists() and f.name not in FLOORS]


def large_classes(house: House) -> list[str]:
    """Return the classes of more than 300 lines that have more than 20 public methods, too.

    Fields are not counted, properties are. ``Trainer`` is what methods fill in: its shape stays.
    """
    lines = []
    for path in house.files:
        for node in house.nodes[path]:
            if not isinstance(node, ast.ClassDef) or node.name == "Trainer":
                continue
            size = (node.end_lineno or node.lineno) - node.lineno + 1
            methods = {f.name for f in node.body if isinstance(f, ast.FunctionDef)}
            public = sum(not name.startswith("_") for name in methods)
            if size > MAX_CLASS and public > MAX_METHODS:
                lines.append(
                    f"{house.name(path)}: {node.name} has {size} lines, {public} public methods"
                )
    return lines


@pytest.fixture(scope="module")
def house() -> House:
    return House(ROOT)


def test_there_are_no_circles(house: House) -> None:
    assert circle(house.graph) == []
    assert circle(house.rooms()) == []


def test_imports_go_down_the_floors(house: House) -> None:
    assert climbs(house) == []


def strangers(path: Path, text: str) -> list[str]:
    """Return the imports of a method's file that are not fedvlm.method, torch or standard."""
    lines = []
    for node in ast.walk(ast.parse(text)):
        modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            modules = [node.module or "." * node.level]
        lines += [
            f"{path.name}:{node.lineno} imports {module}" for module in modules
            if module != "fedvlm.method"
            and module.split(".")[0] not in {"torch", *sys.stdlib_module_names}
        ]
    return lines


@pytest.mark.parametrize("folder", ["trainers", "docs/cookbook"])
def test_methods_import_fedvlm_method_alone(folder: str) -> None:
    files = sorted((ROOT / folder).glob("*.py"))
    assert len(files) >= 10
    assert [s for f in files for s in strangers(f, f.read_text(encoding="utf-8"))] == []
    text = "import fedvlm\nfrom fedvlm.core import rng\nfrom .fedavg import FedAvg\nimport yacs\n"
    assert len(strangers(Path("own.py"), text)) == 4


def test_nothing_is_too_large_or_loose(house: House) -> None:
    assert crowds(house) == []


def test_classes_are_one_idea(house: House) -> None:
    assert large_classes(house) == []


@pytest.mark.parametrize(("name", "methods", "lines", "fits"), [
    ("Both", MAX_METHODS + 1, MAX_CLASS, False), ("Many", MAX_METHODS + 1, 0, True),
    ("Long", MAX_METHODS, MAX_CLASS, True), ("Trainer", MAX_METHODS + 1, MAX_CLASS, True),
])
def test_the_rule_for_classes_can_fail(
    tmp_path: Path, name: str, methods: int, lines: int, fits: bool
) -> None:
    path = tmp_path / "fedvlm" / "wide.py"
    path.parent.mkdir()
    body = [f"    def m{i}(self): ..." for i in range(methods)] + ["    def _p(self): ..."]
    path.write_text("\n".join([f"class {name}:", *body, "    x = [", *[""] * lines, "    ]", ""]))
    assert (large_classes(House(tmp_path)) == []) == fits


def test_imports_wait_only_for_a_reason(house: House) -> None:
    """``WAITING`` says why; it holds no line that is not needed any more."""
    there = {f"{house.name(p)}: {m}" for p in house.files for _, m in house.waiting(p)}
    table = {
        f"{file}: {module}" for file, reasons in WAITING.items()
        for modules in reasons.values() for module in modules
    }
    assert sorted(there - table) == [], "at the top, or with a reason in tests/waiting.py"
    assert sorted(table - there) == [], "gone from the code: drop the line"
    for why in {why for reasons in WAITING.values() for why in reasons}:
        assert why.split(":")[0] in ("start-up", "optional"), why


def node_name(node: ast.expr) -> str:
    """Return the last word of a name or an attribute: most calls need no more."""
    return getattr(node, "id", "") or getattr(node, "attr", "")


def test_report_knows_no_tensors_and_only_the_console_writes(house: House) -> None:
    for path in house.files:
        room = house.room(house.module(path))
        if room == "report":
            assert all(m.split(".")[0] != "torch" for _, m in house.imports(path)), path
        if room == "console":
            continue
        for node in house.nodes[path]:
            if isinstance(node, ast.Call) and node_name(node.func) in ("print", "write"):
                call = ast.unparse(node.func)
                bad = call == "print" or re.fullmatch(
                    r"sys\.(stdout|stderr)(\.buffer)?\.write", call
                )
                assert not bad, f"{house.name(path)}:{node.lineno} calls {call}"


def test_the_rules_can_fail(tmp_path: Path) -> None:
    texts = {
        "fedvlm/__init__.py": "", "fedvlm/data/__init__.py": "",
        "fedvlm/data/x.py": "def f():\n    from fedvlm.models import text\n",
        "fedvlm/data/y_a.py": "from . import y_b\n", "fedvlm/data/y_b.py": "from . import y_a\n",
        "fedvlm/data/y_c.py": "\n" * (MAX_LINES + 1),
        "fedvlm/models/__init__.py": "", "fedvlm/models/text.py": "import fedvlm.data.x\n",
        "fedvlm/loose.py": "", "fedvlm/attic/__init__.py": "",
        "trainers/mine.py": "from fedvlm.cli import main\n",
        "scripts/evidence/__init__.py": "", "scripts/evidence/page.py": "import fedvlm.data.x\n",
        "fedvlm/data/z.py": "from evidence import page\n",
    } | {f"fedvlm/runs/f{chr(97 + i)}.py": "" for i in range(MAX_FILES + 1)}
    for name, text in texts.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    house = House(tmp_path)
    pairs = ({"fedvlm.data.x", "fedvlm.models.text"}, {"fedvlm.data.y_a", "fedvlm.data.y_b"})
    assert set(circle(house.graph)) in pairs
    assert set(circle(house.rooms())) in ({"data", "models"}, {"data", "evidence"})
    assert [line.split(":")[0] for line in climbs(house)] == [
        "fedvlm/data/x.py", "fedvlm/data/z.py", "fedvlm/models/text.py", "trainers/mine.py",
    ]
    assert sorted(crowds(house)) == [
        "fedvlm/attic/ is no room of FLOORS", "fedvlm/data/y_* wants a folder",
        f"fedvlm/data/y_c.py has {MAX_LINES + 1} lines", "fedvlm/loose.py lies loose",
        f"fedvlm/runs/ holds {MAX_FILES + 1} files",
    ]
    assert [m for _, m in house.waiting(tmp_path / "fedvlm/data/x.py")] == ["fedvlm.models.text"]


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
evidence = root.parent / "scripts" / "evidence"
names += [".".join(("evidence", *p.relative_to(evidence).with_suffix("").parts)) for p in
          sorted(evidence.rglob("*.py")) if p.stem != "__main__"]
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
from fedvlm.method import Trainer

os.environ["CUDA_VISIBLE_DEVICES"] = "0"
torch.manual_seed(7)
random.random()
print("hello")

class Bad(Trainer):
    name = "Bad"
'''


@pytest.mark.slow
def test_importing_leaves_the_process_alone(tmp_path: Path) -> None:
    """Every module loads with CUDA hidden; environment, folder, generators stay as they were.

    The last one loaded is a bad one of our own, to see that the probe notices.
    """
    bad = tmp_path / "bad.py"
    bad.write_text(BAD)
    env = os.environ | {"CUDA_VISIBLE_DEVICES": "", "PYTHONDONTWRITEBYTECODE": "1"}
    env["PYTHONPATH"] = os.pathsep.join(
        [str(ROOT), str(ROOT / "scripts"), env.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", PROBE, str(bad)], cwd=tmp_path, env=env, capture_output=True,
        text=True, timeout=300, check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    said = [f"{bad} changes {k}" for k in ("environment", "random", "torch")]
    assert found["changed"] == [*said, f"{bad} prints 'hello\\n'"]
    assert found["cuda"] is False
    own = len(list((ROOT / "scripts" / "evidence").rglob("*.py"))) - 1  # without __main__
    files = len(list((ROOT / "fedvlm").rglob("*.py"))) + len(trainer_files())
    assert found["loaded"] == files + own + 1


def test_every_card_is_whole() -> None:
    for path in TRAINERS:
        text = card(path)
        parts = fields(text)
        missing = [field for field in CARD if not parts.get(field)]
        assert not missing, f"the card of {path.stem} lacks {missing} (it has {list(parts)})"
        name, colon, line = text.partition("\n")[0].partition(":")
        assert colon and line.strip(), path
        assert re.sub("[-_]", "", name).lower() == path.stem.replace("_", ""), path
        assert re.search(r"\b(19|20)\d\d\b", parts["Paper"]), path
