"""Trainer files by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedvlm.federation.cards import trainer_files


def test_another_projects_trainers_folder_hides_nothing(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "trainers").mkdir()
    (tmp_path / "trainers" / "coop.py").write_text("import dassl\n")
    monkeypatch.chdir(tmp_path)
    assert "fedtv" in trainer_files() and "coop" not in trainer_files()
