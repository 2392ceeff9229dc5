"""Trainer files by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedvlm.federation.cards import trainer_files
from fedvlm.federation.discovery import own_modules


def test_another_projects_trainers_folder_hides_nothing(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "trainers").mkdir()
    (tmp_path / "trainers" / "coop.py").write_text("import dassl\n")
    monkeypatch.chdir(tmp_path)
    assert "fedtv" in trainer_files() and "coop" not in trainer_files()


def test_the_users_own_modules_that_a_file_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In turn, and where they are imported late; of a package what is named, and its ``__init__``.

    Installed packages, Python's own modules, fedvlm and files that nobody names do not count.
    """
    texts = {
        "mine.py": "import json, torch\nimport near, linked\nfrom fedvlm.method import Trainer\n"
                   "from trainers.fedavg import FedAvg\n\n\n"
                   f"def late():\n    from pack.deep import thing\n    from {'.' * 99} import no\n",
        "lib/near.py": "import mine, pack.side as side\n", "lib/pack/__init__.py": "",
        "lib/pack/side.py": "import gone\n", "lib/pack/deep.py": "from . import same\n",
        "lib/pack/same.py": "not Python", "lib/pack/unnamed.py": "", "lib/beside.py": "",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    site = tmp_path / "site-packages"
    site.mkdir()
    (site / "linked.py").symlink_to(tmp_path / "lib" / "beside.py")  # as some installers do
    for folder in (tmp_path, tmp_path / "lib", site):
        monkeypatch.syspath_prepend(folder)
    found = own_modules([tmp_path / "mine.py"])
    assert [path.relative_to(tmp_path / "lib").as_posix() for path in found] == [
        "near.py", "pack/__init__.py", "pack/deep.py", "pack/same.py", "pack/side.py"]
    shipped = trainer_files()
    assert own_modules([shipped["fedtv"], shipped["heart_pfl"]]) == []
