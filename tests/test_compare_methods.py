"""scripts/compare_methods.py: cells, their results, what is done is not done again."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from fedvlm.federation.discovery import load_trainer, trainer_files

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "compare_methods.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("compare_methods", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def words(folder: Path, *more: str) -> list[str]:
    return ["--rounds", "1", "--seeds", "1", "--datasets", "shapes",
            "--output-dir", str(folder / "runs"), "--markdown", str(folder / "table.md"), *more]


def test_runs_a_cell_once_and_prints_its_numbers(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = words(tmp_path, "--trainers", "fedper")
    assert script.main(asked) == 0
    (path,) = (tmp_path / "runs").rglob("results.json")
    first = path.read_bytes()
    last = json.loads(first)["results"]["last"]
    table = (tmp_path / "table.md").read_text("utf-8")
    assert table.strip() in capsys.readouterr().out
    head, _, row = [
        [word.strip() for word in line.split("|")[1:-1]]
        for line in table.splitlines() if line.startswith("|")
    ]
    shown = dict(zip(head, row, strict=True))
    assert (shown["trainer"], shown["n"], shown["before FT"]) == ("FedPer", "1", "-")
    for column, key in {"personal": "personal", "worst client": "personal_worst",
                        "global": "global", "base_all": "base_all", "new": "new"}.items():
        assert shown[column] == f"{last[key]:.1f}"
    # up and down, 5 clients: only the adapter travels, 2 x 128 x 32 numbers of 4 bytes
    assert shown["kB/client-round"] == f"{2 * 2 * 128 * 32 * 4 / 1000:.1f}"
    assert script.main(asked) == 0
    assert "done  shapes FedPer seed 1" in capsys.readouterr().out
    assert path.read_bytes() == first


def test_dry_lists_all_trainers_and_runs_nothing(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert script.main(words(tmp_path, "--dry")) == 0
    lines = capsys.readouterr().out.splitlines()
    names = [load_trainer(stem).name for stem in trainer_files()]
    assert set(lines) == {f"to do  shapes {n} seed 1" for n in [*names, *script.VARIANTS]}
    assert not (tmp_path / "runs").exists()


def test_a_failed_cell_is_named_and_the_rest_goes_on(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken = {"Bad": ("--trainer", "./no_such_file.py:Bad"), "ZeroShot": ("--trainer", "ZeroShot")}
    monkeypatch.setattr(script, "methods", lambda wanted: broken)
    assert script.main(words(tmp_path)) == 1
    table = (tmp_path / "table.md").read_text("utf-8")
    assert "| ZeroShot" in table and "| Bad" not in table
    assert "failed: shapes Bad seed 1: exit code 2: " in table and "no_such_file.py" in table
    assert "missing" not in table


def test_spread_is_mean_and_sample_deviation(script: ModuleType) -> None:
    assert script.spread([1.0, 2.0, 3.0]) == "2.0 ± 1.0"
    assert script.spread([2.0]) == "2.0"
    assert script.spread([]) == "-"
    assert script.spread([1.0, float("nan")]) == "not finite"


def test_an_unknown_method_is_refused(script: ModuleType) -> None:
    with pytest.raises(script.ConfigError, match="FedPr.*FedPer"):
        script.methods(["FedPr"])
