"""What an installation carries and needs; ``make wheel-test`` builds one and uses it."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from fedvlm.config.read import find_config
from fedvlm.core import repository
from fedvlm.core.version import __version__
from fedvlm.federation.cards import trainer_files

TOP = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((TOP / "pyproject.toml").read_text(encoding="utf-8"))["project"]
DISTRIBUTION = {
    "PIL": "pillow", "open_clip": "open-clip-torch", "sklearn": "scikit-learn", "yaml": "pyyaml",
}


def distribution(name: str) -> str:
    """Return the folded name of a requirement, or of a line of ``constraints.txt``."""
    return re.split(r"[^\w.-]", name)[0].lower().replace("_", "-")


def imports() -> Iterator[str]:
    """Yield the top-level names that the package and the trainers import, lazily or not."""
    for file in [*TOP.glob("fedvlm/**/*.py"), *TOP.glob("trainers/*.py")]:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                yield from (alias.name.partition(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                yield node.module.partition(".")[0]


def test_what_is_imported_is_declared_and_the_other_way_round() -> None:
    foreign = set(imports()) - sys.stdlib_module_names - {"fedvlm"}
    needed = {DISTRIBUTION.get(name, distribution(name)) for name in foreign}
    declared = {distribution(line) for line in PROJECT["dependencies"]}
    extras = [PROJECT["optional-dependencies"][extra]
              for extra in ("onnx", "pandas", "tune", "slurm", "dp", "flower")]
    optional = {distribution(line) for extra in extras for line in extra}
    brought = {"ipython", "cryptography", "httpx", "uvicorn"}  # by notebooks and by flwr
    assert needed - declared <= optional | brought
    assert declared - needed == set()


def test_hashed_constraints_are_the_same_pins_with_their_checksums() -> None:
    plain = dict(line.split("==") for line in (TOP / "constraints.txt").read_text().splitlines())
    pins = {distribution(name): version for name, version in plain.items()}
    text = (TOP / "constraints-hashes.txt").read_text(encoding="utf-8")
    assert "://" not in text  # no address of an index
    entries = re.findall(r"^([\w.-]+)==([\w.]+)[^\n]*?((?: \\\n +--hash=sha256:[0-9a-f]{64})+)$",
                         text, flags=re.MULTILINE)
    assert len(entries) == text.count("==") - text.count(" == ")
    assert {distribution(n): v for n, v, _ in entries}.items() <= pins.items()
    declared = {distribution(line) for line in PROJECT["dependencies"]}
    assert declared <= {distribution(name) for name, _, _ in entries}


def test_constraints_are_plain_pins_of_everything_declared() -> None:
    lines = (TOP / "constraints.txt").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if not re.fullmatch(r"[\w.-]+==[\w.]+", line)] == []
    names = [distribution(line) for line in lines]
    assert names == sorted(set(names), key=lambda name: name)
    declared = PROJECT["dependencies"] + [
        line for extra in ("dev", "docs", "onnx", "pandas")
        for line in PROJECT["optional-dependencies"][extra]
    ]
    assert {distribution(line) for line in declared} - set(names) == set()


def test_an_installed_copy_finds_its_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert repository.checkout() == TOP and repository.repository() == TOP
    package = tmp_path / "site-packages" / "fedvlm"
    for file in ("trainers/fedavg.py", "configs/trainers/fedavg.yaml"):
        (package / "_repo" / file).parent.mkdir(parents=True)
        (package / "_repo" / file).write_text("")
    (tmp_path / "site-packages" / "configs").mkdir()  # another package's
    monkeypatch.setattr(repository, "PACKAGE", package)
    monkeypatch.chdir(tmp_path)
    assert repository.checkout() is None
    assert trainer_files() == {"fedavg": package / "_repo" / "trainers" / "fedavg.py"}
    assert find_config("FedAvg", "trainers").is_relative_to(package / "_repo")


def test_one_version_everywhere() -> None:
    """The package, its metadata, the citation and the newest entry of the changelog agree."""
    changes = (TOP / "CHANGELOG.md").read_text(encoding="utf-8")
    (newest, date), *older = re.findall(r"^## (\S+) - (\d{4}-\d\d-\d\d)$", changes, re.MULTILINE)
    cited = yaml.safe_load((TOP / "CITATION.cff").read_text(encoding="utf-8"))
    assert PROJECT["version"] == __version__ == newest == str(cited["version"])
    assert str(cited["date-released"]) == date
    assert [one[0] for one in older] == ["0.1.0"]
    for section in re.split(r"^## ", changes, flags=re.MULTILINE)[1:]:
        first = re.findall(r"^### (.*)$", section, re.MULTILINE)[0]
        assert first.startswith("What move"), "numbers come first"


def test_commit_subjects_have_at_most_72_characters() -> None:
    """All since the rule was written down; a copy without that history has none to judge."""
    asked = ["git", "-C", str(TOP), "log", "--format=%h %s", "204b5e3a..HEAD"]
    try:
        log = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no git, or no commit 204b5e3a, here")
    assert not [line for line in log.splitlines() if len(line.partition(" ")[2]) > 72]
