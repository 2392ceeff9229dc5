"""``docs/python.md`` is run as it stands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.jobs import REPOSITORY

PAGE = (REPOSITORY / "docs" / "python.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_every_block_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pandas")
    monkeypatch.chdir(tmp_path)
    found = re.findall(r"^```python\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    for block in found:
        exec(compile(block, "docs/python.md", "exec"), names)
    assert len(found) == 6 and names["done"].difference < 1e-5
    assert names["said"].probabilities.shape == (2, len(names["model"].classnames))
    assert (tmp_path / "model" / "run.py").is_file()
    assert names["run"].classnames == tuple(names["CLASSES"])
